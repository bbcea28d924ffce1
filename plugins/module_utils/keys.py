# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What a stage is made of, and the key that names it.

A stage's key is the SHA-256 of everything that went in: the parent's key, the files of its roles and of all they reach, the roles'
arguments after coercion and defaults, the tool versions, the commit settings and the epoch. Nothing that differs between two
checkouts of one revision (absolute paths, times, directory order, group and world permission bits) enters it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

SCHEMA = 1
COLLECTION = "modelarts.engine"

# Arguments that say where a thing is fetched or kept, not what it is. Two hosts that differ in them share their cache.
WHERE_NOT_WHAT = ("_cache", "_cache_dir", "_ca_bundle", "_engine_url", "_mirrors")

# `rehearsal` is what an engine is asked once it is built.
_NOT_CONTENT = ("README.md", "__pycache__", "rehearsal")
_REACHED = re.compile(
    r"ansible_collections\.modelarts\.engine\.plugins\.(\w+)\.(\w+)|(?<![\w.])modelarts\.engine\.(\w+)"
)
_OTHER_COLLECTION = re.compile(r"(?<![\w./@-])(community\.\w+|ansible\.(?!builtin\b)[a-z]\w+)\.\w+")


# The parser in C where there is one: reading all roles is most of what a build with nothing to do spends here.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InputError(Exception):
    """What the user gave cannot be used; the message says what is wrong, where, and what to do."""


def load(text: str) -> Any:
    """YAML without tags of its own."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, in C


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text, whatever their order or string subclass."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, 64 hex digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def nearest(word: str, known: Iterable[str]) -> str:
    """A closing clause for an error message: the nearest known names, or all of them where none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def role_name(name: str) -> str:
    """Short name of a role of this collection; other collections' roles are refused, since their files cannot be followed."""
    namespace, _, short = name.rpartition(".")
    if namespace not in ("", COLLECTION):
        raise InputError(
            f"role {name}: a stage takes roles of {COLLECTION} only; give the role's name without a collection or as {COLLECTION}.NAME"
        )
    return short


class Collection:
    """The collection's files on the controller.

    :param root: the folder that holds `roles/` and `plugins/`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._options: dict[str, dict[str, Any]] = {}

    def settings(self) -> dict[str, dict[str, Any]]:
        """The spec of the variables of a build that no role declares, from `meta/image_variables.yml`."""
        spec: dict[str, dict[str, Any]] = load((self.root / "meta/image_variables.yml").read_text())
        return spec

    def roles(self) -> list[str]:
        """Names of all roles, sorted."""
        return sorted(p.parent.parent.name for p in self.root.glob("roles/*/meta/argument_specs.yml"))

    def options(self, role: str) -> dict[str, Any]:
        """A role's declared arguments, from `meta/argument_specs.yml`."""
        path = self.root / "roles" / role / "meta" / "argument_specs.yml"
        if not path.is_file():
            raise InputError(f"role {role} does not exist; {nearest(role, self.roles())}")
        if role not in self._options:
            self._options[role] = load(path.read_text())["argument_specs"]["main"].get("options") or {}
        return self._options[role]

    def unknown(self, names: Iterable[str], also_known: Iterable[str] = ()) -> list[str]:
        """Messages for the variables that no role declares.

        A name that starts with a role's name must be that role's argument. Where `also_known` is given every other name
        must be one of those, or Ansible's own (`ansible_…`).
        """
        declared = {role: self.options(role) for role in self.roles()}
        everything = {name for options in declared.values() for name in options} | set(also_known)
        messages = []
        for name in sorted(set(names) - everything):
            role = max((r for r in declared if name.startswith(r + "_")), key=len, default=None)
            if role:
                messages.append(f"{name}: role {role} has no such argument; {nearest(name, declared[role])}")
            elif also_known and not name.startswith("ansible_"):
                near = difflib.get_close_matches(name, everything, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]}?" if near else "roles/*/README.md list the arguments"
                messages.append(f"{name}: nothing reads this variable; {hint}")
        return messages

    def reach(self, roles: Iterable[str]) -> tuple[list[list[str]], set[str]]:
        """Every file the roles are made of and reach, and the other collections they name.

        Followed: roles by `include_role`, `import_role` and dependencies, and this collection's modules, actions, filters and
        module utilities by name. A role or task file whose name is only known at run time cannot be followed and is refused.

        :returns: sorted `[relative path, mode, sha256]` (mode `755` where the owner may execute, else `644`), and a set of names such as `community.docker`.
        """
        queue = [self.root / "roles" / role for role in roles]
        seen: set[Path] = set()
        others: set[str] = set()
        while queue:
            top = queue.pop()
            for path in sorted(p for p in ([top] if top.is_file() else top.rglob("*")) if p.is_file()):
                if path in seen or any(part in _NOT_CONTENT for part in path.relative_to(self.root).parts):
                    continue
                seen.add(path)
                text = path.read_text(errors="ignore") if path.suffix in (".py", ".yml", ".yaml", ".j2") else ""
                if path.suffix == ".yml" and path.parent.name in ("tasks", "handlers", "meta"):
                    queue += [self.root / "roles" / name for name in self._included(path, text)]
                others |= {m.group(1) for m in _OTHER_COLLECTION.finditer(text)} if path.suffix == ".yml" else set()
                for kind, plugin, name in _REACHED.findall(text):
                    folders = (
                        [f"plugins/{kind}/{plugin}.py"]
                        if kind
                        else [f"plugins/{k}/{name}.py" for k in ("modules", "action", "filter")]
                    )
                    queue += [self.root / f for f in folders if (self.root / f).is_file()]
                    if name and (self.root / "roles" / name).is_dir():
                        queue.append(self.root / "roles" / name)
        return sorted(self._entry(path) for path in seen), others

    def _entry(self, path: Path) -> list[str]:
        mode = "755" if path.stat().st_mode & 0o100 else "644"
        return [path.relative_to(self.root).as_posix(), mode, hashlib.sha256(path.read_bytes()).hexdigest()]

    def _included(self, path: Path, text: str) -> list[str]:
        """Roles that a task or meta file brings in by a plain name."""
        where = path.relative_to(self.root)
        names: list[str] = []
        for node in _mappings(load(text)):
            for key, value in node.items():
                action = str(key).rpartition(".")[2]
                if action in ("include_role", "import_role"):
                    name = value.get("name", "") if isinstance(value, dict) else re.sub(r"^name=", "", str(value))
                    if "{{" in name:
                        raise InputError(
                            f"{where}: {action} takes its name from a template, which the stage's key cannot follow; name the role"
                        )
                    names.append(role_name(name))
                elif action in ("include_tasks", "import_tasks") and "../" in str(value):
                    raise InputError(
                        f"{where}: {action} of a file outside the role, which the stage's key does not follow; use include_role"
                    )
                elif key == "dependencies":
                    names += [role_name(need if isinstance(need, str) else need["role"]) for need in value or []]
        return names


def _mappings(node: Any) -> Iterable[dict[Any, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _mappings(value)
    elif isinstance(node, list):
        for value in node:
            yield from _mappings(value)


def arguments(options: Mapping[str, Any], values: Mapping[str, Any], role: str) -> dict[str, Any]:
    """A role's arguments after the spec's coercion and defaults.

    :param options: the role's spec (`Collection.options`).
    :param values: the given values, already templated.
    :returns: every argument that has a value; those without one are left out.
    :raises InputError: an argument is missing, or its type or choice is wrong; a secret is declared.
    """
    secret = [name for name, option in options.items() if option.get("no_log")]
    if secret:
        raise InputError(
            f"role {role}: {', '.join(secret)} is declared no_log; a secret is never an argument of a stage, mount it at run time"
        )
    return validated(options, values, f"role {role}", f"roles/{role}/README.md")


def validated(options: Mapping[str, Any], values: Mapping[str, Any], what: str, where: str) -> dict[str, Any]:
    """Values after a spec's coercion and defaults; those that are None are left out.

    :param what: begins the message of an error.
    :param where: the file in which a user reads what is allowed.
    """
    result = ArgumentSpecValidator(dict(options)).validate(
        {name: value for name, value in values.items() if name in options}
    )
    if result.error_messages:
        raise InputError(f"{what}: {'; '.join(result.error_messages)} (arguments: {where})")
    return {name: value for name, value in result.validated_parameters.items() if value is not None}


def resolve(
    roles: Iterable[str], collection: Collection, given: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Arguments of each role in order; a later role's values may name an earlier role's arguments.

    :param given: called with a role's options and the arguments resolved so far; returns the templated values the user, recipe and inventory gave.
    """
    result: dict[str, dict[str, Any]] = {}
    so_far: dict[str, Any] = {}
    for role in roles:
        options = collection.options(role)
        result[role] = arguments(options, given(role, so_far), role)
        so_far.update(result[role])
    return result


def stage_key(
    *,
    parent: str,
    roles: list[str],
    args: Mapping[str, Mapping[str, Any]],
    collection: Collection,
    versions: Callable[[set[str]], Mapping[str, str]],
    config: Mapping[str, Any],
    epoch: str,
) -> str:
    """Key of one stage, 64 hex digits.

    :param parent: the parent stage's key (never its image id: two commits of one unchanged container differ in that).
    :param args: per role, as `resolve` returns them.
    :param versions: called with the other collections the roles name; returns the versions of those and of ansible-core.
    :param config: the commit settings of this stage.
    :param epoch: free text; a new one rebuilds the stage, for instance for today's security updates.
    """
    files, others = collection.reach(roles)
    what = {role: {n: v for n, v in args[role].items() if not n.endswith(WHERE_NOT_WHAT)} for role in roles}
    return digest(
        {
            "schema": SCHEMA,
            "parent": parent,
            "roles": roles,
            "files": files,
            "arguments": what,
            "versions": dict(versions(others)),
            "config": config,
            "epoch": epoch,
        }
    )
