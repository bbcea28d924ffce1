"""A Hugging Face folder is whole and of a known kind, or everything that is wrong with it is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_llama as small
from ansible_collections.modelarts.engine.plugins.module_utils import hf_llama

FIRST = "model-00001-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole folder with two shards."""
    return small.make(tmp_path / "hf")


def change(path: Path, how: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text())
    how(data)
    path.write_text(json.dumps(data))


def refused(folder: Path) -> str:
    with pytest.raises(hf_llama.FolderError) as error:
        hf_llama.check(folder)
    return str(error.value)


def test_a_whole_folder_is_taken_without_what_a_package_does_not_need(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
    model = hf_llama.check(folder)
    assert model.files == [
        "config.json", "generation_config.json", FIRST, "model-00002-of-00002.safetensors", INDEX, "tokenizer.model",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert (model.parameters, model.weight_bytes) == (6736, 13472)


@pytest.mark.parametrize(("shards", "kind"), [(1, "safetensors"), (2, "bin"), (3, "safetensors")])
def test_weights_may_come_in_each_of_their_forms(tmp_path: Path, shards: int, kind: str) -> None:
    model = hf_llama.check(small.make(tmp_path / "hf", shards, kind))
    assert (model.parameters, model.weight_bytes) == (6736, 13472)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.model", "tokenizer_config.json", FIRST, INDEX])
def test_an_lfs_pointer_is_no_file(folder: Path, name: str) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9976578928\n")
    assert f"{name} is a Git LFS pointer of" in refused(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", FIRST])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name} is missing" in refused(folder)


def test_an_empty_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"")
    assert "tokenizer.model is empty" in refused(folder)


def test_a_tokenizer_is_needed(folder: Path) -> None:
    (folder / "tokenizer.model").unlink()
    assert "there is no tokenizer; tokenizer.model or tokenizer.json is needed" in refused(folder)


@pytest.mark.parametrize("size", [0, 4, 60, 9000])
def test_a_shard_that_was_cut_off_is_named_with_both_sizes(folder: Path, size: int) -> None:
    os.truncate(folder / FIRST, size)
    said = refused(folder)
    assert FIRST in said
    assert {0: "is empty", 4: "no safetensors file"}.get(size, "the download was cut off") in said


def test_a_shard_that_is_too_long_is_damaged(folder: Path) -> None:
    with (folder / FIRST).open("ab") as file:
        file.write(b"tail")
    assert "it is damaged" in refused(folder)


def test_a_shard_that_is_something_else_is_refused(folder: Path) -> None:
    (folder / FIRST).write_text("<!DOCTYPE html><html>Sign in to continue</html>")
    assert f"{FIRST} is no safetensors file" in refused(folder)


def test_a_pytorch_shard_that_was_cut_off_is_named(tmp_path: Path) -> None:
    folder = small.make(tmp_path / "hf", 2, "bin")
    os.truncate(folder / "pytorch_model-00002-of-00002.bin", 400)
    assert "pytorch_model-00002-of-00002.bin is no PyTorch file or not whole" in refused(folder)


def test_shards_without_their_index_are_refused(folder: Path) -> None:
    (folder / INDEX).unlink()
    assert f"there are shards ({FIRST}, " in refused(folder)


def test_no_weights_are_refused(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    assert "there are no weights; one of model.safetensors.index.json" in refused(folder)


def test_an_index_that_leaves_a_shard_out_is_refused(folder: Path) -> None:
    def half(index: dict[str, Any]) -> None:
        index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file == FIRST}

    change(folder / INDEX, half)
    said = refused(folder)
    assert "it lists 1 shards, their names say there are 2" in said
    assert "the weights lack " in said


@pytest.mark.parametrize("file", ["../../etc/passwd", "sub/model.safetensors", 7])
def test_an_index_names_files_of_its_folder_only(folder: Path, file: Any) -> None:
    change(folder / INDEX, lambda index: index["weight_map"].update({"lm_head.weight": file}))
    assert "weight_map must give a file of this folder" in refused(folder)


def test_a_tensor_that_its_shard_does_not_hold_is_named(folder: Path) -> None:
    change(folder / INDEX, lambda index: index["weight_map"].update({"model.extra.weight": FIRST}))
    assert f"{FIRST} does not hold model.extra.weight, which {INDEX} says it does" in refused(folder)


def test_weights_of_fewer_layers_than_the_configuration_are_refused(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(num_hidden_layers=3))
    assert "of the 3 layers of config.json" in refused(folder)


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(vocab_size=32000))
    assert "model.embed_tokens.weight has the shape [64, 16], config.json says [32000, 16]" in refused(folder)


def test_tied_embeddings_need_no_head(tmp_path: Path) -> None:
    folder = small.make(tmp_path / "hf", 1)
    small.safetensors(folder / "model.safetensors", {n: s for n, s in small.shapes().items() if n != "lm_head.weight"})
    assert "lm_head.weight" in refused(folder)
    change(folder / "config.json", lambda config: config.update(tie_word_embeddings=True))
    hf_llama.check(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["QWenLMHeadModel"], "model_type": "qwen"}, "architecture QWenLMHeadModel"),
        ({"architectures": []}, "architecture unknown"),
        ({"model_type": "mistral"}, "model_type mistral"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized already (gptq)"),
        ({"hidden_size": "16"}, "hidden_size must be whole numbers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be whole numbers"),
    ],
)
def test_a_model_of_another_kind_is_refused(folder: Path, values: dict[str, Any], message: str) -> None:
    change(folder / "config.json", lambda config: config.update(values))
    assert message in refused(folder)


def test_weights_of_eight_bits_are_refused(tmp_path: Path) -> None:
    folder = small.make(tmp_path / "hf", 1)
    small.safetensors(folder / "model.safetensors", small.shapes(), "I8")
    assert "the weights are of I8" in refused(folder)


@pytest.mark.parametrize("text", ["{", "[]", "\x00\x00"])
def test_a_file_that_is_no_json_object_is_named(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json is no JSON" in refused(folder)


def test_everything_that_is_wrong_is_said_at_once(folder: Path) -> None:
    (folder / "tokenizer.model").unlink()
    (folder / "tokenizer_config.json").unlink()
    os.truncate(folder / FIRST, 9000)
    assert len(refused(folder).splitlines()) == 4


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "is no folder" in refused(tmp_path / "none")
