"""Beyond the page: it dies when a part of it dies, nothing is root, no layer holds what nobody should have."""

import re
import tarfile
import time
from typing import IO

import pytest

from verify.contract import Contract

PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=:,\- ]{16}")
LEFTOVER = re.compile(
    r"""(?x) ^(?:
        var/lib/apt/lists/(?!lock$|partial$|auxfiles$).+ | var/cache/apt/.*\.(?:deb|bin) | var/log/.*\.log
        | (?:tmp|run|root/\.(?:ansible|cache)|home/ma-user/\.serving)/.+
        | .*/(?:ansible[-_]tmp|\.ansible|__pycache__).* | .*\.pyc
    )$"""
)


def judge(entry: tarfile.TarInfo, content: IO[bytes] | None) -> str | None:
    """Why a file should not be in a layer."""
    if "/.wh." in entry.name:
        return None
    data = b"" if content is None else content.read(100_000 if entry.size < 100_000 else 8)
    # Bytecode that never looks at its source's time was compiled on purpose; what an import leaves behind does (PEP 552).
    on_purpose = entry.name.startswith("opt/") and entry.name.endswith(".pyc") and data[4:5] == b"\x01"
    if not entry.isdir() and LEFTOVER.match(entry.name) and not on_purpose:
        return "left behind by the build"
    if PRIVATE_KEY.search(data):
        return "a private key"
    return None


def test_no_layer_holds_keys_or_leftovers(contract: Contract) -> None:
    found = contract.inspect_layers(judge)
    assert not found, "; ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")


def test_nothing_is_root_or_can_become_so(contract: Contract) -> None:
    processes = contract.get("platform").processes()
    assert len(processes) > 2
    for process in processes:
        assert set(process.uids) == {1000}, process
        assert set(process.gids) == {100}, process
        assert process.capabilities == 0, process
        assert process.no_new_privileges, process


def test_no_setuid_root_program_of_the_build(contract: Contract) -> None:
    """The platform may not set no-new-privileges: then such a program would be a way to root."""
    running = contract.get("local root")
    ours = "/opt/modelarts-engine /home /etc/nginx"
    assert running.run("sh", "-c", f"find {ours} -xdev -perm /6000 -type f 2>/dev/null; true") == ""


@pytest.mark.parametrize("part", ["engine", "proxy"])
def test_ends_when_a_part_dies(contract: Contract, part: str) -> None:
    """A container that stays up and answers 502 for ever is the worst there is: nothing restarts it."""
    running = contract.take("local ma-user" if part == "engine" else "local root")
    try:
        victim = running.engine() if part == "engine" else running.proxy()
        began = time.monotonic()
        running.signal(victim, "KILL")
        code = running.wait_end(5)
        assert code != 0, f"exit code 0 after the {part} was killed"
        assert time.monotonic() - began < 5.5
    finally:
        running.remove()
