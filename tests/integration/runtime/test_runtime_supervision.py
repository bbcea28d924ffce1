"""run.sh, supervisor and drain (contract C3, C8): a container serves, drains, or is gone with a reason."""

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MIXED, Answer, Launch, Load, Server, eventually


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_serves_under_both_shells_with_tini_as_reaper(launch: Launch, shell: str) -> None:
    server = launch(command=[shell, "/home/mind/run.sh"]).wait_ready()
    assert server.run("cat", "/proc/1/comm").strip() == "tini"
    assert server.run("/opt/modelarts-engine/bin/healthcheck").strip() == "healthy"


def test_serves_where_it_is_not_process_1(launch: Launch) -> None:
    server = launch(command=["bash", "-c", "sh /home/mind/run.sh; echo ended with $?"]).wait_ready()
    server.run("sh", "-c", "kill -9 $(cat /home/ma-user/.serving/nginx.pid)")
    server.wait_exit(5)
    assert "ended with 137" in server.logs()


@pytest.mark.parametrize(
    ("victim", "signal", "code", "words"),
    [
        ("toy_engine", "KILL", 137, r"engine \(pid \d+\) was killed by SIGKILL"),
        ("toy_engine", "SEGV", 139, r"engine \(pid \d+\) was killed by SIGSEGV"),
        ("toy_engine", "TERM", 1, r"engine \(pid \d+\) ended with exit code 0"),
        ("nginx: master", "KILL", 137, r"proxy \(pid \d+\) was killed by SIGKILL"),
        ("nginx: master", "QUIT", 1, r"proxy \(pid \d+\) ended with exit code 0"),
        ("bin/tls", "KILL", 137, r"tls \(pid \d+\) was killed by SIGKILL"),
        ("sh /opt/modelarts-engine/bin/supervise", "KILL", 137, ""),
    ],
)
def test_a_death_ends_the_container(launch: Launch, victim: str, signal: str, code: int, words: str) -> None:
    server = launch().wait_ready()
    kill(server, victim, signal)
    exit_code, seconds = server.wait_exit(10)
    assert re.search(words, server.logs())
    assert exit_code == code
    assert seconds <= 5


def kill(server: Server, victim: str, signal: str) -> None:
    """Signals the oldest process whose command line has `victim` in it."""
    script = 'for p in $(ls /proc | grep "^[0-9]" | sort -n); do tr "\\0" " " </proc/$p/cmdline | grep -q "$0" && kill -s $1 $p && exit; done'
    server.run("sh", "-c", script, "^" + victim if victim.startswith("nginx") else victim, signal)


@pytest.mark.parametrize(("code", "expected"), [(0, 1), (3, 3)])
def test_an_engine_that_ends_by_itself_ends_the_container(launch: Launch, code: int, expected: int) -> None:
    server = launch().wait_ready()
    with pytest.raises((OSError, Exception)):
        assert server.ask("POST", f"/toy/exit?code={code}").status == 200
    exit_code, seconds = server.wait_exit(10)
    assert exit_code == expected
    assert f"ended with exit code {code}" in server.logs()
    assert seconds <= 5


def test_an_engine_out_of_memory_is_named(launch: Launch) -> None:
    server = launch(mem_limit="160m", memswap_limit="160m").wait_ready()
    threading.Thread(target=lambda: _ignore(lambda: server.ask("POST", "/toy/eat")), daemon=True).start()
    exit_code, _ = server.wait_exit(30)
    assert exit_code == 137
    assert "engine" in server.logs()
    assert "memory limit was reached" in server.logs()


def _ignore(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()


BUSY = "python3 -c \"import socket,time; s=socket.socket(); s.bind(('0.0.0.0',8080)); s.listen(); time.sleep(99)\" & sleep 1; exec sh /home/mind/run.sh"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, "no model: /home/mind/model is missing, empty"),
        ({"tmpfs": {"/tmp": ""}}, "uid 1000 cannot write to /home/ma-user"),
        ({"shm_size": "8m"}, "/dev/shm has 8 MB, the engine needs 64"),
        ({"volumes": {"/dev/null": {"bind": "/usr/bin/openssl", "mode": "ro"}}}, "openssl is missing"),
        ({"volumes": {"/dev/null": {"bind": "/usr/sbin/nginx", "mode": "ro"}}}, "nginx is not installed"),
        ({"volumes": {"/dev/null": {"bind": "/opt/modelarts-engine/bin/start", "mode": "ro"}}}, "bin/start is missing"),
        ({"command": ["sh", "-c", BUSY]}, "port 8080 is taken"),
        ({"settings": {"proxy.env": {"WORKERS": "broken"}}}, "proxy"),
        (
            {"volumes": {"/dev/null": {"bind": "/etc/nginx/nginx.conf", "mode": "ro"}}},
            "nginx refuses its configuration",
        ),
    ],
)
def test_a_start_that_cannot_work_says_why(launch: Launch, options: dict[str, Any], words: str) -> None:
    server = launch(**options)
    exit_code, seconds = server.wait_exit(10)
    assert exit_code != 0
    assert words in server.logs()
    assert seconds <= 5


def test_an_empty_model_folder_is_refused(launch: Launch, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    server = launch(model=empty)
    assert server.wait_exit(10)[0] == 1
    assert "no model" in server.logs()


def test_starts_again_in_a_home_that_was_used_before(launch: Launch, engine: Any) -> None:
    server = launch(
        settings={"serving.env": {"DRAIN_SECONDS": 0}}, tmpfs={"/tmp": "", "/run": ""}, volumes={}, read_only=False
    ).wait_ready()
    server.container.kill("SIGTERM")
    assert server.wait_exit(15)[0] == 0
    server.container.start()
    server._port = 0
    server.wait_ready()


def test_workers_are_half_of_what_the_container_may_use(launch: Launch, tmp_path: Path) -> None:
    """On a host of eight processors, so it seems."""
    (tmp_path / "nproc").write_text("#!/bin/sh\necho 8\n")
    (tmp_path / "nproc").chmod(0o755)
    eight = {str(tmp_path / "nproc"): {"bind": "/usr/bin/nproc", "mode": "ro"}}
    assert workers(launch(volumes=eight).wait_ready()) == 4
    assert workers(launch(volumes=eight, cpu_period=100_000, cpu_quota=150_000).wait_ready()) == 1
    assert workers(launch(settings={"proxy.env": {"WORKERS": 3}}).wait_ready()) == 3


def workers(server: Server) -> int:
    return sum("nginx: worker" in row[1] for row in server.container.top(ps_args="-eo pid,args")["Processes"])


def test_a_killed_worker_is_replaced(launch: Launch) -> None:
    server = launch(settings={"proxy.env": {"WORKERS": 1}}).wait_ready()
    kill(server, "nginx: worker", "KILL")
    server.wait_ready()
    server.container.reload()
    assert server.container.status == "running"


def test_sigterm_under_mixed_load_loses_no_request(launch: Launch) -> None:
    """Traffic goes on until the platform has seen the 503; one request and one stream are longer than the drain."""
    server = launch(settings={"serving.env": {"DRAIN_SECONDS": 4}}).wait_ready()
    long: list[object] = []
    paths = ("/toy/sleep?seconds=7", "/v2/models/m/generate_stream?count=35&gap=0.2")
    late = [threading.Thread(target=lambda path=path: long.append(server.ask("POST", path))) for path in paths]
    for thread in late:
        thread.start()
    seen = ("sleep", "count=35")
    eventually("both are under way", lambda: all(any(word in line for line in server.state()["seen"]) for word in seen))
    with Load(server, MIXED) as load:
        eventually("load of all kinds", lambda: min(load.counts.values()) > 2)
        server.container.kill("SIGTERM")
        began = time.monotonic()
        eventually("/health says 503", lambda: server.ask("GET", "/health").status == 503, 3)
        counts = dict(load.counts)
        eventually("all kinds are still served", lambda: all(load.counts[kind] > counts[kind] for kind in counts), 3)
        load.stopped.wait(max(0.0, 3 - (time.monotonic() - began)))
    assert load.failures == []
    for thread in late:
        thread.join(15)
    answers = {len(answer.body): answer for answer in long if isinstance(answer, Answer)}
    assert [answer.status for answer in answers.values()] == [200, 200]
    assert answers[max(answers)].body.count(b"data: ") == 35
    assert server.wait_exit(10)[0] == 0
    assert "toy engine: stopped by SIGTERM" in server.logs()


def test_a_second_sigterm_shortens_the_drain(launch: Launch) -> None:
    server = launch().wait_ready()
    server.container.kill("SIGTERM")
    eventually("/health says 503", lambda: server.ask("GET", "/health").status == 503, 3)
    server.container.kill("SIGTERM")
    exit_code, seconds = server.wait_exit(10)
    assert exit_code == 0
    assert seconds < 5


def test_sigint_stops_at_once(launch: Launch) -> None:
    server = launch().wait_ready()
    server.container.kill("SIGINT")
    assert server.wait_exit(6)[0] == 0


def test_sigterm_during_the_start_is_a_clean_end(launch: Launch) -> None:
    server = launch()
    eventually("the supervisor runs", lambda: "supervise" in str(server.container.top()), 5)
    server.container.kill("SIGTERM")
    server.container.kill("SIGTERM")
    assert server.wait_exit(10)[0] == 0


def test_what_hangs_is_killed_in_time(launch: Launch) -> None:
    server = launch(settings={"serving.env": {"DRAIN_SECONDS": 0, "STOP_SECONDS": 7}}).wait_ready()
    server.ask("POST", "/toy/set?hanging=1")
    threading.Thread(target=lambda: _ignore(lambda: server.ask("POST", "/v2/models/m/infer")), daemon=True).start()
    eventually("a request hangs in the engine", lambda: any("infer" in line for line in server.state()["seen"]))
    kill(server, "toy_engine", "STOP")
    server.container.kill("SIGTERM")
    exit_code, seconds = server.wait_exit(12)
    assert exit_code == 0
    assert seconds <= 8.5
    assert "requests were still in flight" in server.logs()


def test_a_death_during_the_drain_is_still_a_failure(launch: Launch) -> None:
    server = launch().wait_ready()
    server.container.kill("SIGTERM")
    eventually("/health says 503", lambda: server.ask("GET", "/health").status == 503, 3)
    kill(server, "toy_engine", "KILL")
    assert server.wait_exit(6)[0] == 137
