"""C8 SIGTERM: serve on while the platform drains, finish what is in flight, end with 0 within 90 s."""

import threading
import time

from verify.contract import Answer, Contract, Running, answer, eventually


def test_c08_drains_and_finishes(contract: Contract) -> None:
    """One container tells the whole story; a second SIGTERM, which ends the wait early, saves the platform's minute."""
    running = contract.take("bash")
    try:
        kept = running.connect()
        assert answer(kept, "GET", "/health").status == 200
        began = time.monotonic()
        running.container.kill(signal="SIGTERM")

        eventually("/health answers 503 after SIGTERM", lambda: running.health().status == 503, 3)
        got = answer(kept, contract.request.method, contract.request.path, contract.request.encoded())
        contract.check(got)
        contract.ask(running)
        assert running.status() == "running", "it ended while the platform still sends requests"

        engine = running.engine()
        running.signal(engine, "STOP")
        flight: list[Answer | Exception] = []
        request = threading.Thread(target=_ask, args=(contract, running, flight))
        request.start()
        eventually("the request is with the engine", lambda: _in_flight(running) >= 1, 10)
        running.container.kill(signal="SIGTERM")
        eventually("no new connection is taken once draining ends", lambda: _refused(running), 10)
        assert not flight, f"it was not waited for what is in flight: {flight}"
        running.signal(engine, "CONT")
        request.join(60)
        assert flight, "what was in flight was never answered"
        assert isinstance(flight[0], Answer), f"what was in flight was lost: {flight[0]!r}"
        contract.check(flight[0])

        code = running.wait_end(90 - (time.monotonic() - began))
        assert code == 0, f"exit code {code} after a drain:\n{running.last_words()}"
    finally:
        running.remove()


def test_c08_stop_signal(contract: Contract) -> None:
    assert contract.config.get("StopSignal", "SIGTERM") in ("SIGTERM", "15")


def _ask(contract: Contract, running: Running, flight: list[Answer | Exception]) -> None:
    try:
        flight.append(
            running.ask(contract.request.method, contract.request.path, contract.request.encoded(), timeout=90)
        )
    except Exception as error:
        flight.append(error)


def _in_flight(running: Running) -> int:
    """Connections from the proxy to the engine that are open, counted in the kernel's table."""
    port = running.nginx().upstream()[1]
    table = running.run("cat", "/proc/net/tcp").splitlines()[1:]
    return sum(1 for line in table if line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01")


def _refused(running: Running) -> bool:
    try:
        running.health()
    except OSError:
        return True
    return False
