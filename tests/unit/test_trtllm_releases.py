"""The release matrix: what it may say, what may be chosen from it, and how it is compared with upstream's repository."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import keys, trtllm

ROOT = Path(__file__).resolve().parents[2]
LISTED = [
    "v0.5.0",
    "v0.6.1",
    "v0.7.2",
    "v0.8.0",
    "v0.9.0",
    "v0.10.0",
    "v0.12.0",
    "v0.15.0",
    "v0.16.0",
    "v0.17.0",
    "v0.18.2",
    "v0.20.0",
    "v1.0.0",
]


def rows() -> dict[str, Any]:
    return copy.deepcopy(yaml.safe_load(trtllm.LISTED.read_text())["releases"])


def written(folder: Path, releases: Any) -> Path:
    path = folder / "releases.yml"
    path.write_text(yaml.safe_dump({"releases": releases}))
    return path


def test_the_listed_releases_are_what_the_schema_allows() -> None:
    assert list(trtllm.load()) == LISTED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"comit": "x"}, "comit (did you mean commit?)"),
        ({"tensorrt": {"version": "9.2.0.5", "sha": "x"}}, "tensorrt.sha (did you mean sha256?)"),
        ({"commit": "47b609b"}, "40 hexadecimal digits"),
        ({"submodule_commits": {"tensorrt_llm": "main"}}, "40 hexadecimal digits"),
        ({"build_bases": ["23.8"]}, "YY.MM"),
        ({"tensorrt": {"version": "9.2.0.5", "sha256": "abc"}}, "64 hexadecimal digits"),
        ({"routes": ["image", "source"], "ships_in": []}, "the route image needs ships_in"),
        ({"build_bases": []}, "the route source needs build_bases"),
        ({"torch": "image"}, "needs torch_image and torch_paths"),
        ({"torch": "image", "torch_image": "x"}, "needs torch_image and torch_paths"),
        ({"torch_image_digest": "sha256:abc"}, "sha256: and 64 hexadecimal digits"),
        ({"torch": "conda"}, "torch must be one of"),
        ({"tensorrt": None}, "tensorrt"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    row = {**rows()["v0.7.2"], **change}
    with pytest.raises(
        keys.InputError, match=said.replace("(", r"\(").replace(")", r"\)").replace("?", r"\?")
    ) as error:
        trtllm.load(written(tmp_path, {"v0.7.2": row}))
    assert "releases.yml: v0.7.2" in str(error.value)


@pytest.mark.parametrize("text", ["[", "- a", "releases: []", "releases: {}", "other: {}"])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    with pytest.raises(keys.InputError, match=r"trtllm_releases_file: .*mine\.yml"):
        trtllm.load(path)


def test_every_listed_pair_can_be_chosen() -> None:
    releases = trtllm.load()
    listed = [(route, *pair) for route in trtllm.BASES for pair in trtllm.pairs(releases, route)]
    assert ("source", "v0.5.0", "23.08") in listed
    assert ("image", "v1.0.0", "25.10") in listed
    for route, release, base in listed:
        chosen = trtllm.choose(release, base=base, route=route)
        assert (chosen["release"], chosen["route"]) == (release, route)
    assert {name for _, name, _ in listed} == set(LISTED)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"release": "v0.11.0"}, ["v0.11.0 is not listed", "v0.10.0 and v0.12.0"]),
        ({"release": "v0.4.0"}, ["the nearest that are: v0.5.0 "]),
        ({"release": "0.12"}, ["'0.12' is no tag", "v1.0.0"]),
        ({"release": "v0.20.0", "route": "source"}, ["built inside TensorRT-LLM", "trtllm_route=image", "v0.18.2"]),
        ({"release": "v0.6.1", "route": "image"}, ["no published image", "trtllm_route=source", "v0.5.0 or v0.7.2"]),
        ({"release": "v0.12.0", "route": "wheel"}, ["give image or source"]),
        ({"release": "v0.12.0", "base": "24.8"}, ["YY.MM"]),
        # The tutorial's pair.
        (
            {"release": "v0.5.0", "base": "23.03", "route": "source"},
            ["v0.5.0 on 23.03 is not a listed pair", "v0.5.0 on 23.08", "trtllm_allow_untested"],
        ),
        ({"release": "v0.5.0", "base": "24.07", "route": "source"}, ["release v0.5.0 on 23.08; base v0.12.0 on 24.07"]),
    ],
)
def test_what_is_not_listed_is_refused_with_what_is(asked: dict[str, str], said: list[str]) -> None:
    with pytest.raises(keys.InputError) as error:
        trtllm.choose(**asked)
    for words in said:
        assert words in str(error.value)


def test_the_tutorials_pair_may_be_insisted_on() -> None:
    assert trtllm.choose("v0.5.0", base="23.03", route="source", allow_untested=True)["release"] == "v0.5.0"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_trtllm_releases", ROOT / "tools/check_trtllm_releases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_trtllm_releases"] = module
    spec.loader.exec_module(module)
    return module


DOCKERFILE = """ARG BASE_IMAGE=nvcr.io/nvidia/tritonserver
ARG BASE_TAG=24.07-py3
RUN bash /tmp/install_tensorrt.sh && rm /tmp/install_tensorrt.sh
RUN bash /tmp/install_cmake.sh && rm /tmp/install_cmake.sh
ARG TORCH_INSTALL_TYPE="pypi"
"""
NAMES_TENSORRT = "ARG TRT_VER=10.3.0.26\nARG RELEASE_URL_TRT_x86=https://example.com/TensorRT-${TRT_VER}.tar.gz\n"


@pytest.fixture
def upstream(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A repository with one tag, and the row that fits it."""
    path = tmp_path / "upstream"
    files = {
        "dockerfile/Dockerfile.trt_llm_backend": DOCKERFILE,
        "dockerfile/Dockerfile.triton.trt_llm_backend": NAMES_TENSORRT,
        "all_models/inflight_batcher_llm/ensemble/config.pbtxt": "",
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git = ["git", "-C", str(path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    pin = "1" * 40
    for arguments in (
        ["init", "--quiet"],
        ["add", "."],
        ["update-index", "--add", "--cacheinfo", f"160000,{pin},tensorrt_llm"],
        ["commit", "--quiet", "-m", "release"],
        ["tag", "v0.12.0"],
    ):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    row = {
        **rows()["v0.12.0"],
        "commit": commit,
        "submodule_commits": {"tensorrt_llm": pin},
        "install_scripts": ["install_tensorrt.sh", "install_cmake.sh"],
        "tensorrt": {"version": "10.3.0.26", "url": "https://example.com/TensorRT-10.3.0.26.tar.gz"},
    }
    return path, row


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"commit": "0" * 40}, "v0.12.0: commit"),
        ({"submodule_commits": {"tensorrt_llm": "0" * 40}}, "v0.12.0: submodule_commits"),
        ({"build_bases": ["24.08"]}, "v0.12.0: build_bases: listed ['24.08'], upstream has ['24.07']"),
        (
            {"torch": "image", "torch_image": "x", "torch_paths": ["/y"]},
            "v0.12.0: torch_paths: listed ['/y'], upstream has nothing",
        ),
        ({"install_scripts": ["install_cmake.sh"]}, "v0.12.0: install_scripts"),
        ({"templates": "models"}, "v0.12.0: templates"),
        ({"tensorrt": {"version": "10.3.0.25"}}, "v0.12.0: tensorrt"),
    ],
)
def test_the_matrix_is_compared_with_a_repository(
    upstream: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    said: str,
) -> None:
    path, row = upstream
    mine = written(tmp_path, {"v0.12.0": {**row, **change}})
    assert tool().main([str(path), "--releases", str(mine)]) == (1 if said else 0)
    output = capsys.readouterr().out
    assert said in output
    assert f"1 releases compared, {output.count('v0.12.0: ')} differences" in output
