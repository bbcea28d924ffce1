"""Releases that take PyTorch from NVIDIA's image of it: the route source copies of it, by digest, what upstream copies, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import engine
from docker.errors import ImageNotFound

from tests.fixtures.registry import site
from tests.fixtures.trtllm_upstream import pytorch

from .conftest import Builds

USER, PASSWORD = "puller", "planted-registry-password"
LACKING = f"{pytorch.SITE}/triton"


class Images:
    """The build with PyTorch of an image, which a registry has: whole, and without a part."""

    def __init__(self, builds: Builds, host: str, base: str, folder: Path) -> None:
        self.builds, self.repository = builds, f"{host}/nvidia/pytorch"
        self.digests = {lacking: self._pushed(base, lacking) for lacking in ("", LACKING)}
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))
        self.environment = {"DOCKER_CONFIG": str(folder)}
        releases = builds.server.upstream.releases(
            folder / "releases.yml", torch="image", torch_image=f"{self.repository}:py3", torch_paths=pytorch.PATHS
        )
        self.extra = {"image_name": f"{builds.image}-torch", "trtllm_releases_file": str(releases)}
        self.image = f"{engine.REPOSITORY}/{self.extra['image_name']}:latest"

    def _pushed(self, base: str, lacking: str) -> str:
        """Makes the image and leaves it in the registry only; its digest."""
        client = self.builds.client
        pytorch.make(client, base, self.repository, "py3", lacking)
        login = {"username": USER, "password": PASSWORD}
        said = list(client.api.push(self.repository, "py3", auth_config=login, stream=True, decode=True))
        (digest,) = [line["aux"]["Digest"] for line in said if "aux" in line]
        client.api.remove_image(f"{self.repository}:py3")
        return str(digest)

    def run(self, digest: str, **extra: Any) -> subprocess.CompletedProcess[str]:
        """One run with the image of a digest."""
        return self.builds.run(environment=self.environment, **self.extra, trtllm_torch_digest=digest, **extra)

    def stages(self) -> set[str]:
        """Tags of stages that bring PyTorch."""
        images = self.builds.client.images.list(name=engine.STAGE)
        return {
            tag for each in images if each.labels.get(engine.LABEL + "roles") == "trtllm_torch" for tag in each.tags
        }

    def clear(self) -> None:
        """Removes what was pulled."""
        for digest in self.digests.values():
            with contextlib.suppress(ImageNotFound):
                self.builds.client.api.remove_image(f"{self.repository}@{digest}")


@pytest.fixture(scope="module")
def images(builds: Builds, local_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("torch")
    with site(tmp_path_factory.mktemp("registry"), builds.client, {USER: PASSWORD}) as registry:
        made = Images(builds, registry.host, local_base, folder)
        yield made
        made.clear()


def test_a_digest_that_nothing_knows_is_asked_for_before_anything_starts(images: Images) -> None:
    before = len(images.builds.server.requests)
    done = images.run("")
    assert done.returncode == 2
    assert f"trtllm_torch_digest: this release takes PyTorch from the image {images.repository}:py3" in done.stderr
    done = images.run("25.01-py3")
    assert done.returncode == 2
    assert "64 hexadecimal digits (it is '25.01-py3')" in done.stderr
    assert len(images.builds.server.requests) == before


def test_an_image_that_cannot_be_pulled_is_said_before_a_stage_is_built(images: Images) -> None:
    digest = f"sha256:{'0' * 64}"
    done = images.run(digest)
    assert done.returncode == 1
    assert f"{images.repository}@{digest} cannot be pulled by the build host:" in done.stderr
    assert "built" not in done.stdout


def test_an_image_without_what_is_taken_is_refused(images: Images) -> None:
    done = images.run(images.digests[LACKING])
    assert done.returncode == 1, done.stdout
    assert f"{images.repository}@{images.digests[LACKING]} cannot give what a stage takes of it" in done.stderr
    assert f"there is no /{LACKING}" in done.stderr


@pytest.fixture(scope="module")
def made(images: Images) -> Iterator[str]:
    """Name of the finished image."""
    before = images.stages()
    done = images.run(images.digests[""])
    assert done.returncode == 0, done.stdout + done.stderr
    yield images.image
    # Of the others the build that all share takes care.
    for tag in images.stages() - before:
        images.builds.client.api.remove_image(tag)


def says(images: Images, image: str, *command: str, **options: Any) -> str:
    output: bytes = images.builds.client.containers.run(image, list(command), entrypoint=[], remove=True, **options)
    return output.decode()


def test_the_image_has_the_pytorch_of_that_image(images: Images, made: str) -> None:
    versions = json.loads(says(images, made, "cat", "/opt/modelarts-engine/trtllm/versions.json"))["packages"]
    assert (versions["torch"], versions["pytorch-triton"], "transformer-engine" in versions) == (
        pytorch.VERSION,
        "3.1.0+0123456789.internal",
        False,
    )
    use = "import torch, torchvision, tensorrt_llm; torch.compile(None); print(torch.__version__)"
    python = ["env", "-i", "PATH=/usr/bin:/bin", "python3", "-B", "-c", use]
    assert says(images, made, *python, user="1000:100", read_only=True).strip() == pytorch.VERSION


def test_nothing_else_of_that_image_is_taken(images: Images, made: str) -> None:
    names = ["-name", "libk.*", "-o", "-name", "transformer_engine*", "-o", "-path", "/workspace"]
    look = ["find", "/", "-xdev", "(", *names, ")"]
    assert says(images, made, *look, user="0:0").split() == ["/usr/local/lib/libk.so.1"]
    # A builder has the static library, too, as upstream copies it.
    beside = [says(images, tag, *look).split() for tag in images.stages()]
    assert [sorted(found) for found in beside if found] == [["/usr/local/lib/libk.a", "/usr/local/lib/libk.so.1"]]


def test_another_image_is_another_pytorch(images: Images, made: str) -> None:
    """The key goes by the digest: with another, the stage is looked up in vain and begun again; with the same, nothing is."""
    assert images.run(images.digests[""]).returncode == 0
    done = images.run(images.digests[LACKING])
    assert done.returncode == 1
    assert f"there is no /{LACKING}" in done.stderr
