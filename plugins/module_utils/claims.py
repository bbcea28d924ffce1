# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Who builds what, so that no two runs of one controller build the same thing side by side: the later one waits and takes the result.

A claim is a file that names its run; one whose run is gone, or cannot be seen from here, counts for nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def here() -> str:
    """What process numbers count in: this boot, and this process namespace. Two jobs of a CI in containers share the first only."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return hashlib.sha256(f"{boot} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:12]


def start_time(pid: int) -> str | None:
    """Clock ticks since boot at which a process began (proc(5), field 22); None where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def this_run() -> str:
    """Identity of the playbook run an action belongs to (an action runs in a fork, its parent is the run): `<here>.<pid>.<start time>`."""
    pid = os.getppid()
    return f"{here()}.{pid}.{start_time(pid)}"


def foreign(run: str) -> bool:
    """Whether a run is of another machine, boot or process namespace, so that nothing can be said of its life."""
    return run.partition(".")[0] != here()


def alive(run: str) -> bool:
    """Whether a run still goes on; False for a foreign one."""
    pid, _, started = run.partition(".")[2].partition(".")
    return not foreign(run) and pid.isdigit() and start_time(int(pid)) == started


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "modelarts-engine" / "claims"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _guard(folder: Path) -> Iterator[None]:
    with (folder / ".guard").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _file(what: str) -> Path:
    return _folder() / hashlib.sha256(what.encode()).hexdigest()[:40]


def take(what: str, done: Callable[[], bool]) -> bool:
    """Claims `what` for this run; where another one has it, waits until that is given up or ended.

    :param done: asked after each wait; True ends it, for what was claimed is there.
    :returns: whether the claim is ours; False when `done` said so.
    """
    path = _file(what)
    mine = this_run()
    waited = False
    while True:
        with _guard(path.parent):
            owner = path.read_text() if path.is_file() else mine
            if owner == mine or not alive(owner):
                path.write_text(mine)
                break
        waited = True
        time.sleep(0.2)
    if waited and done():
        give_up(what)
        return False
    return True


def give_up(what: str) -> None:
    """Ends this run's claim of `what`; another run's stays."""
    path = _file(what)
    with _guard(path.parent):
        if path.is_file() and path.read_text() == this_run():
            path.unlink()
