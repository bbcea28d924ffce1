# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Pushes an image of an engine to a registry. Runs on the controller; the engine, here or at the end of an SSH forward, does the sending."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.utils.display import Display
from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys, logins, push

ROOT = Path(__file__).resolve().parents[2]


def default_tags(folder: Path, image: Mapping[str, Any]) -> list[str]:
    """Version and git revision where the playbook lies in a clean checkout, and the image's own key.

    The key names exactly what went into the image; the revision is that of the checkout that pushes.
    """
    tags = []
    version = keys.load((ROOT / "galaxy.yml").read_text())["version"] if (ROOT / "galaxy.yml").is_file() else ""
    git = ["git", "-C", str(folder)]
    try:
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True
        )
        revision = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        if version and not changes.stdout.strip():
            tags.append(f"{version}-g{revision.stdout.strip()}")
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or no checkout
    if key := (image["Config"].get("Labels") or {}).get(engine.LABEL + "key"):
        tags.append(key[:12])
    return tags


class ActionModule(logins.Action):
    """See `ansible-doc modelarts.engine.image_push`."""

    SPEC: ClassVar = {
        "image": {"type": "str", "required": True},
        "engine_url": {"type": "str", "default": "unix:///var/run/docker.sock"},
        "registry": {"type": "str", "required": True},
        "repository": {"type": "str", "required": True},
        "tags": {"type": "list", "elements": "str", "default": []},
        "force": {"type": "bool", "default": False},
        "login": {"type": "str", "choices": ["auto", "password", "long_term", "temporary"], "default": "auto"},
        **logins.OPTIONS,
        "max_layer_gb": {"type": "int", "default": 50},
        "max_image_gb": {"type": "int", "default": 50},
        "attempts": {"type": "int", "default": 5},
        "stall_seconds": {"type": "int", "default": 600},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        if unread := keys.Collection(ROOT).unknown(name for name in task_vars if name.startswith("swr_push_")):
            raise keys.InputError("; ".join(unread))
        host, say, folder = args["registry"], self._say, Path(task_vars.get("playbook_dir") or ".")
        fresh = self.credentials.logins(
            host, **{name: args[name] for name in ("login", "region", "api_url", "ca_bundle")}
        )
        with engine.engine_errors():
            client = engine.connect(args["engine_url"])
            image = engine.find_image(client, args["image"])
            inspected = client.api.inspect_image(image)
            tags = args["tags"] or default_tags(folder, inspected)
            if not tags:
                raise keys.InputError(
                    f"{image} has no key to make a tag of, and no clean checkout gives a revision; give swr_push_tags"
                )
            push.check_size(
                inspected, client.api.history(image), args["max_layer_gb"] * push.GB, args["max_image_gb"] * push.GB
            )
            push.check_trust(client.info(), host)
            job = push.Push(
                client=client, url=args["engine_url"], image=image, host=host, repository=args["repository"], logins=fresh, say=say,
                ca_bundle=args["ca_bundle"], attempts=args["attempts"], stall=args["stall_seconds"],
            )  # fmt: skip
            found = job.look_up(tags, force=args["force"])
            missing = [tag for tag, manifest in found.items() if manifest is None]
            if self._task.check_mode:
                return {"changed": bool(missing), "missing": missing}
            push.sweep(client)
            there = {tag: manifest or job.push(tag) for tag, manifest in found.items()}
        return {"image": image, **job.result(there, bool(missing)), "seconds": round(time.monotonic() - started, 1)}

    def _say(self, text: str) -> None:
        Display().display(self.credentials.clean(text))
