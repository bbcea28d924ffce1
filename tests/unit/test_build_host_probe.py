"""roles/build_host/files/probe.py: what it makes of good and bad hosts, with an engine that is played by a socket."""

import http.server
import importlib.util
import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "roles/build_host/files/probe.py"
spec = importlib.util.spec_from_file_location("build_host_probe", FILE)
assert spec is not None
assert spec.loader is not None
probe: Any = importlib.util.module_from_spec(spec)
sys.modules["build_host_probe"] = probe
spec.loader.exec_module(probe)

INFO = {"ServerVersion": "20.10.24+dfsg1", "DockerRootDir": "/", "Runtimes": {"runc": {}}}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """engine(**info): URL of a socket that answers GET /info with INFO and `info`."""
    servers: list[socketserver.UnixStreamServer] = []

    def start(**info: Any) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/info" else 404)
                self.end_headers()
                self.wfile.write(json.dumps({**INFO, **info}).encode())

            def log_message(self, *_: Any) -> None:
                pass

            def address_string(self) -> str:
                return "socket"

        path = tmp_path / f"{len(servers)}.sock"
        servers.append(socketserver.UnixStreamServer(str(path), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"unix://{path}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """tools(*names): the programs that the host has; it starts with docker and dockerd."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(probe, "FOLDERS_OF_ROOT", "")

    def have(*names: str) -> None:
        for path in folder.iterdir():
            path.unlink()
        for name in names:
            (folder / name).touch(mode=0o755)

    have("docker", "dockerd")
    return have


def needs(url: str, **other: Any) -> dict[str, Any]:
    common = {"engine_url": url, "install_engine": False, "bootstrap": False, "min_engine_version": "20.10"}
    sizes = {
        "min_disk_gb": 0,
        "min_memory_gb": 0,
        "architecture": os.uname().machine,
        "gpu": False,
        "min_driver": "535",
    }
    return {**common, **sizes, **other}


def unfit(rows: list[Any]) -> list[str]:
    return [row.name for row in rows if not row.fit]


@pytest.mark.usefixtures("tools")
def test_fit_host(engine: Callable[..., str]) -> None:
    rows, missing = probe.examine(needs(engine()))
    assert (unfit(rows), missing) == ([], [])


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"min_disk_gb": 10**6}, "disk at /"),
        ({"min_memory_gb": 10**6}, "memory"),
        ({"architecture": "pdp11"}, "architecture"),
        ({"min_engine_version": "99.1"}, "engine"),
        ({"bootstrap": True}, "mmdebstrap"),
    ],
)
def test_each_lack_is_one_row(engine: Callable[..., str], other: dict[str, Any], name: str) -> None:
    rows, missing = probe.examine(needs(engine(), **other))
    assert (unfit(rows), missing) == ([name], [])


@pytest.mark.usefixtures("tools")
def test_all_lacks_are_told_at_once_each_with_a_remedy(engine: Callable[..., str]) -> None:
    rows, _ = probe.examine(needs(engine(), min_disk_gb=10**6, architecture="pdp11", gpu=True))
    lines = probe.table(rows).splitlines()
    assert unfit(rows) == ["architecture", "disk at /", "NVIDIA driver", "GPU runtime"]
    assert [line.split(": ")[0] for line in lines[-4:]] == unfit(rows)
    assert sum(line.endswith("  NOT") for line in lines) == 4
    assert lines[0].split() == ["what", "found", "needed"]


@pytest.mark.usefixtures("tools")
def test_gpu_host(engine: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n")
    monkeypatch.setattr(probe, "Path", lambda path: version if "nvidia" in path else Path(path))
    url = engine(Runtimes={"nvidia": {}, "runc": {}})
    assert unfit(probe.examine(needs(url, gpu=True))[0]) == []
    assert unfit(probe.examine(needs(url, gpu=True, min_driver="535.130"))[0]) == ["NVIDIA driver"]


def test_what_is_missing_is_set_up_only_where_that_is_allowed(tools: Callable[..., None], tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    assert probe.examine(needs(url))[1] == []
    assert probe.examine(needs(url, install_engine=True))[1] == ["running"]
    tools()
    assert probe.examine(needs(url, install_engine=True, bootstrap=True))[1] == [
        "engine",
        "running",
        "client",
        "mmdebstrap",
    ]


@pytest.mark.usefixtures("tools")
def test_setting_up_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    rows, missing = probe.examine(needs(f"unix://{tmp_path}/none.sock", install_engine=True))
    assert (unfit(rows), missing) == (["engine", "set up"], [])


@pytest.mark.usefixtures("tools")
def test_closed_socket_is_told_from_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(probe.Engine, "connect", refuse)
    rows, missing = probe.examine(needs("unix:///var/run/docker.sock", install_engine=True))
    assert rows[0].found.startswith("closed to uid")
    assert missing == []


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("url", ["tcp://10.0.0.1:2375", "ssh://host", "/var/run/docker.sock", "unix://relative"])
def test_only_sockets_are_engines(url: str) -> None:
    assert unfit(probe.examine(needs(url, install_engine=True))[0]) == ["engine"]


@pytest.mark.parametrize(
    ("version", "least", "expected"),
    [("20.10.24+dfsg1", "20.10", True), ("20.9.1", "20.10", False), ("100", "20.10", True), ("unknown", "1", False)],
)
def test_versions_are_compared_by_number(version: str, least: str, expected: bool) -> None:
    assert probe.at_least(version, least) is expected
