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
# A key, or a key and a seal; see module_utils/cache.py.
KEY = re.compile(r"((?:base\.)?[0-9a-f]{64})(?:\.([0-9a-f]{32}))?")
REPLACED = "(replaced)"


@dataclass
class Entry:
    """One stage or base.

    :ivar names: what has to be removed for it to be gone: an engine's image names, or a repository's manifest digest.
    :ivar created: when it was committed.
    :ivar layers: the digests of its unpacked layers, the base's first.
    :ivar used: why it stays in any case, or nothing.
    """

    key: str
    stage: str
    names: list[str]
    created: datetime.datetime
    bytes: int
    layers: tuple[str, ...]
    used: str = ""

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
                layers=tuple(layers),
                used="used by a latest image" if any(layers == other[: len(layers)] for other in latest) else "",
            )
        )
    return sorted(entries, key=lambda entry: entry.created, reverse=True)


def shared(registry: Any, repository: str) -> list[Entry]:
    """Stages and bases of a repository, the newest first. Which image of a host is made of them cannot be known.

    A manifest goes with all its tags, so each is one entry, whatever its tags. One that only a seal names was replaced, or is about to
    be published: it comes last. One that has a tag of somebody else stays.
    """
    tags: dict[str, list[str]] = {}
    for tag in registry.tags(repository):
        if digest := registry.digest(repository, tag):
            tags.setdefault(digest, []).append(tag)
    entries = []
    for digest, names in tags.items():
        found = sorted(filter(None, map(KEY.fullmatch, names)), key=lambda match: match[2] or "")
        manifest = registry.manifest(repository, digest) if found else None
        if manifest is None:
            continue
        config = registry.config(repository, manifest.config)
        labels = (config.get("config") or {}).get("Labels") or {}
        others = sorted(name for name in names if not KEY.fullmatch(name))
        entries.append(
            Entry(
                key=found[0][1],
                stage=labels.get("io.modelarts.engine.stage", "base") if not found[0][2] else REPLACED,
                names=[digest],
                created=_time(config["created"]),
                bytes=sum(int(layer.get("size", 0)) for layer in manifest.layers),
                layers=tuple(config["rootfs"]["diff_ids"]),
                used=f"tagged {', '.join(others)}" if others else "",
            )
        )
    return sorted(entries, key=lambda entry: (entry.stage != REPLACED, entry.created), reverse=True)


def old(entries: Iterable[Entry], older: float, keep: int) -> list[Entry]:
    """Those older than `older` seconds that are neither used nor among the `keep` newest, nor what one that stays is made of.

    A stage that another one is made of takes no room of its own, and without it the next change of the other one would build both.

    :param entries: the newest first.
    """
    entries = list(entries)
    staying = [entry for number, entry in enumerate(entries) if number < keep or entry.age <= older or entry.used]
    alive = [entry for entry in staying if entry.stage != REPLACED]
    needed = {entry.layers[:length] for entry in alive for length in range(len(entry.layers) + 1)}
    return [
        entry for entry in entries if entry not in staying and (entry.stage == REPLACED or entry.layers not in needed)
    ]


def _registry(repository: str, ca_bundle: str) -> tuple[Any, str]:
    """A repository's registry, with the login of the environment or of the user's Docker configuration, and the repository's path in it."""
    import docker

    from modelarts_engine.engine_client import logins, registry

    host, _, path = repository.partition("/")
    if not path or ":" in path:
        raise ValueError(f"--repository: {repository!r} is not registry.example.com/organisation/cache")
    if fresh := logins.Credentials().of_cache(host):
        return registry.Registry(host, fresh(), ca_bundle), path
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
            print(
                f"{entry.key[-64:][:12]}  {entry.stage:<16} {entry.age / 86_400:6.1f} d  {size(entry.bytes):>9}  {entry.used}".rstrip()
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
        help="the shared cache instead of the engine, with the login of docker login, else of a push",
    )
    command.add_argument("--ca-bundle", default="", metavar="FILE", help="PEM file that verifies the registry")
