"""The command that pushes an image to a registry."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modelarts_engine.playbook import DONE, FAILED, ROOT, run
from modelarts_engine.progress import Progress, size

# What of the module's result is of no use outside of Ansible.
INTERNAL = ("action", "invocation")


def destination(text: str) -> dict[str, str]:
    """`REGISTRY/ORGANISATION[/REPOSITORY]` as the role's arguments.

    :raises ValueError: it is something else.
    """
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(parts) or "@" in text or ":" in "".join(parts[1:]):
        raise ValueError(
            f"--to {text}: give REGISTRY/ORGANISATION or REGISTRY/ORGANISATION/REPOSITORY; tags are given with --tag"
        )
    names = ("swr_push_registry", "swr_push_organization", "swr_push_repository")
    return dict(zip(names, parts, strict=False))


@contextlib.contextmanager
def credentials(extra: dict[str, Any]) -> Iterator[None]:
    """Adds to a run's variables a file with the registry's credentials of the environment, where there are any and no other file is named.

    It has no name and lies in memory: it ends with this process, however that ends. The run itself gets none of them in its environment,
    which ansible-runner writes to disk.
    """
    from modelarts_engine import engine_client

    lines = [f"{name}={value}\n" for name, value in engine_client.registry.secrets("").items()]
    if not lines or "swr_push_credentials" in extra:
        yield
        return
    if any("\n" in line[:-1] for line in lines):
        raise ValueError("a credential in the environment has a line break")
    file = os.memfd_create("credentials")
    try:
        os.fchmod(file, 0o600)
        os.write(file, "".join(lines).encode())
        extra["swr_push_credentials"] = f"/proc/{os.getpid()}/fd/{file}"
        yield
    finally:
        os.close(file)


def push(arguments: argparse.Namespace, extra: dict[str, Any]) -> int:
    """Pushes one image; the result is JSON on standard output, and in a file where one is named.

    :param extra: variables of the command line.
    """
    from modelarts_engine import engine_client

    collection = engine_client.keys.Collection(ROOT)
    if unread := collection.unknown(extra, also_known=collection.settings()):
        raise ValueError("; ".join(unread))
    extra["swr_push_image"] = arguments.image
    extra.update(destination(arguments.to) if arguments.to else {})
    extra.update({"swr_push_tags": arguments.tag} if arguments.tag else {})
    extra.update({"swr_push_force": True} if arguments.force else {})
    extra.update({"swr_push_create": True} if arguments.create else {})
    extra.update({"image_hosts": arguments.host} if arguments.host else {})
    progress = Progress(arguments.image, sys.stderr)
    with credentials(extra):
        outcome = run("push.yml", inventory=arguments.inventory, extra=extra, progress=progress)
    if outcome.code != DONE:
        print(f"{arguments.image}: not pushed{outcome.kept}", file=sys.stderr)
        return outcome.code
    result = {
        name: value
        for name, value in outcome.of("image_push")[-1].items()
        if name not in INTERNAL and not name.startswith("_")
    }
    text = json.dumps(result, indent=1, sort_keys=True) + "\n"
    print(text, end="")
    if arguments.output:
        try:
            _write(Path(arguments.output), text)
        except OSError as error:
            print(f"error: the image is pushed, but {arguments.output} cannot be written: {error}", file=sys.stderr)
            return FAILED
    print(_summary(result), file=sys.stderr)
    return DONE


def _write(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _summary(result: Mapping[str, Any]) -> str:
    if not result["changed"]:
        return f"{result['reference']}: was there already"
    return f"{result['reference']}: {size(result['bytes_pushed'])} of {size(result['bytes'])} sent in {result['seconds']} s"


def arguments(command: argparse.ArgumentParser) -> None:
    """The command's own options."""
    command.add_argument("image", help="an image, triton for modelarts-engine/triton:latest")
    command.add_argument(
        "--to",
        metavar="REGISTRY/ORGANISATION[/REPOSITORY]",
        help="where to; default what the inventory says (swr_push_registry, …)",
    )
    command.add_argument(
        "--tag", action="append", help="a tag; may be repeated; default version and revision, and the image's key"
    )
    command.add_argument("--force", action="store_true", help="overwrite a tag that names another image")
    command.add_argument("--create", action="store_true", help="create organisation and repository in SWR")
    command.add_argument("--host", help="the build host that has the image, default the first")
    command.add_argument("--output", metavar="FILE", help="write the result there, too")
