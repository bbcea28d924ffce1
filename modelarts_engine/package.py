"""`package`: model folders, each kind registered by a file `roles/ROLE/packages/NAME.yml`.

Such a file says `summary` (one line) and, where the kind has them, `directory` (the role's argument that DIR on the command line gives),
`values` (arguments this kind sets), `follows` (arguments that take a variable of an image's build where they are not given), `check`
(a command of the image that says whether package and image fit), `label` (of the images that the package is for)
and `prebuild` (one that makes on this host what the package would
else make at its first start, and writes it to /out; what it writes becomes the package's folder `prebuilt`). The role writes the folder that its
argument `ROLE_dest` names, and knows the image's size where it has an argument `ROLE_image_gb`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelarts_engine.playbook import DONE, FAILED, ROOT, USAGE, Outcome, run, user_cache
from modelarts_engine.progress import Progress


@dataclass(frozen=True)
class Kind:
    """A kind of model package.

    :param directory: the role's argument that DIR gives; empty where the kind takes none.
    """

    name: str
    role: str
    summary: str
    directory: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    follows: dict[str, str] = field(default_factory=dict)
    check: list[str] = field(default_factory=list)
    prebuild: list[str] = field(default_factory=list)
    prebuilt: str = ""
    label: str = ""


def names(root: Path = ROOT) -> list[str]:
    """Names of all kinds, sorted."""
    return sorted(path.stem for path in root.glob("roles/*/packages/*.yml"))


def kind(name: str, root: Path = ROOT) -> Kind:
    """A kind by its name.

    :raises InputError: there is none of that name, or its file says something unknown.
    """
    from modelarts_engine.engine_client import keys

    found = sorted(root.glob(f"roles/*/packages/{name}.yml")) if name in names(root) else []
    if not found:
        raise keys.InputError(f"there is no model package {name}; {keys.nearest(name, names(root))}")
    try:
        return Kind(name=name, role=found[0].parents[1].name, **keys.load(found[0].read_text()))
    except TypeError as error:
        raise keys.InputError(f"{found[0].relative_to(root)}: {error}") from error


def write(
    what: Kind,
    *,
    directory: str | None,
    dest: str | None,
    inventory: str | None,
    extra: dict[str, Any],
    progress: Progress,
    root: Path = ROOT,
) -> tuple[Outcome, Path]:
    """Writes a package and returns what came of it and where it is.

    :param directory: what the package is made of, where its kind takes one.
    :param dest: the folder to write; None for one of the user's cache.
    :raises InputError: an argument is unknown, missing, or of a wrong type.
    """
    from modelarts_engine.engine_client import keys

    collection = keys.Collection(root)
    options = collection.options(what.role)
    if unknown := collection.unknown(extra, also_known=collection.settings()):
        raise keys.InputError("; ".join(unknown))
    given = {
        **what.values,
        **{name: extra[source] for name, source in what.follows.items() if source in extra},
        **extra,
    }
    if directory is not None:
        if not what.directory:
            raise keys.InputError(f"the package {what.name} takes no folder; leave {directory} out")
        given[what.directory] = str(Path(directory).expanduser().absolute())
    elif what.directory and options[what.directory].get("required") and what.directory not in given:
        raise keys.InputError(
            f"the package {what.name} is made of a folder: ./runner.py package {what.name} DIR. {_text(options[what.directory])}"
        )
    for name, source in what.follows.items():
        if options[name].get("required") and name not in given:
            raise keys.InputError(f"the package {what.name} needs -e {source}=…: {_text(options[name])}")
    name = f"{what.role}_dest"
    path = Path(dest or given.get(name) or user_cache() / "packages" / what.name / "model")
    given[name] = str(path.expanduser().absolute())
    checked = keys.arguments(options, given, what.role)
    outcome = run(
        "package.yml",
        inventory=inventory,
        extra={**given, **checked, "package_role": what.role},
        progress=progress,
    )
    return outcome, Path(given[name])


def _text(option: dict[str, Any]) -> str:
    """An argument's description as one line."""
    said = option.get("description") or ""
    # Without Ansible's markup: C(text) is text.
    return re.sub(r"\b[BCIV]\(([^)]*)\)", r"\1", " ".join(said) if isinstance(said, list) else str(said))


def arguments(command: argparse.ArgumentParser) -> None:
    """The command line."""
    command.add_argument("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(names())}")
    command.add_argument(
        "directory", nargs="?", metavar="DIR", help="what the package is made of, where its kind takes a folder"
    )
    command.add_argument("--dest", metavar="DIR", help="folder to write; its last part must be model")
    command.add_argument("--image", help="also try whether the package fits this image of the local engine")
    command.add_argument(
        "--prebuild",
        action="store_true",
        help="also make on this host's GPUs what the package would else make at its first start; needs --image",
    )


def package(given: argparse.Namespace, extra: dict[str, Any]) -> int:
    """Writes a package, tries it in an image and prebuilds where that was asked for; returns the exit code."""
    if given.name is None:
        for name in names():
            print(f"{name:<12} {kind(name).summary}")
        return DONE
    what = kind(given.name)
    if problem := _unasked(what, given):
        print(f"error: {problem}", file=sys.stderr)
        return USAGE
    client = image = None
    if given.image:
        from modelarts_engine import engine_client

        client = engine_client.engine.connect(given.engine_url or engine_client.DEFAULT_URL)
        image = engine_client.find_image(client, given.image)
        about = client.api.inspect_image(image)
        if what.label and what.label not in (about["Config"]["Labels"] or {}):
            print(
                f"error: {image} is none that the package {what.name} is for: it has no label {what.label}",
                file=sys.stderr,
            )
            return USAGE
        size = f"{what.role}_image_gb"
        if size in engine_client.keys.Collection(ROOT).options(what.role):
            extra.setdefault(size, about["Size"] / 1e9)
    progress = Progress(what.name)

    def written() -> tuple[Outcome, Path]:
        return write(
            what,
            directory=given.directory,
            dest=given.dest,
            inventory=given.inventory,
            extra=extra,
            progress=progress,
        )

    outcome, path = written()
    if outcome.code != DONE:
        print(f"{what.name}: nothing was written{outcome.kept}", file=sys.stderr)
        return outcome.code
    progress.step("package", "written")
    if image and what.check:
        if code := check(client, image, what, path):
            print(f"{what.name}: {path} was written and does not fit {image}", file=sys.stderr)
            return code
        progress.step("check", f"fits {image}")
    if given.prebuild:
        if code := prebuild(client, str(image), what, path):
            print(f"{what.name}: {path} was written, nothing was prebuilt", file=sys.stderr)
            return code
        progress.step("prebuild", f"in {what.prebuilt}")
        outcome, _ = written()  # the role measures the folder again, now with what was prebuilt
        if outcome.code != DONE:
            print(f"{what.name}: {path} cannot be used as it is now", file=sys.stderr)
            return outcome.code
    print(f"{what.name}: the model folder is {path} ({progress.elapsed:.1f} s); upload it to OBS under the name model")
    return DONE


def _unasked(what: Kind, given: argparse.Namespace) -> str:
    """What of the command line this kind cannot do."""
    if given.prebuild and not what.prebuild:
        return f"the package {what.name} has nothing to prebuild; leave --prebuild out"
    if given.image and not what.check:
        return f"the package {what.name} cannot be tried in an image this way; leave --image out, and serve it with --model"
    if given.prebuild and not given.image:
        return "--prebuild runs in the image that is to serve the package; give it with --image"
    if given.image and given.inventory:
        return "--image is an image of this machine's engine; run this on the host that has the image, without an inventory"
    return ""


def _ran(container: Any) -> int:
    """Prints what a container says until it ends; returns its exit code. The container is removed, also when this is broken off."""
    try:
        for piece in container.logs(stream=True, follow=True):
            sys.stderr.write(piece.decode(errors="replace"))
            sys.stderr.flush()
        return int(container.wait()["StatusCode"])
    finally:
        container.remove(force=True, v=True)


def check(client: Any, image: str, what: Kind, path: Path) -> int:
    """Whether a package fits an image, as the image itself says; it runs as the platform would run it, without a network.

    :returns: 0 where it does.
    """
    from modelarts_engine import engine_client

    with engine_client.engine.engine_errors():
        code = _ran(
            engine_client.serving.run_as_platform(
                client, image, path, command=what.check, network_mode="none", ports={}
            )
        )
    return USAGE if code == USAGE else FAILED if code else DONE


def prebuild(client: Any, image: str, what: Kind, path: Path, *, gpus: bool = True) -> int:
    """Makes, in the image and on this host's GPUs, what the package would else make at its first start.

    It runs as whoever calls this, so that what it writes belongs to them. What is there already is kept.

    :param gpus: whether the container is given the host's GPUs.
    :returns: 0 where everything was made; else nothing of it is left.
    """
    import docker

    from modelarts_engine import engine_client

    out = Path(tempfile.mkdtemp(prefix=f".{what.prebuilt}.", suffix=".partial", dir=path.parent))
    owner = f"{os.getuid()}:{os.getgid()}"
    home = f"uid={os.getuid()},gid={os.getgid()},mode=0700"
    model = docker.types.Mount(engine_client.serving.MODEL_PATH, str(path), type="bind", read_only=True)
    try:
        with engine_client.engine.engine_errors():
            container = engine_client.serving.run_as_platform(
                client,
                image,
                path,
                command=what.prebuild,
                network_mode="none",
                ports={},
                user=owner,
                tmpfs={**engine_client.serving.TMPFS, "/home/ma-user": home},
                shm_size="1g",
                mounts=[model, docker.types.Mount("/out", str(out), type="bind")],
                environment={"HOME": "/home/ma-user"},
                device_requests=[docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])] if gpus else [],
            )
            code = _ran(container)
        if code:
            return USAGE if code == USAGE else FAILED
        place = path / what.prebuilt
        place.mkdir(exist_ok=True)
        for made in [each for each in out.iterdir() if each.is_dir() and not each.name.startswith(".")]:
            shutil.rmtree(place / made.name, ignore_errors=True)
            made.rename(place / made.name)
        return DONE
    finally:
        shutil.rmtree(out, ignore_errors=True)
