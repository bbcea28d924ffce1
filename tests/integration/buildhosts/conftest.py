"""Applies the roles of build hosts; makes the images that tests look at, once for each version of the role."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

ROOT = Path(__file__).resolve().parents[3]
URL = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


class Run:
    """What `ansible-playbook` did: exit code, output, number of changed tasks."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.text = done.returncode, done.stdout + done.stderr
        counted = re.findall(r"changed=(\d+)", self.text)
        self.changed = int(counted[-1]) if counted else -1
        self.failures = re.findall(r"^(?:fatal|failed): .*$", self.text, re.MULTILINE)


@pytest.fixture(scope="session")
def apply(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """apply(role, arguments, container=None): the role here, or in a container as if it were a build host."""
    folder = tmp_path_factory.mktemp("apply")

    def play(role: str, arguments: dict[str, Any], container: str | None = None, *options: str) -> Run:
        book = folder / f"{role}.yml"
        book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "roles": [f"modelarts.engine.{role}"]}]))
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        if container:
            host = {"ansible_connection": "community.docker.docker_api", "ansible_docker_docker_host": URL}
            host["ansible_python_interpreter"] = "/usr/bin/python3"
        inventory = folder / f"{container or 'here'}.yml"
        inventory.write_text(json.dumps({"all": {"hosts": {container or "here": host}}}))
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), str(book), *options]
        command += ["-e", json.dumps(arguments)]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        return Run(subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False))

    return play


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    return docker.DockerClient(base_url=URL)
