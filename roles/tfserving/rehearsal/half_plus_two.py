#!/usr/bin/env python3
"""Writes `model/1`, the SavedModel half_plus_two: y = x / 2 + 2, y2 = x / 2 + 3, y3 = x2 / 2 + 3.

Signatures as TensorFlow Serving's own half_plus_two has them: serving_default takes a tensor `x`; the classify and regress ones take
tf.Examples with the features x and x2. Standard library only: protocol buffers and the checkpoint are written by hand, so that nothing has
to be installed, and the same bytes come out everywhere.

    python3 half_plus_two.py [FOLDER]
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

FLOAT, INT32, STRING = 1, 3, 7
SCALAR: tuple[int, ...] = ()
VARIABLES = {"a": 0.5, "b": 2.0, "c": 3.0}
EXAMPLE, COLUMN = None, (-1, 1)  # shapes: of unknown rank, and any number of rows of one


def varint(number: int) -> bytes:
    """A number as protocol buffers and LevelDB write it; a negative one has 64 bits."""
    number &= 0xFFFFFFFFFFFFFFFF
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: bytes | str | int) -> bytes:
    """One field: a number, or text, bytes or a message with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def shape(sizes: tuple[int, ...] | None) -> bytes:
    """TensorShapeProto."""
    return field(3, 1) if sizes is None else b"".join(field(2, field(1, size)) for size in sizes)


def tensor(kind: int, sizes: tuple[int, ...], values: Iterable[float | str]) -> bytes:
    """TensorProto."""
    head = field(1, kind) + field(2, shape(sizes))
    if kind == STRING:
        return head + b"".join(field(8, str(value)) for value in values)
    if kind == INT32:
        return head + field(7, b"".join(varint(int(value)) for value in values))
    packed = b"".join(struct.pack("<f", value) for value in values)
    return head + (field(5, packed) if packed else b"")


# Values of a node's attributes (AttrValue).
def text(value: str) -> bytes:
    return field(2, value)


def number(value: int) -> bytes:
    return field(3, value)


def truth(value: bool) -> bytes:
    return field(5, int(value))


def kind(value: int) -> bytes:
    return field(6, value)


def sized(value: tuple[int, ...] | None) -> bytes:
    return field(7, shape(value))


def kinds(*values: int) -> bytes:
    return field(1, field(6, bytes(values)) if values else b"")


def shapes(*values: tuple[int, ...]) -> bytes:
    return field(1, b"".join(field(7, shape(value)) for value in values))


def node(name: str, op: str, *inputs: str, **attributes: bytes) -> bytes:
    """NodeDef, as a field of GraphDef."""
    content = field(1, name) + field(2, op) + b"".join(field(3, each) for each in inputs)
    for key in sorted(attributes):
        content += field(5, field(1, key) + field(2, attributes[key]))
    return field(1, content)


def constant(name: str, dtype: int, sizes: tuple[int, ...], *values: float | str) -> bytes:
    return node(name, "Const", dtype=kind(dtype), value=field(8, tensor(dtype, sizes, values)))


def identity(name: str, source: str, dtype: int = FLOAT) -> bytes:
    return node(name, "Identity", source, T=kind(dtype))


def assign(name: str, variable: str, value: str) -> bytes:
    return node(name, "Assign", variable, value, T=kind(FLOAT), use_locking=truth(True), validate_shape=truth(True))


def graph() -> bytes:
    """GraphDef: variables, examples taken apart, three lines of arithmetic, and how the variables are saved and restored."""
    names = list(VARIABLES)
    out = b""
    for name, value in VARIABLES.items():
        out += constant(f"{name}/initial_value", FLOAT, SCALAR, value)
        out += node(
            name, "VariableV2", dtype=kind(FLOAT), shape=sized(SCALAR), container=text(""), shared_name=text("")
        )
        out += assign(f"{name}/Assign", name, f"{name}/initial_value") + identity(f"{name}/read", name)

    out += node("tf_example", "Placeholder", dtype=kind(STRING), shape=sized(None))
    out += constant("parse/names", STRING, (0,))
    out += constant("parse/key_x", STRING, SCALAR, "x") + constant("parse/key_x2", STRING, SCALAR, "x2")
    out += constant("parse/default_x", FLOAT, (0,)) + constant("parse/default_x2", FLOAT, (1,), 0.0)
    keys = ("parse/key_x", "parse/key_x2", "parse/default_x", "parse/default_x2")
    out += node(
        "parse/Example", "ParseExample", "tf_example", "parse/names", *keys, Ndense=number(2), Nsparse=number(0),
        Tdense=kinds(FLOAT, FLOAT), dense_shapes=shapes((1,), (1,)), sparse_types=kinds(),
    )  # fmt: skip
    out += identity("x", "parse/Example") + identity("x2", "parse/Example:1")
    for result, source, offset in (("y", "x", "b"), ("y2", "x", "c"), ("y3", "x2", "c")):
        out += node(f"{result}/half", "Mul", "a/read", source, T=kind(FLOAT))
        out += node(f"{result}/sum", "Add", f"{result}/half", f"{offset}/read", T=kind(FLOAT))
        out += identity(result, f"{result}/sum")
    out += node("init", "NoOp", *(f"^{name}/Assign" for name in names))

    types, slices = kinds(*[FLOAT] * len(names)), [""] * len(names)
    out += constant("save/name", STRING, SCALAR, "model")
    out += node("save/Const", "PlaceholderWithDefault", "save/name", dtype=kind(STRING), shape=sized(SCALAR))
    for way in ("SaveV2", "RestoreV2"):
        out += constant(f"save/{way}/tensor_names", STRING, (len(names),), *names)
        out += constant(f"save/{way}/shape_and_slices", STRING, (len(names),), *slices)
        tables = (f"save/{way}/tensor_names", f"save/{way}/shape_and_slices")
        out += node(f"save/{way}", way, "save/Const", *tables, *(names if way == "SaveV2" else ()), dtypes=types)
    out += node("save/Identity", "Identity", "save/Const", "^save/SaveV2", T=kind(STRING))
    for position, name in enumerate(names):
        out += assign(f"save/Assign_{name}", name, f"save/RestoreV2:{position}")
    out += node("save/restore_all", "NoOp", *(f"^save/Assign_{name}" for name in names))
    return out + field(4, field(1, 24))  # versions: the graph is of TensorFlow 1's last format


def signature(
    method: str, inputs: Mapping[str, tuple[str, int, tuple[int, ...] | None]], outputs: Mapping[str, str]
) -> bytes:
    """SignatureDef; outputs are columns of floats."""

    def info(name: str, dtype: int, sizes: tuple[int, ...] | None) -> bytes:
        return field(1, name) + field(2, dtype) + field(3, shape(sizes))

    content = b"".join(field(1, field(1, alias) + field(2, info(*what))) for alias, what in inputs.items())
    for alias, name in outputs.items():
        content += field(2, field(1, alias) + field(2, info(name, FLOAT, COLUMN)))
    return content + field(3, f"tensorflow/serving/{method}")


def saved_model() -> bytes:
    """The content of saved_model.pb."""
    examples = {"inputs": ("tf_example:0", STRING, EXAMPLE)}
    signatures = {
        "classify_x_to_y": signature("classify", examples, {"scores": "y:0"}),
        "regress_x_to_y": signature("regress", examples, {"outputs": "y:0"}),
        "regress_x_to_y2": signature("regress", examples, {"outputs": "y2:0"}),
        "regress_x2_to_y3": signature("regress", {"inputs": ("x2:0", FLOAT, COLUMN)}, {"outputs": "y3:0"}),
        "serving_default": signature("predict", {"x": ("x:0", FLOAT, COLUMN)}, {"y": "y:0"}),
    }
    saver = field(1, "save/Const:0") + field(2, "save/Identity:0") + field(3, "save/restore_all") + field(7, 2)
    meta_graph = field(1, field(4, "serve")) + field(2, graph()) + field(3, saver)
    for name in sorted(signatures):
        meta_graph += field(5, field(1, name) + field(2, signatures[name]))
    return field(1, 1) + field(2, meta_graph)


def checksum(data: bytes) -> int:
    """CRC-32C (Castagnoli), masked as LevelDB does it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def table(entries: dict[str, bytes]) -> bytes:
    """A LevelDB table with one block, which is what a checkpoint's index is."""

    def block(content: dict[str, bytes]) -> bytes:
        out = b""
        for key, value in content.items():
            out += varint(0) + varint(len(key)) + varint(len(value)) + key.encode() + value
        return out + struct.pack("<II", 0, 1)

    out = b""
    handles: list[bytes] = []
    for content in (entries, {}, None):
        last = {"~": handles[0]} if content is None else content
        data = block(last)
        handles.append(varint(len(out)) + varint(len(data)))
        out += data + b"\0" + struct.pack("<I", checksum(data + b"\0"))
    return out + (handles[1] + handles[2]).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def variables() -> tuple[bytes, bytes]:
    """The checkpoint: its index and its data."""
    data = b""
    index = {"": field(1, 1) + field(3, field(1, 1))}  # one shard, little-endian, version 1
    for name, value in VARIABLES.items():
        content = struct.pack("<f", value)
        entry = field(1, FLOAT) + field(2, b"") + (field(4, len(data)) if data else b"") + field(5, len(content))
        index[name] = entry + varint(6 << 3 | 5) + struct.pack("<I", checksum(content))
        data += content
    return table(index), data


def main(folder: Path) -> None:
    index, data = variables()
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_bytes(saved_model())
    (folder / "variables/variables.index").write_bytes(index)
    (folder / "variables/variables.data-00000-of-00001").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "model/1")
