"""A registry with faults, SWR's management API, small images, and the command that pushes them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.fixtures.registry import Site, site
from tests.fixtures.swr import Swr

ROOT = Path(__file__).resolve().parents[3]
URL = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
REGION = "cn-test-1"
ACCESS_KEY, SECRET_KEY = f"AK{uuid.uuid4().hex[:18].upper()}", f"sk-{uuid.uuid4().hex}"
USER, PASSWORD = "pusher", f"pw-{uuid.uuid4().hex}"
MB = 1_000_000


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return docker.DockerClient(base_url=URL)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, client: docker.DockerClient) -> Iterator[Site]:
    from ansible_collections.modelarts.engine.plugins.module_utils import registry

    swr = registry.long_term_login(REGION, ACCESS_KEY, SECRET_KEY)
    users = {USER: PASSWORD, swr.username: swr.password}
    with site(tmp_path_factory.mktemp("registry"), client, users) as made:
        yield made


@pytest.fixture
def registry(running: Site) -> Iterator[Site]:
    """The registry without a fault; what a test breaks is whole again for the next."""
    running.proxy.reset()
    yield running
    running.proxy.released.set()


@pytest.fixture(scope="session")
def swr_running(running: Site) -> Iterator[Swr]:
    context = running.authority.server_context("127.0.0.1")
    with Swr("127.0.0.1", context, {ACCESS_KEY: SECRET_KEY}, running.proxy).running() as made:
        yield made


@pytest.fixture
def swr(swr_running: Swr, registry: Site) -> Swr:
    swr_running.reset()
    return swr_running


def archive(**files: bytes) -> bytes:
    """A tar archive."""
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return blob.getvalue()


@pytest.fixture
def image(client: docker.DockerClient) -> Iterator[Callable[..., str]]:
    """image(*sizes, base=None): an image with a layer of so many random bytes each, on a base; nothing of it is in any registry."""
    made: list[str] = []

    def make(*sizes: int, base: str | None = None) -> str:
        name = f"modelarts-engine/test-push:{uuid.uuid4().hex[:12]}"
        repository, _, tag = name.partition(":")
        for number, size in enumerate(sizes):
            if base is None:
                client.api.import_image_from_data(archive(first=os.urandom(size)), repository=repository, tag=tag)
            else:
                container = client.api.create_container(base, ["none"])["Id"]
                client.api.put_archive(container, "/", archive(**{f"layer{number}": os.urandom(size)}))
                client.api.commit(container, repository=repository, tag=tag)
                client.api.remove_container(container)
            base = name
        made.append(name)
        return name

    yield make
    for name in reversed(made):
        for tag in client.images.get(name).tags:
            client.api.remove_image(tag, force=True)


class Pushed:
    """What the command did: exit code, what it said, and its result."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.said = done.returncode, done.stdout, done.stderr
        self.result: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}


def command(registry: Site, image: str, *options: str, to: str) -> list[str]:
    """The command line of a push to this registry."""
    extra = {"swr_push_ca_bundle": registry.bundle, "build_host_engine_url": URL}
    line = [sys.executable, "runner.py", "push", image, "--to", f"{registry.host}/{to}", "-e", json.dumps(extra)]
    return [*line, *options]


PASSWORD_LOGIN = {"REGISTRY_USERNAME": USER, "REGISTRY_PASSWORD": PASSWORD}


def environment(**secrets: str) -> dict[str, str]:
    """This environment with no other credentials than these."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("REGISTRY_", "HUAWEICLOUD_"))}
    return {**kept, **secrets}


@pytest.fixture
def repository() -> str:
    """A repository that no other test uses."""
    return f"tests/r{uuid.uuid4().hex[:12]}"


@pytest.fixture
def push(registry: Site, repository: str) -> Callable[..., Pushed]:
    """push(image, *options, login=…): `runner.py push` to a repository of the test's own."""

    def run(image: str, *options: str, login: dict[str, str] | None = None, to: str = repository) -> Pushed:
        line = command(registry, image, *options, to=to)
        env = environment(**(PASSWORD_LOGIN if login is None else login))
        return Pushed(subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False))

    return run
