"""C3 start command: sh /home/mind/run.sh, under sh and under bash."""

import pytest

from verify.contract import RUN, Contract


def test_c03_command(contract: Contract) -> None:
    assert contract.config["Cmd"] == ["sh", RUN]


def test_c03_no_entrypoint(contract: Contract) -> None:
    """An entrypoint would swallow the command that is typed when a model is created."""
    assert not contract.config["Entrypoint"]


@pytest.mark.parametrize("kind", ["platform", "bash"])
def test_c03_starts(contract: Contract, kind: str) -> None:
    contract.ask(contract.get(kind))


def test_c03_nobody_can_change_it(contract: Contract) -> None:
    running = contract.get("local ma-user")
    assert running.run("stat", "-c", "%u:%g", RUN).strip() == "0:0"
    assert running.container.exec_run(["sh", "-c", f": >>{RUN}"])[0] != 0
