"""The filler of the llama package: everything is filled, or everything that is wrong is said."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "roles/trtllm_model/files/serving/templates.py"

ENSEMBLE = """\
name: "ensemble"
platform: "ensemble"
max_batch_size: ${triton_max_batch_size}
"""
TENSORRT_LLM = """\
# A licence that speaks of "${freedom}" is no template.
name: "tensorrt_llm"
backend: "${triton_backend}"
max_batch_size: ${triton_max_batch_size}
model_transaction_policy { decoupled: ${decoupled_mode} }
dynamic_batching {
  preferred_batch_size: [ ${triton_max_batch_size} ]
  max_queue_delay_microseconds: ${max_queue_delay_microseconds}
}
output [
  { name: "logits" data_type: ${logits_datatype} dims: [ -1, -1 ] }
]
parameters: { key: "gpt_model_type" value: { string_value: "${batching_strategy}" } }
parameters: { key: "gpt_model_path" value: { string_value: "${engine_dir}" } }
parameters: {
  key: "kv_cache_free_gpu_mem_fraction"
  value: { string_value: "${kv_cache_free_gpu_mem_fraction}" }
}
parameters: { key: "max_attention_window_size" value: { string_value: "${max_attention_window_size}" } }
parameters: { key: "gpu_device_ids" value: { string_value: "${gpu_device_ids}" } }
# parameters: { key: "enable_trt_overlap" value: { string_value: "${enable_trt_overlap}" } }
"""
BLS = 'name: "tensorrt_llm_bls"\ninstance_group [ { count: ${bls_instance_count} kind: KIND_CPU } ]\n'
FIXED = {"engine_dir": "/tmp/engines/0123", "triton_max_batch_size": 4}


@pytest.fixture(scope="module")
def templates() -> ModuleType:
    """The module as it goes into a package."""
    spec = importlib.util.spec_from_file_location("templates", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["templates"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Templates of the form that upstream's have."""
    for name, text in {"ensemble": ENSEMBLE, "tensorrt_llm": TENSORRT_LLM, "tensorrt_llm_bls": BLS}.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    return tmp_path


def add(folder: Path, line: str) -> None:
    path = folder / "tensorrt_llm/config.pbtxt"
    path.write_text(path.read_text() + line + "\n")


def refused(templates: ModuleType, folder: Path, given: dict[str, Any], **more: Any) -> str:
    with pytest.raises(templates.TemplateError) as error:
        templates.fill(folder, given, FIXED, **more)
    return str(error.value)


def test_every_place_is_filled_from_defaults_values_and_the_package(templates: ModuleType, folder: Path) -> None:
    filled = templates.fill(folder, {"decoupled_mode": "True", "max_attention_window_size": 4096}, FIXED)
    text = filled["tensorrt_llm"]
    for said in (
        'backend: "tensorrtllm"',
        "max_batch_size: 4\n",
        "decoupled: true",
        "preferred_batch_size: [ 4 ]",
        "max_queue_delay_microseconds: 600",
        "data_type: TYPE_FP32 ",
        '"gpt_model_type" value: { string_value: "V1" }',
        'string_value: "/tmp/engines/0123"',
        'string_value: "0.5"',
        'string_value: "4096"',
        '"gpu_device_ids" value: { string_value: "" }',
    ):
        assert said in text
    assert [line for line in text.splitlines() if "${" in line] == [
        line for line in TENSORRT_LLM.splitlines() if line.startswith("#")
    ]
    assert filled["ensemble"].endswith("max_batch_size: 4\n")
    assert "count: 1 " in filled["tensorrt_llm_bls"]


@pytest.mark.parametrize("key", ["multimodal_model_path", "hf_model_path"])  # of v0.19.0 and later
def test_what_only_models_with_pictures_need_is_left_empty(templates: ModuleType, folder: Path, key: str) -> None:
    add(folder, f'parameters: {{ key: "{key}" value: {{ string_value: "${{{key}}}" }} }}')
    assert f'"{key}" value: {{ string_value: "" }}' in templates.fill(folder, {}, FIXED)["tensorrt_llm"]
    if key == "multimodal_model_path":
        said = refused(templates, folder, {"visual_model_path": "/vision"})
        assert "there it is called multimodal_model_path" in said


@pytest.mark.parametrize("value", ["s3://bucket/a:b,c", 'C:\\engines "new"', "/ein/Größe"])
def test_a_value_may_hold_what_upstreams_filler_splits_at(templates: ModuleType, folder: Path, value: str) -> None:
    text = templates.fill(folder, {}, {**FIXED, "engine_dir": value})["tensorrt_llm"]
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    assert f'string_value: "{escaped}"' in text


def test_a_key_that_the_release_does_not_have_is_refused_with_those_it_has(templates: ModuleType, folder: Path) -> None:
    said = refused(templates, folder, {"enable_kv_cache_reuse": False, "max_queue_delay_microsecond": 1})
    assert "enable_kv_cache_reuse: the templates of this release have no such key" in said
    assert "did you mean max_queue_delay_microseconds?" in said
    assert "the keys of this release are batching_strategy, bls_instance_count, decoupled_mode," in said
    assert "engine_dir" not in said.splitlines()[-1]


def test_a_renamed_key_is_refused_with_its_name_in_this_release(templates: ModuleType, folder: Path) -> None:
    said = refused(templates, folder, {"max_kv_cache_length": 2560})
    assert "there it is called max_attention_window_size" in said


def test_a_key_in_a_comment_is_no_key(templates: ModuleType, folder: Path) -> None:
    assert "enable_trt_overlap: the templates of this release have no such key" in refused(
        templates, folder, {"enable_trt_overlap": True}
    )


def test_a_key_of_the_package_is_not_the_users(templates: ModuleType, folder: Path) -> None:
    assert "engine_dir: the package sets it" in refused(templates, folder, {"engine_dir": "/mine"})


def test_a_model_that_is_left_out_is_not_filled(templates: ModuleType, folder: Path) -> None:
    assert set(templates.fill(folder, {}, FIXED, leave_out=["tensorrt_llm_bls"])) == {"ensemble", "tensorrt_llm"}
    said = refused(templates, folder, {"bls_instance_count": 2}, leave_out=["tensorrt_llm_bls"])
    assert "it belongs to the model tensorrt_llm_bls, which this package leaves out" in said


@pytest.mark.parametrize(
    "line",
    ['parameters: { key: "new" value: { string_value: "${never_seen}" } }', "max_batch_size: ${never_seen}"],
)
def test_a_key_that_nothing_fills_is_refused_by_place(templates: ModuleType, folder: Path, line: str) -> None:
    add(folder, line)
    said = refused(templates, folder, {})
    assert f"tensorrt_llm/config.pbtxt:{len(TENSORRT_LLM.splitlines()) + 1}: never_seen is not filled" in said
    assert "never_seen" in refused(templates, folder, {"never_seen": "${engine_dir}"})
    assert "2" in templates.fill(folder, {"never_seen": 2}, FIXED)["tensorrt_llm"]


def test_a_bare_key_in_a_field_of_unknown_type_is_refused(templates: ModuleType, folder: Path) -> None:
    add(folder, "instance_group [ { kind: ${never_seen} } ]")
    assert "stands in the field kind, of which no type is known" in refused(templates, folder, {"never_seen": "x"})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("decoupled_mode", "yes", "true or false"),
        ("decoupled_mode", "", "true or false"),
        ("max_queue_delay_microseconds", "1.5", "a whole number from 0"),
        ("max_queue_delay_microseconds", -1, "a whole number from 0"),
        ("max_queue_delay_microseconds", True, "a whole number from 0"),
        ("bls_instance_count", 0, "a whole number from 1"),
        ("logits_datatype", "FP32", "one of TYPE_BOOL, "),
        ("kv_cache_free_gpu_mem_fraction", 1.5, "a number from 0 to 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "a number from 0 to 1"),
        ("max_attention_window_size", "many", "a whole number from 1"),
        ("batching_strategy", "V2", "one of V1, "),
        ("gpu_device_ids", "0\n1", "one line of text"),
        ("gpu_device_ids", [0, 1], "one line of text"),
    ],
)
def test_a_value_of_another_type_is_refused(
    templates: ModuleType, folder: Path, key: str, value: Any, wanted: str
) -> None:
    said = refused(templates, folder, {key: value})
    assert f"{key} cannot be {value!r}; it takes {wanted}" in said


def test_everything_that_is_wrong_is_said_at_once(templates: ModuleType, folder: Path) -> None:
    add(folder, "max_batch_size: ${never_seen}")
    said = refused(templates, folder, {"unknown": 1, "decoupled_mode": 2})
    assert all(word in said for word in ("unknown:", "decoupled_mode cannot be 2", "never_seen is not filled"))


@pytest.mark.parametrize("text", ["name: @", "parameters: {", "}"])
def test_a_damaged_template_is_refused(templates: ModuleType, folder: Path, text: str) -> None:
    add(folder, text)
    assert "tensorrt_llm/config.pbtxt" in refused(templates, folder, {})


def test_a_folder_without_templates_is_refused(templates: ModuleType, tmp_path: Path) -> None:
    assert "holds no model" in refused(templates, tmp_path, {})
