"""Secrets in the controller's environment reach no disk, no layer, no log and no command line of the controller or of a build host."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import requests

from tests.fixtures import planted

from .conftest import CONTROLLER, CONTROLLER_PASSWORD, OTHER, WORD, RemoteWorkshop, Stages, built, matrix

SECRETS = {
    name: f"{name.rpartition('_')[2].lower()}-{uuid.uuid4().hex}"
    for name in ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN", "MODELARTS_TOKEN")
}
SEAL = f"seal-{uuid.uuid4().hex}"


class Search:
    """Plants a word of its own that has to be found, so that a search that finds nothing has looked."""

    def __init__(self, remote: RemoteWorkshop) -> None:
        self._remote = remote
        self._since = time.time() - 1
        self.words = planted.forms(CONTROLLER_PASSWORD, SEAL, *SECRETS.values())
        self.canary = f"canary-{uuid.uuid4().hex}"
        rack = remote.rack
        (rack.folder / "words").write_bytes(b"\n".join([*self.words, self.canary.encode()]) + b"\n")
        for host in rack.hosts.values():
            host.run("su", "builder", "-c", f"echo {self.canary} >~/canary")
        (remote.root / "canary").write_text(CONTROLLER_PASSWORD)

    def assert_nothing(self, output: str, *ours: Path) -> None:
        """Nothing is in the output, in a file of the controller but the test's own, or on the disk of a host."""
        assert [word for word in self.words if word in output.encode()] == []
        own = [*ours, self._remote.rack.folder / "words"]
        canary = [str(self._remote.root / "canary")]
        assert planted.left(self.words, self._since, [self._remote.root, self._remote.rack.folder], own) == canary
        for host in self._remote.rack.hosts.values():
            assert host.with_words() == ["/home/builder/canary"], host.name


def test_builds_with_cache_and_fleet(remote: RemoteWorkshop, stages: Stages, tmp_path: Path) -> None:
    """Two images on two hosts, of which one fails after its first stage was shared."""
    look = {"name": "Look around", "ansible.builtin.command": {"cmd": "env"}, "changed_when": False}
    refuse = {"name": "Refuse", "ansible.builtin.fail": {"msg": "refused"}, "when": "beta_word == 'bad'"}
    remote.role("beta", [*OTHER, look, refuse], WORD)
    remote.command(stages)
    secret = tmp_path / "ours/secret"
    secret.parent.mkdir()
    secret.write_text(SEAL)
    search = Search(remote)
    file = matrix(remote, ["good", "bad"], image_cache=remote.rack.cache, image_cache_secret_file=str(secret))
    with planted.Watch(lambda: search.words) as watch:
        done = remote.run("--matrix", file, "--hosts", "a,b", **remote.rack.credentials(), **SECRETS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(built(done.stdout)) == ["first", "second"]
    assert "could not be published" not in done.stdout, "the planted login was used"
    assert watch.hits == set()
    assert watch.samples > 20
    assert [line for line in watch.lines if b"dockerd --group docker" in line], "the hosts' processes were seen, too"
    assert len(list((remote.root / ".cache/runs").glob("*/run.json"))) == 2, "there are artifacts to look at"
    search.assert_nothing(done.stdout + done.stderr, secret.parent)


def test_a_push_from_a_remote_host(remote: RemoteWorkshop, stages: Stages, tmp_path: Path) -> None:
    remote.command(stages)
    assert remote.run(remote.image, "--hosts", "a").returncode == 0
    name, a = f"modelarts-engine/{remote.image}:latest", remote.rack.hosts["a"]
    image_id = a.run("docker", "inspect", "--format", "{{.Id}}", name).strip()
    before = a.images()
    search = Search(remote)
    bundle = str(remote.rack.folder / "ca.crt")
    line = [
        "push",
        remote.image,
        "--host",
        "a",
        "-i",
        "hosts.yml",
        "--to",
        f"{remote.rack.site}/rack/{remote.image}",
        "--tag",
        "1",
    ]
    line += ["-e", f"swr_push_ca_bundle={bundle}", "-e", "swr_push_login=password"]
    with planted.Watch(lambda: search.words) as watch:
        done = remote.command_line(*line, **remote.rack.credentials(), **SECRETS)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["image_id"], result["changed"]) == (image_id, True)
    accept = {"Accept": result["media_type"]}
    url = f"https://{remote.rack.site}/v2/rack/{remote.image}/manifests/1"
    there = requests.get(url, headers=accept, auth=(CONTROLLER, CONTROLLER_PASSWORD), verify=bundle, timeout=30)
    assert there.headers["Docker-Content-Digest"] == result["digest"]
    assert there.json()["config"]["digest"] == image_id
    assert a.images() == before, "no name is left on the host"
    assert remote.rack.hosts["b"].images().isdisjoint({name}), "nor was anything done on the other one"
    assert not remote.client.images.list(f"modelarts-engine/{remote.image}"), "or here"
    assert watch.hits == set()
    assert watch.samples > 20
    search.assert_nothing(done.stdout + done.stderr)

    again = remote.command_line(*line, **remote.rack.credentials())
    assert json.loads(again.stdout)["bytes_pushed"] == 0
    nobody = remote.command_line(*line, DOCKER_CONFIG=str(tmp_path), REGISTRY_USERNAME="", REGISTRY_PASSWORD="")
    assert nobody.returncode == 2
    assert "set REGISTRY_USERNAME and REGISTRY_PASSWORD" in nobody.stderr
