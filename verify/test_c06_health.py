"""C6 health: GET /health is 200 with {"health": "true"}, and true."""

import json

from verify.contract import Contract, eventually


def test_c06_path_and_body(contract: Contract) -> None:
    got = contract.get("platform").health()
    assert got.status == 200
    assert json.loads(got.body) == {"health": "true"}
    assert got.headers.get_content_type() == "application/json"


def test_c06_once_true_the_model_is_served(contract: Contract) -> None:
    first = contract.get("platform").first
    assert first is not None
    contract.check(first)


def test_c06_false_while_the_engine_hangs_and_true_again(contract: Contract) -> None:
    running = contract.get("platform")
    engine = running.engine()
    running.signal(engine, "STOP")
    try:
        eventually("/health answers 503 while the engine is stopped", lambda: running.health().status == 503, 15)
    finally:
        running.signal(engine, "CONT")
    eventually("/health answers 200 when the engine goes on", running.healthy, 15)


def test_c06_asked_often_it_stays_true(contract: Contract) -> None:
    """The platform asks every 5 s and gives a service up after 12 failures in a row."""
    running = contract.get("platform")
    assert {running.health().status for _ in range(20)} == {200}
