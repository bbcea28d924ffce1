#!/usr/bin/env python3
"""Writes the table of arguments in each role's README.md from its meta/argument_specs.yml.

`tools/role_docs.py` rewrites what is stale; `--check` names it and exits 1 instead.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[1] / "roles"
BEGIN, END = "<!-- arguments: begin -->", "<!-- arguments: end -->"
HEADER = "| argument | type | default | what |\n|---|---|---|---|\n"


class DocsError(Exception):
    """A role's README or specification cannot be used; the message says which and why."""


def options(role: Path) -> dict[str, dict[str, Any]]:
    """The options of the role's entry point `main`, by name.

    :raises DocsError: there is no such specification.
    """
    path = role / "meta" / "argument_specs.yml"
    try:
        found = yaml.safe_load(path.read_text())["argument_specs"]["main"].get("options", {})
    except (OSError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise DocsError(f"{path}: no argument_specs of main can be read ({error})") from error
    if not isinstance(found, dict):
        raise DocsError(f"{path}: options is no mapping")
    return found


def text(description: str | list[str] | None) -> str:
    """A description as one cell of a Markdown table, with C(x), V(x), O(x), M(x) and B(x) turned into Markdown."""
    joined = " ".join(description) if isinstance(description, list) else description or ""
    joined = re.sub(r"\b[CVOM]\(([^)]*)\)", r"`\1`", joined)
    joined = re.sub(r"\bB\(([^)]*)\)", r"**\1**", joined)
    return " ".join(joined.split()).replace("|", "\\|")


def kind(option: dict[str, Any]) -> str:
    """The option's type, for a list with that of its elements."""
    name = str(option.get("type", "str"))
    return f"{name} of {option['elements']}" if name == "list" and "elements" in option else name


def default(option: dict[str, Any]) -> str:
    """The option's default as a cell: JSON, or "required"."""
    if option.get("required"):
        return "required"
    value = option.get("default")
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|") if value is not None else ""


def rows(found: dict[str, dict[str, Any]], prefix: str = "") -> Iterator[str]:
    """One line of the table per option; those inside a list or dictionary follow it with a dotted name."""
    for name, option in found.items():
        what = text(option.get("description"))
        if "choices" in option:
            what += " One of " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
        yield f"| `{prefix}{name}` | {kind(option)} | {default(option)} | {what.strip()} |\n"
        if isinstance(option.get("options"), dict):
            yield from rows(option["options"], f"{prefix}{name}.")


def table(role: Path) -> str:
    """The table of a role's arguments, or a sentence where it has none."""
    lines = "".join(rows(options(role)))
    return HEADER + lines if lines else "It takes no arguments.\n"


def rewritten(role: Path) -> tuple[str, str]:
    """The role's README.md as it is and as it should be.

    :raises DocsError: there is none, or it lacks the markers.
    """
    path = role / "README.md"
    if not path.is_file():
        raise DocsError(f"{path}: missing; write a paragraph about the role, then a line {BEGIN} and a line {END}")
    old = path.read_text()
    before, begin, rest = old.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DocsError(f"{path}: the lines {BEGIN} and {END} must both be there, in this order")
    return old, f"{before}{begin}{table(role)}{end}{after}"


def main(argv: list[str]) -> int:
    """Returns 0, or 1 where something is stale (`--check`) or cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if a table is stale")
    parser.add_argument("--roles", type=Path, default=ROLES, metavar="DIR", help="where the roles are")
    parser.add_argument("role", nargs="*", help="names of roles, default all")
    arguments = parser.parse_args(argv)
    names = arguments.role or sorted(path.name for path in arguments.roles.iterdir() if path.is_dir())
    failed = False
    for name in names:
        try:
            old, new = rewritten(arguments.roles / name)
        except DocsError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
            continue
        if old == new:
            continue
        if arguments.check:
            print(
                f"error: {name}: README.md is older than meta/argument_specs.yml; run tools/role_docs.py",
                file=sys.stderr,
            )
            failed = True
        else:
            (arguments.roles / name / "README.md").write_text(new)
            print(f"{name}: README.md written")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
