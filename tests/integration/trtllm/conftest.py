"""A base as NVIDIA's for this server, the upstream in miniature, and builds of the real recipe against it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys

from tests.bases import make_base
from tests.fixtures import trtllm_upstream as miniature

ROOT = Path(__file__).resolve().parents[3]
ENGINE_URL = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
CUDA = "12.2"
# As few as the miniature needs; the rest of the role's default is for the real one.
PACKAGES = [
    *("binutils", "ca-certificates", "ccache", "cmake", "g++", "git", "git-lfs", "make", "ninja-build", "wget"),
    *("python3-pip", "python3-setuptools", "python3-wheel"),
]
# What NVIDIA's image has and the local base has not: a compiler's name and release, and a TensorRT of its own, which has to go.
LIKE_NVIDIA = {
    "usr/local/cuda/bin/nvcc": (0o755, f"#!/bin/sh\necho 'Cuda compilation tools, release {CUDA}, V{CUDA}.140'\n"),
    "usr/local/lib/python3.11/dist-packages/tensorrt/__init__.py": (0o644, "__version__ = '8.6.1'\n"),
    "usr/local/lib/python3.11/dist-packages/tensorrt-8.6.1.dist-info/METADATA": (
        0o644,
        "Metadata-Version: 2.1\nName: tensorrt\nVersion: 8.6.1\n",
    ),
    "usr/local/lib/python3.11/dist-packages/tensorrt-8.6.1.dist-info/RECORD": (
        0o644,
        "tensorrt/__init__.py,,\ntensorrt-8.6.1.dist-info/METADATA,,\ntensorrt-8.6.1.dist-info/RECORD,,\n",
    ),
}


@pytest.fixture(scope="session")
def client() -> docker.DockerClient:
    return engine.connect(ENGINE_URL)


@pytest.fixture(scope="session")
def local_base() -> str:
    """The base with the real server that the suites share."""
    return make_base("triton")


def named_base(client: docker.DockerClient, parent: str, add: bytes, environment: dict[str, str], what: str) -> str:
    """Makes a base of another with files added (a tar archive), under the name that a build looks for.

    :returns: the `base_image_epoch` that asks for it.
    """
    epoch = f"{what} {hashlib.sha256(add + client.api.inspect_image(parent)['Id'].encode()).hexdigest()[:12]}"
    collection = keys.Collection(ROOT)
    given = {"base_image_name": "-", "base_image_flavour": "triton", "base_image_epoch": epoch}
    args = keys.resolve(["base_image"], collection, lambda role, seen: given)["base_image"]
    key = keys.stage_key(
        parent="", roles=["base_image"], args={"base_image": {n: v for n, v in args.items() if n != "base_image_name"}},
        collection=collection, versions=lambda _: {}, config={}, epoch="",
    )  # fmt: skip
    if not engine.exists(client, f"modelarts-engine/base:{key}"):
        container = client.api.create_container(parent, command=["true"], entrypoint=[])["Id"]
        try:
            client.api.put_archive(container, "/", add)
            config = client.api.inspect_image(parent)["Config"]
            have = dict(each.split("=", 1) for each in config["Env"])
            have |= {name: value.replace("$", have.get(name, "")) for name, value in environment.items()}
            variables = [f"{name}={value}" for name, value in have.items()]
            client.api.commit(container, "modelarts-engine/base", key, conf={**config, "Env": variables})
        finally:
            client.api.remove_container(container, v=True)
    return epoch


def like_nvidia(client: docker.DockerClient, local_base: str) -> str:
    """A base as NVIDIA's `YY.MM-py3`; returns the epoch that asks for it."""
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for path, (mode, content) in LIKE_NVIDIA.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content.encode()))
        # There the server's library has this name; the wheel's is called otherwise, and the linker knows libraries by their own names.
        link = tarfile.TarInfo("usr/lib/x86_64-linux-gnu/libtritonserver.so")
        link.type, link.linkname = tarfile.SYMTYPE, "/opt/tritonserver/lib/libtritonserver.so"
        tar.addfile(link)
    environment = {"PATH": "/usr/local/cuda/bin:$", "NVIDIA_TRITON_SERVER_VERSION": miniature.BASE}
    return named_base(client, local_base, blob.getvalue(), environment, "like NVIDIA's")


class Builds:
    """Runs of `runner.py build triton` against the miniature, all of one image."""

    def __init__(self, client: docker.DockerClient, server: miniature.Server, folder: Path, epoch: str) -> None:
        self.client, self.server = client, server
        self.before = {tag for each in client.images.list(name=engine.STAGE) for tag in each.tags}
        self.image = f"trtllm-{uuid.uuid4().hex[:8]}"
        self.releases = server.upstream.releases(folder / "releases.yml")
        self.extra: dict[str, Any] = {
            "image_name": self.image,
            "trtllm_release": miniature.RELEASE,
            "trtllm_route": "source",
            "trtllm_releases_file": str(self.releases),
            "trtllm_mirrors": server.mirrors,
            "trtllm_cuda_architectures": ["80-real", "90-real"],
            "trtllm_tools_min_disk_gb": 1,
            "trtllm_tools_min_memory_gb": 1,
            # Of each session its own, so that what is compiled is compiled anew, while its tools may be those of another.
            "trtllm_wheel_job_memory_mb": 200 + secrets.randbelow(200),
            "trtllm_tools_packages": PACKAGES,
            "image_build_network": "host",
            "image_build_ca_bundle": str(server.ca),
            "base_image_epoch": epoch,
        }  # fmt: skip

    def command(self, fault: str = "", **extra: Any) -> list[str]:
        """The command of one run; a fault is switched on in the build containers' environment, which is in no key."""
        variables = {**self.extra, "image_build_environment": {"MINIATURE_FAULT": fault}, **extra}
        return [sys.executable, "runner.py", "build", "triton", "-e", json.dumps(variables)]

    def run(
        self, fault: str = "", environment: Mapping[str, str] | None = None, **extra: Any
    ) -> subprocess.CompletedProcess[str]:
        """One run, to its end, with more in its environment."""
        return subprocess.run(
            self.command(fault, **extra),
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    def killed(self, fault: str, container: str, path: str) -> None:
        """Starts a run and kills it, with everything it started, once a file is there in its build container of a stage."""
        started = subprocess.Popen(
            self.command(fault), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True
        )
        while True:
            assert started.poll() is None, "the run ended"
            for each in self.client.containers.list(filters={"name": f"{engine.CONTAINER}.{self.image}.{container}."}):
                if engine.execute(self.client, each.name, ["test", "-e", path])[0] == 0:
                    # The playbook runs in a session of its own; its process is in the container's name.
                    for leader in (started.pid, os.getpgid(int(each.name.split(".")[-2]))):
                        os.killpg(leader, signal.SIGKILL)
                    started.wait()
                    return
            time.sleep(0.2)

    def clear(self) -> None:
        """Removes the images, and the stages that only they or their builders had."""
        images = self.client.images.list(name=f"{engine.REPOSITORY}/{self.image}*")
        layers = [each.attrs["RootFS"]["Layers"] for each in images]
        for each in self.client.images.list(name=engine.STAGE):
            own = each.attrs["RootFS"]["Layers"]
            roles = each.labels.get(engine.LABEL + "roles", "").split()
            compiled = roles in (["trtllm_wheel"], ["trtllm_compile"]) and not set(each.tags) & self.before
            if compiled or any(own == those[: len(own)] for those in layers):
                for tag in each.tags:
                    self.client.api.remove_image(tag)


@pytest.fixture(scope="session")
def builds(client: docker.DockerClient, local_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    folder = tmp_path_factory.mktemp("miniature")
    with miniature.Server(miniature.Upstream(folder / "upstream"), folder).running() as server:
        made = Builds(client, server, folder, like_nvidia(client, local_base))
        yield made
        made.clear()
