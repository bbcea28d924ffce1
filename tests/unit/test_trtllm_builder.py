"""The scripts of the builder of TensorRT-LLM that need no container: what a host offers, what is collected, what a base ships."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.modelarts.engine.plugins.filter import builder_environment, trtllm

ROLES = Path(__file__).resolve().parents[2] / "roles"


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nBuilt on Tue_Aug_15_22:02:13_PDT_2023\nCuda compilation tools, release 12.2, V12.2.140\n"


@pytest.mark.parametrize(("said", "release"), [(NVCC, "12.2"), ("something else\n", "unknown")])
def test_a_host_says_which_cuda_it_has(tmp_path: Path, said: str, release: str) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\ncat <<'E'\n{said}E\n")
    nvcc.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NVIDIA_TRITON_SERVER_VERSION": "24.07"}
    probe = [sys.executable, "-B", str(ROLES / "trtllm_tools/files/probe.py")]
    found = json.loads(subprocess.run(probe, env=environment, check=True, capture_output=True, text=True).stdout)
    assert (found["nvcc"], found["base"], found["machine"]) == (release, "24.07", os.uname().machine)
    assert 1 <= found["cpus"] <= (os.cpu_count() or 1)
    assert found["disk_mb"] > 0
    assert 0 < found["memory_mb"] < 1 << 40


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    probe = script("trtllm_tools/files/probe.py")
    files = {"/sys/fs/cgroup/memory.max": "4000000000", "/sys/fs/cgroup/memory.current": "1000000000", "/sys/fs/cgroup/cpu.max": "100000 100000"}  # fmt: skip
    files["/proc/meminfo"] = "MemTotal: 64000000 kB\nMemAvailable:   32000000 kB\n"

    def read(path: Path, *_: Any, **__: Any) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(probe.Path, "read_text", read)
    assert probe.memory() == 3_000_000_000
    assert probe.cpus() == 1
    files["/sys/fs/cgroup/memory.max"] = "max"
    files["/sys/fs/cgroup/cpu.max"] = "max 100000"
    assert probe.memory() == 32_768_000_000
    assert probe.cpus() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("\tlibcuda.so.1 => not found", False),
        ("\tlibnvidia-ml.so.1 => not found", False),
        ("\tlibcudart.so.12 => not found", True),
        ("\tlibcublas.so.12 => not found", True),
        ("undefined symbol: cuGetErrorString\t(/x/libtriton_tensorrtllm.so)", False),
        ("undefined symbol: nvmlInit_v2\t(/x/libtriton_tensorrtllm.so)", False),
        ("undefined symbol: _ZN3c105Error7contextB5cxx11E\t(/x/y.so)", True),
        ("undefined symbol: custom_op\t(/x/y.so)", True),
        ("\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)", False),
    ],
)
def test_only_what_the_driver_brings_may_be_missing(tmp_path: Path, line: str, problem: bool) -> None:
    """The builder's check and the image's are two programs with one mind."""
    assert script("trtllm_compile/files/collect.py").Collect.is_problem(line) is problem
    for name, text in (
        ("ldd", f"cat <<'E'\n{line}\nE\n"),
        ("setpriv", 'while [ "$1" != env ]; do shift; done; shift 4; exec "$@"\n'),
    ):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{text}")
        tool.chmod(0o755)
    prove = ["sh", str(ROLES / "trtllm_backend/files/prove.sh"), "libtriton_tensorrtllm.so"]
    done = subprocess.run(prove, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if problem else 0), done.stdout + done.stderr
    assert (line.strip() in done.stdout) is problem


def test_mirrors_reach_git_and_the_caches_their_tools() -> None:
    made = builder_environment.builder_environment({"https://github.com/": "https://git.example.com/hub/"})
    assert made["CCACHE_DIR"] == "/tmp/cache/ccache"
    said = subprocess.run(
        ["git", "config", "--get-regexp", r"^url\."],
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", **made},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said == "url.https://git.example.com/hub/.insteadof https://github.com/\n"


def test_a_release_decides_the_route_unless_it_is_given() -> None:
    assert trtllm.trtllm_route("") == ""
    assert trtllm.trtllm_route("v0.12.0") == "image"
    assert trtllm.trtllm_route("v0.6.1") == "source"
    assert trtllm.trtllm_route("v0.12.0", "source") == "source"
    assert trtllm.trtllm_route("v9.9.9") == "image"
    with pytest.raises(AnsibleFilterError, match=r"v9\.9\.9 is not listed"):
        trtllm.trtllm_release("v9.9.9")
