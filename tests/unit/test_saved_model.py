"""The check of SavedModel folders names all that would keep TensorFlow Serving from serving them; half_plus_two is what its script writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils.saved_model import problems

REHEARSAL = Path(__file__).resolve().parents[2] / "roles/tfserving/rehearsal"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good folder with one version."""
    shutil.copytree(REHEARSAL / "model", tmp_path / "model")
    return tmp_path / "model"


def test_half_plus_two_is_what_its_script_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(REHEARSAL / "half_plus_two.py"), str(tmp_path)], check=True)
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = REHEARSAL / "model/1"
    assert files == {path.relative_to(kept): path.read_bytes() for path in kept.rglob("*") if path.is_file()}


def test_a_good_folder_has_no_problems(folder: Path) -> None:
    (folder / "models.config").write_text("")
    shutil.copytree(folder / "1", folder / "20261201")
    (folder / "20261201/assets").mkdir()
    assert problems(str(folder)) == []


def deepen(top: Path) -> None:
    (top / "2").mkdir()
    (top / "1").rename(top / "2/export")


def cut(path: Path) -> int:
    return path.write_bytes(path.read_bytes()[:-20])


def replaced(old: bytes, new: bytes) -> Callable[[Path], None]:
    assert len(old) == len(new)

    def spoil(top: Path) -> None:
        path = top / "1/saved_model.pb"
        path.write_bytes(path.read_bytes().replace(old, new))

    return spoil


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no version": (lambda top: shutil.rmtree(top / "1"), "has no version: a folder with a number"),
    "a name": (lambda top: (top / "1").rename(top / "v1"), "v1 holds a SavedModel, but its name is no number"),
    "the same twice": (lambda top: shutil.copytree(top / "1", top / "001"), "001 and 1 are the same version"),
    "a file": (lambda top: (top / "2").touch(), "2: this is a file"),
    "no graph": (lambda top: (top / "1/saved_model.pb").unlink(), "1: saved_model.pb is missing; export"),
    "too deep": (deepen, "2: saved_model.pb is missing; it is in export, a folder too deep"),
    "cut off": (lambda top: cut(top / "1/saved_model.pb"), "1: saved_model.pb is broken"),
    "empty": (lambda top: (top / "1/saved_model.pb").write_bytes(b""), "1: saved_model.pb is broken"),
    "a page": (lambda top: (top / "1/saved_model.pb").write_text("<html>"), "1: saved_model.pb is broken"),
    "for training": (replaced(b"\x22\x05serve", b"\x22\x05train"), "1: saved_model.pb has no graph with the tag serve"),
    "no variables": (lambda top: shutil.rmtree(top / "1/variables"), "1: variables/variables.index is missing"),
    "no data": (
        lambda top: next((top / "1/variables").glob("*.data*")).unlink(),
        "1: variables/variables.data-00000-of-00001 is missing",
    ),
    "one shard of two": (
        lambda top: (top / "1/variables/variables.data-00000-of-00001").rename(
            top / "1/variables/variables.data-00000-of-00002"
        ),
        "1: variables/variables.data-00001-of-00002 is missing",
    ),
    "another format": (lambda top: (top / "model.h5").touch(), "model.h5 is not a SavedModel"),
    "a stray file": (lambda top: (top / "notes.txt").touch(), "notes.txt is neither a version nor one of batching.config"),
    "a link": (lambda top: (top / "1/assets").symlink_to("/etc"), "1/assets is a link, which OBS does not know"),
    "more in the index": (
        lambda top: (top / "1/variables/variables.index").open("ab").write(b"x"),
        "1: variables/variables.index is empty, cut off or changed",
    ),
    "a pipe": (lambda top: os.mkfifo(top / "1/pipe"), "1/pipe is neither a file nor a folder"),
    "no text": (lambda top: (top / "1/a\udcff").touch(), "'1/a\\udcff' is no name that OBS can hold"),
    "a line break": (lambda top: (top / "1/a\nb").touch(), "'1/a\\nb' is no name that OBS can hold"),
    "too large a number": (lambda top: (top / "1").rename(top / ("9" * 20)), "too large for the number of a version"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_what_is_wrong_is_said(folder: Path, how: str) -> None:
    spoil, said = SPOILT[how]
    spoil(folder)
    found = problems(str(folder))
    assert [sentence for sentence in found if said in sentence], found


def test_all_is_said_at_once(folder: Path) -> None:
    for how in ("another format", "no data", "a link"):
        SPOILT[how][0](folder)
    assert len(problems(str(folder))) == 3


def test_one_model_or_no_folder_is_refused(folder: Path) -> None:
    (said,) = problems(str(folder / "1"))
    assert "is one SavedModel, not a folder of versions" in said
    (said,) = problems(str(folder / "none"))
    assert "is no folder" in said
