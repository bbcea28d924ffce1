"""A collection of its own with small roles, so that the stage engine is tried on what it may meet, without touching the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import engine

ROOT = Path(__file__).resolve().parents[3]
ENGINE_URL = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Workshop:
    """A copy of the collection with test roles, and runs of its playbooks."""

    def __init__(self, root: Path, client: docker.DockerClient) -> None:
        self.root = root
        self.client = client
        self.image = f"probe-{uuid.uuid4().hex[:8]}"
        for name in ("playbooks", "plugins", "meta", "roles", "modelarts_engine"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        (root / "collections/ansible_collections/modelarts").mkdir(parents=True)
        (root / "collections/ansible_collections/modelarts/engine").symlink_to("../../..")
        for name in ("ansible.cfg", "galaxy.yml", "runner.py", "requirements.txt"):
            shutil.copy(ROOT / name, root / name)
        (root / ".venv").symlink_to(ROOT / ".venv")

    def role(self, name: str, tasks: list[dict[str, Any]], options: dict[str, Any] | None = None) -> None:
        """Writes a role; tasks use modules by their full names."""
        folder = self.root / "roles" / name
        shutil.rmtree(folder, ignore_errors=True)
        spec = {"argument_specs": {"main": {"short_description": name, "options": options or {}}}}
        defaults = {key: option["default"] for key, option in (options or {}).items() if "default" in option}
        for path, content in (
            ("meta/argument_specs.yml", spec),
            ("defaults/main.yml", defaults),
            ("tasks/main.yml", tasks),
        ):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(yaml.safe_dump(content))

    def command(
        self,
        stages: list[tuple[str, list[str]]],
        *,
        base: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> list[str]:
        """The ansible-playbook command of a recipe with these stages."""
        variables = {
            "image_name": self.image,
            "image_model": "",
            "image_base": "probe",
            "image_stages": [{"name": name, "roles": roles} for name, roles in stages],
            "image_config": {
                "User": "1000:100",
                "Cmd": ["sh", "/run.sh"],
                "Entrypoint": [],
                "ExposedPorts": {"8080/tcp": {}},
            },
            "image_bases": {"probe": base or {"base_image_source": "bootstrap", "base_image_flavour": "debian"}},
        }
        recipe = [{"name": "Probe", "ansible.builtin.import_playbook": "image.yml", "vars": variables}]
        (self.root / f"playbooks/build_{self.image}.yml").write_text(yaml.safe_dump(recipe))
        (self.root / "hosts.yml").write_text(
            yaml.safe_dump(
                {
                    "build_hosts": {
                        "hosts": {
                            "localhost": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
                        }
                    }
                }
            )
        )
        more = ["-e", json.dumps(extra)] if extra else []
        return [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "hosts.yml",
            f"playbooks/build_{self.image}.yml",
            *more,
        ]

    def runner(self, stages: list[tuple[str, list[str]]], *arguments: str, **options: Any) -> list[str]:
        """The runner's command that builds the recipe of these stages."""
        self.command(stages, **options)
        return [sys.executable, "runner.py", "build", self.image, "-i", "hosts.yml", "-e", "image_model=", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """Ansible's environment: this copy's configuration and the interpreter of the tests."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ,
            "PATH": path,
            "ANSIBLE_CONFIG": str(self.root / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            **more,
        }

    def build(self, stages: list[tuple[str, list[str]]], **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a recipe to its end."""
        return subprocess.run(
            self.command(stages, **options),
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def stages(self) -> set[str]:
        """Tags of the stage images made of this workshop's roles; other builds may run on the same engine."""
        mine = [
            image
            for image in self.client.images.list(name=engine.STAGE)
            if image.labels.get(engine.LABEL + "roles") in ("alpha", "beta")
        ]
        return {tag for image in mine for tag in image.tags if tag.startswith(engine.STAGE)}

    def containers(self) -> list[str]:
        """Names of this image's build containers, running or not."""
        return [
            each.name
            for each in self.client.containers.list(all=True, ignore_removed=True)
            if each.name.startswith(f"{engine.CONTAINER}.{self.image}.")
        ]

    @contextmanager
    def volumes(self) -> Iterator[set[str]]:
        """Gives a set that afterwards names the volumes this image's build containers had in between; other builds have theirs."""
        names: set[str] = set()
        since = time.time()
        yield names
        events = list(
            self.client.events(since=since, until=time.time(), filters={"type": ["container", "volume"]}, decode=True)
        )
        mine = {
            each["Actor"]["ID"]
            for each in events
            if each["Type"] == "container"
            and each["Actor"]["Attributes"]["name"].startswith(f"{engine.CONTAINER}.{self.image}.")
        }
        names.update(
            each["Actor"]["ID"]
            for each in events
            if each["Type"] == "volume" and each["Actor"]["Attributes"].get("container") in mine
        )

    def result(self) -> dict[str, Any]:
        """The finished image as the engine describes it."""
        inspected: dict[str, Any] = self.client.api.inspect_image(f"{engine.REPOSITORY}/{self.image}:latest")
        return inspected


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return engine.connect(ENGINE_URL)


@pytest.fixture
def workshop(tmp_path: Path, client: docker.DockerClient) -> Iterator[Workshop]:
    made = Workshop(tmp_path / "c", client)
    before = made.stages()
    yield made
    for name in made.containers():
        engine.remove(client, name)
    for image in client.images.list(name=f"{engine.REPOSITORY}/{made.image}"):
        for name in image.tags:
            if made.image in name:
                client.api.remove_image(name)
    for name in made.stages() - before:
        client.api.remove_image(name)
