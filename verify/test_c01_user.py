"""C1 user: ma-user, uid 1000, home /home/ma-user, shell bash."""

from typing import Any

from verify.contract import Contract


def test_c01_name_and_uid(inside: Any) -> None:
    assert inside.check_output("id -un 1000") == "ma-user"
    assert inside.user("ma-user").uid == 1000


def test_c01_home_and_shell(inside: Any) -> None:
    user = inside.user("ma-user")
    assert user.home == "/home/ma-user"
    assert user.shell == "/bin/bash"
    assert inside.file("/bin/bash").exists


def test_c01_the_image_says_so(contract: Contract) -> None:
    """The platform sets the user itself; who runs the image by hand gets the same."""
    assert contract.config["User"] == "1000:100"


def test_c01_home_is_writable_as_mount_and_as_folder(contract: Contract) -> None:
    for kind in ("platform", "local root"):
        contract.get(kind).run("sh", "-c", ": >/home/ma-user/probe && rm /home/ma-user/probe")


def test_c01_no_way_up(inside: Any) -> None:
    assert not inside.exists("sudo") or inside.run("sudo -n true").rc != 0
