"""C12 local check: docker run --user 1000:100 -p 8080:8080 -v model:/home/mind/model IMAGE."""

import pytest

from verify.contract import MA_USER, MODEL, ROOT, Contract


@pytest.mark.parametrize(
    ("kind", "owner"), [("local root", ROOT), ("local ma-user", MA_USER)], ids=["mount of root", "mount of ma-user"]
)
def test_c12_serves(contract: Contract, kind: str, owner: tuple[int, int]) -> None:
    running = contract.get(kind)
    assert running.run("stat", "-c", "%u %g", MODEL).split() == [str(number) for number in owner]
    contract.ask(running)
