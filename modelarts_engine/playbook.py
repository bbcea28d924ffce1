"""Runs a playbook through ansible-runner: input by files, progress by events, nothing left behind but what may be kept."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from modelarts_engine.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
DONE, FAILED, USAGE, NOT_FIT, INTERRUPTED = 0, 1, 2, 3, 130
KEPT_RUNS = 20
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INPUT_CHECKS = re.compile(r"/tasks/preflight\.yml:|/playbooks/hosts\.yml:")
OUR_FILTER = re.compile(r"The filter plugin 'modelarts\.engine\.\w+' failed: (.+)", re.S)

# ansible-runner writes its whole environment to disk, so a run gets only what a build needs.
ENVIRONMENT = (
    "HOME", "PATH", "LANG", "LC_ALL", "TERM", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR", "DOCKER_CONFIG",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


CHILD_SUBREAPER = 36  # prctl(2)


class NotFitError(Exception):
    """This machine lacks something that a run needs."""


@dataclass
class Outcome:
    """What came of a run."""

    code: int
    results: list[dict[str, Any]] = field(default_factory=list)
    log: Path | None = None

    @property
    def kept(self) -> str:
        """The end of a message: where Ansible's output is, if it could be kept."""
        return f"; Ansible's output: {self.log}/stdout" if self.log else ""

    def of(self, action: str) -> list[dict[str, Any]]:
        """Results of one action of this collection, in order."""
        return [result for result in self.results if result["action"].endswith("." + action)]


class _Cancel:
    """Turns SIGINT, SIGTERM and SIGHUP into a question that ansible-runner asks while it waits."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def user_cache() -> Path:
    """Where this user's models and packages are.

    :raises ValueError: nothing says where the user's files are.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modelarts-engine"
    except RuntimeError as error:
        raise ValueError(f"{error}; set HOME or XDG_CACHE_HOME") from error


PRIVATE = "modelarts-engine-run."


@contextmanager
def private_dir() -> Iterator[Path]:
    """A folder on memory, mode 0700, gone afterwards: extra variables and artifacts pass through it.

    It is locked while it is used; what a killed run left is removed by the next one.
    """
    memory = Path("/dev/shm")  # noqa: S108
    top = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    for old in top.glob(f"{PRIVATE}*"):
        if old.is_dir() and old.stat().st_uid == os.getuid():
            _sweep(old)
    try:
        path = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=top))
    except OSError as error:
        raise NotFitError(f"{top}: a folder for this run cannot be made there: {error.strerror}") from error
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _sweep(old: Path) -> None:
    """Removes a folder that no run holds. One that was just made and is not locked yet is left alone."""
    try:
        lock = os.open(old, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - old.stat().st_mtime > 60:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return
    finally:
        os.close(lock)


@contextmanager
def _environment(additional: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    kept = {name: before[name] for name in ENVIRONMENT if name in before}
    os.environ.clear()
    os.environ.update(kept, **additional)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(
    playbook: str, *, inventory: str | None, extra: Mapping[str, Any], progress: Progress, timeout: int = 0
) -> Outcome:
    """Runs one of the collection's playbooks.

    :param playbook: file name in `playbooks/`.
    :param extra: variables; they reach Ansible in a 0600 file on memory.
    :param timeout: seconds after which the run is given up, 0 for none.
    :returns: the outcome; `code` is the runner's exit code so far as the run itself can tell.
    """
    import ansible_runner  # late: importing it takes longer than `--help` should

    outcome = Outcome(DONE)
    first_failure: dict[str, Any] = {}

    def handle(event: dict[str, Any]) -> bool:
        # ansible-runner ends the run when a handler raises.
        try:
            data = event.get("event_data") or {}
            if event["event"] == "verbose":
                progress.said(str(event.get("stdout")))
            result = data.get("res")
            if (
                isinstance(result, dict)
                and event["event"] == "runner_on_ok"
                and str(data.get("task_action")).startswith("modelarts.engine.")
            ):
                outcome.results.append({**result, "action": data["task_action"], "host": data.get("host")})
            if (
                event["event"] in ("runner_on_failed", "runner_on_unreachable")
                and not data.get("ignore_errors")
                and not first_failure
            ):
                first_failure.update(data)
            progress.event(event["event"], data)
        except Exception as error:
            progress.note(f"progress display failed: {error!r}")
        return False

    cancel = _Cancel()
    # A worker of a playbook that was ended has a session of its own and would go on; so its parent is then this process.
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    with private_dir() as private, cancel.listening(), _environment(_additional(private)):
        variables = private / "variables.json"
        variables.touch(0o600)
        variables.write_text(json.dumps(dict(extra)))
        ran = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(ROOT),
            inventory=_inventory(inventory),
            **_program(shlex.join(["-e", f"@{variables}", str(ROOT / "playbooks" / playbook)])),
            settings={"job_timeout": timeout, "pexpect_timeout": 0.05},
            event_handler=handle,
            cancel_callback=cancel,
            quiet=True,
        )
        _end_workers()
        output = _stdout(Path(ran.config.artifact_dir))
        try:
            outcome.log = _keep(playbook, output, ran.rc, str(ran.status), outcome.results)
        except OSError as error:
            progress.note(f"Ansible's output is not kept: {error}")
    progress.finish()
    if cancel.asked:
        outcome.code = INTERRUPTED
        progress.error("interrupted; what was under way was removed, finished stages are kept")
    elif str(ran.status) == "timeout":
        outcome.code = FAILED
        progress.error(f"given up after {timeout} s")
    elif first_failure:
        outcome.code = _code(first_failure)
        progress.error(_explain(first_failure))
    elif ran.rc is None:
        outcome.code = FAILED
        progress.error("ansible-playbook was killed (out of memory?); finished stages are kept")
    elif ran.rc or str(ran.status) != "successful":
        outcome.code = USAGE if ran.rc in (1, 4) else FAILED
        progress.error(_last_error(output))
    if outcome.code != DONE:
        _clean(outcome)
    return outcome


def _inventory(inventory: str | None) -> str:
    """A file or folder by its full path, a list of hosts (`a,b,`) as it is."""
    if inventory and "," in inventory and not Path(inventory).exists():
        return inventory
    return str(Path(inventory).resolve() if inventory else ROOT / "inventories" / "local")


def _program(arguments: str) -> dict[str, str]:
    """How `ansible-playbook` is called: so that it ends when this process does, however that ends.

    Nobody else would tell it: ansible-runner lets it ignore the end of its terminal. Without setpriv (of util-linux) it goes on.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return {"binary": "ansible-playbook", "cmdline": arguments}
    return {"binary": setpriv, "cmdline": f"--pdeathsig TERM ansible-playbook {arguments}"}


def _additional(private: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "PATH": path,
        # Neither a home folder nor a locale is needed where Ansible would ask for one.
        "ANSIBLE_LOCAL_TEMP": str(private / "ansible"), "LC_ALL": "C.UTF-8",
    }  # fmt: skip


def _end_workers() -> None:
    """Ends the workers of a playbook that has ended, and waits until they are gone."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"ansible-playbook" in (each / "cmdline").read_bytes():
                os.kill(int(each.name), signal.SIGKILL)
                os.waitpid(int(each.name), 0)


def _code(failure: Mapping[str, Any]) -> int:
    result = failure.get("res") or {}
    if "exit_code" in result:
        return int(result["exit_code"])
    if OUR_FILTER.search(str(result.get("msg"))):
        return USAGE
    if "argument_errors" in result or INPUT_CHECKS.search(str(failure.get("task_path"))):
        return USAGE
    if result.get("unreachable"):
        return NOT_FIT
    about_host = str(failure.get("role", "")).rpartition(".")[2] == "build_host" or "/engine_forward.yml:" in str(
        failure.get("task_path")
    )
    return NOT_FIT if about_host else FAILED


def _explain(failure: Mapping[str, Any]) -> str:
    result = failure.get("res") or {}
    said = str(result.get("msg") or "no message").strip()
    # A filter of ours refuses what the user gave; where Ansible met it is nobody's concern.
    if ours := OUR_FILTER.search(said):
        return ours.group(1)
    errors = result.get("argument_errors")
    if errors:
        said = "; ".join(map(str, errors))
    for item in result.get("results") or []:
        if isinstance(item, dict) and item.get("failed"):
            said = str(item.get("msg") or said)
            result = item
            break
    detail = "\n".join(
        str(result[name]).strip()[-1500:]
        for name in ("stderr", "module_stderr")
        if result.get(name) and str(result[name]).strip() not in said
    )
    if "exit_code" in result:
        return said
    where = " > ".join(str(failure[name]) for name in ("host", "role", "task") if failure.get(name))
    return f"{where}: {said}" + (f"\n{detail}" if detail else "")


def _last_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "ERROR" in line or "rror:" in line]
    return "\n".join(lines[-4:]) or output.strip()[-800:] or "ansible-playbook failed without a message"


def _stdout(artifacts: Path) -> str:
    path = artifacts / "stdout"
    return path.read_text(errors="replace") if path.is_file() else ""


def _keep(playbook: str, output: str, code: int | None, status: str, results: list[dict[str, Any]]) -> Path:
    """Keeps what may be kept of a run: the output, the exit code, the status and this collection's own results."""
    runs = ROOT / ".cache" / "runs"
    path = runs / f"{time.strftime('%Y%m%dT%H%M%S')}.{os.getpid()}.{Path(playbook).stem}"
    path.mkdir(parents=True)
    (path / "stdout").write_text(output)
    (path / "run.json").write_text(
        json.dumps({"rc": code, "status": status, "results": results}, indent=1, default=str)
    )
    for old in sorted(runs.iterdir())[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def _clean(outcome: Outcome) -> None:
    """Removes the build containers of a run that has ended; a killed Ansible cannot."""
    from modelarts_engine import engine_client

    for url in {str(result["engine_url"]) for result in outcome.of("image_stage") if result.get("engine_url")}:
        engine_client.reap(url)
