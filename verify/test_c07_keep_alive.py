"""C7 keep-alive: 200 s, for rolling upgrades without loss."""

import contextlib

from verify.contract import Contract, answer


def test_c07_idle_connections_are_kept_200_s(contract: Contract) -> None:
    seconds = contract.get("platform").nginx().seconds("keepalive_timeout", "75s")
    assert seconds >= 200, f"an idle connection is closed after {seconds:.0f} s"


def test_c07_connections_are_used_again(contract: Contract) -> None:
    with contextlib.closing(contract.get("platform").connect()) as connection:
        for _ in range(3):
            got = answer(connection, "GET", "/health")
            assert got.status == 200
            assert got.headers.get("Connection", "").lower() != "close"
            assert connection.sock is not None, "the service closed the connection after an answer"
