"""A llama package: the release's own flags, values that fit, a folder that is there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import small_llama as small
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import hf_llama, trtllm, trtllm_package

from modelarts_engine.playbook import ROOT

RELEASES = trtllm.load()
SPEC = yaml.safe_load((ROOT / "roles/trtllm_model/meta/argument_specs.yml").read_text())
OPTIONS = SPEC["argument_specs"]["main"]["options"]
DEFAULTS = {name.removeprefix("trtllm_model_"): option.get("default") for name, option in OPTIONS.items()}
SCRIPTS = {"triton_serving.sh": "#!/bin/sh\n", "serving/serve.py": "pass\n"}


def arguments(**given: Any) -> dict[str, Any]:
    """The role's arguments, as the role hands them on."""
    return {**DEFAULTS, **given}


def row(release: str) -> dict[str, Any]:
    return trtllm.choose(release)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A whole Hugging Face folder."""
    return small.make(tmp_path / "hf")


def package(source: Path, dest: Path, release: str = "v0.12.0", **given: Any) -> trtllm_package.Package:
    return trtllm_package.Package(dest, source, hf_llama.check(source), row(release), arguments(**given), SCRIPTS)


def flags(release: str, **given: Any) -> list[str]:
    return [" ".join(words) for words in trtllm_package.steps(row(release), arguments(**given))]


def test_the_tutorials_flags_are_the_default_of_its_release() -> None:
    assert flags("v0.7.2") == [
        "{python} {tools}/build.py --model_dir {model} --output_dir {engine} --dtype float16 --use_gpt_attention_plugin float16 "
        "--use_gemm_plugin float16 --remove_input_padding --enable_context_fmha --paged_kv_cache --use_weight_only "
        "--weight_only_precision int8 --max_batch_size 1 --max_input_len 2048 --max_beam_width 1 --max_output_len 512"
    ]


@pytest.mark.parametrize(
    ("release", "cache", "length"),
    [
        ("v0.8.0", "--paged_kv_cache enable", "--max_output_len 512"),
        ("v0.10.0", "--paged_kv_cache enable", "--max_output_len 512"),
        ("v0.12.0", "--paged_kv_cache enable", "--max_seq_len 2560"),
        ("v0.15.0", "--kv_cache_type paged", "--max_seq_len 2560"),
        ("v0.18.2", "--kv_cache_type paged", "--max_seq_len 2560"),
    ],
)
def test_later_releases_convert_and_then_build_with_their_own_flags(release: str, cache: str, length: str) -> None:
    convert, build = flags(release)
    assert convert == (
        "{python} {tools}/convert_checkpoint.py --model_dir {model} --output_dir {checkpoint} --dtype float16 "
        "--use_weight_only --weight_only_precision int8"
    )
    assert build.startswith("trtllm-build --checkpoint_dir {checkpoint} --output_dir {engine} ")
    assert f" {cache} " in build
    assert f" {length}" in build


@pytest.mark.parametrize("release", RELEASES)
def test_every_listed_release_has_a_recipe(release: str) -> None:
    tools = {"build": 1, "convert": 2}[RELEASES[release]["engine_build"]["tool"]]
    assert len(trtllm_package.steps(row(release), arguments())) == tools


@pytest.mark.parametrize(
    ("release", "given", "present", "absent"),
    [
        ("v0.7.2", {"weight_only": "none"}, "", "--use_weight_only"),
        ("v0.7.2", {"weight_only": "int4"}, "--weight_only_precision int4", "int8"),
        ("v0.7.2", {"dtype": "bfloat16"}, "--use_gemm_plugin bfloat16", "float16 "),
        ("v0.7.2", {"gemm_plugin": False}, "", "--use_gemm_plugin"),
        ("v0.7.2", {"values": {"batching_strategy": "inflight_fused_batching"}}, "--use_inflight_batching", "x "),
        ("v0.5.0", {}, "--use_inflight_batching", "x "),
        ("v0.7.2", {"tensor_parallel": 2}, "--world_size 2 --tp_size 2", "x "),
        ("v0.12.0", {"tensor_parallel": 2}, "--tp_size 2", "world_size"),
        ("v0.12.0", {"tensor_parallel": 2}, "--workers 2", "world_size"),
        ("v0.12.0", {"context_fmha": False}, "--context_fmha disable", "x "),
        ("v0.12.0", {"gpt_attention_plugin": False}, "--gpt_attention_plugin disable", "x "),
        ("v0.12.0", {"paged_kv_cache": False}, "--paged_kv_cache disable", "x "),
        ("v0.15.0", {"paged_kv_cache": False}, "--kv_cache_type continuous", "x "),
        ("v0.12.0", {"values": {"enable_kv_cache_reuse": "True"}}, "--use_paged_context_fmha enable", "x "),
        ("v0.12.0", {"max_batch_size": 8, "max_beam_width": 4}, "--max_batch_size 8", "x "),
    ],
)
def test_what_the_user_asks_for_is_a_flag(release: str, given: dict[str, Any], present: str, absent: str) -> None:
    said = " ".join(flags(release, **given)) + " "
    assert present in said
    assert absent not in said.replace("bfloat16 ", "") or absent == "x "


CONFIG = {**small.CONFIG, "num_key_value_heads": 2}


def problems(
    release: str = "v0.12.0", config: dict[str, Any] | None = None, files: Any = ("tokenizer.model",), **given: Any
) -> str:
    model = hf_llama.Model(config={**CONFIG, **(config or {})}, files=list(files), weight_bytes=0, parameters=0)
    return "\n".join(trtllm_package.problems(model, row(release), arguments(**given)))


@pytest.mark.parametrize("release", RELEASES)
def test_the_defaults_fit(release: str) -> None:
    assert problems(release) == ""


@pytest.mark.parametrize(
    ("release", "config", "given", "message"),
    [
        ("v0.12.0", {}, {"tensor_parallel": 3}, "4 attention heads (2 for keys and values) cannot be spread over 3 GPUs"),
        ("v0.12.0", {}, {"max_input_len": 8000}, "8512 tokens together; the model knows 4096 positions"),
        ("v0.12.0", {}, {"max_input_len": 2049}, "max_tokens_in_paged_kv_cache: 2560 tokens do not hold one request of 2561"),
        ("v0.12.0", {}, {"values": {"decoupled_mode": True}}, "only in-flight batching streams"),
        ("v0.12.0", {}, {"values": {"batching_strategy": "inflight_fused_batching"}, "paged_kv_cache": False}, "needs trtllm_model_paged"),
        ("v0.5.0", {}, {"remove_input_padding": False}, "in-flight batching needs"),
        ("v0.12.0", {}, {"values": {"enable_kv_cache_reuse": True}, "paged_kv_cache": False}, "only a paged KV cache is reused"),
        ("v0.10.0", {"rope_scaling": {"rope_type": "llama3"}}, {}, "rope_scaling llama3 is not known to v0.10.0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    release: str, config: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    assert message in problems(release, config, **given)


def test_the_slow_tokenizer_of_early_releases_needs_its_file() -> None:
    assert "reads tokenizer.model" in problems("v0.8.0", files=["tokenizer.json"])
    assert problems("v0.8.0", files=["tokenizer.json"], values={"tokenizer_type": "auto"}) == ""
    assert problems("v0.9.0", files=["tokenizer.json"]) == ""


def test_streaming_fits_with_in_flight_batching() -> None:
    assert problems(values={"decoupled_mode": "True", "batching_strategy": "inflight_fused_batching"}) == ""


SEVEN = hf_llama.Model({"vocab_size": 32000, "hidden_size": 4096}, [], 13_476_831_232, 6_738_415_616)


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({"weight_only": "none"}, 13.4e9, 15e9),
        ({"weight_only": "int8"}, 6.9e9, 8e9),
        ({"weight_only": "int4"}, 3.7e9, 4.5e9),
        ({"weight_only": "none", "dtype": "float32"}, 26e9, 30e9),
    ],
)
def test_an_engines_size_is_estimated_from_above(given: dict[str, Any], least: float, most: float) -> None:
    assert least < trtllm_package.engine_bytes(SEVEN, arguments(**given)) < most


def test_a_package_that_the_pool_does_not_take_with_its_image_is_refused(source: Path, tmp_path: Path) -> None:
    made = package(source, tmp_path / "model")
    trtllm_package.check_size(made, made.bytes + 100, 100)
    trtllm_package.check_size(made, 0, 10**12)
    with pytest.raises(trtllm_package.PackageError, match=r"too big for the pool.*and the image 0\.0 MB"):
        trtllm_package.check_size(made, made.bytes + 100, 101)
    with pytest.raises(trtllm_package.PackageError, match="trtllm_model_pool_limit_gb"):
        trtllm_package.check_size(made, made.bytes - 1, 0)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_the_model_the_scripts_and_the_settings(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.model").chmod(0o600)
    made = package(source, tmp_path / "out/model", values={"decoupled_mode": False})
    assert not made.current()
    before = os.umask(0o077)
    try:
        made.write()
    finally:
        os.umask(before)
    assert made.current()
    model = tmp_path / "out/model"
    there = files(model)
    for name in made.model.files:
        assert there[f"llama_7b/{name}"] == (source / name).read_bytes()
    assert "llama_7b/README.md" not in there
    assert there["triton_serving.sh"] == b"#!/bin/sh\n"
    settings = json.loads(there["serving/settings.json"])
    assert (settings["release"], settings["values"]) == ("v0.12.0", {"decoupled_mode": False})
    assert settings["commit"] == RELEASES["v0.12.0"]["commit"]
    assert str(tmp_path) not in there["serving/settings.json"].decode()
    assert all(
        path.stat().st_mode & 0o555 >= (0o555 if path.is_dir() else 0o444) for path in [model, *model.rglob("*")]
    )
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_the_model_is_known_by_its_content(source: Path, tmp_path: Path) -> None:
    digests = []
    for number in range(3):
        if number == 2:
            (source / "tokenizer.model").write_bytes(b"\nanother")
        folder = Path(shutil.copytree(source, tmp_path / f"hf{number}"))
        package(folder, tmp_path / f"{number}/model").write()
        digests.append(json.loads((tmp_path / f"{number}/model/serving/settings.json").read_text())["model"]["digest"])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("harm", ["cut", "lost", "stray", "script", "argument", "source"])
def test_a_folder_that_is_not_right_is_written_again(source: Path, tmp_path: Path, harm: str) -> None:
    model = tmp_path / "model"
    package(source, model).write()
    before = files(model)
    given: dict[str, Any] = {}
    if harm == "cut":
        os.truncate(model / "llama_7b/tokenizer.model", 1)
    elif harm == "lost":
        (model / "llama_7b/config.json").unlink()
    elif harm == "stray":
        (model / "stray").touch()
    elif harm == "script":
        (model / "serving/serve.py").write_text("ssap\n")
    elif harm == "argument":
        given = {"max_batch_size": 2}
    else:
        os.utime(source / "config.json", ns=(1, 1))
    again = package(source, model, **given)
    assert not again.current()
    again.write()
    assert package(source, model, **given).current()
    if not given:
        assert set(files(model)) == set(before)


def test_engines_stay_when_the_package_is_written_again(source: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    package(source, model).write()
    (model / "engines/0123").mkdir(parents=True)
    (model / "engines/0123/rank0.engine").write_bytes(b"engine")
    again = package(source, model, max_batch_size=2)
    assert again.bytes == package(source, tmp_path / "other/model").bytes + 6
    again.write()
    assert (model / "engines/0123/rank0.engine").read_bytes() == b"engine"
    assert package(source, model, max_batch_size=2).current()


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_somebody_else_made_is_not_replaced(source: Path, tmp_path: Path, kind: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "weights").write_text("years of work")
    target = tmp_path / "model"
    if kind == "folder":
        mine.rename(target)
    elif kind == "link":
        target.symlink_to(mine)
    else:
        target.write_text("years of work")
    with pytest.raises(trtllm_package.PackageError, match="was not written by this role"):
        package(source, target).current()


def test_a_failure_leaves_what_was_there(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    package(source, model).write()
    before = files(model)
    again = package(source, model, max_batch_size=2)

    def changed(path: Path) -> str:
        (source / "config.json").write_text(json.dumps(small.CONFIG) + " ")
        return "0"

    monkeypatch.setattr(trtllm_package, "sha256", changed)
    with pytest.raises(trtllm_package.PackageError, match="was changed while it was copied"):
        again.write()
    assert files(model) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "model"]


def test_what_a_killed_run_left_is_removed(source: Path, tmp_path: Path) -> None:
    dead = tmp_path / ".model.4194999.abc.partial"
    alive = tmp_path / f".model.{os.getpid()}.abc.partial"
    dead.mkdir()
    alive.mkdir()
    package(source, tmp_path / "model").write()
    assert (dead.exists(), alive.exists()) == (False, True)


def test_too_small_a_disk_is_refused_before_anything_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trtllm_package.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(trtllm_package.PackageError, match=r"0\.0 MB free"):
        package(source, tmp_path / "model").write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_links_are_made_only_to_what_everybody_may_read(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.model").chmod(0o600)
    package(source, tmp_path / "model", link=True).write()
    shard = "model-00001-of-00002.safetensors"
    assert (tmp_path / "model/llama_7b" / shard).samefile(source / shard)
    assert not (tmp_path / "model/llama_7b/tokenizer.model").samefile(source / "tokenizer.model")
    assert (source / "tokenizer.model").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("link", [False, True])
def test_a_cache_of_links_becomes_files(source: Path, tmp_path: Path, link: bool) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in source.iterdir():
        (linked / path.name).symlink_to(path)
    package(linked, tmp_path / "model", link=link).write()
    assert not any(path.is_symlink() for path in (tmp_path / "model").rglob("*"))
