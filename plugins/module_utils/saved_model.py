# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What is wrong with a folder of SavedModels that TensorFlow Serving is to serve. Standard library only; nothing is loaded or run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

# Files beside the versions that the image's start command knows.
CONFIGURATION = ("batching.config", "monitoring.config", "models.config")
# What people export instead of a SavedModel.
OTHER_FORMATS = (".h5", ".keras", ".tflite", ".onnx", ".pt", ".pth", ".ckpt")
VARIABLE_OPS = (b"VariableV2", b"Variable", b"VarHandleOp")

# A checkpoint's index is an sstable (tensorflow/core/lib/io/format.h), which ends in this number.
_INDEX_END = (0xDB4775248B80FB57).to_bytes(8, "little")
_SHARD = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")


def problems(folder: str) -> list[str]:
    """What TensorFlow Serving could not serve, each with what to do; nothing where all is well.

    :param folder: holds the versions, `FOLDER/<number>/saved_model.pb`.
    """
    top = Path(folder)
    if not top.is_dir():
        return [f"{top} is no folder; give the one that holds the versions (DIR/1/saved_model.pb)"]
    try:
        found = list(_unusable(top))
        entries = sorted(top.iterdir())
    except OSError as error:
        return [f"{error.filename} cannot be read: {error.strerror}"]
    if (top / "saved_model.pb").exists():
        return [
            f"{top} is one SavedModel, not a folder of versions; move it into a folder with a number for its name, such as {top}/1"
        ]
    versions = [entry for entry in entries if entry.name.isascii() and entry.name.isdigit()]
    for entry in entries:
        if entry in versions or entry.name in CONFIGURATION:
            continue
        if entry.suffix in OTHER_FORMATS:
            found.append(
                f"{entry.name} is not a SavedModel; export one (model.export or tf.saved_model.save) into a folder such as {top.name}/1"
            )
        elif entry.is_dir() and (entry / "saved_model.pb").exists():
            found.append(
                f"{entry.name} holds a SavedModel, but its name is no number, so it is never served; call it 1, or the next number"
            )
        else:
            found.append(f"{entry.name} is neither a version nor one of {', '.join(CONFIGURATION)}; take it out")
    numbers: dict[int, str] = {}
    for version in versions:
        if int(version.name) > 2**63 - 1:
            found.append(f"{version.name} is too large for the number of a version")
        if int(version.name) in numbers:
            found.append(f"{numbers[int(version.name)]} and {version.name} are the same version; keep one")
        numbers[int(version.name)] = version.name
        found += [f"{version.name}: {said}" for said in _version(version)]
    if not versions:
        found.insert(
            0, f"{top} has no version: a folder with a number for its name, such as 1, that holds saved_model.pb"
        )
    return found


def _unusable(top: Path) -> Iterator[str]:
    """Entries that cannot be uploaded: links and the like, since OBS knows none, names that are no text, and what may not be read."""
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top)
        if path.is_symlink():
            yield f"{name} is a link, which OBS does not know; put what it points to in its place"
        elif not (path.is_file() or path.is_dir()):
            yield f"{name} is neither a file nor a folder; take it away"
        elif not str(name).isprintable():
            yield f"{str(name)!r} is no name that OBS can hold; rename it"
        elif not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            yield f"{name} may not be read; check its mode and owner"


def _version(version: Path) -> list[str]:
    if not version.is_dir():
        return ["this is a file; a version is a folder"]
    graph = version / "saved_model.pb"
    if (version / "saved_model.pbtxt").is_file() and not graph.exists():
        return []  # the server reads it, too; its content is not looked at here
    if not graph.is_file():
        inner = [str(path.parent.relative_to(version)) for path in sorted(version.rglob("saved_model.pb"))]
        hint = f"it is in {inner[0]}, a folder too deep" if inner else "export the model into this folder"
        return [f"saved_model.pb is missing; {hint}"]
    data = graph.read_bytes()
    try:
        tags, signatures, has_variables = _read(data)
    except ValueError:
        return ["saved_model.pb is broken: it is empty or cut off, or no SavedModel; copy or export it again"]
    found = []
    if not tags:
        found.append("saved_model.pb has no graph with the tag serve; export it for serving")
    if not signatures and tags:
        found.append("saved_model.pb has no signature, so nothing can be asked; export it with signatures")
    return found + _variables(version / "variables", has_variables)


def _variables(folder: Path, wanted: bool) -> list[str]:
    """What is missing of the checkpoint: its index, or one of its shards."""
    shards = {match.groups() for path in folder.glob("variables.data-*") if (match := _SHARD.fullmatch(path.name))}
    if not (folder / "variables.index").is_file():
        if wanted or shards:
            return [
                "variables/variables.index is missing, and the model has variables; copy the whole folder variables"
            ]
        return []
    totals = {int(total) for _, total in shards} or {1}
    missing = [
        f"variables/variables.data-{number:05d}-of-{max(totals):05d}"
        for number in range(max(totals))
        if (f"{number:05d}", f"{max(totals):05d}") not in shards
    ]
    whole = (folder / "variables.index").read_bytes().endswith(_INDEX_END)
    return [f"{name} is missing; copy the whole folder variables" for name in missing] + (
        [] if whole else ["variables/variables.index is empty, cut off or changed; copy it again"]
    )


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Fields of a protocol buffer message; numbers come as no bytes.

    :raises ValueError: it is none.
    """
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        tag = varint()
        kind = tag & 7
        content = b""
        if kind == 0:
            varint()
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size = varint()
            content = data[at : at + size]
            at += size
        else:
            raise ValueError
        if not tag >> 3 or at > len(data):
            raise ValueError
        yield tag >> 3, content


def _read(data: bytes) -> tuple[bool, bool, bool]:
    """Whether a SavedModel has a graph for serving, and whether that has signatures and variables.

    :raises ValueError: it is no SavedModel.
    """
    graphs = [content for number, content in _fields(data) if number == 2]
    if not graphs:
        raise ValueError
    for graph in graphs:
        parts = list(_fields(graph))
        tags = [tag for number, info in parts if number == 1 for field, tag in _fields(info) if field == 4]
        if b"serve" in tags:
            definitions = [content for number, content in parts if number == 2]
            nodes = [node for content in definitions for number, node in _fields(content) if number == 1]
            operations = {content for node in nodes for number, content in _fields(node) if number == 2}
            signatures = [content for number, content in parts if number == 5]
            return True, bool(signatures), bool(operations & set(VARIABLE_OPS))
    return False, False, False
