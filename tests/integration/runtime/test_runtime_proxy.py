"""The proxy between clients and the engine: contract C5 to C7 and C11, protocols, limits, and abuse."""

import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import Launch, Server, eventually, run

HEADERS = (
    "X-Frame-Options",
    "X-Content-Type-Options",
    "Strict-Transport-Security",
    "Content-Security-Policy",
    "Cache-Control",
    "X-Request-Id",
)
UNAVAILABLE = {
    "error_code": "ModelArts.4503",
    "error_msg": "Failed to connect to backend service, please confirm your service is connectable. ",
}


def test_health_is_the_platform_s_body(server: Server) -> None:
    answer = server.ask("GET", "/health")
    assert (answer.status, answer.body) == (200, b'{"health": "true"}')
    assert answer.headers["Content-Type"] == "application/json"


def test_health_is_truthful(launch: Launch) -> None:
    server = launch().wait_ready()
    server.ask("POST", "/toy/set?ready=0")
    answer = server.ask("GET", "/health")
    assert (answer.status, answer.json()) == (503, {"health": "false"})
    server.ask("POST", "/toy/set?ready=1")
    assert server.ask("GET", "/health").status == 200
    server.ask("POST", "/toy/set?hanging=1")
    began = time.monotonic()
    assert server.ask("GET", "/health").status == 503
    assert time.monotonic() - began < 5


def test_health_does_not_queue_behind_inference(server: Server) -> None:
    context = server.context()
    busy = [server.socket(context) for _ in range(80)]
    for connection in busy:
        connection.sendall(b"POST /toy/sleep?seconds=5 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    eventually("80 requests are in the engine", lambda: sum("sleep" in line for line in server.state()["seen"]) >= 80)
    began = time.monotonic()
    assert server.ask("GET", "/health").status == 200
    assert time.monotonic() - began < 2
    for connection in busy:
        connection.close()


def test_the_deep_probe_is_an_inference(launch: Launch, mount: Callable[..., Path], pki: Path) -> None:
    server = launch("strict", tls=mount(**{"client-ca.crt": "ca.pem"}), client_cert=pki / "client.pem").wait_ready()
    assert server.ask("GET", "/health", b"a body of the client's").status == 200
    assert server.state()["probe"] == 'POST {"inputs": [{"name": "x", "data": [1]}]}'


@pytest.mark.parametrize("path", ["/v2/models/m", "/health", "/v2/repository/index", "/toy/status?code=404"])
def test_every_answer_has_the_headers_once(server: Server, path: str) -> None:
    answer = server.ask("GET", path)
    for name in HEADERS:
        assert len(answer.headers.get_all(name) or []) == 1, name
    assert answer.headers["Server"] == "nginx"
    assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"


def test_an_engine_that_is_away_is_the_platform_s_error(launch: Launch) -> None:
    server = launch(start="sleep 99")
    answer = eventually("the proxy answers", lambda: server.ask("GET", "/v2/models/m"))
    assert (answer.status, answer.json()) == (503, UNAVAILABLE)
    assert answer.headers["Content-Type"] == "application/json"
    assert server.ask("GET", "/health").status == 503


def test_an_engine_s_own_error_passes_unless_told_otherwise(server: Server) -> None:
    answer = server.ask("GET", "/toy/status?code=503")
    assert (answer.status, answer.json()) == (503, {"error": "the engine's own words"})


@pytest.fixture(scope="module")
def strict(
    images: dict[str, str], engine: Any, model: Path, pki: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tls")
    folder.chmod(0o755)
    (folder / "client-ca.crt").write_bytes((pki / "ca.pem").read_bytes())
    volumes = {
        str(model): {"bind": "/home/mind/model", "mode": "ro"},
        str(folder): {"bind": "/etc/modelarts-engine/tls", "mode": "ro"},
    }
    container = run(engine, images["strict"], volumes)
    yield Server(container, pki / "client.pem").wait_ready()
    container.remove(force=True, v=True)


def test_a_slow_engine_is_the_platform_s_error_too(strict: Server) -> None:
    answer = strict.ask("POST", "/toy/sleep?seconds=4")
    assert (answer.status, answer.json()) == (503, UNAVAILABLE)
    answer = strict.ask("GET", "/toy/status?code=502")
    assert (answer.status, answer.json()) == (503, UNAVAILABLE)


def test_other_hosts_are_refused_when_hosts_are_listed(strict: Server, server: Server) -> None:
    assert strict.ask("GET", "/v2/models/m", headers={"Host": "other.example"}).status == 421
    assert strict.ask("GET", "/v2/models/m", headers={"Host": "MODEL.example"}).status == 200
    assert strict.ask("GET", "/health", headers={"Host": "10.0.0.1"}).status == 200
    assert server.ask("GET", "/v2/models/m", headers={"Host": "other.example"}).status == 200


def test_admin_surfaces_are_open_when_opened(strict: Server) -> None:
    assert strict.ask("POST", "/v2/repository/index").status == 200


def test_too_many_requests_are_told_so(strict: Server) -> None:
    connection = strict.connect()
    statuses = []
    for _ in range(60):
        connection.request("GET", "/v2/models/m")
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    assert set(statuses) == {200, 429}
    assert strict.ask("GET", "/health").status == 200


def test_json_is_compressed_when_asked(strict: Server) -> None:
    answer = eventually(
        "within the rate",
        lambda: (a := strict.ask("GET", "/v2/m", headers={"Accept-Encoding": "gzip"})).status == 200 and a,
    )
    assert answer.headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize("size", [0, 1, 200_000, 300_000, 4_000_000, 15 * 1024 * 1024])
def test_bodies_up_to_the_limit_arrive_whole(server: Server, size: int) -> None:
    body = os.urandom(size)
    answer = server.ask("POST", "/v2/models/m/infer", body)
    assert answer.status == 200
    assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("size", [300_000, 8_000_000])
def test_chunked_bodies_arrive_whole(server: Server, size: int) -> None:
    body = os.urandom(size)
    parts = (body[start : start + 70_000] for start in range(0, size, 70_000))
    answer = server.ask("POST", "/v2/models/m/infer", parts, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert answer.json()["sha256"] == hashlib.sha256(body).hexdigest()


def test_a_body_above_the_limit_is_refused_before_the_engine_sees_it(server: Server) -> None:
    seen = len(server.state()["seen"])
    with server.socket() as connection:
        connection.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 15728641\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with server.socket() as connection:
        connection.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(15):
            connection.sendall(chunk)
        connection.sendall(b"100000\r\nxxxx")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert len([line for line in server.state()["seen"][seen:] if "infer" in line]) == 0


def test_binary_tensors_and_request_ids_pass(server: Server) -> None:
    head = json.dumps({"inputs": [{"parameters": {"binary_data_size": 4}}]}).encode()
    headers = {
        "Inference-Header-Content-Length": str(len(head)),
        "Content-Type": "application/octet-stream",
        "X-Request-Id": "abc-1",
    }
    answer = server.ask("POST", "/v2/models/m/infer", head + b"\0\1\2\3", headers)
    assert answer.json()["headers"]["inference-header-content-length"] == str(len(head))
    assert answer.json()["headers"]["x-request-id"] == answer.headers["X-Request-Id"] == "abc-1"
    made = server.ask("GET", "/v2/models/m", headers={"X-Request-Id": 'forged" id'})
    assert made.headers["X-Request-Id"] != 'forged" id'


def test_expect_100_continue(server: Server) -> None:
    with server.socket() as connection:
        connection.sendall(
            b"POST /v2/m HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"hello")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    with server.socket() as connection:
        connection.sendall(
            b"POST /v2/m HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_stream_arrives_chunk_by_chunk(server: Server) -> None:
    connection = server.connect()
    connection.request("POST", "/v2/models/m/generate_stream?count=5&gap=0.3")
    response = connection.getresponse()
    delays = []
    while line := response.readline():
        if line.startswith(b"data: "):
            delays.append(time.time() - json.loads(line[6:])["sent"])
    assert len(delays) == 5
    assert max(delays) < 0.15  # gathered, the first would be 1.2 s late


def test_large_answers_arrive_whole(server: Server) -> None:
    assert len(server.ask("GET", "/toy/bytes?count=20000000").body) == 20_000_000


def test_a_websocket_is_passed_and_no_other_upgrade(server: Server) -> None:
    head = (
        b"GET /toy/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Key: eA==\r\n\r\n"
    )
    with server.socket() as connection:
        connection.sendall(head % b"websocket")
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        connection.sendall(b"there and back\n")
        assert connection.recv(4096) == b"there and back\n"
    with server.socket() as connection:
        connection.sendall(head % b"h2c")
        # Head and body may come apart: the proxy passes on what it gets.
        answer = b""
        while b"}" not in answer and (part := connection.recv(4096)):
            answer += part
        assert answer.endswith(b'{"upgrade": null}')


def test_a_client_that_leaves_ends_the_engine_s_work(server: Server) -> None:
    before = server.state()["aborted"]
    with server.socket() as connection:
        connection.sendall(
            b"POST /v2/models/m/generate_stream?count=1000&gap=0.05 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        )
        connection.recv(4096)
    eventually("the engine was told", lambda: server.state()["aborted"] == before + 1, 5)


def test_idle_engine_connections_end_before_the_engine_ends_them(server: Server) -> None:
    """The toy closes what is idle for 5 s; a request that meets such a connection at that moment would fail."""
    server.ask("POST", "/v2/models/m/infer", b"{}")
    before = server.state()["closed_idle"]
    listing = "awk '$3 ~ /:1F40$/ && $4 == \"01\"' /proc/net/tcp | wc -l"
    eventually("no connection is left", lambda: server.run("sh", "-c", listing).strip() == "0", 8)
    assert server.state()["closed_idle"] == before


def test_engine_connections_are_used_again(server: Server) -> None:
    before = server.state()["connections"]
    for _ in range(40):
        assert server.ask("POST", "/v2/models/m/infer", b"{}").status == 200
    assert server.state()["connections"] - before <= 4  # a worker's first, and one lost to its idle time each


def test_a_client_connection_is_kept(server: Server) -> None:
    connection = server.connect()
    for _ in range(1200):  # nginx 1.18 would end it after 100, later ones after 1000
        connection.request("GET", "/v2/models/m")
        response = connection.getresponse()
        response.read()
        assert not response.will_close


CLOSED = [
    "/v2/repository/index", "/v2/repository", "//v2//repository/index", "/v2/%72epository/index", "/v2/x/../repository/index", "/V2/Repository/index",
    "/v2/repository/index?x=/v2/models", "/v2/./repository/index", "/v2%2Frepository%2Findex", "/v2/trace/setting", "/v2/models/m/trace/setting",
    "/%76%32/repository/models/m/load", "/v2/models/%2e%2e/repository/index", "/.closing/v2/repository/index",
    "http://x/v2/repository/index", "https://x:8080//v2/%72epository/index", 
    "/v2/models/../../v2/repository/index", "/v2/repository/index%23", "/v2/repository/%20",
]  # fmt: skip


@pytest.mark.parametrize("path", CLOSED)
def test_closed_surfaces_stay_closed_however_they_are_spelled(server: Server, path: str) -> None:
    for method in ("GET", "POST", "PUT", "INVENTED"):
        answer = server.say(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        assert answer.split(b" ")[1] in (b"403", b"404"), path
    assert not any("epository" in line or "trace" in line for line in server.state()["seen"])


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ("/v2/models/a%20b?q=%20", "/v2/models/a%20b?q=%20"),
        ("/v2//models/%6d", "/v2/models/m"),
        ("/v2/models/%2576", "/v2/models/%2576"),
        ("/v2/models/m%3Fx", "/v2/models/m%3Fx"),
        ("/v2/x/../models/m", "/v2/models/m"),
        ("/v2/models/%E6%A8%A1", "/v2/models/%E6%A8%A1"),
    ],
)
def test_the_engine_gets_the_path_that_was_checked(server: Server, sent: str, got: str) -> None:
    answer = server.say(f"GET {sent} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["path"] == got


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2/smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n0\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT 127.0.0.1:8000 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: x\rTransfer-Encoding: chunked\r\n\r\nGET /v2/smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)
def test_malformed_requests_are_refused_and_smuggle_nothing(server: Server, request_: bytes) -> None:
    answer = server.say(request_)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501 ", b"<html>"))
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not any("smuggled" in line for line in server.state()["seen"])


@pytest.mark.parametrize("target", ["/v2/models/m", "/health", "/v2/repository/index", "/v2/models/m?chunked"])
def test_a_body_that_looks_like_a_request_stays_a_body(server: Server, target: str) -> None:
    body = b"GET /v2/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    length, sent = f"Content-Length: {len(body)}", body
    if target.endswith("chunked"):
        length, sent = "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = f"{'GET' if target == '/health' else 'POST'} {target} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n"
    last = b"GET /v2/last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert server.say(head.encode() + sent + last).count(b"HTTP/1.1 ") == 2
    assert not any("smuggled" in line for line in server.state()["seen"])


def test_a_refused_upgrade_is_no_tunnel(server: Server) -> None:
    """The engine answers 200 instead of 101; what follows is checked as any request."""
    upgrade = b"GET /v2/models/m HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    hidden = b"GET /v2/repository/hidden HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = server.say(upgrade + hidden)
    assert [part.split(b" ")[0] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"403"]
    assert not any("hidden" in line for line in server.state()["seen"])


def test_headers_up_to_64k_pass(server: Server) -> None:
    answer = server.ask("GET", "/v2/models/m", headers={"X-Large": "a" * 60_000})
    assert len(answer.json()["headers"]["x-large"]) == 60_000


def test_plain_http_and_broken_tls_are_answered_or_dropped(server: Server) -> None:
    for junk in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 64, b"\0" * 4096):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
            raw.recv(4096)
    assert server.ask("GET", "/health").status == 200


def test_proxy_and_supervisor_are_small(server: Server) -> None:
    assert resident(server, "nginx", "supervise", "bin/tls", "sleep") < 40_000


def test_a_thousand_connections_that_do_nothing_leave_room_and_memory(server: Server) -> None:
    """Idle ones, and such whose headers or bodies never end."""
    beginnings = (
        b"",
        b"GET /v2/never HTTP/1.1\r\nX-Slow: ",
        b"POST /v2/never HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n",
    )
    context = server.context()
    kept: list[ssl.SSLSocket] = []
    for number in range(1000):
        kept.append(server.socket(context))
        kept[-1].sendall(beginnings[number % 3])
    for connection in kept:
        connection.sendall(b"x" if connection is not kept[0] else b"")
    assert server.ask("GET", "/health").status == 200
    assert server.ask("POST", "/v2/models/m/infer", b"{}").status == 200
    assert not any("never" in line for line in server.state()["seen"])
    assert resident(server, "nginx") < 120_000
    for connection in kept:
        connection.close()


def resident(server: Server, *names: str) -> int:
    """Proportional resident memory in kB of the processes whose command line has one of `names` in it."""
    script = (
        'for p in /proc/[0-9]*; do tr "\\0" " " <$p/cmdline | grep -qE "$0" && grep -h ^Pss: $p/smaps_rollup; done 2>/dev/null | '
        "awk '{ s += $2 } END { print s }'"
    )
    return int(server.run("sh", "-c", script, "|".join(names)))


def test_access_logs_are_json_with_id_and_timing_and_no_query(launch: Launch) -> None:
    server = launch().wait_ready()
    path = '/v2/models/a"b\\c\n/infer'
    server.ask("POST", f"{quote(path)}?token=secret-in-query", b"{}", {"X-Request-Id": "find-me"})

    def output(**which: bool) -> list[str]:
        return server.container.logs(**{"stdout": False, "stderr": False, **which}).decode().splitlines()

    lines = eventually(
        "the request is logged", lambda: (found := output(stdout=True)) and "find-me" in found[-1] and found
    )
    records = [json.loads(line) for line in lines]
    assert records[-1]["path"] == path
    assert records[-1]["status"] == "200"
    assert float(records[-1]["engine"]) >= 0
    assert "secret-in-query" not in server.logs()
    assert not any(record["path"] == "/health" and record["status"] == "200" for record in records)
    assert not any("find-me" in line for line in output(stderr=True))


# Issues that gixy finds and that are meant so.
MEANT = {
    # Warns that the engine gets a decoded and normalized path. That is the point: it must be the path that was checked.
    "proxy_pass_normalized",
}


@pytest.mark.parametrize("kind", ["plain", "strict"])
def test_gixy_finds_nothing_in_the_rendered_configuration(
    images: dict[str, str], engine: Any, tmp_path: Path, kind: str
) -> None:
    conf = tmp_path / "nginx.conf"
    conf.write_bytes(engine.containers.run(images[kind], ["cat", "/etc/nginx/nginx.conf"], remove=True))
    gixy = [str(Path(sys.executable).parent / "gixy"), "-f", "json", str(conf)]
    done = subprocess.run(gixy, capture_output=True, text=True, check=False)
    assert {issue["plugin"] for issue in json.loads(done.stdout)} == MEANT, done.stdout


def test_errors_are_told_on_standard_error(launch: Launch) -> None:
    server = launch(start="sleep 99")
    eventually("the proxy answers", lambda: server.ask("GET", "/v2/models/m").status == 503)
    eventually("the reason is told", lambda: b"Connection refused" in server.container.logs(stdout=False, stderr=True))
    assert b"Connection refused" not in server.container.logs(stdout=True, stderr=False)


@pytest.fixture(scope="module", autouse=True)
def patience(engine: Any, images: dict[str, str], model: Path) -> Iterator["Patience"]:
    """What takes long: begun before all else, in a container of its own, and awaited by the last tests."""
    container = run(engine, images["plain"], {str(model): {"bind": "/home/mind/model", "mode": "ro"}})
    server = Server(container).wait_ready()
    kept: list[socket.socket] = [server.socket(timeout=90) for _ in range(3)]
    kept.append(socket.create_connection(("127.0.0.1", server.port), timeout=90))
    beginnings = {
        "long request": b"POST /toy/sleep?seconds=60 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "slow head": b"GET /v2/slow HTTP/1.1\r\nHost: x\r\n",
        "slow body": b"POST /v2/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhello",
        "slow handshake": b"\x16\x03\x01\x02\x00",
    }
    with ThreadPoolExecutor() as pool:
        answers = {}
        for connection, (name, beginning) in zip(kept, beginnings.items(), strict=True):
            connection.sendall(beginning)
            answers[name] = pool.submit(connection.recv, 4096)
        yield server, answers
        container.remove(force=True, v=True)
    for connection in kept:
        connection.close()


Patience = tuple[Server, dict[str, "Future[bytes]"]]


@pytest.mark.parametrize("what", ["slow head", "slow body", "slow handshake"])
def test_what_is_slow_is_cut(patience: Patience, what: str) -> None:
    server, answers = patience
    answer = answers[what].result(20)  # the client's time is 15 s
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")
    assert not any("slow" in line for line in server.state()["seen"])


def test_a_long_request_up_to_the_contract_s_limit(patience: Patience) -> None:
    assert patience[1]["long request"].result(80).startswith(b"HTTP/1.1 200 ")
