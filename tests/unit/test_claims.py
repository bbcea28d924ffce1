"""Who may wait for whom, and whose containers may be removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import claims


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def run_of(pid: int) -> str:
    return f"{claims.here()}.{pid}.{claims.start_time(pid)}"


def test_a_run_lives_as_long_as_its_process() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        run = run_of(process.pid)
        assert claims.alive(run)
        process.kill()
    assert not claims.alive(run)
    assert not claims.foreign(run)
    assert not claims.alive(f"{claims.here()}.{os.getpid()}.1")  # the number is in use again


def test_a_run_of_another_process_namespace_is_foreign_and_nobody_waits_for_it() -> None:
    elsewhere = f"0123456789ab.{os.getpid()}.{claims.start_time(os.getpid())}"
    assert claims.foreign(elsewhere)
    assert not claims.alive(elsewhere)


def test_the_later_waits_for_the_earlier_and_takes_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])
    with monkeypatch.context() as earlier:
        earlier.setattr(claims, "this_run", lambda: run_of(process.pid))
        assert claims.take("stage", lambda: False)
    waited = []

    def end_the_earlier(seconds: float) -> None:
        waited.append(seconds)
        process.kill()
        process.wait()

    monkeypatch.setattr(claims.time, "sleep", end_the_earlier)
    assert not claims.take("stage", lambda: True)
    assert len(waited) == 1
    assert claims.take("stage", lambda: False)  # it is free again
    claims.give_up("stage")
    assert claims.take("other", lambda: True)  # nobody had it, so nobody was waited for
