"""Start, death and drain on a system that stays up: the processes must be gone, too (see tests/integration/runtime for containers)."""

import pytest

HEALTHY = "/opt/modelarts-engine/bin/healthcheck"
AS_USER = "setpriv --reuid 1000 --regid 100 --clear-groups --no-new-privs"


@pytest.fixture(params=["sh", "bash"])
def serving(host, request):
    """The running start command's process id and the file its output goes to."""
    log = "/tmp/serving.log"
    # The user's own file: nginx opens its standard output anew, by name.
    start = f"rm -f {log}; {AS_USER} setsid sh -c 'exec {request.param} /home/mind/run.sh >>{log} 2>&1' & echo $!"
    pid = host.check_output(f"({start}); timeout 60 sh -c 'until {HEALTHY} >/dev/null; do sleep 0.2; done'")
    yield pid, log
    host.run(f"kill -KILL -- -{pid}; {left('kill -KILL $p')}")


def left(action: str = "echo $p") -> str:
    """A shell command that does `action` for each process $p of ma-user."""
    return (
        f'for p in $(ls /proc | grep "^[0-9]"); do [ "$(stat -c %u /proc/$p 2>/dev/null)" != 1000 ] || {action}; done'
    )


def gone(host, pid, seconds=15):
    return host.run(f"timeout {seconds} sh -c 'while [ -e /proc/{pid} ]; do sleep 0.1; done'").rc == 0


def test_serves_and_drains_on_sigterm(host, serving):
    pid, log = serving
    host.check_output(f"kill -TERM {pid}")
    assert host.run(f"timeout 5 sh -c 'while {HEALTHY} >/dev/null; do sleep 0.1; done'").rc == 0
    assert gone(host, pid)
    assert "draining for 2 s" in host.file(log).content_string
    assert "serving: stopped" in host.file(log).content_string
    assert host.check_output(left()) == ""


@pytest.mark.parametrize(("victim", "name"), [("toy_engine", "engine"), ("nginx: master", "proxy")])
def test_a_death_ends_all(host, serving, victim, name):
    pid, log = serving
    kill = f'tr "\\0" " " </proc/$p/cmdline | grep -q "^[^ ]*.*{victim}" && kill -KILL $p'
    host.run(left(kill))
    assert gone(host, pid, 6)
    assert f"serving: {name} " in host.file(log).content_string
    assert "was killed by SIGKILL" in host.file(log).content_string
    assert host.check_output(left()) == ""


def test_a_missing_model_is_told(host):
    host.check_output("mv /home/mind/model/weights /home/mind/weights")
    try:
        result = host.run(f"{AS_USER} timeout 6 sh /home/mind/run.sh")
    finally:
        host.check_output("mv /home/mind/weights /home/mind/model/weights")
    assert result.rc == 1
    assert "no model: /home/mind/model is missing, empty or not readable for uid 1000" in result.stderr
