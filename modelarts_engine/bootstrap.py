"""Makes the environment the rest runs in. Standard library only: it runs before anything is installed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MARKER = VENV / "complete"
LOCK = ROOT / ".cache" / "venv.lock"
NOT_FIT = 3
# The interpreter itself, also where this runs in the environment that is about to be replaced.
PYTHON = getattr(sys, "_base_executable", "") or sys.executable


def _stop(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(NOT_FIT)


def lock_files(arguments: list[str]) -> list[Path]:
    """The lock files a command needs: tests and linters are only installed for `test`."""
    names = ["requirements.txt"] + (["requirements-dev.txt"] if arguments[:1] == ["test"] else [])
    return [ROOT / name for name in names]


def _identity(locks: list[Path]) -> str:
    """What an environment is made of, and where: its scripts hold its path, so a copied or moved one is made anew."""
    where = f"path:{hashlib.sha256(str(VENV.resolve()).encode()).hexdigest()}"
    return " ".join([where, *(f"{lock.name}:{hashlib.sha256(lock.read_bytes()).hexdigest()}" for lock in locks)])


def enter(arguments: list[str]) -> None:
    """Returns when this process runs in a complete `.venv`; otherwise makes it from the lock files and starts again in it.

    The marker is written last, so an interrupted installation is made anew.
    Exits with 3 and a message where Python is too old or the environment cannot be made.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python sees first
        _stop(f"Python {sys.version.split()[0]} is too old; run this with Python 3.11 or later")
    if not arguments or {"-h", "--help"} & set(arguments):
        return
    if not _complete(arguments):
        _set_up(arguments)
    if Path(sys.prefix).resolve() != VENV.resolve():
        python = str(VENV / "bin" / "python")
        # What was set for another Python must not shadow what is locked.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        try:
            os.execve(python, [python, str(ROOT / "runner.py"), *arguments], environment)  # noqa: S606
        except OSError as error:
            _stop(f"{python} cannot be run: {error.strerror}; remove {VENV} and run again as this user")


def _complete(arguments: list[str]) -> bool:
    have = MARKER.read_text() if MARKER.is_file() else ""
    return set(_identity(lock_files(arguments)).split()) <= set(have.split())


def _set_up(arguments: list[str]) -> None:
    """Makes the environment or adds to it, one process after the other: another may be at it already."""
    with _alone():
        if not _complete(arguments):
            _install(lock_files(arguments), keep=_complete([]))
            MARKER.write_text(_identity(lock_files(arguments)))


@contextmanager
def _alone() -> Iterator[None]:
    """Only one process sets up the environment at a time; another one waits."""
    try:
        LOCK.parent.mkdir(exist_ok=True)
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        _stop(f"{VENV} cannot be made: {error.strerror} ({error.filename})")


def _install(locks: list[Path], *, keep: bool) -> None:
    started = time.monotonic()
    print(f"setting up {VENV.name} from {', '.join(lock.name for lock in locks)} (once)", file=sys.stderr, flush=True)
    # What is complete stays so while more is added to it.
    if not keep:
        MARKER.unlink(missing_ok=True)
        shutil.rmtree(VENV, ignore_errors=True)
        _make_venv()
    pip = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-qq",
        "--require-hashes",
    ]
    done = subprocess.run([*pip, *[word for lock in locks for word in ("-r", str(lock))]], check=False)
    if done.returncode:
        _stop(
            "pip could not install the locked requirements (its message is above); check the network, and the index and CA of pip's configuration"
        )
    print(f"setting up {VENV.name}: done in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _make_venv() -> None:
    command = [PYTHON, "-m", "venv", str(VENV)]
    if not _has_ensurepip():
        # Debian keeps the module that puts pip into an environment in a package of its own.
        apt = shutil.which("apt-get")
        if not apt or os.geteuid() != 0:
            _stop(
                "this Python cannot make virtual environments; install its venv module (on Debian and Ubuntu: apt-get install python3-venv) and run again"
            )
        print("installing python3-venv from the system's package sources", file=sys.stderr, flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for step in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", "python3-venv"]):
            done = subprocess.run(
                [apt, *step], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
            )
            if done.returncode:
                _stop(f"apt-get {step[0]} failed: {done.stderr.strip()[-400:]}")
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        _stop(f"{' '.join(command)} failed: {(made.stderr or made.stdout).strip()[-400:]}")


def _has_ensurepip() -> bool:
    return subprocess.run([PYTHON, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
