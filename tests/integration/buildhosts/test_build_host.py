"""The role build_host: its verdict on this machine, and how it brings an engine to a bare one without an init."""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import docker
import pytest

from tests.bases import make_base
from tests.fixtures import nested

from .conftest import URL, Run

HERE = {"build_host_engine_url": URL}


@pytest.fixture
def bare(engine: docker.DockerClient) -> Iterator[Callable[..., Any]]:
    """bare(capabilities): a container of Debian and Python."""
    containers = []

    def start(capabilities: Iterable[str] = nested.MAY_RUN_CONTAINERS) -> Any:
        containers.append(
            engine.containers.run(
                make_base("debian"),
                ["sleep", "infinity"],
                name=f"modelarts-engine-bare-{uuid.uuid4().hex[:8]}",
                **nested.options(capabilities),
            )
        )
        return containers[-1]

    yield start
    for container in containers:
        container.remove(force=True, v=True)


def test_fit_host_is_left_alone_and_shown_in_one_table(apply: Callable[..., Run]) -> None:
    run = apply("build_host", HERE | {"build_host_min_disk_gb": 1, "build_host_min_memory_gb": 1})
    assert (run.code, run.changed) == (0, 0)
    assert len(re.findall("what +found +needed", run.text)) == 1
    assert " NOT" not in run.text


def test_everything_unfit_is_told_in_one_failure(apply: Callable[..., Run]) -> None:
    asked = {"build_host_min_disk_gb": 10**6, "build_host_architecture": "pdp11", "build_host_min_engine_version": "99"}
    run = apply("build_host", HERE | asked)
    assert run.code == 2
    assert len(run.failures) == 1
    for remedy in ("engine: Upgrade", "architecture: Build on", "or lower build_host_min_disk_gb"):
        assert remedy in run.text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"build_host_min_engine_version": "new"}, "build_host_min_engine_version is 'new'"),
        ({"build_host_min_disk_gb": -1}, "build_host_min_disk_gb is -1"),
        ({"build_host_min_disk_gb": "much"}, "build_host_min_disk_gb"),
        ({"build_host_engine_url": "tcp://127.0.0.1:2375"}, "names a socket on the build host"),
    ],
)
def test_bad_arguments_are_named(apply: Callable[..., Run], arguments: dict[str, Any], word: str) -> None:
    run = apply("build_host", HERE | arguments)
    assert (run.code, len(run.failures)) == (2, 1)
    assert word in run.text


def test_bare_host_gets_a_running_engine_and_keeps_it(apply: Callable[..., Run], bare: Callable[..., Any]) -> None:
    host = bare()
    assert "engine: Install it" in apply("build_host", {}, host.name).text
    allowed = {"build_host_install_engine": True, "build_host_bootstrap": True}
    assert apply("build_host", allowed, host.name, "--check").code == 0
    assert host.exec_run(["sh", "-c", "command -v dockerd"]).exit_code != 0

    first = apply("build_host", allowed, host.name)
    assert first.code == 0, first.text
    assert "mmdebstrap" in first.text
    code, output = host.exec_run(["docker", "version", "--format", "{{.Server.Version}}"])
    assert code == 0, output
    assert apply("build_host", allowed, host.name).changed == 0

    killed = host.exec_run(["sh", "-c", "kill -9 $(cat /var/run/docker.pid)"])
    assert killed.exit_code == 0
    again = apply("build_host", allowed, host.name)
    assert (again.code, again.changed) == (0, 1), again.text


def test_engine_that_cannot_start_is_reported_with_its_own_words(
    apply: Callable[..., Run], bare: Callable[..., Any]
) -> None:
    host = bare([])
    run = apply("build_host", {"build_host_install_engine": True}, host.name)
    assert (run.code, len(run.failures)) == (2, 1)
    assert "The end of /var/log/dockerd.log" in run.text
    assert "iptables" in run.text or "permission" in run.text or "not permitted" in run.text
