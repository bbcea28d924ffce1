"""Prints, as JSON, what of this system matters to a long compilation. Sizes are in MB (10**6 bytes)."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

MB = 10**6
NO_LIMIT = 1 << 60


def _number(path: str) -> int | None:
    """A number in a file of the kernel; None where there is none, as for `max`."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None


def memory() -> int:
    """Bytes that may be used: the system's available memory, or what is left of the container's limit."""
    free = NO_LIMIT
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    groups = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    )
    for limit, used in groups:
        limited = _number(limit)
        if limited is not None:
            free = min(free, limited - (_number(used) or 0))
    return max(free, 0)


def cpus() -> int:
    """Processors that may be used; a quota of the container counts."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return count
    return max(1, min(count, int(quota) // int(period))) if quota.isdigit() else count


def nvcc() -> str:
    """Release of CUDA's compiler, such as 12.5; empty where there is none."""
    found = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if not found:
        return ""
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+\.\d+)", said)
    return release.group(1) if release else "unknown"


print(
    json.dumps(
        {
            "disk_mb": shutil.disk_usage("/").free // MB,
            "memory_mb": memory() // MB,
            "cpus": cpus(),
            "nvcc": nvcc(),
            "base": os.environ.get("NVIDIA_TRITON_SERVER_VERSION", ""),
            "machine": platform.machine(),
        }
    )
)
