"""Several images on several build hosts: each image is built on one host, each host builds one image at a time.

A build is a process of its own, so that a failed one fails alone. A host that cannot be reached, or is not fit, gives its image back to
the others and gets no more. The same stage wanted by two images is built once where the hosts share a cache (`image_cache`).
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelarts_engine.playbook import DONE, INTERRUPTED, NOT_FIT, ROOT, private_dir

FIELDS = {"image": str, "name": str, "inventory": str, "variables": dict}


@dataclass
class Job:
    """One image to build.

    :ivar recipe: of `playbooks/build_<recipe>.yml`.
    :ivar code: the exit code of its last try; None before.
    """

    recipe: str
    name: str
    inventory: str | None
    variables: dict[str, Any]
    code: int | None = None
    host: str = ""
    seconds: float = 0.0
    tried: set[str] = field(default_factory=set)


def read(path: str, recipes: list[str]) -> list[Job]:
    """The jobs of a file: a YAML list of `image`, and optionally `name`, `inventory` and `variables`.

    :raises ValueError: the file is not such a list; the message says where.
    """
    import yaml

    try:
        entries = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: give a list of images, such as: [{{image: {recipes[0]}}}]")
    jobs: list[Job] = []
    for number, entry in enumerate(entries, 1):
        where = f"{path}, entry {number}"
        recipe = entry.get("image") if isinstance(entry, dict) else None
        if not isinstance(recipe, str):
            raise ValueError(f"{where}: each entry needs an image, one of {', '.join(recipes)}")
        for key, value in entry.items():
            if key not in FIELDS or not isinstance(value, FIELDS[key]):
                known = ", ".join(f"{name} ({kind.__name__})" for name, kind in FIELDS.items())
                raise ValueError(f"{where}: {key} is not one of {known}, or not of that type")
        for variable, value in (entry.get("variables") or {}).items():
            try:
                json.dumps({variable: value})
            except TypeError as error:
                raise ValueError(
                    f"{where}: {variable} is {value!r}, which Ansible is not given as it is; put it into quotes"
                ) from error
        if recipe not in recipes:
            raise ValueError(f"{where}: there is no recipe for {recipe}; there is {', '.join(recipes)}")
        name = entry.get("name", recipe)
        if name in {job.name for job in jobs}:
            raise ValueError(f"{where}: {name} is there twice; give each a name of its own")
        jobs.append(Job(recipe, name, entry.get("inventory"), entry.get("variables") or {}))
    return jobs


def build_hosts(inventory: str | None, pattern: str = "build_hosts") -> list[str]:
    """Names of an inventory's hosts that match a pattern, in its order.

    :raises ValueError: the inventory cannot be read.
    """
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader

    source = inventory or str(ROOT / "inventories" / "local")
    try:
        return [host.name for host in InventoryManager(DataLoader(), sources=[source]).get_hosts(pattern)]
    except AnsibleError as error:
        raise ValueError(f"{source}: {error}") from error


def assign(jobs: list[Job], hosts: list[str], default: str | None) -> dict[int, list[str]]:
    """Which hosts may build which job (by its index): those named, or the build hosts of its inventory.

    :raises ValueError: a job has no host, or a named host is in no inventory.
    """
    known = {job.inventory or default: build_hosts(job.inventory or default, "all") for job in jobs}
    lost = [host for host in hosts if not any(host in names for names in known.values())]
    if lost:
        raise ValueError(
            f"--hosts: {', '.join(lost)}: not in the inventory {', '.join(str(name or 'local') for name in known)}"
        )
    result = {}
    for index, job in enumerate(jobs):
        inventory = job.inventory or default
        usable = [h for h in hosts if h in known[inventory]] if hosts else build_hosts(inventory)
        if not usable:
            raise ValueError(f"{job.name}: no host of the inventory {inventory or 'inventories/local'} is to build it")
        result[index] = usable
    return result


class Fleet:
    """One run.

    :param may: per job's index the hosts that may build it.
    :param command: gives a job's command on a host; its variables reach it in a file.
    """

    def __init__(
        self, jobs: list[Job], may: Mapping[int, list[str]], command: Callable[[Job, str, Path], list[str]]
    ) -> None:
        self._jobs, self._may, self._command = jobs, may, command
        self._lock = threading.Condition()
        self._open = list(range(len(jobs)))
        self._busy = 0
        self._out: set[str] = set()
        self._stopped = False
        self._running: set[subprocess.Popen[str]] = set()
        self._lines: queue.Queue[str] = queue.Queue()

    def run(self) -> int:
        """Builds; prints each build's lines behind its host's name, and a table at the end. Returns the exit code."""
        hosts = list(dict.fromkeys(host for names in self._may.values() for host in names))
        self._width = max(map(len, hosts))
        with private_dir() as private, self._stopping():
            workers = [threading.Thread(target=self._work, args=(host, private), daemon=True) for host in hosts]
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers) or not self._lines.empty():
                try:
                    print(self._lines.get(timeout=0.1), flush=True)
                except queue.Empty:
                    continue
        print()
        for job in self._jobs:
            ended = "done" if job.code == DONE else "not built" if job.code is None else f"failed ({job.code})"
            print(f"{job.name:<20} {job.host or '-':<{self._width}} {ended:<12} {job.seconds:7.1f} s")
        if self._stopped:
            return INTERRUPTED
        return next((NOT_FIT if job.code is None else job.code for job in self._jobs if job.code != DONE), DONE)

    def _next(self, host: str) -> int | None:
        """The next job for a host; waits while one that it may build could still come back from another host."""
        with self._lock:
            while not self._stopped and host not in self._out:
                mine = [n for n in self._open if host in self._may[n] and host not in self._jobs[n].tried]
                if mine:
                    self._open.remove(mine[0])
                    self._busy += 1
                    return mine[0]
                if not self._busy:
                    return None
                self._lock.wait(0.2)
            return None

    def _work(self, host: str, private: Path) -> None:
        while (number := self._next(host)) is not None:
            job = self._jobs[number]
            job.host, started = host, time.monotonic()
            job.tried.add(host)
            variables = private / f"{number}.{len(job.tried)}.json"
            variables.touch(0o600)
            variables.write_text(json.dumps(job.variables))
            job.code = self._build(job, host, variables)
            job.seconds += time.monotonic() - started
            with self._lock:
                self._busy -= 1
                if job.code == NOT_FIT and not self._stopped:
                    self._out.add(host)
                    left = [h for h in self._may[number] if h not in self._out and h not in job.tried]
                    if left:
                        self._say(host, f"{job.name}: goes to another host; this one gets no more")
                        self._open.append(number)
                self._lock.notify_all()

    def _build(self, job: Job, host: str, variables: Path) -> int:
        with self._lock:
            if self._stopped:
                return INTERRUPTED
            process = subprocess.Popen(
                self._command(job, host, variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._running.add(process)
            if self._stopped:
                process.terminate()
        assert process.stdout  # noqa: S101 - for the type checker
        for line in process.stdout:
            self._say(host, line.rstrip("\n"))
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code if code >= 0 else INTERRUPTED

    def _say(self, host: str, line: str) -> None:
        self._lines.put(f"{host:<{self._width}} {line}")

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """SIGINT and SIGTERM reach every build; each removes what it has under way."""

        def stop(number: int, frame: object) -> None:
            self._stopped = True
            for process in list(self._running):
                process.send_signal(signal.SIGTERM)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def command(extra: list[str], inventory: str | None, options: list[str]) -> Callable[[Job, str, Path], list[str]]:
    """How a job is built on a host: the runner itself, pinned to that host."""

    def of(job: Job, host: str, variables: Path) -> list[str]:
        chosen = job.inventory or inventory
        pinned = json.dumps({"image_hosts": host, "image_name": job.name})
        return [
            sys.executable, str(ROOT / "runner.py"), "build", job.recipe, *(["-i", chosen] if chosen else []),
            *[word for each in extra for word in ("-e", each)], "-e", f"@{variables}", "-e", pinned, *options,
        ]  # fmt: skip

    return of
