"""Key, certificate, passphrase and renewal: made at start or mounted, handed to nginx as often as it asks, changed while serving."""

import hashlib
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import CA_PATH, Launch, Load, Server, eventually

TLS = "/home/ma-user/.serving/tls"


def certificate(server: Server, pem: str | None = None) -> str:
    """The served certificate (or `pem`) as openssl prints it."""
    pem = pem or ssl.get_server_certificate(("127.0.0.1", server.port))
    return subprocess.run(
        ["openssl", "x509", "-noout", "-text"], input=pem, capture_output=True, text=True, check=True
    ).stdout


def test_the_certificate_names_where_it_runs_and_fits_mozilla_s_limits(server: Server) -> None:
    text = certificate(server)
    address = server.run("hostname", "-I").split()[0]
    for name in (
        "DNS:localhost",
        "IP Address:127.0.0.1",
        f"DNS:{server.run('hostname').strip()}",
        f"IP Address:{address}",
    ):
        assert name in text
    assert "ASN1 OID: prime256v1" in text
    assert re.search(r"Public Key Algorithm: id-ecPublicKey", text)
    began, ended = re.findall(r"Not (?:Before|After) ?: (.*)", text)
    days = (ssl.cert_time_to_seconds(ended) - ssl.cert_time_to_seconds(began)) / 86400
    assert days == 90
    assert "CA:FALSE" in text
    assert "TLS Web Server Authentication" in text


def test_two_containers_share_no_key(server: Server, launch: Launch) -> None:
    other = launch().wait_ready()
    assert server.run("cat", CA_PATH) != other.run("cat", CA_PATH)
    with pytest.raises(ssl.SSLCertVerificationError):
        other.socket(server.context())


def test_the_key_is_encrypted_and_its_passphrase_nowhere_but_in_memory(server: Server) -> None:
    pem = server.run("cat", f"{TLS}/server.pem")
    assert "BEGIN ENCRYPTED PRIVATE KEY" in pem
    assert "BEGIN PRIVATE KEY" not in pem
    assert server.run("find", "-L", "/home/ma-user/.serving", "-perm", "/077").strip() == ""
    passphrase = server.run("timeout", "5", "cat", f"{TLS}/passphrase").split()[0]
    assert len(passphrase) == 64
    files = 'grep -rlsF -e "$0" /home/ma-user /tmp /run /dev/shm /opt/modelarts-engine /etc --exclude=passphrase; true'
    processes = 'cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n" | grep -vxF "$0" | grep -cF "$0"; true'
    assert server.run("sh", "-c", files, passphrase).strip() == ""
    # The script that looks carries it as an argument of its own; that is the only line taken out above.
    assert server.run("sh", "-c", processes, passphrase).strip() == "0"
    assert "BEGIN" not in server.run("sh", "-c", f"cat {TLS}/current.ca | grep KEY || true")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_tls_versions_and_session_resumption(server: Server, version: ssl.TLSVersion) -> None:
    context = server.context()
    context.minimum_version = context.maximum_version = version
    reused = []
    session = None
    for _ in range(3):
        raw = socket.create_connection(("127.0.0.1", server.port))
        with context.wrap_socket(raw, server_hostname="localhost", session=session) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while connection.recv(4096):
                pass
            reused.append(connection.session_reused)
            session = connection.session
    assert reused == [False, True, True]


def test_old_versions_and_weak_ciphers_are_refused(server: Server) -> None:
    for options in (
        ["-tls1_1"],
        ["-tls1"],
        ["-tls1_2", "-cipher", "AES128-SHA:AES256-GCM-SHA384:ECDHE-ECDSA-AES128-SHA256:@SECLEVEL=0"],
    ):
        result = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", *options],
            input="",
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode != 0, options


@pytest.fixture(scope="session")
def sslyze() -> Path:
    """The command, in an environment of its own that is made once for each version of its lock files."""
    locks = [Path(__file__).parent / "sslyze" / name for name in ("build.txt", "requirements.txt")]
    key = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    home = Path(__file__).resolve().parents[3] / ".cache" / f"sslyze-{key}"
    if not (home / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [str(home / "bin/pip"), "install", "-qq", "--require-hashes", "--no-build-isolation", "-r"]
        for lock in locks:
            subprocess.run([*pip, str(lock)], check=True)
        (home / "complete").touch()
    return home / "bin/sslyze"


@pytest.mark.parametrize("kind", ["plain", "strict"])
def test_mozilla_s_intermediate_profile_is_met(
    sslyze: Path, launch: Launch, mount: Callable[..., Path], tmp_path: Path, kind: str
) -> None:
    """ECDSA, and RSA with client certificates. No public store knows a start-up CA; its own CA file is what validates the chain."""
    server = launch(kind, tls=mount(**{"client-ca.crt": "ca.pem"})).wait_ready()
    (tmp_path / "ca.crt").write_text(server.run("cat", CA_PATH))
    command = [str(sslyze), f"--certinfo_ca_file={tmp_path}/ca.crt", f"--json_out={tmp_path}/found.json"]
    command += ["--mozilla_config=intermediate", f"localhost:{server.port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "OK - Compliant" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())["server_scan_results"][0]["scan_result"]
    chain = found["certificate_info"]["result"]["certificate_deployments"][0]
    trusted = {
        each["trust_store"]["name"]: each["was_validation_successful"] for each in chain["path_validation_results"]
    }
    assert [name for name, is_trusted in trusted.items() if is_trusted] == ["Supplied CA file"]
    assert found["session_renegotiation"]["result"]["is_vulnerable_to_client_renegotiation_dos"] is False


def test_nginx_can_be_tested_by_several_at_once_reloaded_and_stopped_under_load(launch: Launch) -> None:
    server = launch(settings={"serving.env": {"DRAIN_SECONDS": 2}}).wait_ready()
    failed: list[str] = []

    def test() -> None:
        for _ in range(5):
            code, output = server.container.exec_run(["timeout", "10", "nginx", "-t"])
            if code != 0:
                failed.append(output.decode())

    with Load(server) as load:
        testers = [threading.Thread(target=test) for _ in range(2)]
        for tester in testers:
            tester.start()
        reload = ("timeout", "30", "/opt/modelarts-engine/bin/proxy", "reload")
        with ThreadPoolExecutor() as pool:  # the second begins while the first changes the workers
            first = pool.submit(server.run, *reload)
            load.stopped.wait(6)
            second = pool.submit(server.run, *reload)
            first.result()
            load.stopped.wait(1.5)  # the flag is looked for once a second
            assert (
                server.ask("GET", "/v2/models/m").headers["Connection"] == "close"
            )  # the end of the first is not that of the second
            second.result()
        for tester in testers:
            tester.join()
        assert load.count > 100
    assert load.failures == []
    assert failed == []
    server.container.kill("SIGTERM")
    assert server.wait_exit(10)[0] == 0


def test_every_one_of_many_readers_at_once_gets_the_passphrase(server: Server) -> None:
    readers = f'for n in $(seq 60); do timeout 10 cat "{TLS}/passphrase" & done; wait'
    answers = server.run("sh", "-c", readers).split()
    assert len(answers) == 60
    assert len(set(answers)) == 1


def test_a_certificate_near_its_end_is_renewed_without_a_failed_request(launch: Launch) -> None:
    server = launch(settings={"tls.env": {"CHECK_SECONDS": 1, "RENEW_DAYS": 400}}).wait_ready()
    serials = set()
    with Load(server) as load:
        for _ in range(2):
            before = certificate(server)
            eventually("another certificate is served", lambda before=before: certificate(server) != before, 30)
            serials.add(certificate(server))
            assert server.run("/opt/modelarts-engine/bin/healthcheck").strip() == "healthy"
    assert len(serials) == 2
    assert load.count > 100
    assert load.failures == []
    assert "certificate renewed" in server.logs()


Mount = Callable[..., Path]


@pytest.mark.parametrize("key", [{"tls.key": "server.key"}, {"tls.key": "locked.key", "passphrase": "open sesame\n"}])
def test_a_mounted_pair_is_used_and_a_new_one_taken_over(
    launch: Launch, mount: Mount, pki: Path, key: dict[str, str]
) -> None:
    folder = mount(**{"tls.crt": "server.crt", **key})
    server = launch(tls=folder, settings={"tls.env": {"CHECK_SECONDS": 1}})
    context = ssl.create_default_context(cafile=str(pki / "ca.pem"))

    def subject() -> str:
        with server.socket(context) as connection:
            return str(connection.getpeercert())

    eventually("the mounted certificate is served", lambda: "'server'" in subject())
    eventually("healthy", lambda: server.run("/opt/modelarts-engine/bin/healthcheck", check=False).strip() == "healthy")
    assert "BEGIN ENCRYPTED PRIVATE KEY" in server.run("cat", f"{TLS}/server.pem")
    for name in folder.iterdir():
        name.unlink()
    mount(**{"tls.crt": "other.crt", "tls.key": "other.key"})
    eventually("the new certificate is served", lambda: "'other'" in subject())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tls.crt": "server.crt"}, "needs both tls.crt and tls.key"),
        ({"tls.crt": "server.crt", "tls.key": "other.key"}, "tls.key does not belong to"),
        ({"tls.crt": "expired.crt", "tls.key": "server.key"}, "has expired"),
        ({"tls.crt": "nonsense", "tls.key": "server.key"}, "is not a PEM certificate"),
        ({"tls.crt": "server.crt", "tls.key": "nonsense"}, "tls.key cannot be read"),
        ({"tls.crt": "server.crt", "tls.key": "locked.key"}, "passphrase is missing or wrong"),
        (
            {"tls.crt": "server.crt", "tls.key": "locked.key", "passphrase": "open barley"},
            "passphrase is missing or wrong",
        ),
    ],
)
def test_a_bad_mount_is_refused_with_the_reason(
    launch: Launch, mount: Mount, files: dict[str, str], words: str
) -> None:
    server = launch(tls=mount(**files))
    exit_code, seconds = server.wait_exit(10)
    assert exit_code != 0
    assert words in server.logs()
    assert seconds <= 5


def test_mutual_tls_with_revocation_and_an_open_health(launch: Launch, mount: Mount, pki: Path) -> None:
    server = launch("strict", tls=mount(**{"client-ca.crt": "ca.pem", "crl.pem": "crl.pem"})).wait_ready()
    assert "rsaEncryption" in certificate(server)
    assert "DNS:model.example" in certificate(server)
    assert "IP Address:192.0.2.7" in certificate(server)
    assert server.ask("GET", "/v2/models/m").status == 400
    assert server.ask("GET", "/health").status == 200
    server.client_cert = pki / "client.pem"
    assert server.ask("GET", "/v2/models/m").status == 200
    server.client_cert = pki / "revoked.pem"
    assert server.ask("GET", "/v2/models/m").status == 400


def test_mutual_tls_without_a_client_ca_is_refused(launch: Launch) -> None:
    server = launch("strict")
    exit_code, _ = server.wait_exit(10)
    assert exit_code != 0
    assert "client-ca.crt" in server.logs()
