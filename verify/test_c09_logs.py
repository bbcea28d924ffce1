"""C9 logs: standard output, and nowhere else."""

import uuid

import pytest

from verify.contract import Contract, eventually


@pytest.mark.parametrize("kind", ["platform", "local root"])
def test_c09_requests_are_logged_on_standard_output(contract: Contract, kind: str) -> None:
    running = contract.get(kind)
    path = f"/{uuid.uuid4()}"
    running.ask("GET", path)
    eventually(f"a line about GET {path} on standard output", lambda: path in running.logs(stderr=False), 10)


def test_c09_no_log_files(contract: Contract) -> None:
    """In a container that may write anywhere, nothing that looks like a log appears."""
    running = contract.get("local root")
    contract.ask(running)
    written = [change["Path"] for change in running.container.diff() or [] if change["Kind"] != 2]
    found = running.run("sh", "-c", "find /home/ma-user /tmp /run /var/tmp -type f -size +0 2>/dev/null; true").split()
    logs = [
        path
        for path in {*written, *found}
        if ".log" in path or path.startswith("/var/log/") or "access" in path.rsplit("/", 1)[-1]
    ]
    assert logs == []


def test_c09_the_proxy_logs_to_the_container_only(contract: Contract) -> None:
    nginx = contract.get("platform").nginx()
    targets = {setting.split()[0] for setting in nginx.all("access_log") + nginx.all("error_log")}
    assert targets <= {"/dev/stdout", "/dev/stderr", "stderr", "off"}
