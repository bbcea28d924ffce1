"""Every engine keeps the platform's contract: what holds for one recipe holds for each that is found beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import engine, rehearsal

ROOT = Path(__file__).resolve().parents[3]
# Triton's image is tried by test_verify_red.py, which breaks it clause by clause.
RECIPES = sorted({path.stem.removeprefix("build_") for path in ROOT.glob("playbooks/build_*.yml")} - {"triton"})


def runner(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "runner.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module", params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> str:
    """A recipe whose image is there, built where it was missing."""
    name: str = request.param
    done = runner("build", name)
    assert done.returncode == 0, done.stdout + done.stderr
    return name


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return docker.from_env()


def test_the_contract_is_kept(recipe: str) -> None:
    done = runner("verify", recipe)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "broken" not in done.stdout
    for clause in range(1, 13):
        assert f"kept    C{clause} " in done.stdout


def test_it_is_served_and_asked_without_being_told_its_engine(recipe: str) -> None:
    question = rehearsal.load(recipe).question
    try:
        served = runner("serve", recipe, "--port", "0")
        assert served.returncode == 0, served.stdout + served.stderr
        assert question in served.stdout
        asked = runner("infer", question)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert json.loads(asked.stdout)
        wrong = runner("serve", "nosuch")
        assert (wrong.returncode, "has no image nosuch" in wrong.stderr) == (2, True), wrong.stderr
        assert runner("infer", question).returncode == 0, "what is served stays up"
        refused = runner("infer", "no numbers at all")
        assert (refused.returncode, "this engine takes JSON" in refused.stderr) == (2, True), refused.stderr
    finally:
        assert runner("serve", "--stop").returncode == 0


def test_a_package_for_other_images_is_not_written(recipe: str) -> None:
    done = runner("package", "llama_7b", "/nowhere", "--image", recipe, "-e", "trtllm_release=v0.12.0")
    assert (done.returncode, "is none that the package llama_7b is for" in done.stderr) == (2, True), done.stderr


def test_a_base_without_python_has_none_afterwards(client: docker.DockerClient) -> None:
    """The image adds little, too: no engine is copied, no Python and none of its records is left."""
    done = runner("build", "tfserving")
    assert done.returncode == 0, done.stdout + done.stderr
    image = client.api.inspect_image(f"{engine.REPOSITORY}/tfserving:latest")
    history = client.api.history(image["Id"])
    added = sum(layer["Size"] for layer in history if layer["CreatedBy"] == "infinity")
    assert 0 < added <= 15_000_000, f"{added / 1e6:.1f} MB"
    script = "find / -xdev -iname 'python3*' -o -xdev -iname 'libpython*'; dpkg -l | grep -i python; true"
    said = client.containers.run(
        image["Id"], ["-c", script], entrypoint="sh", user="0:0", remove=True, network_mode="none"
    )
    assert said.decode() == ""
