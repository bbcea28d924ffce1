"""Two remote build hosts and a registry between them: containers with a network, users and an engine of their own, reached by real SSH."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import docker
import pytest
import yaml

from tests.bases import base_name, make_base
from tests.fixtures import nested
from tests.integration.stages.conftest import ENGINE_URL, Workshop

PACKAGES = "docker.io openssh-server docker-registry iptables"
# The hosts' own login, with which they pull the base, and that of the controller.
USER, PASSWORD = "builder", f"hosts-{uuid.uuid4().hex}"
CONTROLLER, CONTROLLER_PASSWORD = "controller", f"planted-{uuid.uuid4().hex}"

SET_UP = f"""
set -eu
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 0755 /usr/sbin/policy-rc.d
apt-get -qq update && apt-get -qq install -y --no-install-recommends {PACKAGES} >/dev/null
useradd --create-home --shell /bin/sh --groups docker {USER}
"""

HOST = f"""
set -eu
mkdir -p /run/sshd /home/{USER}/.ssh
cp /rack/key.pub /home/{USER}/.ssh/authorized_keys; chown -R {USER}: /home/{USER}/.ssh; chmod -R go= /home/{USER}/.ssh
site=$(cat /rack/site); mkdir -p "/etc/docker/certs.d/$site"; cp /rack/ca.crt "/etc/docker/certs.d/$site/ca.crt"
/usr/sbin/sshd -o PasswordAuthentication=no -o PermitRootLogin=no
while :; do
  rm -f /var/run/docker.pid
  dockerd --group docker >>/var/log/dockerd.log 2>&1 || echo "it ended: $?" >>/var/log/dockerd.log
done
"""

REGISTRY = "until test -s /rack/registry.crt; do sleep 0.05; done; exec docker-registry serve /rack/registry.yml"


def registry_config(port: int, *, delete: bool) -> bytes:
    """What docker-registry is told; all of them have the same storage."""
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": "/var/lib/registry"}, "delete": {"enabled": delete}},
        "http": {"addr": f":{port}", "tls": {"certificate": "/rack/registry.crt", "key": "/rack/registry.key"}},
        "auth": {"htpasswd": {"realm": "rack", "path": "/rack/htpasswd"}},
    }
    return yaml.safe_dump(config).encode()


PORT = {"alpha_port": {"type": "int", "default": 80}}
WRITE = [
    {
        "name": "Write",
        "ansible.builtin.copy": {"content": "port {{ alpha_port }}\n", "dest": "/etc/alpha", "mode": "0644"},
    }
]
WORD = {"beta_word": {"type": "str", "default": "none"}}
OTHER = [
    {
        "name": "Write",
        "ansible.builtin.copy": {"content": "word {{ beta_word }}\n", "dest": "/etc/beta", "mode": "0644"},
    }
]
Stages = list[tuple[str, list[str]]]


def wait_until(what: str, condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Returns the first truthy value of a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


@dataclass
class Host:
    """One container of the rack."""

    name: str
    container: Any

    @property
    def address(self) -> str:
        self.container.reload()
        (network,) = self.container.attrs["NetworkSettings"]["Networks"].values()
        return str(network["IPAddress"])

    def run(self, *command: str, check: bool = True) -> str:
        code, output = self.container.exec_run(list(command))
        assert code == 0 or not check, f"{self.name}: {command}: {output.decode()}"
        return str(output.decode())

    def answers(self) -> bool:
        """Whether its engine answers."""
        return "Server Version" in self.run("docker", "info", check=False)

    def log_in(self, registry: str) -> None:
        """What the host's administrator does, so that its user may pull the base."""
        login = f"echo {PASSWORD} | docker login --username {USER} --password-stdin {registry}"
        self.run("su", USER, "-c", login)

    def images(self) -> set[str]:
        """Names of its engine's images."""
        return set(self.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split())

    def stage_keys(self) -> list[str]:
        """Keys of the stages its engine has."""
        return [name.rpartition(":")[2] for name in self.images() if name.startswith("modelarts-engine/stage:")]

    def forget_stages(self) -> None:
        """Removes every image of ours but the base."""
        names = [name for name in self.images() if name.startswith("modelarts-engine/") and "/base:" not in name]
        self.run("docker", "rmi", "--force", *names)

    def with_words(self) -> list[str]:
        """Files of its whole disk, its engine's included, that have one of the words in the rack's file `words`."""
        found = ["grep", "-rlFs", "-D", "skip", "-f", "/rack/words", "/"]
        for folder in ("proc", "sys", "dev", "rack"):
            found.insert(1, f"--exclude-dir={folder}")
        return self.run(*found, check=False).split()

    def labelled(self, image: str, label: str) -> str:
        return self.run("docker", "inspect", "--format", f'{{{{index .Config.Labels "{label}"}}}}', image).strip()

    def read(self, image: str, path: str) -> str:
        """A file of an image."""
        return self.run("docker", "run", "--rm", "--entrypoint", "cat", image, path)


@dataclass
class Rack:
    """Hosts `a` and `b` with a registry; `folder` holds the keys and certificates, `site` is the registry's address and port."""

    folder: Path
    hosts: dict[str, Host]
    registry: Host
    site: str
    base: dict[str, str]
    known_hosts: Path
    more: dict[str, dict[str, Any]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Writes down the host keys under the hosts' present addresses."""
        keys = {host.address: host.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub") for host in self.hosts.values()}
        self.known_hosts.write_text(
            "".join(f"{address} {' '.join(key.split()[:2])}\n" for address, key in keys.items())
        )

    def inventory(self) -> dict[str, Any]:
        """Both as build hosts, reached by a user that is not root; `more` adds variables of one host."""
        options = f"-o UserKnownHostsFile={self.known_hosts} -o StrictHostKeyChecking=yes -o ConnectTimeout=10"
        common = {
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": options,
            "ansible_python_interpreter": "/usr/bin/python3",
            "build_host_install_engine": False,
            "build_host_min_disk_gb": 1,
            "build_host_min_memory_gb": 1,
        }
        hosts = {
            host.name: {"ansible_host": host.address, **common, **self.more.get(host.name, {})}
            for host in self.hosts.values()
        }
        return {"build_hosts": {"hosts": hosts}}

    @property
    def cache(self) -> str:
        """The repository that the hosts share."""
        return f"{self.site}/rack/cache"

    def environment(self) -> dict[str, str]:
        """What the controller's user has: a Docker configuration with the registry's login."""
        return {"DOCKER_CONFIG": str(self.folder / "docker")}

    def credentials(self) -> dict[str, str]:
        """What a CI job has instead: the login in its environment, and no Docker configuration."""
        return {
            "DOCKER_CONFIG": str(self.folder / "none"),
            "REGISTRY_USERNAME": CONTROLLER,
            "REGISTRY_PASSWORD": CONTROLLER_PASSWORD,
        }


class RemoteWorkshop(Workshop):
    """A workshop whose build hosts are the rack's."""

    def __init__(self, root: Path, client: docker.DockerClient, rack: Rack) -> None:
        super().__init__(root, client)
        self.rack = rack
        self.keys: list[str] = []

    def command(self, stages: list[tuple[str, list[str]]], **options: Any) -> list[str]:
        command = super().command(stages, base=self.rack.base, **options)
        (self.root / "hosts.yml").write_text(yaml.safe_dump(self.rack.inventory()))
        return command

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**{**self.rack.environment(), **more})

    def runner_command(self, *arguments: str) -> list[str]:
        """The runner's `build` on the rack."""
        return [sys.executable, "runner.py", "build", *arguments, "-i", "hosts.yml", "-e", "image_model="]

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs the runner's `build` to its end."""
        return self._run(self.runner_command(*arguments), more)

    def command_line(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs another command of the runner."""
        return self._run([sys.executable, "runner.py", *arguments], more)

    def _run(self, command: list[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
        environment = self.environment(**more)
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)


def _image(client: docker.DockerClient) -> str:
    """The containers' image: Debian with an engine, sshd and a registry, made once."""
    base = make_base("debian")
    name = f"modelarts-engine/test-rack:{hashlib.sha256((base + SET_UP).encode()).hexdigest()[:12]}"
    if client.images.list(name):
        return name
    made = client.containers.run(base, ["sleep", "infinity"], detach=True, init=True)
    try:
        code, output = made.exec_run(["sh", "-c", SET_UP])
        assert code == 0, output.decode()
        repository, _, tag = name.rpartition(":")
        made.commit(repository, tag)
    finally:
        made.remove(force=True, v=True)
    return name


def _openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _certificates(folder: Path, address: str) -> None:
    """A CA, the registry's certificate for its address, and a key for SSH."""
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    _openssl("req", "-x509", *ec, "-subj", "/CN=Rack CA", "-keyout", "ca.key", "-out", "ca.crt", folder=folder)
    _openssl("req", *ec[:-2], "-subj", "/CN=registry", "-keyout", "registry.key", "-out", "registry.csr", folder=folder)
    (folder / "san").write_text(f"subjectAltName=IP:{address}\n")
    signer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", "1", "-days", "2", "-extfile", "san"]
    _openssl("x509", "-req", "-in", "registry.csr", *signer, "-out", "made.crt", folder=folder)
    (folder / "made.crt").rename(folder / "registry.crt")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)


def put(container: Any, files: dict[str, bytes], folder: str) -> None:
    """Writes files into a running container."""
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    assert container.put_archive(folder, blob.getvalue())


@pytest.fixture(scope="session")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    client = docker.DockerClient(base_url=ENGINE_URL, timeout=300)
    image = _image(client)
    folder = tmp_path_factory.mktemp("rack")
    network = client.networks.create(f"modelarts-engine-rack-{uuid.uuid4().hex[:8]}")
    started: dict[str, Host] = {}

    def start(name: str, script: str, **options: Any) -> Host:
        options = {"detach": True, "init": True, **options}
        container = client.containers.create(
            image, ["sh", "-c", script], hostname=name, name=f"{network.name}-{name}", network=network.name,
            **{**options, "volumes": {**options.get("volumes", {}), str(folder): {"bind": "/rack", "mode": "ro"}}},
        )  # fmt: skip
        container.start()
        started[name] = Host(name, container)
        return started[name]

    try:
        users = [(USER, PASSWORD), (CONTROLLER, CONTROLLER_PASSWORD)]
        words = [f"{name}:{bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode()}\n" for name, word in users]
        (folder / "htpasswd").write_text("".join(words))
        (folder / "registry.yml").write_bytes(registry_config(5000, delete=True))
        registry = start("registry", REGISTRY)
        site = f"{registry.address}:5000"
        (folder / "site").write_text(site)
        _certificates(folder, registry.address)
        for name in ("a", "b"):
            start(name, HOST, **nested.options())
        hosts = {name: started[name] for name in ("a", "b")}
        for host in hosts.values():
            wait_until("an engine answers", host.answers)
        (folder / "docker").mkdir()
        login = {"auths": {site: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}}
        (folder / "docker/config.json").write_text(json.dumps(login))
        for host in hosts.values():
            host.log_in(site)
        made = Rack(folder, hosts, registry, site, _base(client, hosts["a"], site), folder / "known_hosts")
        made.refresh()
        yield made
    finally:
        for host in started.values():
            host.container.remove(force=True, v=True)
        network.remove()


def _base(client: docker.DockerClient, host: Host, site: str) -> dict[str, str]:
    """Brings the base into the registry, through a host's engine; returns how it is pulled."""
    name = f"{site}/rack/base:1"
    put(host.container, {"base.tar": b"".join(client.images.get(base_name("debian")).save(named=True))}, "/var/tmp")
    host.run("docker", "load", "--quiet", "--input", "/var/tmp/base.tar")
    host.run("docker", "tag", base_name("debian"), name)
    host.run("su", USER, "-c", f"docker push --quiet {name}")
    digest = host.run("docker", "inspect", "--format", "{{index .RepoDigests 0}}", name).strip().rpartition("@")[2]
    host.run("docker", "rmi", "--force", name, base_name("debian"))
    return {
        "base_image_source": "pull",
        "base_image_reference": f"{site}/rack/base",
        "base_image_digest": digest,
    }


@pytest.fixture
def remote(tmp_path: Path, rack: Rack) -> Iterator[RemoteWorkshop]:
    """A workshop on the rack; hosts and registry are left without stages for the next test."""
    made = RemoteWorkshop(tmp_path / "c", docker.DockerClient(base_url=ENGINE_URL), rack)
    rack.more.clear()
    yield made
    for host in rack.hosts.values():
        host.run("sh", "-c", "docker ps -aq | xargs -r docker rm -fv; docker image prune -af")
    rack.registry.run("sh", "-c", "rm -rf /var/lib/registry/docker/registry/v2/repositories/rack/cache*")


@pytest.fixture
def stages(remote: RemoteWorkshop) -> Stages:
    remote.role("alpha", WRITE, PORT)
    remote.role("beta", OTHER, WORD)
    return [("first", ["alpha"]), ("second", ["beta"])]


def built(output: str) -> list[str]:
    """Stages that were built, as the runner tells it."""
    return re.findall(r"(\w+) +built, ", output)


def matrix(remote: RemoteWorkshop, words: list[str], **variables: Any) -> str:
    """A file of images that differ in their second stage."""
    jobs = [
        {"image": remote.image, "name": f"{remote.image}-{word}", "variables": {"beta_word": word, **variables}}
        for word in words
    ]
    (remote.root / "images.yml").write_text(json.dumps(jobs))
    return "images.yml"
