"""Look at a host that is to build images, once and cheaply, and say what it has and what it lacks.

Reads what is needed as JSON from the first argument (`Needs`). Prints JSON: `fit` (bool), `table` (text for people) and
`missing` (what files/set_up.sh may bring: "engine", "running", "client", "mmdebstrap"). Runs on the build host's own
Python, 3.8 or newer, without any package.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

GB = 10**9
FOLDERS_OF_ROOT = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NOT_A_SOCKET = "build_host_engine_url names a socket on the build host, such as unix:///var/run/docker.sock."
CLOSED = "Put the user into the group that owns the socket (docker), or connect as root."
SET_UP = "build_host_install_engine=true does it, as root."
NOT_ROOT = "Connect as root (ansible_user, or become) to have it set up."
NO_CLIENT = "Install it: apt-get install docker.io docker-cli."
NO_MMDEBSTRAP = "Install it: apt-get install mmdebstrap. Or pull a base image."
NO_UIDMAP = "Install uidmap and give the user a range in /etc/subuid and /etc/subgid, or connect as root."
NO_ROOM = "Free some ('docker system prune'), or lower build_host_min_disk_gb."
NO_ROOM_TO_UNPACK = "Free some: base images are unpacked there."
NO_MEMORY = "Use a larger host, or lower build_host_min_memory_gb."
OTHER_MACHINE = "Build on a host of the images' architecture."
NO_RUNTIME = (
    "Install nvidia-container-toolkit, run 'nvidia-ctk runtime configure --runtime=docker' and restart the engine."
)


class Needs(TypedDict):
    """The role's arguments, without their prefix. Sizes are in GB."""

    engine_url: str
    install_engine: bool
    bootstrap: bool
    min_engine_version: str
    min_disk_gb: int
    min_memory_gb: int
    architecture: str
    gpu: bool
    min_driver: str


class Row(NamedTuple):
    """One line of the table; `remedy` is printed when it is not `fit`."""

    name: str
    found: str
    needed: str
    fit: bool
    remedy: str


class Engine(http.client.HTTPConnection):
    """HTTP to the engine's UNIX socket; answers within 20 s or raises OSError."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def info(self) -> dict[str, Any]:
        """What the engine says of itself (Docker Engine API, GET /info)."""
        self.request("GET", "/info")
        answer: dict[str, Any] = json.loads(self.getresponse().read())
        return answer


def at_least(version: str, least: str) -> bool:
    """Whether a dotted version is not older than another; text without digits is older than everything."""
    have, want = ([int(number) for number in re.findall(r"\d+", text)] for text in (version, least))
    return have >= want


def sized(name: str, found: int, needed_gb: int, remedy: str) -> Row:
    """A row that compares bytes with a number of GB."""
    return Row(name, f"{found / GB:.1f} GB", f"{needed_gb} GB", found >= needed_gb * GB, remedy)


def free_bytes(path: str) -> int:
    """Space that a user can fill on the file system that holds `path`, whether it exists yet or not."""
    place = Path(path)
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def which(program: str) -> str | None:
    """Where a program is, in root's folders too: a user's PATH may leave them out."""
    return shutil.which(program, path=os.environ.get("PATH", "") + FOLDERS_OF_ROOT)


def tool_row(program: str, remedy: str) -> Row:
    """A row for a program that has to be there."""
    path = which(program)
    return Row(program, path or "none", "any", bool(path), remedy)


def engine_row(needs: Needs) -> tuple[Row, dict[str, Any], list[str]]:
    """Ask the engine; also what it says of itself ({} when it does not answer) and what set_up.sh has to bring."""
    url, least = needs["engine_url"], needs["min_engine_version"]
    needed = f"{least} or newer at {url}"
    if not re.fullmatch("unix:///.+", url):
        return Row("engine", "no address", needed, False, NOT_A_SOCKET), {}, []
    try:
        info = Engine(url[len("unix://") :]).info()
    except PermissionError:
        return Row("engine", f"closed to uid {os.getuid()}", needed, False, CLOSED), {}, []
    except (OSError, ValueError, http.client.HTTPException) as error:
        if which("dockerd"):
            return Row("engine", "not running", needed, False, f"Start it ({error}). {SET_UP}"), {}, ["running"]
        remedy = f"Install it: apt-get install docker.io. {SET_UP}"
        return Row("engine", "not installed", needed, False, remedy), {}, ["engine", "running"]
    version = str(info.get("ServerVersion", "unknown"))
    return Row("engine", version, needed, at_least(version, least), "Upgrade the container engine."), info, []


def gpu_rows(needs: Needs, info: dict[str, Any]) -> list[Row]:
    """The driver that is loaded, and whether the engine hands GPUs to containers."""
    loaded = Path("/proc/driver/nvidia/version")
    match = re.search(r"Kernel Module\D*(\d+(?:\.\d+)+)", loaded.read_text() if loaded.exists() else "")
    driver, least = match.group(1) if match else "none", needs["min_driver"]
    runtimes = sorted(info.get("Runtimes", {}))
    return [
        Row("NVIDIA driver", driver, f"{least} or newer", at_least(driver, least), "Install a newer NVIDIA driver."),
        Row("GPU runtime", ", ".join(runtimes) or "none", "nvidia", "nvidia" in runtimes, NO_RUNTIME),
    ]


def examine(needs: Needs) -> tuple[list[Row], list[str]]:
    """All rows of the table, and what set_up.sh can bring."""
    engine, info, missing = engine_row(needs)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    root = str(info.get("DockerRootDir", "/var/lib/docker"))
    machine, wanted = platform.machine(), needs["architecture"]
    client, mmdebstrap = tool_row("docker", NO_CLIENT), tool_row("mmdebstrap", NO_MMDEBSTRAP)
    rows = [
        engine,
        client,
        Row("architecture", machine, wanted, machine == wanted, OTHER_MACHINE),
        sized("memory", memory, needs["min_memory_gb"], NO_MEMORY),
        sized(f"disk at {root}", free_bytes(root), needs["min_disk_gb"], NO_ROOM),
    ]
    if not client.fit:
        missing.append("client")
    if needs["bootstrap"]:
        rows += [mmdebstrap, sized("disk at /var/tmp", free_bytes("/var/tmp"), 2, NO_ROOM_TO_UNPACK)]  # noqa: S108
        if not mmdebstrap.fit:
            missing.append("mmdebstrap")
        if os.geteuid() != 0:
            rows.append(tool_row("newuidmap", NO_UIDMAP))
    if needs["gpu"]:
        rows += gpu_rows(needs, info)
    if not needs["install_engine"]:
        missing = []
    elif missing and os.geteuid() != 0:
        rows.append(Row("set up", f"uid {os.geteuid()}", "root", False, NOT_ROOT))
        missing = []
    return rows, missing


def table(rows: list[Row]) -> str:
    """Rows as aligned columns, then what to do about those that are not fit."""
    cells = [("what", "found", "needed", "")]
    cells += [(row.name, row.found, row.needed, "ok" if row.fit else "NOT") for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join(cell.ljust(widths[column]) for column, cell in enumerate(line)).rstrip() for line in cells]
    return "\n".join(lines + [f"{row.name}: {row.remedy}" for row in rows if not row.fit])


def main() -> None:
    """Print the verdict."""
    rows, missing = examine(json.loads(sys.argv[1]))
    print(json.dumps({"fit": all(row.fit for row in rows), "table": table(rows), "missing": missing}))


if __name__ == "__main__":
    main()
