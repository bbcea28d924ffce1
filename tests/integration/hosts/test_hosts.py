"""Remote build hosts, images spread over them, and the cache between them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from .conftest import PASSWORD, PORT, WRITE, RemoteWorkshop, Stages, built, matrix, wait_until


def test_each_host_builds_its_own_and_nothing_is_mixed(remote: RemoteWorkshop, stages: Stages) -> None:
    """One run, so the build containers of both hosts and their images have the same names."""
    remote.rack.more.update(a={"alpha_port": 8001}, b={"alpha_port": 8002})
    done = remote.build(stages)
    assert done.returncode == 0, done.stdout
    name = f"modelarts-engine/{remote.image}:latest"
    assert {host: at.read(name, "/etc/alpha") for host, at in remote.rack.hosts.items()} == {
        "a": "port 8001\n",
        "b": "port 8002\n",
    }
    for host in remote.rack.hosts.values():
        assert host.run("docker", "ps", "--all", "--quiet") == ""
    assert not [tag for image in remote.client.images.list() for tag in image.tags if remote.image in tag]
    again = remote.build(stages)
    assert again.returncode == 0
    assert "Start the build container" not in again.stdout


def test_a_host_whose_key_is_not_known_is_not_used(remote: RemoteWorkshop, stages: Stages, tmp_path: Path) -> None:
    (tmp_path / "nobody").touch()
    options = f"-o UserKnownHostsFile={tmp_path / 'nobody'} -o StrictHostKeyChecking=yes"
    remote.rack.more.update(a={"ansible_ssh_common_args": options})
    remote.command(stages)
    done = remote.run(remote.image, "--hosts", "a")
    assert done.returncode == 3, done.stdout
    assert "Host key verification failed" in done.stdout + done.stderr
    assert not [name for name in remote.rack.hosts["a"].images() if name.startswith("modelarts-engine/stage")]


def test_four_images_on_two_hosts_build_each_stage_once(remote: RemoteWorkshop, stages: Stages) -> None:
    remote.command(stages)
    words = ["one", "two", "three", "four"]
    done = remote.run("--matrix", matrix(remote, words, image_cache=remote.rack.cache))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(built(done.stdout)) == ["first", "second", "second", "second", "second"]
    where = {word: [n for n, h in remote.rack.hosts.items() if h.images() & {f"modelarts-engine/{remote.image}-{word}:latest"}] for word in words}  # fmt: skip
    assert all(len(hosts) == 1 for hosts in where.values()), where
    assert {host for (host,) in where.values()} == {"a", "b"}
    for word, (host,) in where.items():
        name = f"modelarts-engine/{remote.image}-{word}:latest"
        assert remote.rack.hosts[host].read(name, "/etc/beta") == f"word {word}\n"
    log = "".join(path.read_text() for path in (remote.root / ".cache/runs").rglob("*") if path.is_file())
    assert PASSWORD not in log + done.stdout


def test_a_failed_image_fails_alone(remote: RemoteWorkshop, stages: Stages) -> None:
    remote.command(stages)
    file = matrix(remote, ["good", "bad"])
    jobs = json.loads((remote.root / file).read_text())
    jobs[1]["variables"] = {"alpha_port": "eighty"}
    (remote.root / file).write_text(json.dumps(jobs))
    done = remote.run("--matrix", file, "--hosts", "b")
    assert done.returncode == 2
    assert re.search(rf"{remote.image}-good +b +done", done.stdout)
    assert re.search(rf"{remote.image}-bad +b +failed \(2\)", done.stdout)


def test_a_host_that_drops_gives_its_image_to_another_and_is_cleaned_later(
    remote: RemoteWorkshop, stages: Stages
) -> None:
    """The engine of `a` dies in the middle of a stage, when the task says so."""
    wait = {
        "name": "Wait on a only",
        "ansible.builtin.command": {"cmd": "sh -c 'test ! -e /tmp/build-ca.crt || sleep 300'"},
        "changed_when": False,
    }
    a = remote.rack.hosts["a"]
    remote.role("alpha", [*WRITE, wait], PORT)
    remote.command(stages)
    # Only host a gets a CA bundle, which is not part of a key: it tells the task where it is.
    remote.rack.more.update(a={"image_build_ca_bundle": str(remote.rack.folder / "ca.crt")})
    remote.command(stages)
    command = remote.runner_command(remote.image, "--hosts", "a,b")
    running = subprocess.Popen(command, cwd=remote.root, env=remote.environment(), stdout=subprocess.PIPE, text=True)
    sleeping = ["sh", "-c", "docker ps -q | xargs -r -n1 docker top | grep -c 'sleep 300'"]
    wait_until("the task waits", lambda: a.run(*sleeping, check=False).strip() not in ("", "0"), 120)
    a.run("pkill", "-KILL", "dockerd")
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 0, output
    assert "goes to another host" in output
    assert re.search(rf"{remote.image} +b +done", output)
    wait_until("the engine is back", a.answers)
    remote.rack.more.clear()
    remote.command([("other", ["beta"])])
    assert remote.run(remote.image, "--hosts", "a").returncode == 0
    assert a.run("docker", "ps", "--all", "--quiet").strip() == ""


def test_another_host_takes_everything_from_the_cache(remote: RemoteWorkshop, stages: Stages) -> None:
    remote.command(stages)
    cache = f"image_cache={remote.rack.cache}"
    first = remote.run(remote.image, "--hosts", "a", "-e", cache)
    assert (first.returncode, built(first.stdout)) == (0, ["first", "second"]), first.stdout + first.stderr
    second = remote.run(remote.image, "--hosts", "b", "-e", cache)
    assert (second.returncode, built(second.stdout)) == (0, []), second.stdout + second.stderr
    name = f"modelarts-engine/{remote.image}:latest"
    ids = {host.run("docker", "inspect", "--format", "{{.Id}}", name) for host in remote.rack.hosts.values()}
    assert len(ids) == 1
    assert not [
        image for image in remote.rack.hosts["b"].images() if image.startswith(remote.rack.site) and "cache" in image
    ]


def plant(remote: RemoteWorkshop, how: str, key: str, seal: str) -> None:
    """Spoils one entry of the cache."""
    a, registry, cache = remote.rack.hosts["a"], remote.rack.registry, remote.rack.cache
    a.run("su", "builder", "-c", f"docker pull --quiet {cache}:{key}")
    if how == "another last layer":
        made = a.run(
            "docker", "create", "--entrypoint", "sh", f"modelarts-engine/stage:{remote.keys[0]}", "-c", "true"
        ).strip()
        labels = json.loads(a.run("docker", "inspect", "--format", "{{json .Config.Labels}}", f"{cache}:{key}"))
        changes = " ".join(f"--change 'LABEL {name}={json.dumps(value)}'" for name, value in labels.items())
        a.run("sh", "-c", f"echo planted >/tmp/p && docker cp /tmp/p {made}:/etc/planted && docker commit {changes} {made} {cache}:{key}")  # fmt: skip
    elif how == "a truncated layer":
        layer = json.loads(a.run("su", "builder", "-c", f"docker manifest inspect {cache}:{key}"))
        digest = layer["layers"][-1]["digest"].partition(":")[2]
        path = f"/var/lib/registry/docker/registry/v2/blobs/sha256/{digest[:2]}/{digest}/data"
        registry.run("sh", "-c", f"head -c 20 {path} >/tmp/half && cp /tmp/half {path}")
        return
    a.run("su", "builder", "-c", f"docker push --quiet {cache}:{key}")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("another last layer", "seal is not right"),
        ("a truncated layer", "is not used"),
    ],
)
def test_a_spoilt_entry_is_told_built_again_and_published_again(
    remote: RemoteWorkshop, stages: Stages, how: str, said: str
) -> None:
    remote.command(stages)
    cache = f"image_cache={remote.rack.cache}"
    assert remote.run(remote.image, "--hosts", "a", "-e", cache).returncode == 0
    name = f"modelarts-engine/{remote.image}:latest"
    key = remote.rack.hosts["a"].labelled(name, "io.modelarts.engine.key")
    remote.keys = [k for k in remote.rack.hosts["a"].stage_keys() if k != key]
    plant(remote, how, key, "")
    second = remote.run(remote.image, "--hosts", "b", "-e", cache)
    assert (second.returncode, built(second.stdout)) == (0, ["second"]), second.stdout + second.stderr
    assert said in second.stdout
    assert "planted" not in remote.rack.hosts["b"].run("docker", "run", "--rm", "--entrypoint", "ls", name, "/etc")
    remote.rack.hosts["b"].forget_stages()
    third = remote.run(remote.image, "--hosts", "b", "-e", cache)
    assert (third.returncode, built(third.stdout)) == (0, []), third.stdout


def test_without_the_secret_nothing_can_be_planted(remote: RemoteWorkshop, stages: Stages) -> None:
    secret = remote.root / "secret"
    secret.write_text("planted-seal-secret\n")
    remote.command(stages)
    assert remote.run(remote.image, "--hosts", "a", "-e", f"image_cache={remote.rack.cache}").returncode == 0
    options = ["-e", f"image_cache={remote.rack.cache}", "-e", f"image_cache_secret_file={secret}"]
    sealed = remote.run(remote.image, "--hosts", "b", *options)
    assert (sealed.returncode, built(sealed.stdout)) == (0, ["first", "second"])
    remote.rack.hosts["a"].forget_stages()
    assert built(remote.run(remote.image, "--hosts", "a", *options).stdout) == []
    log = "".join(path.read_text() for path in (remote.root / ".cache/runs").rglob("*") if path.is_file())
    assert "planted-seal-secret" not in log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "c"], "--hosts: c: not in the inventory"),
        (["--matrix", "nowhere.yml"], "nowhere.yml"),
        (["-e", "image_cache=Registry/X:tag"], "image_cache:"),
        (["--hosts", "a", "-e", "image_hosts=b"], "not both"),
    ],
)
def test_bad_input_is_refused_before_a_host_is_reached(
    remote: RemoteWorkshop, stages: Stages, arguments: list[str], said: str
) -> None:
    remote.command(stages)
    done = remote.run(remote.image, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert not any("modelarts-engine/stage" in name for h in remote.rack.hosts.values() for name in h.images())
