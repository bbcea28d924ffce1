"""The stage engine on the real container engine: rules 2, 4 and 7-10, and what users do wrong."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import claims, engine

from .conftest import Workshop

PORT = {"alpha_port": {"type": "int", "default": 80}}
WRITE = [
    {
        "name": "Write",
        "ansible.builtin.copy": {
            "content": "port {{ alpha_port }} {{ lookup('env', 'NOPE') }}",
            "dest": "/etc/alpha",
            "mode": "0644",
        },
    }
]
OTHER = [{"name": "Write", "ansible.builtin.copy": {"content": "beta", "dest": "/etc/beta", "mode": "0644"}}]


def two_roles(workshop: Workshop) -> list[tuple[str, list[str]]]:
    workshop.role("alpha", WRITE, PORT)
    workshop.role("beta", OTHER)
    return [("first", ["alpha"]), ("second", ["beta"])]


def layer_names(workshop: Workshop, image: dict[str, Any], above: int) -> list[str]:
    """Paths in the layers of an image above the first `above` ones."""
    saved = io.BytesIO(b"".join(workshop.client.api.get_image(image["Id"])))
    names = []
    with tarfile.open(fileobj=saved) as outer:
        import json

        manifest = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        for layer in manifest[0]["Layers"][above:]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                names += inner.getnames()
    return names


def wait_until(condition: Any, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def test_one_layer_a_stage_with_the_settings_of_the_recipe(workshop: Workshop) -> None:
    stages = two_roles(workshop)
    workshop.role(
        "beta",
        [
            *OTHER,
            {
                "name": "Leave",
                "ansible.builtin.command": {"cmd": "sh -c 'echo $SECRET_OF_BUILD > /tmp/out'"},
                "changed_when": True,
            },
        ],
    )
    done = workshop.build(stages, extra={"image_build_environment": {"SECRET_OF_BUILD": "planted-value"}})
    assert done.returncode == 0, done.stdout
    image = workshop.result()
    base = workshop.client.api.inspect_image(next(tag for tag in base_tags(workshop)))
    config, layers = image["Config"], image["RootFS"]["Layers"]
    assert len(layers) == len(base["RootFS"]["Layers"]) + 2
    assert (config["User"], config["Cmd"], config["Entrypoint"] or []) == ("1000:100", ["sh", "/run.sh"], [])
    assert config["ExposedPorts"] == {"8080/tcp": {}}
    assert "planted-value" not in str(image)
    assert {name for name in config["Labels"] if not name.startswith(engine.LABEL)} == set(
        base["Config"]["Labels"] or {}
    )
    names = layer_names(workshop, image, len(base["RootFS"]["Layers"]))
    assert "etc/alpha" in names
    assert "etc/beta" in names
    traces = [
        name
        for name in names
        if "ansible" in name or name.startswith(("tmp/", "root/", "run/")) or name.endswith(".pyc")
    ]
    assert traces == []


def base_tags(workshop: Workshop) -> list[str]:
    images = workshop.client.images.list(name=f"{engine.REPOSITORY}/base")
    layers = workshop.result()["RootFS"]["Layers"]
    return [tag for image in images for tag in image.tags if image.attrs["RootFS"]["Layers"][-1] in layers]


def test_an_intermediate_stage_keeps_the_settings_of_its_parent(workshop: Workshop) -> None:
    assert workshop.build(two_roles(workshop)).returncode == 0
    base = workshop.client.api.inspect_image(base_tags(workshop)[0])["Config"]
    final = workshop.result()["RootFS"]["Layers"]
    first = next(
        i.attrs for i in workshop.client.images.list(name=engine.STAGE) if i.attrs["RootFS"]["Layers"] == final[:-1]
    )
    for field in ("Cmd", "Entrypoint", "User", "Env"):
        assert (first["Config"].get(field) or None) == (base.get(field) or None), field


def test_nothing_is_built_twice_and_a_change_rebuilds_from_there(workshop: Workshop) -> None:
    stages = two_roles(workshop)
    assert workshop.build(stages).returncode == 0
    first = workshop.result()["Id"]
    again = workshop.build(stages)
    assert "Start the build container" not in again.stdout
    assert workshop.result()["Id"] == first
    changed = workshop.build(stages, extra={"alpha_port": 81})
    assert changed.stdout.count("Commit stage") >= 2, changed.stdout
    workshop.role(
        "beta",
        [*OTHER, {"name": "More", "ansible.builtin.file": {"path": "/etc/gamma", "state": "touch", "mode": "0644"}}],
    )
    only_last = workshop.build(stages, extra={"alpha_port": 81})
    assert "Commit stage second" in only_last.stdout
    assert "Commit stage first" not in only_last.stdout


def test_keys_chain_and_image_ids_do_not_matter(workshop: Workshop) -> None:
    stages = two_roles(workshop)
    assert workshop.build(stages).returncode == 0
    second = workshop.result()["Id"]
    assert workshop.build(stages, extra={"image_rebuild": "first"}).returncode == 0
    assert workshop.result()["Id"] != second
    assert "Commit stage" not in workshop.build(stages).stdout


def test_a_tag_on_the_wrong_image_is_not_believed(workshop: Workshop) -> None:
    stages = two_roles(workshop)
    before = workshop.stages()
    assert workshop.build(stages).returncode == 0
    mine = sorted(workshop.stages() - before)
    final = next(name for name in mine if workshop.client.images.get(name).id == workshop.result()["Id"])
    first = next(name for name in mine if name != final)
    # The child has the parent's labels and more; under the parent's tag it must not be taken for the parent.
    workshop.client.api.tag(final, engine.STAGE, first.rpartition(":")[2], force=True)
    assert engine.find(workshop.client, first.rpartition(":")[2]) is None
    workshop.role(
        "beta",
        [*OTHER, {"name": "More", "ansible.builtin.file": {"path": "/etc/gamma", "state": "touch", "mode": "0644"}}],
    )
    rebuilt = workshop.build(stages)
    assert "Commit stage first" in rebuilt.stdout, rebuilt.stdout


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"ansible.builtin.command": {"cmd": "false"}}, "non-zero return code"),
        ({"ansible.builtin.copy": {"content": "x", "dest": "/data.bin", "mode": "0644"}}, "/data.bin"),
        (
            {"ansible.builtin.file": {"path": "/usr/lib/x/__pycache__", "state": "directory", "mode": "0755"}},
            "__pycache__",
        ),
        ({"ansible.builtin.copy": {"content": "x", "dest": "/etc/tls.key", "mode": "0600"}}, "/etc/tls.key"),
        ({"ansible.builtin.command": {"cmd": "kill 1", "removes": "/"}}, ""),
    ],
    ids=["fails", "outside", "bytecode", "key", "container-dies"],
)
def test_a_stage_that_goes_wrong_commits_nothing(workshop: Workshop, task: dict[str, Any], said: str) -> None:
    stages = two_roles(workshop)
    workshop.role(
        "beta",
        [{"name": "Go wrong", **task}, {"name": "Then", "ansible.builtin.command": {"cmd": "sh -c 'kill -9 -1; true'"}}]
        if not said
        else [{"name": "Go wrong", **task}],
    )
    before = workshop.stages()
    with workshop.volumes() as used:
        done = workshop.build(stages)
    assert done.returncode != 0
    assert said in done.stdout
    assert len(workshop.stages() - before) == 1, "the good first stage is kept, the bad second has no tag"
    assert workshop.client.images.list(name=f"{engine.REPOSITORY}/{workshop.image}") == []
    if said:
        assert workshop.containers() == []
        assert used, "each build container has a volume of its own"
        assert used.isdisjoint(each.name for each in workshop.client.volumes.list())


def test_kill_9_leaves_nothing_that_the_next_build_trusts(workshop: Workshop) -> None:
    stages = two_roles(workshop)
    workshop.role("beta", [{"name": "Half", "ansible.builtin.copy": {"content": "half", "dest": "/etc/half", "mode": "0644"}},
                           {"name": "Hang", "ansible.builtin.command": {"cmd": "sleep 600"}}])  # fmt: skip
    before = workshop.stages()
    running = subprocess.Popen(
        workshop.command(stages),
        cwd=workshop.root,
        env=workshop.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(
        lambda: any(
            ".second." in name and "sleep 600" in str(workshop.client.api.top(name)) for name in workshop.containers()
        )
    )
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert workshop.containers() != []
    assert len(workshop.stages() - before) == 1
    workshop.role("beta", OTHER)
    done = workshop.build(stages)
    assert done.returncode == 0, done.stdout
    assert workshop.containers() == []
    assert "Commit stage first" not in done.stdout
    names = layer_names(workshop, workshop.result(), 1)
    assert "etc/half" not in names


def test_another_run_s_container_is_left_alone(workshop: Workshop) -> None:
    stages = two_roles(workshop)
    alive = engine.container_name(workshop.image, "other").replace(f".{os.getppid()}.", f".{os.getpid()}.")
    alive = alive.rpartition(".")[0] + "." + str(claims.start_time(os.getpid()))
    workshop.build(stages)
    engine.start(workshop.client, parent=workshop.result()["Id"], name=alive)
    assert workshop.build(stages).returncode == 0
    assert alive in workshop.containers()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"alpha_port": "eighty"}, "alpha_port"),
        ({"alpha_port": "81"}, "must be given as int"),
        ({"alpha_prot": 1}, "did you mean alpha_port?"),
        ({"image_rebuild": "frist"}, "there is no stage frist; did you mean first?"),
        ({"imge_rebuild": "first"}, "did you mean image_rebuild?"),
        (
            {"base_image_digest": "sha256:12", "base_image_source": "pull", "base_image_reference": "r.invalid/x"},
            "base_image_digest",
        ),
        ({"image_build_ca_bundle": "/nowhere.pem"}, "image_build_ca_bundle: /nowhere.pem cannot be read"),
        ({"image_build_environment": "A"}, "image_build_environment"),
        ({"build_host_engine_url": "unix:///nowhere.sock"}, "/nowhere.sock"),
        ({"build_host_min_disk_gb": 1000000}, "1000000"),
    ],
)
def test_bad_input_is_refused_before_a_container_starts(workshop: Workshop, extra: dict[str, Any], said: str) -> None:
    done = workshop.build(two_roles(workshop), extra=extra)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert "Start the build container" not in done.stdout
    assert workshop.containers() == []


def test_the_site_s_ca_reaches_every_tool_of_a_build_and_no_layer(workshop: Workshop, tmp_path: Path) -> None:
    """What each tool is told, and that a certificate of the site's CA verifies with it and with nothing else."""
    ca, key = tmp_path / "ca.pem", tmp_path / "ca.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=Planted site CA", "-keyout", str(key), "-out", str(ca)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    look = """
    set -e
    python3 - <<'PY'
    import os, ssl
    for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"):
        found = ssl.create_default_context(cafile=os.environ[name]).get_ca_certs()
        assert any("Planted site CA" in str(one) for one in found), name
        assert len(found) > 1 or not os.path.exists("/etc/ssl/certs/ca-certificates.crt"), name
    PY
    apt-config dump | grep -qx 'Acquire::https::CAInfo "/tmp/build-ca.crt";'
    grep -q /tmp/build-ca.crt "$WGETRC"
    """
    task = {"name": "Look", "ansible.builtin.shell": {"cmd": textwrap.dedent(look)}, "changed_when": False}
    away = {
        "name": "See the controller's own environment",
        "ansible.builtin.command": {"argv": ["sh", "-c", 'test -z "$WGETRC"']},
        "delegate_to": "localhost",
        "changed_when": False,
    }
    workshop.role("alpha", [*WRITE, task, away], PORT)
    done = workshop.build([("first", ["alpha"])], extra={"image_build_ca_bundle": str(ca)})
    assert done.returncode == 0, done.stdout
    names = layer_names(workshop, workshop.result(), above=0)
    assert not [name for name in names if "build-ca" in name]
    again = workshop.build([("first", ["alpha"])])
    assert "Start the build container" not in again.stdout
