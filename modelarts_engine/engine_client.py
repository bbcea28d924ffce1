"""The collection's engine and serving code, importable outside Ansible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "collections"))

from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys, logins, registry, rehearsal, serving

DEFAULT_URL = "unix:///var/run/docker.sock"
find_image = engine.find_image
SERVED = "modelarts-engine-serve"  # the container that `serve` keeps up

__all__ = [
    "DEFAULT_URL",
    "SERVED",
    "engine",
    "find_image",
    "keys",
    "logins",
    "reap",
    "registry",
    "rehearsal",
    "running",
    "serving",
]


def reap(url: str) -> list[str]:
    """Removes what ended runs left on an engine; an engine that does not answer is left alone."""
    try:
        with engine.engine_errors():
            return engine.reap(engine.connect(url))
    except engine.EngineError:
        return []


def running(client: Any) -> Any | None:
    """The container that `serve` keeps up, or None."""
    found = client.containers.list(filters={"name": f"^{SERVED}$"})
    return found[0] if found else None
