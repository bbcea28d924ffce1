"""C2 group: gid 100, whatever its name."""

from typing import Any


def test_c02_primary_group(inside: Any) -> None:
    assert inside.user("ma-user").gid == 100


def test_c02_the_group_exists(inside: Any) -> None:
    assert inside.run("getent group 100").rc == 0


def test_c02_no_further_group(inside: Any) -> None:
    assert inside.check_output("id -G ma-user") == "100"
