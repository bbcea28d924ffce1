# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Checks a Hugging Face folder of a llama model: that it is whole, and that it is what an engine can be built from.

Runs on whatever host has the folder: standard library only. Nothing is loaded; of weights, headers and sizes are read.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = ("LlamaForCausalLM",)
ITEM_BYTES = {"F16": 2, "BF16": 2, "F32": 4}
TORCH_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
# Where weights may be, the first that is there; an index and what it lists, or one file.
WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
TOKENIZERS = ("tokenizer.model", "tokenizer.json")
# What else goes along where it is there.
EXTRA = (
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "USE_POLICY.md",
    "NOTICE",
)
LFS = b"version https://git-lfs.github.com/spec/"
LAYER = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
LARGEST_HEADER = 100 << 20


class FolderError(Exception):
    """The folder cannot be packaged; the message says everything that is wrong, where, and what to do."""


@dataclass(frozen=True)
class Model:
    """What was found in a folder.

    :param files: names of what a package needs, the weights among them.
    :param weight_bytes: bytes of the weights' tensors.
    """

    config: dict[str, Any]
    files: list[str]
    weight_bytes: int
    parameters: int


class _Folder:
    """A folder while it is looked at; what is wrong is collected."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def wrong(self, problem: str) -> None:
        self.problems.append(problem)

    def whole(self, name: str) -> bool:
        """Whether a file is there, readable, not empty, and not a pointer to one."""
        path = self.path / name
        try:
            with path.open("rb") as file:
                first = file.read(len(LFS))
        except FileNotFoundError:
            self.wrong(f"{name} is missing")
        except OSError as error:
            self.wrong(f"{name} cannot be read: {error.strerror}")
        else:
            if first == LFS:
                self.wrong(
                    f"{name} is a Git LFS pointer of {path.stat().st_size} bytes, not the file itself; fetch it with `git lfs pull`"
                )
            elif not first:
                self.wrong(f"{name} is empty")
            else:
                return True
        return False

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object, empty where there is none."""
        if not self.whole(name):
            return {}
        try:
            data = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self.wrong(f"{name} is no JSON: {error}; the download was cut off")
            return {}
        if not isinstance(data, dict):
            self.wrong(f"{name} is no JSON object")
            return {}
        return data


def _config(folder: _Folder) -> dict[str, Any]:
    config = folder.json("config.json")
    if not config:
        return {}
    names = config.get("architectures") or []
    if not set(names) & set(ARCHITECTURES) or config.get("model_type") != "llama":
        folder.wrong(
            f"config.json: architecture {', '.join(map(str, names)) or 'unknown'} (model_type {config.get('model_type')}) is not one "
            f"this package can serve; it takes {', '.join(ARCHITECTURES)}"
        )
        return {}
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "some method")
        folder.wrong(
            f"config.json: the weights are quantized already ({method}); give the folder of the unquantized model and choose "
            "trtllm_model_weight_only"
        )
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    sizes = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
        "max_position_embeddings",
    )  # fmt: skip
    bad = [name for name in sizes if type(config.get(name)) is not int or config[name] < 1]
    if bad:
        folder.wrong(f"config.json: {', '.join(bad)} must be whole numbers from 1; the file is damaged")
        return {}
    return config


def safetensors(path: Path) -> dict[str, Any]:
    """A file's tensors by name (`dtype`, `shape`, `data_offsets`), from its header.

    :raises ValueError: the file is no safetensors file, or not as long as its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= LARGEST_HEADER:
            raise ValueError("is no safetensors file")
        text = file.read(length)
    if len(text) < length:
        raise ValueError(f"has {size} bytes, less than its own header; the download was cut off")
    try:
        header = json.loads(text)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max(entry["data_offsets"][1] for entry in tensors.values())
        if any(
            not isinstance(entry["shape"], list) or not isinstance(entry["dtype"], str) for entry in tensors.values()
        ):
            raise ValueError
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError("is no safetensors file, or its header is damaged") from error
    if size != 8 + length + end:
        cut = "the download was cut off" if size < 8 + length + end else "it is damaged"
        raise ValueError(f"has {size} bytes, its header says {8 + length + end}; {cut}")
    return tensors


def _shards(folder: _Folder, index: str) -> tuple[dict[str, str], int]:
    """The index's map from tensors to files, and the total size it gives (0 for none)."""
    data = folder.json(index)
    placed = data.get("weight_map")
    good = isinstance(placed, dict) and all(isinstance(v, str) and Path(v).name == v for v in placed.values())
    if data and not (placed and good):
        folder.wrong(f"{index}: weight_map must give a file of this folder for each tensor; the index is damaged")
    if not (placed and good):
        return {}, 0
    numbered = [re.fullmatch(r".*-(\d+)-of-(\d+)\.\w+", name) for name in set(placed.values())]
    counts = {int(match[2]) for match in numbered if match}
    listed = {int(match[1]) for match in numbered if match}
    if all(numbered) and (len(counts) != 1 or listed != set(range(1, max(counts) + 1))):
        folder.wrong(
            f"{index}: it lists {len(listed)} shards, their names say there are {max(counts)}; the index is damaged"
        )
    total = (data.get("metadata") or {}).get("total_size") or 0
    return placed, int(total)


def _weights(folder: _Folder, config: dict[str, Any]) -> tuple[list[str], int, int]:
    """Names of the weights' files, bytes and number of the parameters."""
    kind = next((name for name in WEIGHTS if (folder.path / name).exists()), None)
    if kind is None:
        loose = sorted(path.name for path in folder.path.glob("*.safetensors")) + sorted(
            path.name for path in folder.path.glob("*.bin")
        )
        folder.wrong(
            f"there are shards ({', '.join(loose[:3])} …) but no index; fetch {WEIGHTS[0]} too"
            if loose
            else f"there are no weights; one of {', '.join(WEIGHTS)} is needed"
        )
        return [], 0, 0
    placed, total = _shards(folder, kind) if kind.endswith(".index.json") else ({}, 0)
    files = sorted(set(placed.values())) if placed else [kind] if not kind.endswith(".index.json") else []
    present = [name for name in files if folder.whole(name)]
    tensors: dict[str, Any] = {}
    for name in present:
        if name.endswith(".safetensors"):
            try:
                found = safetensors(folder.path / name)
            except (OSError, ValueError) as error:
                folder.wrong(f"{name} {error}")
                continue
            tensors.update(found)
            lost = sorted(tensor for tensor, where in placed.items() if where == name and tensor not in found)
            if lost:
                folder.wrong(
                    f"{name} does not hold {lost[0]}{f' and {len(lost) - 1} more' if lost[1:] else ''}, which {kind} says it does"
                )
        elif not zipfile.is_zipfile(folder.path / name):
            folder.wrong(f"{name} is no PyTorch file or not whole; the download was cut off")
    names = set(placed) or set(tensors)
    if names and config:
        _names(folder, config, names)
    if tensors and config:
        _shapes(folder, config, tensors)
    size = sum((folder.path / name).stat().st_size for name in present)
    if kind.startswith("pytorch") and len(present) == len(files) and size < total:
        folder.wrong(f"the shards have {size} bytes together, {kind} says {total}; a download was cut off")
    index = [kind] if kind not in files else []
    if tensors:
        counts = [math.prod(entry["shape"]) for entry in tensors.values()]
        return [*index, *files], sum(e["data_offsets"][1] - e["data_offsets"][0] for e in tensors.values()), sum(counts)
    item = TORCH_BYTES.get(str(config.get("torch_dtype")), 2)
    return [*index, *files], total or size, (total or size) // item


def _names(folder: _Folder, config: dict[str, Any], names: set[str]) -> None:
    """Refuses weights in which a tensor of the model is missing."""
    layers = config["num_hidden_layers"]
    wanted = {f"model.layers.{layer}.{part}.weight" for layer in range(layers) for part in LAYER}
    wanted |= {"model.embed_tokens.weight", "model.norm.weight"}
    if not config.get("tie_word_embeddings"):
        wanted.add("lm_head.weight")
    lost = sorted(wanted - names)
    if lost:
        folder.wrong(
            f"the weights lack {lost[0]}{f' and {len(lost) - 1} more tensors' if lost[1:] else ''} of the {layers} layers of config.json"
        )


def _shapes(folder: _Folder, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Refuses weights that are not those of config.json."""
    kinds = sorted({entry["dtype"] for entry in tensors.values()} - set(ITEM_BYTES))
    if kinds:
        folder.wrong(f"the weights are of {', '.join(kinds)}; give the unquantized model, of F16, BF16 or F32")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    first = "model.layers.0."
    for name, shape in {
        "model.embed_tokens.weight": [config["vocab_size"], hidden],
        f"{first}self_attn.q_proj.weight": [heads * head, hidden],
        f"{first}self_attn.k_proj.weight": [config["num_key_value_heads"] * head, hidden],
        f"{first}mlp.down_proj.weight": [hidden, config["intermediate_size"]],
    }.items():
        if name in tensors and tensors[name]["shape"] != shape:
            folder.wrong(
                f"{name} has the shape {tensors[name]['shape']}, config.json says {shape}; they are of different models"
            )


def check(path: Path) -> Model:
    """Looks at a folder.

    :raises FolderError: it is not whole, or no llama model that can be served.
    """
    if not path.is_dir():
        raise FolderError(
            f"{path} is no folder; give the folder that `huggingface-cli download` or `git lfs clone` made"
        )
    folder = _Folder(path)
    config = _config(folder)
    tokenizer = [name for name in TOKENIZERS if (path / name).exists()]
    if not tokenizer:
        folder.wrong(f"there is no tokenizer; {' or '.join(TOKENIZERS)} is needed")
    for name in tokenizer:
        folder.json(name) if name.endswith(".json") else folder.whole(name)
    folder.json("tokenizer_config.json")
    weights, size, parameters = _weights(folder, config)
    extra = [name for name in EXTRA if (path / name).is_file()]
    if folder.problems:
        raise FolderError("\n".join([f"{path} cannot be packaged:", *(f"  {problem}" for problem in folder.problems)]))
    files = sorted({"config.json", "tokenizer_config.json", *tokenizer, *extra, *weights})
    return Model(config=config, files=files, weight_bytes=size, parameters=parameters)
