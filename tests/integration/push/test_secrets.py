"""Planted credentials are found nowhere after a push that has been watched all the time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from tests.fixtures.registry import Site
from tests.fixtures.swr import Swr

from .conftest import ACCESS_KEY, MB, PASSWORD, PASSWORD_LOGIN, REGION, ROOT, SECRET_KEY, command, environment

# Where a push writes, or might.
PLACES = [
    ROOT / ".cache/runs",
    Path("/dev/shm"),
    Path(tempfile.gettempdir()),
    Path.home() / ".docker",
    Path.home() / ".ansible",
]
LOGS = [Path("/var/log/dockerd.log")]
TOKEN = f"token-{uuid.uuid4().hex}"


class Watch:
    """Samples the command lines of all processes, and the files that are there for a moment only."""

    def __init__(self, words: Callable[[], list[str]], ours: Path) -> None:
        self._words = words
        self._ours = ours
        self.hits: set[str] = set()
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            words = [word.encode() for word in self._words()]
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:
                    continue
                self.hits |= {line.decode(errors="replace") for word in words if word in line}
            for path in (*Path("/dev/shm").rglob("*"), *(Path.home() / ".docker").rglob("*")):
                self.hits |= found(path, words)
            self.samples += 1


def found(path: Path, words: list[bytes]) -> set[str]:
    """The path, if the file has one of the words."""
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError:
        return set()
    return {str(path)} if any(word in content for word in words) else set()


def files(since: float, ours: Path) -> Iterator[Path]:
    """Files that were written since, but not those of the test's own registry."""
    for place in PLACES:
        for folder, folders, names in os.walk(place):
            folders[:] = [name for name in folders if Path(folder, name) != ours]
            for name in names:
                path = Path(folder, name)
                try:
                    if path.stat().st_mtime >= since:
                        yield path
                except OSError:
                    continue


def of_image(client: docker.DockerClient, name: str, folder: Path) -> bytes:
    """History, configuration and layers of an image."""
    path = folder / "image.tar"
    with path.open("wb") as file:
        for piece in client.images.get(name).save():
            file.write(piece)
    about = json.dumps([client.api.history(name), client.api.inspect_image(name)]).encode()
    return about + path.read_bytes()


@pytest.mark.parametrize("kind", ["password", "long_term", "temporary"])
@pytest.mark.parametrize("fate", ["arrives", "fails"])
def test_planted_credentials_are_nowhere(
    kind: str,
    fate: str,
    image: Callable[..., str],
    registry: Site,
    swr: Swr,
    repository: str,
    client: docker.DockerClient,
    tmp_path: Path,
) -> None:
    login = PASSWORD_LOGIN
    if kind != "password":
        login = {"HUAWEICLOUD_SDK_AK": ACCESS_KEY, "HUAWEICLOUD_SDK_SK": SECRET_KEY, "HUAWEICLOUD_SDK_PROJECT_ID": "p1"}
    if kind == "temporary":
        swr.security_token = TOKEN
        login = {**login, "HUAWEICLOUD_SDK_SECURITY_TOKEN": TOKEN}
    from ansible_collections.modelarts.engine.plugins.module_utils import registry as logins

    def words() -> list[str]:
        made = logins.long_term_login(REGION, ACCESS_KEY, SECRET_KEY).password
        return [PASSWORD, ACCESS_KEY, SECRET_KEY, TOKEN, made, *swr.given]

    name = image(2 * MB)
    registry.proxy.faults.rate = MB
    if fate == "fails":
        registry.proxy.faults.denied = True
    extra = {"swr_push_region": REGION, "swr_push_api_url": f"https://{swr.host}"}
    options = ["--tag", "1", "-e", json.dumps(extra), "--output", str(tmp_path / "result.json")]
    options += ["--create"] if kind != "password" else []
    started = time.time() - 1
    with Watch(words, registry.registry.folder) as watch:
        done = subprocess.run(
            command(registry, name, *options, to=repository),
            cwd=ROOT,
            env=environment(**login),
            capture_output=True,
            check=False,
        )
    assert done.returncode == (0 if fate == "arrives" else 1), done.stderr.decode()
    planted = [word.encode() for word in words()]
    assert kind != "temporary" or len(planted) > 5
    assert watch.samples > 20
    assert watch.hits == set()
    assert [path for path in files(started, registry.registry.folder) if found(path, planted)] == []
    assert [str(path) for path in LOGS if found(path, planted)] == []
    everything = done.stdout + done.stderr + of_image(client, name, tmp_path)
    assert [word for word in planted if word in everything] == []
    config = Path.home() / ".docker/config.json"
    assert registry.host not in (config.read_text() if config.exists() else "")
