"""`package`: model folders, each kind registered by a file `roles/ROLE/packages/NAME.yml`.

Such a file says `summary` (one line), optionally `directory` (the role's argument that DIR on the command line gives) and
`values` (arguments this kind sets). The role writes the folder that its argument `ROLE_dest` names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelarts_engine.playbook import ROOT, Outcome, run
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
    given = {**what.values, **extra}
    if directory is not None:
        if not what.directory:
            raise keys.InputError(f"the package {what.name} takes no folder; leave {directory} out")
        given[what.directory] = str(Path(directory).expanduser().absolute())
    elif what.directory and options[what.directory].get("required") and what.directory not in given:
        raise keys.InputError(
            f"the package {what.name} is made of a folder: ./runner.py package {what.name} DIR. {_text(options[what.directory])}"
        )
    name = f"{what.role}_dest"
    path = Path(dest or given.get(name) or Path.home() / ".cache/modelarts-engine/packages" / what.name / "model")
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
    return " ".join(said) if isinstance(said, list) else str(said)
