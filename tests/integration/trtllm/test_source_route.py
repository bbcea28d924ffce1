"""`build triton -e trtllm_release=…` compiles the backend in a builder, stage by stage, and the real server serves with it.

The tests of this file go on from one another, as a user would who meets one fault after the other; each stage is built once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import small_llama
from ansible_collections.modelarts.engine.plugins.module_utils import engine, rehearsal, serving

from tests.fixtures import trtllm_upstream as miniature

from .conftest import CUDA, ROOT, Builds

ANSWER = "LlamaForCausalLM with 2 layers, TensorRT 9200, rank 0."
NVIDIA_SMI = Path(__file__).parents[2] / "fixtures/trtllm_image/tools/nvidia-smi"


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What the runner says of each step, by its name."""
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines() if line.startswith("trtllm-")]
    return {row[1]: row[2] for row in rows if len(row) > 2}


@pytest.fixture
def nothing_fetched(builds: Builds) -> Iterator[None]:
    """Fails a test in which upstream is asked for anything."""
    before = len(builds.server.requests)
    yield
    assert builds.server.requests[before:] == []


@pytest.fixture
def gpus(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """gpus(script): the environment of a host whose nvidia-smi, asked for its GPUs' compute capability, does that."""

    def make(script: str) -> dict[str, str]:
        tool = tmp_path / "nvidia-smi"
        question = "--query-gpu=compute_cap --format=csv,noheader"
        tool.write_text(f'#!/bin/sh\n[ "$*" = "{question}" ] || exit 6\n{script}\n')
        tool.chmod(0o755)
        return {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    return make


@pytest.mark.usefixtures("nothing_fetched")
def test_what_is_not_given_is_asked_for_before_anything_starts(builds: Builds) -> None:
    done = builds.run(trtllm_base="24.11")
    assert done.returncode == 2
    assert "error: trtllm_base: v0.7.2 on 24.11 is not a listed pair for the route source" in done.stderr


@pytest.mark.usefixtures("nothing_fetched")
@pytest.mark.parametrize("says", ["exit 9", "echo 'no devices were found'", "echo '[N/A]'"])
def test_without_a_gpu_the_architectures_are_asked_for(
    builds: Builds, gpus: Callable[[str], dict[str, str]], says: str
) -> None:
    done = builds.run(trtllm_cuda_architectures=[], environment=gpus(says))
    assert done.returncode == 2
    assert "trtllm_cuda_architectures must say for which GPUs" in done.stderr


@pytest.mark.usefixtures("nothing_fetched")
def test_a_base_with_another_cuda_is_refused_before_anything_is_fetched(builds: Builds) -> None:
    other = builds.server.upstream.releases(builds.releases.parent / "other.yml", cuda="12.6")
    done = builds.run(trtllm_releases_file=str(other))
    assert done.returncode == 1
    assert f"the base has nvcc of CUDA {CUDA}, this release is compiled with CUDA 12.6" in done.stderr


@pytest.mark.usefixtures("nothing_fetched")
def test_a_host_without_the_disk_is_refused_before_anything_is_fetched(builds: Builds) -> None:
    done = builds.run(trtllm_tools_min_disk_gb=10**6)
    assert done.returncode == 1
    assert "1000000 GB are needed (trtllm_tools_min_disk_gb)" in done.stderr


@pytest.mark.parametrize(
    ("fault", "step", "said"),
    [
        ("compile-error", "compiling TensorRT-LLM failed", ["runtime.cpp", "#error", "expected an engine"]),
        ("out-of-memory", "compiling TensorRT-LLM failed", ["a process was killed", "fewer jobs"]),
        ("full-disk", "compiling TensorRT-LLM failed", ["the disk is full", "No space left on device"]),
        ("undefined-symbol", "the backend was compiled, but cannot be loaded", ["undefined symbol", "made_with_the_other_abi"]),
    ],
)  # fmt: skip
def test_a_failure_is_explained_and_what_was_finished_stays(
    builds: Builds, fault: str, step: str, said: list[str]
) -> None:
    done = builds.run(fault)
    assert done.returncode == 1, done.stdout
    for words in [step, *said]:
        assert words in done.stderr
    steps = lines(done)
    finished = ["tools", "source", "toolchain", "torch", *(["wheel"] if fault == "undefined-symbol" else [])]
    assert [name for name in steps if name in finished] == finished
    if fault == "out-of-memory":
        assert {steps[name] for name in finished} == {"cached"}
        # Before the next fault the run is killed in the wheel's step; the one after it goes on from there.
        builds.killed("wheel-hangs", "wheel", "/tmp/wheel-hangs")


@pytest.fixture(scope="module")
def made(builds: Builds) -> subprocess.CompletedProcess[str]:
    done = builds.run()
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def image(builds: Builds, made: subprocess.CompletedProcess[str]) -> str:
    return f"{engine.REPOSITORY}/{builds.image}:latest"


def says(builds: Builds, image: str, *command: str, **options: Any) -> str:
    output: bytes = builds.client.containers.run(
        image, list(command), entrypoint=[], remove=True, environment={"PYTHONDONTWRITEBYTECODE": "1"}, **options
    )
    return output.decode()


def test_it_goes_on_where_it_stopped(made: subprocess.CompletedProcess[str]) -> None:
    """The wheel was made by the run that found the undefined symbol, after one that was killed while it was made."""
    steps = lines(made)
    assert {name for name, what in steps.items() if what == "cached"} == {
        "tools",
        "source",
        "toolchain",
        "torch",
        "wheel",
    }
    assert {name for name, what in steps.items() if what.startswith("built")} == {"compile", "backend", "engine", "init", "proxy"}  # fmt: skip
    assert "[100%]" in made.stdout


def test_a_second_build_touches_no_compiler(builds: Builds, image: str) -> None:
    before = len(builds.server.requests)
    done = builds.run()
    assert done.returncode == 0, done.stdout + done.stderr
    steps = lines(done)
    assert {name for name, what in steps.items() if what == "cached"} == {"backend", "engine", "init", "proxy"}
    assert len(builds.server.requests) == before


def test_the_build_hosts_gpus_are_what_is_compiled_for(
    builds: Builds, image: str, gpus: Callable[[str], dict[str, str]]
) -> None:
    """Two kinds of them: what was compiled for the same two by name is the same, and what was not is not."""
    asked = gpus("printf '9.0\\n8.0\\n9.0\\n'")
    done = builds.run(trtllm_cuda_architectures=[], environment=asked, image_name=f"{builds.image}-gpus")
    assert done.returncode == 0, done.stdout + done.stderr
    cached = {name for name, what in lines(done).items() if what == "cached"}
    assert cached == {"backend", "engine", "init", "proxy"}
    labels = builds.client.images.get(f"{engine.REPOSITORY}/{builds.image}-gpus:latest").labels
    assert labels["io.modelarts.engine.trtllm.cuda-architectures"] == "80-real 90-real"


def test_it_says_what_it_is(builds: Builds, image: str) -> None:
    commits = builds.server.upstream.commits
    versions = json.loads(says(builds, image, "cat", "/opt/modelarts-engine/trtllm/versions.json"))
    assert versions | {"packages": {}} == {
        "release": miniature.RELEASE,
        "route": "source",
        "commit": commits[miniature.BACKEND],
        "submodule_commits": {"tensorrt_llm": commits[miniature.LLM]},
        "triton": miniature.BASE,
        "tensorrt": miniature.TENSORRT,
        "cuda": CUDA,
        "cuda_architectures": ["80-real", "90-real"],
        "packages": {},
    }
    assert versions["packages"] == {"tensorrt-llm": "0.7.2", "torch": "2.1.0"}
    labels = builds.client.images.get(image).labels
    prefix = "io.modelarts.engine.trtllm."
    assert {name.removeprefix(prefix): value for name, value in labels.items() if name.startswith(prefix)} == {
        "release": miniature.RELEASE,
        "route": "source",
        "commit": commits[miniature.BACKEND],
        "tensorrt-llm-commit": commits[miniature.LLM],
        "tensorrt": miniature.TENSORRT,
        "cuda": CUDA,
        "cuda-architectures": "80-real 90-real",
    }


def test_nothing_of_the_build_is_in_the_image(builds: Builds, image: str) -> None:
    looked_for = [
        *("-name", "*.o", "-o", "-name", "CMakeCache.txt", "-o", "-name", "*.whl", "-o", "-name", "TensorRT*.tar*", "-o", "-name", ".git"),
        *("-o", "-name", "*.cc", "-o", "-name", "libtensorrt_llm_batch_manager_static.a", "-o", "-path", "*ccache*", "-o", "-path", "/opt/trtllm*"),
        *("-o", "-path", "/opt/outputs*", "-o", "-name", "cc1plus", "-o", "-name", "git-lfs"),
    ]  # fmt: skip
    found = says(builds, image, "find", "/", "-xdev", "-not", "-path", "/proc/*", "(", *looked_for, ")", user="0:0")
    assert found == ""
    # The base's own TensorRT had to go.
    assert says(builds, image, "sh", "-c", "ls -d /usr/local/lib/python3.11/dist-packages/tensorrt*") .split() == [
        "/usr/local/lib/python3.11/dist-packages/tensorrt_llm",
        "/usr/local/lib/python3.11/dist-packages/tensorrt_llm-0.7.2.dist-info",
    ]  # fmt: skip


def test_the_serving_user_can_load_it_without_a_library_path(builds: Builds, image: str) -> None:
    backend = "/opt/tritonserver/backends/tensorrtllm/libtriton_tensorrtllm.so"
    loaded = says(builds, image, "env", "-i", "PATH=/usr/bin:/bin", "ldd", "-r", backend, user="1000:100")
    assert "/usr/local/lib/python3.11/dist-packages/tensorrt_llm/libs/libtensorrt_llm.so" in loaded
    assert "/usr/local/tensorrt/lib/libnvinfer.so.9" in loaded
    assert "not found" not in loaded
    assert "undefined symbol" not in loaded
    assert "/etc/ld.so.conf.d/" in says(builds, image, "sh", "-c", "ls /etc/ld.so.conf.d/*modelarts-engine-trtllm.conf")


@pytest.fixture(scope="module")
def package(builds: Builds, image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of a small llama, as a user makes it for this image and tries it there."""
    top = tmp_path_factory.mktemp("package")
    for folder in (top, *top.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest's folders are for their owner only
    source = small_llama.make(top / "hf")
    release = {"trtllm_release": miniature.RELEASE, "trtllm_releases_file": str(builds.releases)}
    command = [sys.executable, "runner.py", "package", "llama_7b", str(source), "--dest", str(top / "model")]
    done = subprocess.run(
        [*command, "--image", image, "-e", json.dumps(release)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"fits {image}" in done.stdout
    return top / "model"


@pytest.fixture
def service(builds: Builds, image: str, package: Path) -> Iterator[serving.Service]:
    """It runs as the platform runs it, with nvidia-smi from the host, as the runtime of a GPU host gives it to a container."""
    mounts = [
        docker.types.Mount(to, str(path), type="bind", read_only=True)
        for to, path in ((serving.MODEL_PATH, package), ("/usr/bin/nvidia-smi", NVIDIA_SMI))
    ]
    container = serving.run_as_platform(builds.client, image, package, mounts=mounts)
    try:
        yield serving.Service(container)
    finally:
        container.remove(force=True, v=True)


def test_the_package_is_served_with_what_was_compiled(service: serving.Service) -> None:
    """Its start script builds the engine with the image's own tool, and the tutorial's request goes through all three models."""
    service.wait(120)
    asked = rehearsal.load("triton")
    assert service.infer(asked, "what is machine learning") == ANSWER
    assert service.infer(asked, "what is machine learning", max_tokens=5) == ANSWER[:5]
    model = json.loads(service.request("GET", "/v2/models/tensorrt_llm/config").read())
    assert model["backend"] == "tensorrtllm"
    assert model["parameters"]["gpt_model_path"]["string_value"].startswith("/tmp/engines/")
    said = service.container.logs().decode()
    assert "examples/llama/build.py" in said
    assert "triton_serving: built the engine" in said
