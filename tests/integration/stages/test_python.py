"""Bases without a Python that Ansible can use: one is borrowed for a stage, and nothing of it stays."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import docker
import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import engine, interpreter

from tests.bases import make_base

from .conftest import Workshop

MODULES = [
    {
        "name": "Make a group",
        "ansible.builtin.group": {"name": "alphas", "gid": 4321},
    },
    {
        "name": "Make a user",
        "ansible.builtin.user": {"name": "alpha", "uid": 4321, "group": "alphas", "create_home": False},
    },
    {
        "name": "Write a file as that user's",
        "ansible.builtin.copy": {"content": "x\n", "dest": "/etc/alpha", "mode": "0640", "owner": "alpha"},
    },
    {
        "name": "Look for libraries of the borrowed Python where they do not belong",
        "ansible.builtin.shell": {"cmd": "env | grep -c borrowed; test $? = 1"},
    },
]
INSTALLS = [
    {
        "name": "Install a Python",
        "ansible.builtin.shell": {
            "cmd": "apt-get -qq update && apt-get -qq install --no-install-recommends -y python3-minimal"
        },
    }
]


def older_sources() -> list[str]:
    """The build host's own Debian mirror, for the release that has Ubuntu 20.04's C library (2.31)."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    mirrors = [words[1] for line in done.stdout.splitlines() if (words := line.split())[0] == "Debian" and words[2] == "main"]  # fmt: skip
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    return [f"deb [signed-by={key}] {next(m for m in mirrors if 'security' not in m)} bullseye main"]


def test_a_stage_is_built_on_an_older_base_without_python(workshop: Workshop) -> None:
    """Released with Python 3.9 and a C library of 2020: modules run, and the layer knows nothing of Python."""
    workshop.role("alpha", MODULES)
    base = {
        "base_image_source": "bootstrap",
        "base_image_flavour": "debian",
        "base_image_suite": "bullseye",
        "base_image_mirrors": older_sources(),
        "base_image_python": False,
    }
    done = workshop.build([("only", ["alpha"])], base=base)
    assert done.returncode == 0, done.stdout + done.stderr
    image = workshop.result()["Id"]
    script = "id -u alpha; stat -c %U /etc/alpha; find / -xdev -iname '*python3*' -path '*[bl]i[nb]*'; dpkg -l | grep -ci python; true"
    said = workshop.client.containers.run(image, ["sh", "-c", script], entrypoint=[], user="0:0", remove=True)
    assert said.decode().split() == ["4321", "alpha", "0"]

    workshop.role("alpha", INSTALLS)
    done = workshop.build([("only", ["alpha"])], base=base)
    assert done.returncode != 0
    assert "left traces that do not belong in an image: /etc/python3" in done.stdout + done.stderr


@pytest.fixture(scope="session")
def debian() -> str:
    """The bare Debian that the suites share."""
    return make_base("debian")


@pytest.fixture
def base(client: docker.DockerClient, debian: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The bare Debian after a command."""
    name = f"{engine.REPOSITORY}/test-python:{uuid.uuid4().hex[:8]}"
    container = client.containers.run(debian, ["sh", "-c", request.param], entrypoint=[], detach=True)
    assert container.wait()["StatusCode"] == 0, container.logs().decode()
    container.commit(*name.split(":"))
    container.remove()
    yield name
    client.images.remove(name)


@pytest.fixture
def build(client: docker.DockerClient, base: str) -> Iterator[str]:
    name = f"test-python-{uuid.uuid4().hex[:8]}"
    engine.start(client, parent=base, name=name)
    yield name
    engine.remove(client, name)


OLD = "rm /usr/bin/python3 && printf '#!/bin/sh\\nexit 1\\n' >/usr/bin/python3 && chmod 755 /usr/bin/python3"


@pytest.mark.parametrize("base", ["true"], indirect=True, ids=["usable"])
def test_a_base_s_own_python_is_taken(client: docker.DockerClient, build: str) -> None:
    assert not interpreter.provide(client, build, "only", {})
    assert not interpreter.is_borrowed(client, build)
    assert engine.execute(client, build, ["readlink", interpreter.PATH])[1].strip() == "/usr/bin/python3"


@pytest.mark.parametrize("base", [OLD], indirect=True, ids=["old"])
def test_a_python_that_is_of_no_use_is_left_alone(client: docker.DockerClient, build: str) -> None:
    assert interpreter.provide(client, build, "only", {})
    assert interpreter.is_borrowed(client, build)
    assert engine.traces(client.api.diff(build) or [], interpreter.TRACES) == []
    code, said = engine.execute(client, build, [interpreter.PATH, "-c", "import ssl, sys; print(sys.prefix)"])
    assert (code, said.startswith(interpreter.BORROWED)) == (0, True), said


@pytest.mark.parametrize(
    ("base", "environment", "said"),
    [
        (f"{OLD}; rm /usr/bin/apt-get", {}, "no apt to borrow one with; take a base of Debian or Ubuntu, or one that has Python"),
        (OLD, {"http_proxy": "http://127.0.0.1:9"}, "none could be borrowed from its own package sources"),
        (f"{OLD}; rm -r /etc/apt/sources.list*", {}, "they have no Python from 3.8 to 3.13"),
    ],
    indirect=["base"],
    ids=["no apt", "no network", "no sources"],
)  # fmt: skip
def test_a_base_that_cannot_get_one_is_refused(
    client: docker.DockerClient, build: str, environment: dict[str, str], said: str
) -> None:
    with pytest.raises(
        engine.EngineError, match="the base of stage only has no Python that Ansible can use"
    ) as refused:
        interpreter.provide(client, build, "only", environment)
    assert said in str(refused.value)
