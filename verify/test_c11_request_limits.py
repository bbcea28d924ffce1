"""C11 request limits: what the platform lets through is served, 60 s and 12 MB."""

import pytest

from verify.contract import Contract

MEGABYTE = 1024 * 1024


def test_c11_a_body_of_12_mb_is_served(contract: Contract) -> None:
    """JSON may be padded with blanks, so any engine that takes the request takes the larger one."""
    body = contract.request.encoded()
    assert body is not None
    running = contract.get("platform")
    got = running.ask(contract.request.method, contract.request.path, body.ljust(12 * MEGABYTE))
    assert got.status != 413, f"12 MB are too large for the image: {got}"
    contract.check(got)


@pytest.mark.parametrize("directive", ["proxy_read_timeout", "proxy_send_timeout"])
def test_c11_60_s_are_waited_for(contract: Contract, directive: str) -> None:
    seconds = contract.get("platform").nginx().seconds(directive, "60s")
    assert seconds >= 60, f"the proxy gives a request up after {seconds:.0f} s ({directive})"
