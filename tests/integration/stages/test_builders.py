"""Builders: stages of their own on the same base, of which nothing but the outputs reaches the image."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from .conftest import Workshop

COPY = "ansible.builtin.command"
OPTIONS = {"alpha_text": {"type": "str", "default": "made", "description": "What is made."}}
MAKE: list[dict[str, Any]] = [
    {
        "name": "Make an output and much else",
        "ansible.builtin.shell": {
            "cmd": "mkdir -p /opt/outputs/usr/share /opt/tree/__pycache__ && head -c 300000 /dev/urandom >/opt/tree/__pycache__/big"
            " && printf %s '{{ alpha_text }}' >/opt/outputs/usr/share/made && cd /tmp/cache/* && date +%N >>runs"
            " && cp runs /opt/outputs/runs",
        },
        "changed_when": True,
    }
]
TAKE: list[dict[str, Any]] = [
    {"name": "Install it", COPY: "cp -a /tmp/outputs/usr/share/made /usr/share/made", "changed_when": True},
    {"name": "Say how often it was made", COPY: "cp /tmp/outputs/runs /usr/share/runs", "changed_when": True},
    {"name": "Try to change it", COPY: "touch /tmp/outputs/x", "register": "beta_tried", "failed_when": "beta_tried.rc == 0"},
]  # fmt: skip


def stages(workshop: Workshop) -> list[dict[str, Any]]:
    return [
        {"name": "compile", "roles": ["alpha"], "builder": "tools", "caches": [workshop.image]},
        {"name": "install", "roles": ["beta"], "takes": "tools"},
    ]


def build(workshop: Workshop, chain: list[dict[str, Any]], **extra: Any) -> subprocess.CompletedProcess[str]:
    """Runs a recipe whose stages are written in full."""
    command = workshop.command([], extra=extra)
    path = workshop.root / f"playbooks/build_{workshop.image}.yml"
    recipe = yaml.safe_load(path.read_text())
    recipe[0]["vars"]["image_stages"] = chain
    path.write_text(yaml.safe_dump(recipe))
    return subprocess.run(
        command, cwd=workshop.root, env=workshop.environment(), capture_output=True, text=True, check=False
    )


def says(workshop: Workshop, command: str) -> str:
    output = workshop.client.containers.run(
        f"modelarts-engine/{workshop.image}:latest", ["sh", "-c", command], remove=True
    )
    return str(output.decode())


@pytest.fixture
def made(workshop: Workshop) -> Iterator[Workshop]:
    workshop.role("alpha", MAKE, OPTIONS)
    workshop.role("beta", TAKE)
    yield workshop
    for volume in workshop.client.volumes.list(filters={"name": f"modelarts-engine-cache-{workshop.image}"}):
        volume.remove()


def test_only_a_builders_outputs_reach_the_image(made: Workshop) -> None:
    first = build(made, stages(made))
    assert first.returncode == 0, first.stdout
    assert says(made, "cat /usr/share/made; ls -A /opt /tmp; wc -l </usr/share/runs") == "made/opt:\n\n/tmp:\n1\n"
    container = made.client.api.inspect_image(f"modelarts-engine/{made.image}:latest")
    assert container["Config"]["User"] == "1000:100"
    assert made.containers() == []
    assert len(made.stages()) == 2
    # A second build looks at the image's own stages only: the builder may be gone.
    for tag in made.stages():
        image = made.client.images.get(tag)
        if image.labels["io.modelarts.engine.roles"] == "alpha":
            made.client.api.remove_image(tag)
    again = build(made, stages(made))
    assert again.returncode == 0, again.stdout
    assert "Start the build container" not in again.stdout
    # Another builder is another image; its cache is the one before.
    other = build(made, stages(made), alpha_text="other")
    assert other.returncode == 0, other.stdout
    assert says(made, "cat /usr/share/made; wc -l </usr/share/runs") == "other2\n"


def test_without_its_builder_a_stage_takes_nothing(made: Workshop) -> None:
    made.role("beta", [{"name": "Look", COPY: "test ! -e /tmp/outputs", "changed_when": True}])
    done = build(made, [{**stages(made)[0], "roles": []}, stages(made)[1]])
    assert done.returncode == 0, done.stdout


def test_an_image_is_not_a_builders_last_stage(made: Workshop) -> None:
    done = build(made, stages(made)[:1])
    assert done.returncode == 2
    assert "the last stage, compile, is a builder's" in done.stdout
