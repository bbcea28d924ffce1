#!/usr/bin/env python3
"""Writes a Hugging Face folder of a very small llama model: `small_llama.py DIR [SHARDS]`. Standard library only."""

from __future__ import annotations

import json
import math
import struct
import sys
import zipfile
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}


def shapes() -> dict[str, list[int]]:
    """Every tensor of the model."""
    hidden, inner, keys = 16, 32, 8
    layer = {
        "input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, hidden],
        "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
    }  # fmt: skip
    found = {f"model.layers.{n}.{name}.weight": shape for n in range(2) for name, shape in layer.items()}
    return {
        **found,
        "model.embed_tokens.weight": [64, hidden],
        "model.norm.weight": [hidden],
        "lm_head.weight": [64, hidden],
    }


def safetensors(path: Path, tensors: dict[str, list[int]], dtype: str = "F16") -> int:
    """Writes tensors of zeros; returns their bytes."""
    header, end = {}, 0
    for name, shape in tensors.items():
        size = math.prod(shape) * {"F16": 2, "BF16": 2, "F32": 4, "I8": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return end


def make(folder: Path, shards: int = 2, kind: str = "safetensors") -> Path:
    """The folder, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (folder / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (folder / "README.md").write_text("not part of a package\n")
    tensors = shapes()
    if kind == "safetensors" and shards == 1:
        safetensors(folder / "model.safetensors", tensors)
        return folder
    stem = {"safetensors": "model", "bin": "pytorch_model"}[kind]
    placed: dict[str, str] = {}
    total = 0
    for number in range(shards):
        name = f"{stem}-{number + 1:05}-of-{shards:05}.{kind}"
        part = dict(list(tensors.items())[number::shards])
        placed |= dict.fromkeys(part, name)
        if kind == "safetensors":
            total += safetensors(folder / name, part)
        else:
            size = sum(2 * math.prod(shape) for shape in part.values())
            total += size
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr("archive/data.pkl", bytes(size))
    (folder / f"{stem}.{kind}.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": placed})
    )
    return folder


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 2)
