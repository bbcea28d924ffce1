"""The environment that the runner makes for itself."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from modelarts_engine import bootstrap


def test_two_runners_at_once_set_it_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "MARKER", tmp_path / ".venv/complete")
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / ".cache/venv.lock")
    for name in ("execv", "execve"):
        monkeypatch.setattr(os, name, lambda *_: None)
    for name in ("requirements.txt", "requirements-dev.txt"):
        (tmp_path / name).write_text(name)
    at_it: list[str] = []
    both = threading.Barrier(2)

    def install(locks: list[Path], *, keep: bool) -> None:
        at_it.append(locks[-1].name)
        (tmp_path / ".venv").mkdir(exist_ok=True)
        bootstrap.MARKER.unlink(missing_ok=True)
        time.sleep(0.2)  # long enough for another to come in between, were there no lock
        assert len(at_it) == 1 or keep

    monkeypatch.setattr(bootstrap, "_install", install)

    def enter() -> None:
        both.wait()
        bootstrap.enter(["build"])

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at_it == ["requirements.txt"]
    bootstrap.enter(["test"])
    bootstrap.enter(["build"])
    assert at_it == ["requirements.txt", "requirements-dev.txt"]


def test_an_environment_can_replace_itself(tmp_path: Path) -> None:
    """As when it is activated and the lock file has changed."""
    code = (
        "import pathlib, shutil, sys; from modelarts_engine import bootstrap as b; b.VENV = pathlib.Path(sys.argv[1]);"
        "shutil.rmtree(b.VENV, ignore_errors=True); b._make_venv()"
    )
    for python in (sys.executable, str(tmp_path / "venv/bin/python")):
        subprocess.run(
            [python, "-c", code, str(tmp_path / "venv")], cwd=Path(__file__).resolve().parents[2], check=True
        )
    assert (tmp_path / "venv/bin/python").exists()
