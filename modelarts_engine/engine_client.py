"""The collection's engine and serving code, importable outside Ansible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "collections"))

from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys, rehearsal, serving

DEFAULT_URL = "unix:///var/run/docker.sock"
SERVED = "modelarts-engine-serve"  # the container that `serve` keeps up

__all__ = ["DEFAULT_URL", "SERVED", "engine", "find_image", "keys", "reap", "rehearsal", "running", "serving"]


def reap(url: str) -> list[str]:
    """Removes what ended runs left on an engine; an engine that does not answer is left alone."""
    try:
        with engine.engine_errors():
            return engine.reap(engine.connect(url))
    except engine.EngineError:
        return []


def find_image(client: Any, image: str) -> str:
    """The image's reference: `triton` is short for `modelarts-engine/triton:latest`.

    :raises EngineError: the engine has no such image.
    """
    names = [image] if "/" in image or ":" in image else [f"{engine.REPOSITORY}/{image}:latest", image]
    for name in names:
        if engine.exists(client, name):
            return name
    known = sorted(
        {
            tag
            for each in client.images.list()
            for tag in each.tags
            if tag.startswith(engine.REPOSITORY + "/") and tag.endswith(":latest")
        }
    )
    raise engine.EngineError(
        f"the engine has no image {image}; {'it has ' + ', '.join(known) if known else 'build one first: ./runner.py build triton'}"
    )


def running(client: Any) -> Any | None:
    """The container that `serve` keeps up, or None."""
    found = client.containers.list(filters={"name": f"^{SERVED}$"})
    return found[0] if found else None
