"""What is fetched for TensorRT-LLM: every check that comes before something expensive, on an upstream in miniature over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import trtllm_upstream as miniature

ROLES = Path(__file__).resolve().parents[2] / "roles"
FETCH = ROLES / "trtllm_source/files/fetch.py"
ARCHIVE = ROLES / "trtllm_toolchain/files/archive.py"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> miniature.Upstream:
    return miniature.Upstream(tmp_path_factory.mktemp("upstream"))


@pytest.fixture
def server(upstream: miniature.Upstream, tmp_path: Path) -> Iterator[miniature.Server]:
    with miniature.Server(upstream, tmp_path).running() as running:
        yield running


def run(script: Path, server: miniature.Server, asked: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    trusted = {"SSL_CERT_FILE": str(server.ca), "GIT_SSL_CAINFO": str(server.ca)}
    return subprocess.run(
        [sys.executable, "-B", str(script), json.dumps(asked)],
        env={**os.environ, **trusted, "GIT_CONFIG_GLOBAL": "/dev/null"},
        capture_output=True,
        text=True,
        check=False,
    )


def fetch(server: miniature.Server, folder: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    commits = server.upstream.commits
    asked = {
        "root": str(folder / "source"),
        "repository": f"https://github.com/{miniature.BACKEND}.git",
        "tag": miniature.RELEASE,
        "commit": commits[miniature.BACKEND],
        "submodules": {"tensorrt_llm": commits[miniature.LLM]},
        "mirrors": server.mirrors,
        "archives": [f"https://{miniature.ARCHIVE}"],
        "full": True,
        **changes,
    }
    return run(FETCH, server, asked)


def test_without_compiling_it_is_the_source_and_one_submodule(server: miniature.Server, tmp_path: Path) -> None:
    """The miniature's submodule has an address over SSH, as upstream's v0.5.0 has."""
    done = fetch(server, tmp_path, full=False, archives=[])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asking https://github.com/NVIDIA/TensorRT-LLM.git" in done.stdout
    source = tmp_path / "source"
    assert (source / "all_models/inflight_batcher_llm/ensemble/config.pbtxt").is_file()
    assert (source / "tensorrt_llm/examples/llama/build.py").is_file()
    assert not any(
        "json" in request or "lfs" in request or ("TensorRT-" in request and "nvidia.com" in request)
        for request in server.requests
    )


COMMIT = "1" * 40


@pytest.mark.parametrize(
    ("fault", "changes", "said", "asked_at_most"),
    [
        ("archive", {}, ["TensorRT-9.2.0.5.tar.gz is not there", "404", "trtllm_tensorrt_url", "trtllm_mirrors"], "HEAD"),
        ("", {"tag": "v0.9.9"}, ["has no tag v0.9.9"], "tensorrtllm_backend"),
        ("", {"commit": COMMIT}, ["the tag v0.7.2 was moved", COMMIT, "find out who moved it"], "tensorrtllm_backend"),
        ("", {"submodules": {"tensorrt_llm": COMMIT}}, ["has the submodules", COMMIT], "tensorrtllm_backend"),
        ("nested", {}, ["the submodule 3rdparty/json of the submodule tensorrt_llm of the backend cannot be had"], "nlohmann/json"),
    ],
    ids=["archive gone", "no tag", "moved tag", "other pin", "nested pin gone"],
)  # fmt: skip
def test_what_cannot_be_had_is_said_before_anything_large_is_fetched(
    server: miniature.Server, tmp_path: Path, fault: str, changes: dict[str, Any], said: list[str], asked_at_most: str
) -> None:
    server.faults.add(fault)
    done = fetch(server, tmp_path, **changes)
    assert done.returncode == 1
    (refused,) = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    for words in said:
        assert words in refused
    assert asked_at_most in server.requests[-1]
    assert not any("lfs" in request for request in server.requests)
    assert not (tmp_path / "source/inflight_batcher_llm").exists()


def test_a_large_file_that_is_missing_is_said_before_anything_is_compiled(
    server: miniature.Server, tmp_path: Path
) -> None:
    """Where git-lfs is not even installed the outcome is the same."""
    server.faults.add("lfs")
    done = fetch(server, tmp_path)
    assert done.returncode == 1
    assert "libtensorrt_llm_batch_manager_static.a is still a pointer of Git LFS" in done.stdout
    assert "a mirror must have the repository's LFS objects" in done.stdout


def archive(server: miniature.Server, folder: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    asked = {
        "url": f"https://{miniature.ARCHIVE}",
        "sha256": server.upstream.tensorrt_sha256,
        "mirrors": server.mirrors,
        "to": str(folder / "archive"),
        **changes,
    }
    return run(ARCHIVE, server, asked)


def test_an_archive_is_what_was_asked_for(server: miniature.Server, tmp_path: Path) -> None:
    assert archive(server, tmp_path).returncode == 0
    assert (tmp_path / "archive").read_bytes() == (server.upstream.root / miniature.ARCHIVE).read_bytes()


def test_an_archive_of_another_sha256_is_not_kept(server: miniature.Server, tmp_path: Path) -> None:
    done = archive(server, tmp_path, sha256="0" * 64)
    assert done.returncode == 1
    assert (
        f"has the sha256 {server.upstream.tensorrt_sha256} (10240 bytes), and {'0' * 64} was asked for" in done.stderr
    )
    assert not (tmp_path / "archive").exists()


def test_an_archive_that_is_gone_is_said(server: miniature.Server, tmp_path: Path) -> None:
    server.faults.add("archive")
    done = archive(server, tmp_path)
    assert done.returncode == 1
    assert "refused: https://localhost" in done.stderr
    assert "404" in done.stderr
