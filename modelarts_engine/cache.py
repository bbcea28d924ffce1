"""What is kept of earlier builds, on an engine or in the repository that build hosts share: listing it, and removing what is old."""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from modelarts_engine.playbook import DONE
from modelarts_engine.progress import size

UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
KEY = re.compile(r"(?:base\.)?[0-9a-f]{64}")


@dataclass
class Entry:
    """One stage or base.

    :ivar names: what has to be removed for it to be gone: an engine's image names, or a repository's manifest digest.
    :ivar created: when it was committed.
    :ivar used: whether an image that is `latest` is made of it.
    """

    key: str
    stage: str
    names: list[str]
    created: datetime.datetime
    bytes: int
    used: bool

    @property
    def age(self) -> float:
        """Seconds."""
        return (datetime.datetime.now(datetime.UTC) - self.created).total_seconds()


def seconds(text: str) -> float:
    """`30d`, `12h`, `45m` or `2w`.

    :raises ValueError: something else.
    """
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if not found:
        raise ValueError(f"--older: {text!r} is no time; give a number with m, h, d or w, such as 30d")
    return int(found[1]) * UNITS[found[2]]


def _time(text: str) -> datetime.datetime:
    """The engine's times have nanoseconds, which Python's parser does not take."""
    return datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", text).replace("Z", "+00:00"))


def local(client: Any) -> list[Entry]:
    """Stages and bases of an engine, the newest first."""
    from modelarts_engine.engine_client import engine

    images = {
        tag: client.api.inspect_image(image["Id"])
        for image in client.api.images()
        for tag in image.get("RepoTags") or []
        if tag.startswith(f"{engine.REPOSITORY}/")
    }
    kinds = (f"{engine.STAGE}:", f"{engine.REPOSITORY}/base:")
    latest = [image["RootFS"]["Layers"] for tag, image in images.items() if tag.endswith(":latest")]
    entries = []
    for tag, image in images.items():
        if not tag.startswith(kinds):
            continue
        key, layers = tag.rpartition(":")[2], image["RootFS"].get("Layers") or []
        entries.append(
            Entry(
                key=key,
                stage=(image["Config"].get("Labels") or {}).get(engine.LABEL + "stage", "base"),
                # The entry's own name goes last: interrupted, it is found again.
                names=[
                    *sorted(name for name in images if name != tag and name.endswith((f":{key}", f":{key[:12]}"))),
                    tag,
                ],
                created=_time(image["Created"]),
                bytes=image["Size"],
                used=any(layers == other[: len(layers)] for other in latest),
            )
        )
    return sorted(entries, key=lambda entry: entry.created, reverse=True)


def shared(registry: Any, repository: str) -> list[Entry]:
    """Stages and bases of a repository, the newest first. What a host uses of it cannot be known."""
    entries = []
    for tag in registry.tags(repository):
        if not KEY.fullmatch(tag):
            continue
        manifest = registry.manifest(repository, tag)
        if manifest is None:
            continue
        config = registry.config(repository, manifest.config)
        labels = (config.get("config") or {}).get("Labels") or {}
        entries.append(
            Entry(
                key=tag,
                stage=labels.get("io.modelarts.engine.stage", "base"),
                names=[manifest.digest],
                created=_time(config["created"]),
                bytes=sum(int(layer.get("size", 0)) for layer in manifest.layers),
                used=False,
            )
        )
    return sorted(entries, key=lambda entry: entry.created, reverse=True)


def old(entries: Iterable[Entry], older: float, keep: int) -> list[Entry]:
    """Those older than `older` seconds that are neither used nor among the `keep` newest; entries come newest first."""
    return [entry for entry in list(entries)[keep:] if entry.age > older and not entry.used]


def _registry(repository: str, ca_bundle: str) -> tuple[Any, str]:
    """A repository's registry, with the login of the user's Docker configuration, and the repository's path in it."""
    import docker

    from modelarts_engine.engine_client import registry

    host, _, path = repository.partition("/")
    if not path or ":" in path:
        raise ValueError(f"--repository: {repository!r} is not registry.example.com/organisation/cache")
    login = docker.auth.load_config().resolve_authconfig(host) or {}
    made = registry.Registry(host, registry.Login(login.get("username", ""), login.get("password", "")), ca_bundle)
    return made, path


def run(arguments: argparse.Namespace, client: Any) -> int:
    """`cache ls` and `cache prune`."""
    older = seconds(arguments.older)
    if arguments.keep < 0:
        raise ValueError("--keep: give 0 or more")
    if arguments.repository:
        registry, path = _registry(arguments.repository, arguments.ca_bundle)
        entries = shared(registry, path)
    else:
        entries = local(client)
    if arguments.action == "ls":
        for entry in entries:
            used = "used by a latest image" if entry.used else ""
            print(
                f"{entry.key[-64:][:12]}  {entry.stage:<16} {entry.age / 86_400:6.1f} d  {size(entry.bytes):>9}  {used}".rstrip()
            )
        return DONE
    gone = old(entries, older, arguments.keep)
    for entry in gone:
        if not arguments.dry_run:
            for name in entry.names:
                if arguments.repository:
                    registry.delete(path, name)
                else:
                    client.api.remove_image(name)
        print(f"{'would remove' if arguments.dry_run else 'removed'} {entry.key[-64:][:12]}  {entry.stage}")
    print(f"{len(gone)} of {len(entries)} entries {'would go' if arguments.dry_run else 'removed'}")
    return DONE


def arguments(command: argparse.ArgumentParser) -> None:
    """The options of `cache`."""
    command.add_argument(
        "action", choices=["ls", "prune"], help="list what is kept, or remove what is old and not used"
    )
    command.add_argument("--older", default="30d", metavar="TIME", help="prune: at least this old, default 30d")
    command.add_argument("--keep", type=int, default=10, metavar="N", help="prune: the newest N stay, default 10")
    command.add_argument("--dry-run", action="store_true", help="prune: only say what would go")
    command.add_argument(
        "--repository",
        metavar="REPOSITORY",
        help="the shared cache instead of the engine, with the login of docker login",
    )
    command.add_argument("--ca-bundle", default="", metavar="FILE", help="PEM file that verifies the registry")
