"""Images whose engine is the toy of tests/fixtures, and containers of them run as the platform would."""

import hashlib
import http.client
import json
import os
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.bases import base_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SOURCES = [
    ROOT / "roles" / role for role in ("ma_user", "tls_bootstrap", "nginx_hardening", "serving_init", "base_image")
]
CA_PATH = "/home/ma-user/.serving/tls/ca.crt"
ETC = "/opt/modelarts-engine/etc"


def eventually(what: str, test: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Returns the first truthy value of `test`; fails with `what` after `seconds`. Refused and broken connections count as not yet."""
    end = time.monotonic() + seconds
    problem: object = None
    while time.monotonic() < end:
        try:
            if value := test():
                return value
        except (OSError, http.client.HTTPException) as error:
            problem = error
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what} ({problem})")


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """A running container; requests go to its port on loopback, its certificate verified."""

    def __init__(self, container: Any, client_cert: Path | None = None) -> None:
        self.container = container
        self.client_cert = client_cert
        self._port = 0

    @property
    def port(self) -> int:
        if not self._port:
            self.container.reload()
            bindings = self.container.ports.get("8080/tcp")
            if not bindings:
                raise ConnectionRefusedError("no port published yet")
            self._port = int(bindings[0]["HostPort"])
        return self._port

    def run(self, *command: str, check: bool = True) -> str:
        code, output = self.container.exec_run(list(command))
        assert code == 0 or not check, output.decode()
        text: str = output.decode()
        return text

    def logs(self) -> str:
        text: str = self.container.logs().decode()
        return text

    def context(self) -> ssl.SSLContext:
        code, pem = self.container.exec_run(["cat", CA_PATH])
        if code != 0:
            raise ConnectionRefusedError("no CA certificate yet")
        context = ssl.create_default_context(cadata=pem.decode())
        if self.client_cert:
            context.load_cert_chain(self.client_cert)
        return context

    def connect(self, timeout: float = 20.0) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=self.context())
        connection.connect()
        return connection

    def socket(self, context: ssl.SSLContext | None = None, timeout: float = 20.0) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        return (context or self.context()).wrap_socket(raw, server_hostname="localhost")

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {}, **more)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def say(self, request: bytes, timeout: float = 20.0) -> bytes:
        """Sends bytes as they are and returns all that comes back until the server closes."""
        with self.socket(timeout=timeout) as connection:
            connection.sendall(request)
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer

    def state(self) -> dict[str, Any]:
        document: dict[str, Any] = self.ask("GET", "/toy/state").json()
        return document

    def pid(self, name: str) -> int:
        """Process id, as the engine's host counts, of the first process whose command line holds `name`."""
        rows = self.container.top(ps_args="-eo pid,args")["Processes"]
        return int(next(row[0] for row in rows if name in row[1]))

    def wait_ready(self) -> "Server":
        eventually("the container is healthy", self._ready, 30)
        return self

    def _ready(self) -> bool:
        self.container.reload()
        assert self.container.status in ("created", "running"), self.logs()
        return self.ask("GET", "/health").status == 200

    def wait_exit(self, seconds: float) -> tuple[int, float]:
        """Exit code and seconds until it was there."""
        began = time.monotonic()

        def state() -> Any:
            self.container.reload()
            return self.container.attrs["State"] if self.container.status == "exited" else None

        return int(eventually("the container has exited", state, seconds)["ExitCode"]), time.monotonic() - began


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    return docker.from_env()


def play(playbook: Path, inventory: dict[str, Any], *arguments: str) -> None:
    command = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert command
    path = Path(os.environ["RUNTIME_TMP"]) / "inventory.json"
    path.write_text(json.dumps(inventory))
    result = subprocess.run(
        [command, "-i", str(path), str(playbook), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


@pytest.fixture(scope="session")
def images(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Names of the images "plain" and "strict" (see converge.yml); made anew when a source of theirs has changed.

    RUNTIME_TEST_IMAGES=NAME:TAG uses NAME:TAG-plain and NAME:TAG-strict as they are.
    """
    if given := os.environ.get("RUNTIME_TEST_IMAGES"):
        return {kind: f"{given}-{kind}" for kind in ("plain", "strict")}
    files = sorted(
        path
        for source in [*SOURCES, HERE.parents[1] / "fixtures/toy_engine.py", HERE / "converge.yml"]
        for path in ([source] if source.is_file() else source.rglob("*"))
        if path.is_file() and path.suffix != ".md"
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    key = digest.hexdigest()[:12]
    names = {kind: f"modelarts-engine/runtime-test:{key}-{kind}" for kind in ("plain", "strict")}
    have = {tag for image in engine.images.list("modelarts-engine/runtime-test") for tag in image.tags}
    if set(names.values()) <= have:
        return names
    os.environ["RUNTIME_TMP"] = str(tmp_path_factory.mktemp("play"))
    hosts = {
        f"runtime-{key}-{kind}": {
            "ansible_connection": "community.docker.docker_api",
            "ansible_user": "root",
            "ansible_remote_tmp": "/tmp/.ansible",
        }
        for kind in names
    }
    try:
        play(
            HERE / "converge.yml",
            {"runtime": {"hosts": hosts}},
            "-e",
            f"runtime_base={base_name('debian')}",
        )
        for kind in names:
            engine.containers.get(f"runtime-{key}-{kind}").commit(
                "modelarts-engine/runtime-test",
                f"{key}-{kind}",
                conf={"User": "1000:100", "Cmd": ["sh", "/home/mind/run.sh"]},
            )
    finally:
        for name in hosts:
            for container in engine.containers.list(all=True, ignore_removed=True, filters={"name": name}):
                container.remove(force=True, v=True)
    return names


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    folder.chmod(0o755)
    (folder / "weights").write_text("42")
    return folder


def run(engine: docker.DockerClient, image: str, volumes: dict[str, dict[str, str]], **options: Any) -> Any:
    """A container started as the platform does, with no more than it gives."""
    platform = {
        "user": "1000:100",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "tmpfs": {"/tmp": "", "/run": "", "/home/ma-user": ""},
        "shm_size": "64m",
        "ports": {"8080/tcp": ("127.0.0.1", None)},
    }
    return engine.containers.run(image, detach=True, volumes=volumes, **{**platform, **options})


Launch = Callable[..., Server]


@pytest.fixture
def launch(engine: docker.DockerClient, images: dict[str, str], model: Path, tmp_path: Path) -> Iterator[Launch]:
    """Starts a container as the platform does: launch(kind="plain", settings={"tls.env": {...}}, tls=folder, start="command", **docker)."""
    started: list[Any] = []

    def launch(
        kind: str = "plain",
        settings: dict[str, dict[str, object]] | None = None,
        tls: Path | None = None,
        model: Path | None = model,
        client_cert: Path | None = None,
        start: str = "",
        **options: Any,
    ) -> Server:
        volumes = dict(options.pop("volumes", {}))
        if start:
            script = tmp_path / f"{len(started)}-start"
            script.write_text(f"#!/bin/sh\nexec {start}\n")
            script.chmod(0o755)
            volumes[str(script)] = {"bind": "/opt/modelarts-engine/bin/start", "mode": "ro"}
        for name, values in (settings or {}).items():
            current = engine.containers.run(images[kind], ["cat", f"{ETC}/{name}"], remove=True).decode()
            path = tmp_path / f"{len(started)}-{name}"
            path.write_text(current + "".join(f"{key}={value}\n" for key, value in values.items()))
            path.chmod(0o644)
            volumes[str(path)] = {"bind": f"{ETC}/{name}", "mode": "ro"}
        if tls:
            volumes[str(tls)] = {"bind": "/etc/modelarts-engine/tls", "mode": "ro"}
        if model:
            volumes[str(model)] = {"bind": "/home/mind/model", "mode": "ro"}
        container = run(engine, images[kind], volumes, **options)
        started.append(container)
        return Server(container, client_cert)

    yield launch
    for container in started:
        container.remove(force=True, v=True)


@pytest.fixture(scope="module")
def server(engine: docker.DockerClient, images: dict[str, str], model: Path) -> Iterator[Server]:
    """One container with the defaults, for tests that leave it as it was."""
    container = run(engine, images["plain"], {str(model): {"bind": "/home/mind/model", "mode": "ro"}})
    yield Server(container).wait_ready()
    container.remove(force=True, v=True)


EVENTS = 10
MIXED = ("unary", "unary", "unary", "binary", "binary", "stream", "stream", "large")


class Load:
    """Steady traffic over keep-alive connections, until stopped; `failures` says what was not answered with 200, whole and right.

    A connection the server has announced to end is opened anew; nothing is tried twice. Answers that take long may have been begun
    before their connection's end could be announced: after these, as pooling clients do, a connection the server has closed is not
    used again.

    :param kinds: one connection each: "unary" (JSON), "binary" (a tensor after JSON), "large" (4 MB), "stream" (half a second).
    """

    def __init__(self, server: Server, kinds: tuple[str, ...] = ("unary",) * 8) -> None:
        self.server, self.stopped = server, threading.Event()
        self.counts = dict.fromkeys(kinds, 0)
        self.failures: list[str] = []
        self.context = server.context()
        self.threads = [threading.Thread(target=self._one, args=(kind,), daemon=True) for kind in kinds]

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive(), "a request of the load hangs"

    def _open(self) -> http.client.HTTPSConnection:
        """A new connection; the CA certificate is read again when the one at hand does not fit any more (a renewal brings a new one)."""
        for last in (False, True):
            connection = http.client.HTTPSConnection("localhost", self.server.port, timeout=15, context=self.context)
            try:
                connection.connect()
                break
            except ssl.SSLCertVerificationError:
                if last:
                    raise
                self.context = self.server.context()
        return connection

    @staticmethod
    def _request(kind: str) -> tuple[str, bytes, dict[str, str]]:
        if kind == "stream":
            return f"/v2/models/m/generate_stream?count={EVENTS}&gap=0.05", b"{}", {}
        if kind == "unary":
            return "/v2/models/m/infer", os.urandom(16).hex().encode(), {}
        head, tensor = b'{"inputs": []}', os.urandom(4 << 20 if kind == "large" else 3000)
        return "/v2/models/m/infer", head + tensor, {"Inference-Header-Content-Length": str(len(head))}

    @staticmethod
    def _whole(kind: str, body: bytes, answer: bytes) -> bool:
        if kind == "stream":
            return answer.count(b"data: ") == EVENTS
        return bool(json.loads(answer)["sha256"] == hashlib.sha256(body).hexdigest())

    def _one(self, kind: str) -> None:
        connection: http.client.HTTPSConnection | None = None
        while not self.stopped.is_set():
            path, body, headers = self._request(kind)
            began = time.time()
            try:
                if connection is None or connection.sock is None:
                    connection = self._open()
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                answer = response.read()
                if response.status != http.HTTPStatus.OK or not self._whole(kind, body, answer):
                    self.failures.append(f"{kind}: {response.status} {answer[:200]!r}")
                self.counts[kind] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{kind}, begun {time.time() - began:.2f} s before {time.time():.2f}: {error!r}")
                connection = None
            self.stopped.wait(0.01)
            if (
                kind in ("stream", "large")
                and connection
                and connection.sock
                and select.select([connection.sock], [], [], 0)[0]
            ):
                connection.close()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA (ca.pem), pairs server.*, other.*, expired.*, client.pem, revoked.pem, crl.pem; made with the openssl command."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        result = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-days", "30", "-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    (folder / "ca.cnf").write_text(
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ncertificate=ca.pem\nprivate_key=ca.key\n"
        "default_md=sha256\ndefault_crl_days=30\n"
    )
    (folder / "index").write_text("")
    for number, name in enumerate(("server", "other", "client", "revoked"), 1):
        openssl("req", *curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-set_serial",
            str(number),
            "-days",
            "20",
            "-extfile",
            "names",
            "-out",
            f"{name}.crt",
        )
        (folder / f"{name}.pem").write_text((folder / f"{name}.crt").read_text() + (folder / f"{name}.key").read_text())
    openssl(
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-set_serial",
        "9",
        "-days",
        "-1",
        "-out",
        "expired.crt",
    )
    openssl("ec", "-in", "server.key", "-aes256", "-passout", "pass:open sesame", "-out", "locked.key")
    openssl("ca", "-config", "ca.cnf", "-revoke", "revoked.crt")
    openssl("ca", "-config", "ca.cnf", "-gencrl", "-out", "crl.pem")
    return folder


@pytest.fixture
def mount(tmp_path: Path, pki: Path) -> Callable[..., Path]:
    """mount(**{"tls.crt": "server.crt"}): a folder of copies out of `pki` (text where no such file is), readable for the container."""

    def make(**files: str) -> Path:
        folder = tmp_path / "tls"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        for name, source in files.items():
            target = folder / name
            target.write_text((pki / source).read_text() if (pki / source).is_file() else source)
            target.chmod(0o644)
        return folder

    return make
