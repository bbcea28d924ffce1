"""Everything that must hold before a change lands: lint, unit, integration, molecule."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from modelarts_engine.playbook import DONE, FAILED, NOT_FIT, ROOT, run
from modelarts_engine.progress import Progress

SHELL_SCRIPTS = ("sh", "bash")


def _shell_scripts() -> list[str]:
    found = []
    for top in ("roles", "tools", ".ci"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.is_file() and path.suffix in ("", ".sh"):
                with path.open("rb") as file:
                    first = file.readline(80).decode(errors="ignore")
                if first.startswith("#!") and first.split()[-1].rpartition("/")[2] in SHELL_SCRIPTS:
                    found.append(str(path.relative_to(ROOT)))
    return found


def lint() -> list[list[str]]:
    """Linters, type checks, generated tables, and that the collection can be built."""
    python = sys.executable
    code = ["modelarts_engine", "runner.py", "plugins", "tools", "verify", "tests", "molecule", "bench"]
    return [
        ["yamllint", "--strict", "."],
        ["ansible-lint", "--offline"],
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--no-cache", "--check", "."],
        ["mypy", "--no-incremental", *[name for name in code if (ROOT / name).exists()]],
        ["shellcheck", *_shell_scripts()],
        [python, "tools/role_docs.py", "--check"],
        ["ansible-galaxy", "collection", "build", "--force", "--output-path", ".cache/collection"],
    ]


def unit() -> list[list[str]]:
    """Tests that need no engine."""
    return [[sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit"]]


def _integration(*options: str) -> list[list[str]]:
    return [[sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=15", *options]]


def integration() -> list[list[str]]:
    """Tests on the real engine, with the real server and the real model."""
    return _integration("tests/integration")


def molecule() -> list[list[str]]:
    """Each role's scenario: dry run, converge, idempotence, verify."""
    return [["molecule", "test", "--all", "--command-borders"]]


def soak() -> list[list[str]]:
    """The runtime under ten minutes of load; the integration tests have forty seconds of it."""
    test = "tests/integration/runtime/test_runtime_endurance.py"
    return [[sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rP", "--soak-seconds=600", test]]


PARTS: dict[str, Callable[[], list[list[str]]]] = {
    "lint": lint,
    "unit": unit,
    "integration": integration,
    "molecule": molecule,
    "soak": soak,
}
ON_REQUEST = ("soak",)
# Commands of the system that a part needs, each in a package of its name.
COMMANDS = {"lint": ["shellcheck"], "integration": ["docker-registry"], "molecule": ["docker-registry"]}
NEEDS_ENGINE = ("integration", "molecule", "soak")


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ, "PATH": path, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PYTHONDONTWRITEBYTECODE": "1",
        "ANSIBLE_FORCE_COLOR": "0", "NO_COLOR": "1",
        # molecule names its state after the folder only; two checkouts of one name must not meet.
        "ANSIBLE_HOME": str(ROOT / ".cache" / "ansible"),
    }  # fmt: skip


def _install(command: str) -> str:
    """Brings a command in the package of its name where that is allowed; returns what is wrong, or nothing."""
    if shutil.which(command):
        return ""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"{command} is missing; install the package of that name"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", command]):
        done = subprocess.run(["apt-get", *step], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{command} is missing and apt-get {step[0]} failed: {done.stderr.strip()[-300:]}"
    return ""


# Most of what needs the engine is waiting. Side by side these take two thirds of the time they take in a row.
BESIDE = tuple(
    f"tests/integration/{name}"
    for name in ("runtime", "test_verify_red.py", "engines", "stages", "trtllm", "trtllm_model")
)


def _lanes(names: list[str]) -> list[list[tuple[str, list[str]]]]:
    """What runs side by side: in a full run about half of the suites beside all others, else everything in a row."""
    if not {"integration", "molecule"} <= set(names):
        return [[(name, command) for name in names for command in PARTS[name]()]]
    before = [name for name in names if name not in ("integration", "molecule")]
    others = _integration("tests/integration", *[f"--ignore={path}" for path in BESIDE])
    return [
        [(name, command) for name in before for command in PARTS[name]()]
        + [("integration", command) for command in _integration(*BESIDE)],
        [("integration", command) for command in others] + [("molecule", command) for command in molecule()],
    ]


def _run_lane(lane: list[tuple[str, list[str]]], *, shown_at_once: bool) -> list[str]:
    """Runs commands in a row and goes on after a failure; returns the failed ones. A lane that is not shown at once is shown command by command."""
    failed = []
    for name, command in lane:
        shown = " ".join(Path(word).name if word == sys.executable else word for word in command)[:120]
        started = time.monotonic()
        if shown_at_once:
            print(f"== {name}: {shown}", flush=True)
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=_environment(),
                stdout=None if shown_at_once else output,
                stderr=None if shown_at_once else subprocess.STDOUT,
                check=False,
            )
            output.seek(0)
            what = "passed" if done.returncode == 0 else f"FAILED ({done.returncode})"
            text = "" if shown_at_once else f"== {name}: {shown}\n{output.read()}"
            print(f"{text}== {name}: {what} in {time.monotonic() - started:.0f} s", flush=True)
        if done.returncode:
            failed.append(f"{name}: {shown}")
    return failed


def run_all(only: Iterable[str] | None) -> int:
    """Runs the parts and goes on after a failure, so that one run shows all there is.

    :param only: names of parts, or None for all but those that run on request only.
    :returns: the exit code.
    """
    names = [name for name in PARTS if (name in only if only else name not in ON_REQUEST)]
    for command in sorted({command for name in names for command in COMMANDS.get(name, ())}):
        if wrong := _install(command):
            print(f"error: {wrong}", file=sys.stderr)
            return NOT_FIT
    if any(name in NEEDS_ENGINE for name in names):
        outcome = run("doctor.yml", inventory=None, extra={}, progress=Progress("host"))
        if outcome.code != DONE:
            return outcome.code
    lanes = _lanes(names)
    with ThreadPoolExecutor(len(lanes)) as pool:
        running = [pool.submit(_run_lane, lane, shown_at_once=lane is lanes[0]) for lane in lanes]
        failed = [line for lane in running for line in lane.result()]
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return FAILED if failed else DONE
