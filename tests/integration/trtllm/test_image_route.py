"""`trtllm_route=image`: nothing is compiled; that the base ships what was asked for is seen, and templates and tool come from the source."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import engine

from tests.fixtures import trtllm_upstream as miniature

from .conftest import Builds, named_base

SITE = "/usr/local/lib/python3.11/dist-packages"
# As in NVIDIA's image, its libraries are found by LD_LIBRARY_PATH.
SHIPPED = {"LD_LIBRARY_PATH": f"{SITE}/tensorrt_llm/libs", "NVIDIA_TRITON_SERVER_VERSION": miniature.BASE}


def ships(wheel: str) -> bytes:
    """Files of a base that ships a backend: whatever can be loaded will do, since nothing of it runs here."""
    files = {
        f"{SITE.lstrip('/')}/tensorrt_llm-{wheel}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {wheel}\n",
        f"{SITE.lstrip('/')}/tensorrt_llm-{wheel}.dist-info/RECORD": "tensorrt_llm/libs/libtensorrt_llm.so,,\n",
    }
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content.encode()))
        # libtensorrt_llm.so is the server's library by another name and needs the folder of the others; the backend needs it.
        for path, target in (
            (f"{SITE.lstrip('/')}/tensorrt_llm/libs/libtensorrt_llm.so", "/opt/tritonserver/lib/libtritonserver.so"),
            (
                "opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so",
                "/opt/tritonserver/backends/python/libtriton_python.so",
            ),
        ):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return blob.getvalue()


@pytest.fixture(scope="module")
def shipping(builds: Builds, local_base: str) -> dict[str, Any]:
    epoch = named_base(builds.client, local_base, ships("0.7.2"), SHIPPED, "ships")
    return {"base_image_epoch": epoch, "trtllm_route": "image", "image_name": f"{builds.image}-taken"}


def test_a_base_that_lacks_a_file_is_refused(builds: Builds, shipping: dict[str, Any]) -> None:
    files = ["libtriton_tensorrtllm.so", "trtllmExecutorWorker"]
    more = builds.server.upstream.releases(builds.releases.parent / "more.yml", installed_files=files)
    done = builds.run(**shipping, trtllm_releases_file=str(more))
    assert done.returncode == 1
    assert "the base lacks trtllmExecutorWorker in /opt/tritonserver/backends/tensorrtllm" in done.stderr
    assert f"tritonserver:{miniature.BASE}-trtllm-python-py3" in done.stderr


def test_a_base_that_ships_another_is_refused(builds: Builds, shipping: dict[str, Any]) -> None:
    other = builds.server.upstream.releases(builds.releases.parent / "wheel.yml", wheel="0.7.1")
    done = builds.run(**shipping, trtllm_releases_file=str(other))
    assert done.returncode == 1
    assert "(TensorRT-LLM 0.7.1) with TensorRT 9.2.0.5" in done.stderr
    assert "the base ships TensorRT-LLM 0.7.2" in done.stderr


def test_what_the_base_ships_is_taken_and_nothing_is_compiled(builds: Builds, shipping: dict[str, Any]) -> None:
    done = builds.run(**shipping)
    assert done.returncode == 0, done.stdout + done.stderr
    image = f"{engine.REPOSITORY}/{shipping['image_name']}:latest"
    try:
        script = "cd /opt/modelarts-engine/trtllm; cat versions.json; ls all_models/inflight_batcher_llm examples/llama; which git gcc"
        said = builds.client.containers.run(
            image, ["sh", "-c", f"{script} || true"], entrypoint=[], remove=True
        ).decode()
        versions, listed = json.loads(said[: said.index("\n}") + 2]), said[said.index("\n}") + 2 :]
        assert (versions["route"], versions["release"]) == ("image", miniature.RELEASE)
        assert versions["packages"] == {"tensorrt-llm": "0.7.2"}
        assert versions["cuda_architectures"] == []
        for name in ("ensemble", "tensorrt_llm", "preprocessing", "postprocessing", "build.py"):
            assert name in listed.split()
        assert "/git" not in listed
        labels = builds.client.images.get(image).labels
        assert labels["io.modelarts.engine.trtllm.route"] == "image"
    finally:
        for name in builds.client.images.get(image).tags:
            if shipping["image_name"] in name:
                builds.client.api.remove_image(name)
