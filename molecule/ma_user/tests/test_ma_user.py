"""C1, C2 and the mount point of C4, on bases that differ in who holds the ids."""

from typing import Any

import pytest


@pytest.fixture
def taken(host: Any) -> Any:
    """The user that was moved off uid 1000, or None where nobody held it."""
    user = host.user("ubuntu")
    return user if user.exists else None


def test_c01_user(host: Any) -> None:
    user = host.user("ma-user")
    assert (user.uid, user.home, user.shell) == (1000, "/home/ma-user", "/bin/bash")
    assert host.check_output("getent passwd 1000").startswith("ma-user:")
    home = host.file("/home/ma-user")
    assert (home.uid, home.gid, home.mode) == (1000, 100, 0o1777)


def test_c02_group(host: Any) -> None:
    assert host.user("ma-user").gid == 100
    assert host.check_output("id -G ma-user") == "100"
    assert host.run("getent group 100").rc == 0


def test_group_keeps_the_name_it_has(host: Any) -> None:
    names = {line.split(":")[0] for line in host.check_output("getent group 100").splitlines()}
    assert len(names) == 1
    assert names <= {"users", "patrons", "ma-group"}
    if host.group("ma-group").exists:
        assert host.group("ma-group").gid == 100


def test_nobody_logs_in_as_it(host: Any) -> None:
    assert host.check_output("getent shadow ma-user").split(":")[1] == "!"


def test_it_can_write_its_home_and_no_more(host: Any) -> None:
    as_it = "setpriv --reuid 1000 --regid 100 --clear-groups sh -c '%s'"
    assert host.run(as_it % "echo x > /home/ma-user/x && rm /home/ma-user/x").rc == 0
    assert host.run(as_it % "echo x > /home/mind/x").rc != 0
    assert host.run(as_it % "command -v sudo && sudo -n true").rc != 0


def test_c04_mount_point(host: Any) -> None:
    for path, owner in (("/home/mind", (0, 0)), ("/home/mind/model", (1000, 100))):
        folder = host.file(path)
        assert folder.is_directory
        assert (folder.uid, folder.gid, folder.mode) == (*owner, 0o755)


def test_nothing_else_is_owned_by_it(host: Any) -> None:
    """A file that ma-user owns in the image is one it could change."""
    owned = set(host.check_output("find / -xdev -uid 1000").splitlines())
    kept = {"/opt/kept", "/opt/kept/file"} if host.file("/opt/kept").exists else set()
    moved_in = {"/srv/own", "/srv/own/file"} if host.file("/srv/own").exists else set()
    assert {path for path in owned if not path.startswith("/srv/elsewhere")} - moved_in == {
        "/home/ma-user",
        "/home/mind/model",
        *kept,
    }


def test_moved_user_keeps_its_files(host: Any, taken: Any) -> None:
    if taken is None:
        assert not host.file("/srv/held").exists
        return
    assert (taken.uid, taken.gid) == (1001, 1000)
    assert host.group("ubuntu").gid == 1000
    for path in ("/srv/held", "/srv/held/file", "/home/ubuntu", "/home/ubuntu/file"):
        assert (host.file(path).uid, host.file(path).gid) == (1001, 1000), path
    assert host.file("/srv/held/file").mode == 0o640


def test_links_are_handed_over_and_not_followed(host: Any, taken: Any) -> None:
    if taken is not None:
        assert host.check_output("stat -c %u /srv/held/link") == "1001"
    assert host.file("/etc/shadow").uid == 0


def test_listed_trees_keep_their_owner(host: Any, taken: Any) -> None:
    if taken is not None:
        assert host.file("/opt/kept/file").uid == 1000


def test_ma_user_of_another_uid_brings_its_files(host: Any) -> None:
    assert host.check_output("find / -xdev -uid 4000") == ""
    if host.file("/srv/own").exists:
        assert host.file("/srv/own/file").uid == 1000
