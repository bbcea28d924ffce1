# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Pushes an image of an engine to a registry. Runs on the controller; the engine, here or at the end of an SSH forward, does the sending."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys, push, registry, swr

ROOT = Path(__file__).resolve().parents[2]
SPEC: dict[str, dict[str, Any]] = {
    "image": {"type": "str", "required": True},
    "engine_url": {"type": "str", "default": "unix:///var/run/docker.sock"},
    "registry": {"type": "str", "required": True},
    "repository": {"type": "str", "required": True},
    "tags": {"type": "list", "elements": "str", "default": []},
    "force": {"type": "bool", "default": False},
    "login": {"type": "str", "choices": ["auto", "password", "long_term", "temporary"], "default": "auto"},
    "credentials": {"type": "str", "default": ""},
    "region": {"type": "str", "default": ""},
    "api_url": {"type": "str", "default": ""},
    "ca_bundle": {"type": "str", "default": ""},
    "max_layer_gb": {"type": "int", "default": 50},
    "max_image_gb": {"type": "int", "default": 50},
    "attempts": {"type": "int", "default": 5},
    "stall_seconds": {"type": "int", "default": 600},
}


def chosen_login(kind: str, secrets: Mapping[str, str]) -> str:
    """What `auto` means: a user and a password if given, else the access key, with a security token for a temporary login.

    :raises SecretsError: nothing that could be used is given.
    """
    needed = {
        "password": (registry.USER, registry.PASSWORD),
        "temporary": (registry.ACCESS_KEY, registry.SECRET_KEY),
        "long_term": (registry.ACCESS_KEY, registry.SECRET_KEY),
    }
    if kind == "auto":
        kind = "long_term"
        if registry.USER in secrets:
            kind = "password"
        elif registry.SECURITY_TOKEN in secrets:
            kind = "temporary"
    missing = [name for name in needed[kind] if name not in secrets]
    if missing:
        either = "" if kind == "password" else f", or {registry.USER} and {registry.PASSWORD}"
        raise registry.SecretsError(
            f"no credentials for the registry: set {' and '.join(missing)}{either}, in the environment or in the file that swr_push_credentials names"
        )
    return kind


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


class ActionModule(ActionBase):
    """See `ansible-doc modelarts.engine.image_push`."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(SPEC)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(argument_spec=SPEC)
        self._hidden: list[str] = []
        try:
            unread = keys.Collection(ROOT).unknown(n for n in task_vars or {} if n.startswith("swr_push_"))
            if unread:
                raise keys.InputError("; ".join(unread))
            result.update(self._push(args, Path((task_vars or {}).get("playbook_dir") or ".")))
        except (registry.SecretsError, keys.InputError) as error:
            result.update(failed=True, exit_code=2, msg=str(error))
        except engine.UnreachableError as error:
            result.update(failed=True, exit_code=3, msg=str(error))
        except (engine.EngineError, push.PushError, registry.RegistryError, swr.SwrError) as error:
            result.update(failed=True, exit_code=1, msg=self._clean(str(error)))
        return result

    def _push(self, args: dict[str, Any], folder: Path) -> dict[str, Any]:
        started = time.monotonic()
        secrets = registry.secrets(args["credentials"])
        self._hidden += [
            secrets[n] for n in registry.SECRETS if n in secrets and n not in (registry.USER, registry.PROJECT)
        ]
        logins = self._logins(args, secrets)
        host, say = args["registry"], self._say
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
                client=client, url=args["engine_url"], image=image, host=host, repository=args["repository"], logins=logins, say=say,
                ca_bundle=args["ca_bundle"], attempts=args["attempts"], stall=args["stall_seconds"],
            )  # fmt: skip
            found = job.look_up(tags, force=args["force"])
            missing = [tag for tag, manifest in found.items() if manifest is None]
            if self._task.check_mode:
                return {"changed": bool(missing), "missing": missing}
            there = {tag: manifest or job.push(tag) for tag, manifest in found.items()}
        return {"image": image, **job.result(there, bool(missing)), "seconds": round(time.monotonic() - started, 1)}

    def _logins(self, args: dict[str, Any], secrets: dict[str, str]) -> Callable[[], registry.Login]:
        """What gives a fresh login whenever it is called."""
        kind = chosen_login(args["login"], secrets)
        region = args["region"] or registry.region_of(args["registry"])
        if kind != "password" and not region:
            raise keys.InputError(
                f"an access key logs in to SWR, and {args['registry']} names no region of it; give swr_push_region, "
                f"or {registry.USER} and {registry.PASSWORD}"
            )

        def login() -> registry.Login:
            if kind == "password":
                made = registry.Login(secrets[registry.USER], secrets[registry.PASSWORD])
            elif kind == "long_term":
                made = registry.long_term_login(region, secrets[registry.ACCESS_KEY], secrets[registry.SECRET_KEY])
            else:
                management = swr.Management(region, secrets, url=args["api_url"], ca_bundle=args["ca_bundle"])
                made = management.temporary_login(args["registry"])
            self._hidden.append(made.password)
            return made

        return login

    def _say(self, text: str) -> None:
        Display().display(self._clean(text))

    def _clean(self, text: str) -> str:
        """A text without any credential that a server might have repeated."""
        for secret in self._hidden:
            text = text.replace(secret, "…")
        return text
