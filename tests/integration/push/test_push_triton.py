"""The real image: what a first push, the same again, and a change of the proxy alone send."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import docker
import pytest

from tests.fixtures.registry import Site

from .conftest import MB, ROOT, Pushed

NAME = f"push-test-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def build(client: docker.DockerClient) -> Iterator[Callable[..., str]]:
    """build(variables): the Triton image under a name of this test's own; all but the last stages come from the cache."""

    def run(**variables: str) -> str:
        extra = {"image_name": NAME, "image_model": "", **variables}
        line = [sys.executable, "runner.py", "build", "triton", "-e", json.dumps(extra)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return f"modelarts-engine/{NAME}:latest"

    yield run
    for each in client.images.list(f"modelarts-engine/{NAME}"):
        for tag in each.tags:
            if NAME in tag:
                client.api.remove_image(tag)


def test_a_change_of_the_proxy_sends_megabytes(
    build: Callable[..., str], push: Callable[..., Pushed], registry: Site, repository: str
) -> None:
    first = push(build(), "--tag", "1")
    assert first.code == 0, first.said
    sent = registry.proxy.seen.uploaded
    assert sent > 100 * MB

    again = push(f"modelarts-engine/{NAME}:latest", "--tag", "1", "--tag", "again")
    assert (again.code, again.result["bytes_pushed"]) == (0, 0)
    assert registry.proxy.seen.uploaded == sent

    changed = push(build(nginx_hardening_body_limit="12347k"), "--tag", "2")
    assert changed.code == 0, changed.said
    assert [layer["state"] for layer in changed.result["layers"]].count("pushed") == 1
    assert changed.result["bytes_pushed"] <= registry.proxy.seen.uploaded - sent <= 15 * MB
    assert registry.tags(repository) == ["1", "2", "again"]
    print(f"first {sent / MB:.1f} MB, again 0, proxy changed {(registry.proxy.seen.uploaded - sent) / MB:.1f} MB")
