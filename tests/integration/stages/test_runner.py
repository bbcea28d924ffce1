"""What the runner tells people and CI: its lines, its exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import claims, engine

from .conftest import ROOT, Workshop

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


def test_an_output_that_nobody_reads_does_not_end_the_build(workshop: Workshop) -> None:
    workshop.role("alpha", OK, TEXT)
    running = subprocess.Popen(
        workshop.runner([("only", ["alpha"])]),
        cwd=workshop.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout
    running.stdout.close()
    _, errors = running.communicate(timeout=120)
    assert workshop.result()["RootFS"]["Layers"]
    assert errors == "error: standard output was closed before all was said\n"


def test_neither_a_home_folder_nor_a_locale_is_needed(workshop: Workshop) -> None:
    done = run(workshop, OK, env={"HOME": "/proc", "XDG_CACHE_HOME": str(workshop.root / "cache"), "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["doctor", "push"])
def test_an_inventory_without_build_hosts_is_refused_by_each_command(command: str) -> None:
    arguments = ["doctor"] if command == "doctor" else ["push", "triton", "--to", "registry.example.com/o"]
    done = subprocess.run(
        [sys.executable, "runner.py", *arguments, "-i", "elsewhere,"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "no host of the inventory matches build_hosts" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("roles", [{}, {"image_backend_roles": {"triton": "llama_cpp"}}], ids=["none", "no-list"])
def test_an_inventory_that_does_not_say_the_backends_roles_is_told_so(tmp_path: Path, roles: dict[str, Any]) -> None:
    here = {"ansible_connection": "local", "image_bases": {"triton": {"base_image_source": "bootstrap"}}, **roles}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"build_hosts": {"hosts": {"localhost": here}}}))
    command = [sys.executable, "runner.py", "build", "triton", "-i", str(inventory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: image_backend_roles: the inventory gives no list of roles for stage backend of triton" in done.stderr
    assert "inventories/local/group_vars/all.yml" in done.stderr


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


def started_by(pid: int) -> set[int]:
    """Every process that this one began, directly or not; Ansible's workers leave its session."""
    children = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    return {below for each in children for below in (each, *started_by(each))}


def test_a_killed_runner_takes_the_playbook_along_and_the_next_run_what_it_left(workshop: Workshop) -> None:
    stages = workshop.stages()
    running = hanging(workshop)
    below = started_by(running.pid)
    assert len(below) > 1, "the playbook and its worker"
    commands = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in below)
    left = Path(re.search(r"/dev/shm/modelarts-engine-run\.\w+", commands)[0])  # type: ignore[index]
    running.kill()
    running.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(claims.start_time(pid) for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert left.is_dir()
    assert workshop.stages() == stages, "nothing was committed"
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
    # Other runs have theirs there, and come and go.
    in_memory = subprocess.run(["grep", "-rls", planted, "/dev/shm"], capture_output=True, text=True, check=False)
    assert in_memory.stdout == ""
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
