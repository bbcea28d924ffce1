"""Pushing to a real registry over verified TLS: what arrives, what travels, and what a user is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import docker

from tests.fixtures.registry import Site

from .conftest import MB, Pushed

SCHEMA2 = "application/vnd.docker.distribution.manifest.v2+json"


def test_it_arrives_and_the_result_names_it_by_digest(
    push: Callable[..., Pushed],
    image: Callable[..., str],
    registry: Site,
    repository: str,
    client: docker.DockerClient,
    tmp_path: Path,
) -> None:
    name = image(2 * MB, 3 * MB)
    pushed = push(name, "--tag", "1.4.0", "--tag", "latest", "--output", str(tmp_path / "result.json"))
    assert pushed.code == 0, pushed.said
    assert registry.tags(repository) == ["1.4.0", "latest"]
    answer = registry.get(f"/v2/{repository}/manifests/1.4.0", Accept=SCHEMA2)
    digest = answer.headers["Docker-Content-Digest"]
    assert answer.json()["config"]["digest"] == client.images.get(name).id
    result = pushed.result
    assert result["reference"] == f"{registry.host}/{repository}@{digest}"
    assert result["tags"] == {"1.4.0": digest, "latest": digest}
    assert result["media_type"] == SCHEMA2
    assert [layer["state"] for layer in result["layers"]] == ["pushed", "pushed"]
    assert [layer["digest"] for layer in result["layers"]] == [e["digest"] for e in answer.json()["layers"]]
    assert 5 * MB < result["bytes_pushed"] <= registry.proxy.seen.uploaded < 5.1 * MB
    assert json.loads((tmp_path / "result.json").read_text()) == result


def test_pushed_again_nothing_travels(
    push: Callable[..., Pushed], image: Callable[..., str], registry: Site, client: docker.DockerClient
) -> None:
    name = image(2 * MB, MB)
    assert push(name, "--tag", "1").code == 0
    registry.proxy.reset()
    again = push(name, "--tag", "1")
    more = push(name, "--tag", "1", "--tag", "2")
    assert (again.code, again.result["changed"], again.result["bytes_pushed"]) == (0, False, 0)
    assert (more.code, more.result["changed"], more.result["bytes_pushed"]) == (0, True, 0)
    assert registry.proxy.seen.uploaded == 0
    assert [tag for tag in client.images.get(name).tags if registry.host in tag] == []


def test_only_the_missing_layer_travels(push: Callable[..., Pushed], image: Callable[..., str], registry: Site) -> None:
    base = image(6 * MB)
    assert push(base, "--tag", "1").code == 0
    registry.proxy.reset()
    pushed = push(image(MB, base=base), "--tag", "2")
    assert [layer["state"] for layer in pushed.result["layers"]] == ["exists", "pushed"]
    assert MB < registry.proxy.seen.uploaded < 1.1 * MB
