"""What the runner tells people and CI: its lines, its exit codes, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import engine

from .conftest import Workshop

OK = [{"name": "Write", "ansible.builtin.copy": {"content": "{{ alpha_text }}", "dest": "/etc/alpha", "mode": "0644"}}]
TEXT = {"alpha_text": {"type": "str", "default": "x"}, "alpha_size": {"type": "int", "default": 1}}
HANG = [{"name": "Hang", "ansible.builtin.command": {"cmd": "sleep 600"}}]


def run(
    workshop: Workshop, tasks: list[dict[str, Any]], *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    workshop.role("alpha", tasks, TEXT)
    command = workshop.runner([("only", ["alpha"])], *arguments)
    return subprocess.run(
        command, cwd=workshop.root, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )


def test_one_line_a_stage_and_the_second_run_is_cached(workshop: Workshop) -> None:
    first = run(workshop, OK)
    workshop_line = [line.split() for line in first.stdout.splitlines() if line.startswith("probe-")]
    assert ["only", "built,"] in [words[1:3] for words in workshop_line], first.stdout + first.stderr
    second = run(workshop, OK)
    assert ["only", "cached"] in [
        line.split()[1:3] for line in second.stdout.splitlines() if line.startswith("probe-")
    ], second.stdout + second.stderr


@pytest.mark.parametrize(
    ("tasks", "arguments", "code", "said"),
    [
        (OK, ["-e", "alpha_size=many"], 2, "alpha_size"),
        (OK, ["-e", "alpha_sise=1"], 2, "did you mean alpha_size?"),
        (OK, ["--rebuild", "onyl"], 2, "did you mean only?"),
        (OK, ["-e", "build_host_min_disk_gb=1000000"], 3, "1000000"),
        (OK, ["-e", "build_host_engine_url=unix:///nowhere.sock"], 3, "/nowhere.sock"),
        (OK, ["-e", "image_hosts=nobody"], 2, "no host of the inventory matches nobody"),
        ([{"name": "Compile it", "ansible.builtin.command": {"cmd": "sh -c 'echo cannot find -lx >&2; exit 4'"}}], [], 1, "cannot find -lx"),
        (HANG, ["--timeout", "20"], 1, "given up after 20 s"),
    ],
    ids=["type", "unknown", "stage", "disk", "engine", "nobody", "task", "timeout"],
)  # fmt: skip
def test_exit_codes_and_messages(
    workshop: Workshop, tasks: list[dict[str, Any]], arguments: list[str], code: int, said: str
) -> None:
    done = run(workshop, tasks, *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert workshop.containers() == []


def test_an_unknown_image_is_refused_with_those_there_are(workshop: Workshop) -> None:
    done = subprocess.run(
        ["./runner.py", "build", "trition"], cwd=workshop.root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "triton" in done.stderr


def hanging(workshop: Workshop, *arguments: str) -> subprocess.Popen[str]:
    """A build in the middle of its stage."""
    workshop.role("alpha", HANG, TEXT)
    running = subprocess.Popen(
        workshop.runner([("only", ["alpha"])], *arguments),
        cwd=workshop.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any("sleep 600" in str(workshop.client.api.top(name)) for name in workshop.containers()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return running


def private_dirs() -> set[Path]:
    return set(Path("/dev/shm").glob("modelarts-engine-run.*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_removes_what_was_under_way(workshop: Workshop, number: signal.Signals) -> None:
    before = workshop.stages()
    running = hanging(workshop)
    running.send_signal(number)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors + output
    assert "interrupted" in errors
    assert workshop.containers() == []
    assert workshop.stages() == before


def test_a_killed_playbook_is_a_failure_and_leaves_no_container(workshop: Workshop) -> None:
    running = hanging(workshop)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (playbook,) = [int(pid) for pid in children if "ansible-playbook" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(playbook, signal.SIGKILL)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 1, errors + output
    assert "ansible-playbook was killed" in errors
    assert workshop.containers() == []


def test_what_a_killed_runner_leaves_in_memory_goes_with_the_next(workshop: Workshop) -> None:
    others = private_dirs()
    running = hanging(workshop)
    (left,) = private_dirs() - others
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    running.kill()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    running.communicate(timeout=60)
    assert left.is_dir()
    os.utime(left, (0, 0))
    assert run(workshop, OK).returncode == 0
    assert not left.exists()
    assert workshop.containers() == []


def test_secrets_of_the_environment_and_of_variables_stay_out_of_what_is_kept(
    workshop: Workshop, tmp_path: Path
) -> None:
    planted = "planted-3f9c2a"
    variables = tmp_path / "vars.json"
    variables.write_text(json.dumps({"alpha_text": f"{planted}-variable"}))
    before = {path.name for path in Path("/dev/shm").iterdir()}
    secret = {"SWR_SECRET_KEY": f"{planted}-env", "HUAWEICLOUD_SDK_SK": f"{planted}-sk"}
    done = run(
        workshop, [*OK, {"name": "Show", "ansible.builtin.command": {"cmd": "env"}}], "-e", f"@{variables}", env=secret
    )
    assert done.returncode in (0, 1), done.stderr
    kept = [path for path in (workshop.root / ".cache").rglob("*") if path.is_file()]
    assert kept
    found = [str(path) for path in kept if f"{planted}-env" in path.read_text() or f"{planted}-sk" in path.read_text()]
    assert found == []
    assert planted not in done.stdout.replace("alpha_text", "")
    assert {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("modelarts-engine-run.")} <= before
    image = next(
        image for image in workshop.client.images.list(name=engine.STAGE) if image.id == workshop.result()["Id"]
    )
    assert f"{planted}-env" not in str(image.history()) + str(image.attrs)


def test_a_value_that_means_nothing_is_refused_before_anything_starts(workshop: Workshop) -> None:
    workshop.role("alpha", OK, TEXT)
    check = {
        "name": "Check",
        "ansible.builtin.assert": {"that": "alpha_size > 0", "fail_msg": "alpha_size must be 1 or more."},
    }
    (workshop.root / "roles/alpha/tasks/preflight.yml").write_text(json.dumps([check]))
    command = workshop.runner([("only", ["alpha"])], "-e", "alpha_size=0")
    done = subprocess.run(command, cwd=workshop.root, capture_output=True, text=True, check=False)
    assert (done.returncode, "alpha_size must be 1 or more." in done.stderr) == (2, True), done.stderr
    assert "built" not in done.stdout
    assert workshop.containers() == []
