"""`cache ls` and `cache prune` of the repository that build hosts share, on a real registry: what goes, what stays, and what a build makes of it."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from ansible_collections.modelarts.engine.plugins.module_utils.cache import Cache
from ansible_collections.modelarts.engine.plugins.module_utils.registry import SCHEMA2

from .conftest import (
    CONTROLLER,
    CONTROLLER_PASSWORD,
    Rack,
    RemoteWorkshop,
    Stages,
    built,
    put,
    registry_config,
    wait_until,
)

SHIFT = datetime.timedelta(days=40)


class Repository:
    """The cache's repository, asked past everything that is under test."""

    def __init__(self, rack: Rack) -> None:
        self._url = f"https://{rack.site}/v2/rack/cache"
        self._options: Any = {
            "auth": (CONTROLLER, CONTROLLER_PASSWORD),
            "verify": str(rack.folder / "ca.crt"),
            "timeout": 30,
        }

    def get(self, path: str) -> requests.Response:
        return requests.get(self._url + path, headers={"Accept": SCHEMA2}, **self._options)

    def tags(self) -> set[str]:
        return set(self.get("/tags/list").json().get("tags") or [])

    def entries(self) -> set[str]:
        return {tag for tag in self.tags() if len(tag.rpartition(".")[2]) == 64}

    def put(self, tag: str, manifest: bytes) -> None:
        answer = requests.put(
            f"{self._url}/manifests/{tag}", manifest, headers={"Content-Type": SCHEMA2}, **self._options
        )
        assert answer.status_code == 201, answer.text

    def age(self, key: str) -> str:
        """Makes an entry forty days older, as if it had been built then: another image with the same layers, sealed again. Returns its digest."""
        manifest = self.get(f"/manifests/{key}").json()
        config = self.get(f"/blobs/{manifest['config']['digest']}").json()
        created = datetime.datetime.fromisoformat(config["created"][:19] + "+00:00")
        blob = json.dumps({**config, "created": (created - SHIFT).strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        upload = requests.post(f"{self._url}/blobs/uploads/", **self._options).headers["Location"]
        done = requests.put(
            f"{upload}&digest={digest}", blob, headers={"Content-Type": "application/octet-stream"}, **self._options
        )
        assert done.status_code == 201, done.text
        manifest["config"] |= {"digest": digest, "size": len(blob)}
        for tag in (Cache("").seal(key, digest), key):
            self.put(tag, json.dumps(manifest).encode())
        return f"sha256:{hashlib.sha256(json.dumps(manifest).encode()).hexdigest()}"


@pytest.fixture
def repository(remote: RemoteWorkshop) -> Repository:
    return Repository(remote.rack)


@pytest.fixture
def build(remote: RemoteWorkshop, stages: Stages) -> Callable[[str, str], list[str]]:
    """build(host, word): builds the image with this word in its second stage; returns the stages that were not in the cache."""
    remote.command(stages)

    def run(host: str, word: str) -> list[str]:
        options = ["-e", f"beta_word={word}", "-e", f"image_cache={remote.rack.cache}"]
        done = remote.run(remote.image, "--hosts", host, *options, **remote.rack.credentials())
        assert done.returncode == 0, done.stdout + done.stderr
        assert "could not be published" not in done.stdout
        return built(done.stdout)

    return run


def shared(remote: RemoteWorkshop, action: str, *options: str, site: str = "", ok: bool = True) -> str:
    """What `cache` says of the repository."""
    where = f"{site or remote.rack.site}/rack/cache"
    line = ["cache", action, "--repository", where, "--ca-bundle", str(remote.rack.folder / "ca.crt"), *options]
    done = remote.command_line(*line, **remote.rack.credentials())
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout if ok else done.stdout + done.stderr


def key_of(remote: RemoteWorkshop, host: str) -> str:
    """The key of the image that was built last."""
    return remote.rack.hosts[host].labelled(f"modelarts-engine/{remote.image}:latest", "io.modelarts.engine.key")


def test_what_is_old_goes_but_not_what_a_kept_stage_is_made_of(
    remote: RemoteWorkshop, repository: Repository, build: Callable[[str, str], list[str]]
) -> None:
    assert build("a", "old") == ["first", "second"]
    outdated = key_of(remote, "a")
    assert build("a", "new") == ["second"]
    kept = key_of(remote, "a")
    (base,) = [key for key in repository.entries() if key.startswith("base.")]
    (first,) = repository.entries() - {base, outdated, kept}
    for key in (base, first, outdated):
        aged = repository.age(key)
    said = [line.split() for line in shared(remote, "ls").splitlines()]
    assert [(line[0], line[1]) for line in said if line[1] != "(replaced)"][:3] == [
        (kept[:12], "second"),
        (outdated[:12], "second"),
        (first[:12], "first"),
    ]
    assert {line[0]: line[2] for line in said if line[1] == "second"} == {kept[:12]: "0.0", outdated[:12]: "40.0"}

    would = shared(remote, "prune", "--older", "30d", "--keep", "0", "--dry-run")
    assert f"would remove {outdated[:12]}" in would
    assert repository.entries() == {base, first, outdated, kept}, "a dry run removes nothing"

    gone = shared(remote, "prune", "--older", "30d", "--keep", "0")
    assert f"removed {outdated[:12]}  second\n1 of " in gone
    assert repository.entries() == {base, first, kept}
    assert repository.get(f"/manifests/{aged}").status_code == 404
    # What nothing names any more is taken away by the registry's own clean-up, and by that only.
    remote.rack.registry.run("docker-registry", "garbage-collect", "--delete-untagged", "/rack/registry.yml")
    assert build("b", "new") == []
    assert build("b", "old") == ["second"]
    assert outdated in repository.entries()


def test_the_newest_stay_and_what_was_replaced_goes(
    remote: RemoteWorkshop, repository: Repository, build: Callable[[str, str], list[str]]
) -> None:
    build("a", "one")
    one = key_of(remote, "a")
    build("a", "two")
    two = key_of(remote, "a")
    before = repository.tags()
    repository.age(one)  # the seal of what it was before is left
    shared(remote, "prune", "--older", "0m", "--keep", "1")
    assert {key for key in repository.entries() if not key.startswith("base.")} & {one, two} == {two}
    assert not [tag for tag in repository.tags() if tag.startswith(one)]
    assert repository.tags() < before
    assert build("b", "two") == []


def test_an_entry_that_somebody_else_tagged_stays_whole(
    remote: RemoteWorkshop, repository: Repository, build: Callable[[str, str], list[str]]
) -> None:
    build("a", "one")
    one = key_of(remote, "a")
    build("a", "two")
    two = key_of(remote, "a")
    repository.put("1.4.0", repository.get(f"/manifests/{one}").content)
    assert f"{one[:12]}  second" in shared(remote, "ls")
    assert "tagged 1.4.0" in shared(remote, "ls")
    shared(remote, "prune", "--older", "0m", "--keep", "0")
    assert "1.4.0" in repository.tags()
    assert two not in repository.tags()
    assert build("b", "one") == []
    assert build("b", "two") == ["second"]


def test_a_registry_that_deletes_nothing_is_told_and_loses_nothing(
    remote: RemoteWorkshop, repository: Repository, build: Callable[[str, str], list[str]]
) -> None:
    build("a", "one")
    before = repository.tags()
    host = remote.rack.registry
    put(host.container, {"fixed.yml": registry_config(5001, delete=False)}, "/var/tmp")
    host.container.exec_run(["docker-registry", "serve", "/var/tmp/fixed.yml"], detach=True)
    site = f"{host.address}:5001"
    wait_until(
        "the other registry listens",
        lambda: host.run("sh", "-c", "grep -c :1389 /proc/net/tcp6", check=False).strip() != "0",
    )
    try:
        assert "second" in shared(remote, "ls", site=site)
        said = shared(remote, "prune", "--older", "0m", "--keep", "0", site=site, ok=False)
    finally:
        host.run("pkill", "-f", "/var/tmp/fixed.yml")
    assert f"{site} has deletion switched off" in said
    assert "storage.delete.enabled" in said
    assert "removed" not in said
    assert repository.tags() == before
    assert build("b", "one") == []


@pytest.mark.parametrize(
    ("options", "more", "code", "word"),
    [
        (["--repository", "nowhere"], {}, 2, "--repository: 'nowhere' is not registry.example.com/organisation/cache"),
        (["--repository", "SITE/rack/cache"], {}, 1, "--ca-bundle"),
        (
            ["--repository", "SITE/rack/cache", "--ca-bundle", "CA"],
            {"REGISTRY_PASSWORD": "no"},
            1,
            "not allowed to this login (401)",
        ),
        (
            ["--repository", "SITE/rack/cache", "--ca-bundle", "CA"],
            {"REGISTRY_PASSWORD": ""},
            2,
            "set REGISTRY_PASSWORD",
        ),
        (["--repository", "SITE/rack/none", "--ca-bundle", "CA"], {}, 0, ""),
    ],
)
def test_what_is_wrong_is_named(
    remote: RemoteWorkshop, options: list[str], more: dict[str, str], code: int, word: str
) -> None:
    given = {"SITE": remote.rack.site, "CA": str(remote.rack.folder / "ca.crt")}
    for name, value in given.items():
        options = [option.replace(name, value) for option in options]
    done = remote.command_line("cache", "ls", *options, **{**remote.rack.credentials(), **more})
    assert done.returncode == code, done.stdout + done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_login_of_a_push_that_of_docker_is_taken(remote: RemoteWorkshop, repository: Repository) -> None:
    line = ["cache", "ls", "--repository", remote.rack.cache, "--ca-bundle", str(remote.rack.folder / "ca.crt")]
    assert remote.command_line(*line).returncode == 0
    nobody = remote.command_line(*line, DOCKER_CONFIG=str(remote.rack.folder / "none"))
    assert nobody.returncode == 1
    assert "not allowed to this login (401)" in nobody.stderr
