"""What networks and registries do to a push: it arrives whole, or it fails clearly and leaves no tag."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from ansible_collections.modelarts.engine.plugins.module_utils.engine import LABEL
from ansible_collections.modelarts.engine.plugins.module_utils.push import MARK

from tests.fixtures.registry import OCI, Site

from .conftest import MB, PASSWORD_LOGIN, ROOT, Pushed, command, environment

Push = Callable[..., Pushed]
Image = Callable[..., str]
SCHEMA2 = "application/vnd.docker.distribution.manifest.v2+json"


def descendants(pid: int) -> list[int]:
    """Every process that this one began, directly or not; Ansible's workers leave its session."""
    found = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    return [below for each in found for below in (*descendants(each), each)]


def begun(line: list[str], said: Path, so_far: Callable[[], bool]) -> subprocess.Popen[bytes]:
    """A push that has come as far as `so_far` says; `said` gets what it says."""
    with said.open("w") as file:
        running = subprocess.Popen(
            line, cwd=ROOT, env=environment(**PASSWORD_LOGIN), stdout=subprocess.DEVNULL, stderr=file
        )
    end = time.monotonic() + 120
    while not so_far():
        assert running.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return running


def kill(running: subprocess.Popen[bytes]) -> None:
    """Kills a push with all that it began."""
    for each in (*descendants(running.pid), running.pid):
        os.kill(each, signal.SIGKILL)
    running.wait()


def arrived(pushed: Pushed, registry: Site, repository: str, image: str, client: docker.DockerClient) -> bool:
    """The tag is there, whole, is this image, and the result names it by the registry's own digest."""
    assert pushed.code == 0, pushed.said
    answer = registry.get(f"/v2/{repository}/manifests/1", Accept=SCHEMA2)
    assert registry.tags(repository) == ["1"]
    assert answer.json()["config"]["digest"] == client.images.get(image).id
    return bool(pushed.result["digest"] == answer.headers["Docker-Content-Digest"])


@pytest.mark.parametrize(
    "faults",
    [{"errors": 2}, {"cuts": 1}, {"rate": 2 * MB}, {"errors": 3, "cuts": 3}],
    ids=["500s", "a reset", "slow", "more than the engine itself tries again"],
)
def test_it_arrives(
    faults: dict[str, int], push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient
) -> None:
    for name, value in faults.items():
        setattr(registry.proxy.faults, name, value)
    name = image(4 * MB)
    assert arrived(push(name, "--tag", "1"), registry, repository, name, client)
    assert [left for left in (registry.proxy.faults.errors, registry.proxy.faults.cuts) if left] == []


def test_a_push_that_stands_still_is_given_up_and_tried_again(
    push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient
) -> None:
    registry.proxy.faults.stalls = 1
    name = image(2 * MB)
    pushed = push(name, "--tag", "1", "-e", "swr_push_stall_seconds=3")
    assert arrived(pushed, registry, repository, name, client)
    assert "nothing moved for 3 s; attempt 2 of 5" in pushed.said


def test_what_never_works_fails_clearly_and_tags_nothing(
    push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient
) -> None:
    registry.proxy.faults.errors = 10**6
    name = image(MB)
    pushed = push(name, "--tag", "1", "-e", "swr_push_attempts=1")
    assert pushed.code == 1
    assert "500" in pushed.said
    assert registry.tags(repository) == []
    assert [tag for tag in client.images.get(name).tags if registry.host in tag] == []


def test_manifests_of_oci_are_refused_by_the_registry_and_ours_is_none(
    push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient
) -> None:
    registry.proxy.faults.refuse = OCI
    name = image(MB)
    assert arrived(push(name, "--tag", "1"), registry, repository, name, client)


def test_a_manifest_that_the_registry_refuses_is_not_tried_again(
    push: Push, image: Image, registry: Site, repository: str
) -> None:
    registry.proxy.faults.refuse = "application/"
    pushed = push(image(MB), "--tag", "1")
    assert pushed.code == 1
    assert "fail to parse manifest.json" in pushed.said
    assert "schema 2" in pushed.said
    assert "attempt" not in pushed.said
    assert registry.tags(repository) == []


def test_a_manifest_of_another_type_is_noticed_after_the_push(push: Push, image: Image, registry: Site) -> None:
    registry.proxy.faults.show_as = "application/vnd.oci.image.manifest.v1+json"
    pushed = push(image(MB), "--tag", "1")
    assert pushed.code == 1
    assert "vnd.oci.image.manifest.v1+json" in pushed.said


def test_denied_is_told_at_once(push: Push, image: Image, registry: Site) -> None:
    registry.proxy.faults.denied = True
    pushed = push(image(MB), "--tag", "1")
    assert pushed.code == 1
    assert "denied" in pushed.said
    assert "does the organisation exist" in pushed.said
    assert "attempt" not in pushed.said


def test_a_wrong_password_is_told_before_anything_is_sent(push: Push, image: Image, registry: Site) -> None:
    pushed = push(image(MB), "--tag", "1", login={**PASSWORD_LOGIN, "REGISTRY_PASSWORD": "no"})
    assert pushed.code == 1
    assert "refuses the login" in pushed.said
    assert registry.proxy.seen.uploaded == 0


def test_a_killed_push_leaves_no_tag_and_the_next_one_sends_the_rest(
    push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient, tmp_path: Path
) -> None:
    first = image(4 * MB)
    name = image(20 * MB, base=first)
    registry.proxy.faults.rate = 4 * MB
    line = command(registry, name, "--tag", "1", to=repository)
    said = tmp_path / "said"
    # The first layer is complete, the second under way.
    kill(begun(line, said, lambda: " pushed\n" in said.read_text()))
    assert registry.tags(repository) == []
    assert f"{registry.host}/{repository}:1" in client.images.get(name).tags, "it had given the image that name"
    registry.proxy.reset()
    pushed = push(name, "--tag", "1")
    assert arrived(pushed, registry, repository, name, client)
    assert sorted(layer["state"] for layer in pushed.result["layers"]) == ["exists", "pushed"]
    assert registry.proxy.seen.uploaded < 20.5 * MB
    assert client.images.get(name).tags == [name]


def test_an_interrupted_push_is_over_when_it_says_so(
    push: Push, image: Image, registry: Site, repository: str, tmp_path: Path
) -> None:
    """The process that pushes has a session of its own, and would go on."""
    registry.proxy.faults.rate = MB
    line = command(registry, image(20 * MB), "--tag", "1", to=repository)
    running = begun(line, tmp_path / "said", lambda: registry.proxy.seen.uploaded >= MB)
    below = {each: Path(f"/proc/{each}/stat").read_text().split()[21] for each in descendants(running.pid)}
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 130, (tmp_path / "said").read_text()
    left = [each for each in below if Path(f"/proc/{each}/stat").exists()]
    assert not [each for each in left if Path(f"/proc/{each}/stat").read_text().split()[21] == below[each]]
    assert registry.tags(repository) == []


@pytest.mark.parametrize("had", [False, True], ids=["a new name", "a name that another image had"])
def test_any_later_push_takes_away_the_name_that_a_killed_one_has_left(
    had: bool, push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient, tmp_path: Path
) -> None:
    name, other = image(8 * MB), image(MB)
    given = f"{registry.host}/{repository}:1"
    if had:
        client.images.get(other).tag(*given.rsplit(":", 1))
    registry.proxy.faults.rate = MB
    line = command(registry, name, "--tag", "1", to=repository)
    kill(begun(line, tmp_path / "said", lambda: given in client.images.get(name).tags))
    registry.proxy.reset()
    assert push(other, "--tag", "2").code == 0
    assert client.images.get(name).tags == [name]
    assert sorted(client.images.get(other).tags) == sorted([other, given] if had else [other])
    marks = client.api.containers(all=True, filters={"name": MARK})
    assert not [mark for mark in marks if mark["Labels"].get(f"{LABEL}push-name") == given]


def test_a_taken_tag_is_refused_and_overwritten_by_force_only(
    push: Push, image: Image, registry: Site, repository: str, client: docker.DockerClient
) -> None:
    theirs, ours = image(MB), image(MB)
    assert push(theirs, "--tag", "1").code == 0
    registry.proxy.reset()
    refused = push(ours, "--tag", "2", "--tag", "1")
    assert refused.code == 1
    assert "another image as 1 (sha256:" in refused.said
    assert "--force" in refused.said
    assert registry.proxy.seen.uploaded == 0
    assert registry.tags(repository) == ["1"]
    assert arrived(push(ours, "--tag", "1", "--force"), registry, repository, ours, client)


def test_a_certificate_that_the_engine_does_not_trust_ends_the_push(
    push: Push, image: Image, registry: Site, repository: str
) -> None:
    certificate = registry.trust.read_bytes()
    registry.trust.unlink()
    try:
        pushed = push(image(MB), "--tag", "1")
    finally:
        registry.trust.write_bytes(certificate)
    assert pushed.code == 1
    assert "x509" in pushed.said
    assert "/etc/docker/certs.d" in pushed.said
    assert registry.tags(repository) == []


def test_a_certificate_that_the_controller_does_not_trust_ends_it_before(
    push: Push, image: Image, registry: Site
) -> None:
    pushed = push(image(MB), "--tag", "1", "-e", "swr_push_ca_bundle=/etc/ssl/certs/ca-certificates.crt")
    assert pushed.code == 1
    assert "cannot be verified" in pushed.said
    assert registry.proxy.seen.uploaded == 0


def test_an_address_at_which_the_engine_verifies_nothing_is_refused(push: Push, image: Image, registry: Site) -> None:
    pushed = push(image(MB), "--tag", "1", "--to", f"{registry.registry.host}/tests")
    assert pushed.code == 1
    assert "would not verify the certificate" in pushed.said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--tag", "latest"], "Nobody can tell later what latest was"),
        (["--tag", "a b"], "swr_push_tags is ['a b']"),
        (["--tag", "1", "--to", "r.example/org/Big"], "swr_push_repository is 'Big'"),
        (["--tag", "1", "--to", "r.example/1st"], "swr_push_organization is '1st'"),
        (["--tag", "1", "--to", "R.example/org"], "swr_push_registry is 'R.example'"),
        (["--tag", "1", "--to", "https://r.example/org"], "give REGISTRY/ORGANISATION"),
        (["--tag", "1", "-e", "swr_push_attempts=0"], "swr_push_attempts must be"),
        (["--tag", "1", "-e", "swr_push_regoin=x"], "did you mean swr_push_region?"),
        (["--tag", "1", "--create"], "swr_push_create is for SWR"),
        (["--tag", "1", "-e", "swr_push_credentials=/etc/passwd"], "chmod 600 /etc/passwd"),
        (["--tag", "1", "-e", "swr_push_login=temporary"], "HUAWEICLOUD_SDK_AK and HUAWEICLOUD_SDK_SK"),
    ],
)
def test_bad_input_is_named_before_anything_starts(options: list[str], word: str, push: Push, registry: Site) -> None:
    pushed = push("no-image", *options)
    assert pushed.code == 2, pushed.said
    assert word in pushed.said
    assert registry.proxy.seen.answers == []
