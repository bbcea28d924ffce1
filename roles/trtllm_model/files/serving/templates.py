"""Fills the config.pbtxt templates of a TensorRT-LLM backend release, and refuses what upstream's own filler lets pass.

The keys are read from the templates. Each is filled from what the user gave, what the package sets, or a default; refused are a key that the
user gave and the release does not have, a key that nothing fills, and a value that its place cannot take. A value may hold any
character: nothing is split at colons and commas. Runs inside the image: Python 3.8, standard library.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

TOKEN = re.compile(
    r"(?P<comment>#[^\n]*)|(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|(?P<slot>\$\{\w+\})"
    r"|(?P<word>[\w.+-]+)|(?P<mark>[][{}<>:,;])|(?P<space>\s+)|(?P<other>.)"
)
_SLOT = re.compile(r"\$\{(\w+)\}")

# Types of the fields of Triton's model configuration that a bare key may stand in.
FIELDS = {
    "max_batch_size": "count",
    "preferred_batch_size": "count",
    "max_queue_delay_microseconds": "count",
    "max_queue_size": "count",
    "count": "positive",
    "decoupled": "bool",
    "data_type": "data_type",
}
DATA_TYPES = [
    "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64",
    "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16",
]  # fmt: skip

# Type and default of each key. An empty text is how a parameter that may be left out is left out: the backend then takes its own default.
# Only those are filled that a release's templates ask for.
UNSET = ""
KEYS: dict[str, tuple[Any, Any]] = {
    "accumulate_tokens": ("bool", False),
    "add_special_tokens": ("bool", True),
    "batch_scheduler_policy": (["guaranteed_no_evict", "max_utilization"], "guaranteed_no_evict"),
    "batching_strategy": (["V1", "inflight_batching", "inflight_fused_batching"], "V1"),
    "bls_instance_count": ("positive", 1),
    "cancellation_check_period_ms": ("count", UNSET),
    "cross_kv_cache_fraction": ("fraction", UNSET),
    "cuda_graph_cache_size": ("count", UNSET),
    "cuda_graph_mode": ("bool", UNSET),
    "decoding_mode": (["top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"], UNSET),
    "decoupled_mode": ("bool", False),
    "eagle_choices": ("text", UNSET),
    "enable_chunked_context": ("bool", UNSET),
    "enable_context_fmha_fp32_acc": ("bool", UNSET),
    "enable_kv_cache_reuse": ("bool", False),
    "enable_trt_overlap": ("bool", False),
    "encoder_engine_dir": ("text", UNSET),
    "encoder_input_features_data_type": ("data_type", "TYPE_FP16"),
    "exclude_input_in_output": ("bool", True),
    "gpu_device_ids": ("text", UNSET),
    "gpu_weights_percent": ("fraction", UNSET),
    "guided_decoding_backend": ("text", UNSET),
    "hf_model_path": ("text", UNSET),
    "iter_stats_max_iterations": ("count", UNSET),
    "kv_cache_free_gpu_mem_fraction": ("fraction", 0.5),
    "kv_cache_host_memory_bytes": ("count", UNSET),
    "kv_cache_onboard_blocks": ("bool", UNSET),
    "logits_datatype": ("data_type", "TYPE_FP32"),
    "lookahead_ngram_size": ("positive", UNSET),
    "lookahead_verification_set_size": ("positive", UNSET),
    "lookahead_window_size": ("positive", UNSET),
    "lora_cache_gpu_memory_fraction": ("fraction", UNSET),
    "lora_cache_host_memory_bytes": ("count", UNSET),
    "lora_cache_max_adapter_size": ("count", UNSET),
    "lora_cache_optimal_adapter_size": ("count", UNSET),
    "lora_prefetch_dir": ("text", UNSET),
    "max_attention_window_size": ("positive", 2560),
    "max_kv_cache_length": ("positive", 2560),
    "max_num_images": ("count", UNSET),
    "max_num_sequences": ("positive", UNSET),
    "max_queue_delay_microseconds": ("count", 600),
    "max_queue_size": ("count", 0),
    "max_tokens_in_paged_kv_cache": ("positive", 2560),
    "medusa_choices": ("text", UNSET),
    "multi_block_mode": ("bool", UNSET),
    "multimodal_encoders_name": ("text", UNSET),
    "multimodal_model_path": ("text", UNSET),
    "normalize_log_probs": ("bool", UNSET),
    "num_nodes": ("positive", UNSET),
    "participant_ids": ("text", UNSET),
    "postprocessing_instance_count": ("positive", 1),
    "preprocessing_instance_count": ("positive", 1),
    "prompt_embedding_table_data_type": ("data_type", "TYPE_FP16"),
    "recv_poll_period_ms": ("count", UNSET),
    "request_stats_max_iterations": ("count", UNSET),
    "sink_token_length": ("count", UNSET),
    "skip_special_tokens": ("bool", True),
    "speculative_decoding_fast_logits": ("bool", UNSET),
    "stats_check_period_ms": ("count", UNSET),
    "tensorrt_llm_draft_model_name": ("text", UNSET),
    "tensorrt_llm_model_name": ("text", "tensorrt_llm"),
    "tokenizer_type": (["llama", "auto", "t5"], "llama"),
    "triton_backend": (["tensorrtllm", "python"], "tensorrtllm"),
    "visual_model_path": ("text", UNSET),
    "xgrammar_tokenizer_info_path": ("text", UNSET),
}  # fmt: skip

# One thing under the names it has had.
NAMES = [("max_kv_cache_length", "max_attention_window_size"), ("visual_model_path", "multimodal_model_path")]


class TemplateError(Exception):
    """The templates cannot be filled; the message says everything that is wrong, where, and what to do."""


@dataclass(frozen=True)
class Slot:
    """A place of a template that is to be filled.

    :param field: the configuration's field it stands in.
    :param quoted: whether it stands inside a string.
    :param span: of the whole `${key}` in the file's text.
    """

    key: str
    field: str
    quoted: bool
    span: tuple[int, int]
    where: str


def slots(text: str, where: str) -> list[Slot]:
    """Every slot of a template, in order. What is commented out is not one."""
    found: list[Slot] = []
    inside: list[str] = []
    field = before = ""
    for token in TOKEN.finditer(text):
        kind, word = token.lastgroup, token.group()
        line = f"{where}:{text.count(chr(10), 0, token.start()) + 1}"
        if kind in ("space", "comment"):
            continue
        if kind == "other":
            raise TemplateError(f"{line}: {word!r} is not understood; the template is damaged")
        if kind == "mark" and word in "{[<":
            inside.append(word)
        elif kind == "mark" and word in "}]>":
            if not inside:
                raise TemplateError(f"{line}: {word!r} closes nothing; the template is damaged")
            inside.pop()
        elif kind == "word" and before != ":" and inside[-1:] != ["["]:
            field = word
        elif kind in ("string", "slot"):
            for match in _SLOT.finditer(word):
                start = token.start() + match.start()
                found.append(Slot(match[1], field, kind == "string", (start, start + len(match[0])), line))
        before = word
    if inside:
        raise TemplateError(f"{where}: {len(inside)} brackets are not closed; the template is damaged")
    return found


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(str(value))
    except ValueError:
        return None


def render(kind: Any, value: Any) -> str | None:
    """A value as its type is written, or None where it is not of that type."""
    said = str(value)
    number = _number(value)
    if isinstance(kind, list):
        return said if said in kind else None
    if kind == "bool":
        return {"true": "true", "false": "false"}.get(said.lower())
    if kind in ("count", "positive"):
        least = 1 if kind == "positive" else 0
        return said if re.fullmatch(r"\d{1,18}", said) and int(said) >= least else None
    if kind == "fraction":
        return said if number is not None and 0 <= number <= 1 else None
    if kind == "data_type":
        return said if said in DATA_TYPES else None
    plain = not isinstance(value, (dict, list)) and value is not None
    return said if plain and said.isprintable() and "${" not in said else None


def _wanted(kind: Any) -> str:
    if isinstance(kind, list):
        return f"one of {', '.join(kind)}"
    return {
        "bool": "true or false", "count": "a whole number from 0", "positive": "a whole number from 1", "fraction": "a number from 0 to 1",
        "data_type": f"one of {', '.join(DATA_TYPES)}", "text": "one line of text without ${",
    }[kind]  # fmt: skip


def _problems(asked: Sequence[Slot], values: Mapping[str, Any]) -> Iterator[str]:
    """What keeps these slots from being filled with these values."""
    for slot in asked:
        if slot.key not in values:
            yield f"{slot.where}: {slot.key} is not filled by anything; give it in trtllm_model_values"
            continue
        value = values[slot.key]
        kinds = [KEYS[slot.key][0]] if slot.key in KEYS and not (slot.quoted and value == UNSET) else []
        if not slot.quoted:
            if slot.field not in FIELDS:
                yield f"{slot.where}: {slot.key} stands in the field {slot.field}, of which no type is known here; the template is of an unknown form"
                continue
            kinds.append(FIELDS[slot.field])
        for kind in kinds or ["text"]:
            if render(kind, value) is None:
                yield f"{slot.where}: {slot.key} cannot be {value!r}; it takes {_wanted(kind)}"
                break


def _hint(key: str, asked: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    if key in elsewhere:
        return f"it belongs to the model {elsewhere[key]}, which this package leaves out"
    for names in NAMES:
        if key in names:
            for other in set(names) & set(asked):
                return f"there it is called {other}"
    near = difflib.get_close_matches(key, asked, n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else "leave it out"


def _filled(text: str, asked: Sequence[Slot], values: Mapping[str, Any]) -> str:
    for slot in sorted(asked, key=lambda each: each.span, reverse=True):
        value = values[slot.key]
        if slot.quoted and value == UNSET:
            said = ""
        else:
            kind = KEYS[slot.key][0] if slot.key in KEYS else "text" if slot.quoted else FIELDS[slot.field]
            said = render(kind, value) or ""
        if slot.quoted:
            said = said.replace("\\", "\\\\").replace('"', '\\"')
        text = text[: slot.span[0]] + said + text[slot.span[1] :]
    return text


def fill(
    folder: Path, given: Mapping[str, Any], fixed: Mapping[str, Any], leave_out: Sequence[str] = ()
) -> dict[str, str]:
    """Fills the templates of a folder of models.

    :param given: the user's values by key.
    :param fixed: values that the package sets; the user does not give these.
    :param leave_out: models of the folder that are not served.
    :returns: for each model, its name and the text of its config.pbtxt.
    :raises TemplateError: something is wrong; nothing was written.
    """
    texts = {path.parent.name: path.read_text() for path in sorted(Path(folder).glob("*/config.pbtxt"))}
    if not texts:
        raise TemplateError(f"{folder} holds no model with a config.pbtxt")
    everything = {model: slots(text, f"{model}/config.pbtxt") for model, text in texts.items()}
    asked = {model: found for model, found in everything.items() if model not in leave_out}
    keys = sorted({slot.key for found in asked.values() for slot in found})
    elsewhere = {slot.key: model for model, found in everything.items() for slot in found if model in leave_out}
    problems = []
    for key in sorted(given):
        if key in fixed:
            problems.append(f"{key}: the package sets it; see the role's arguments")
        elif key not in keys:
            problems.append(f"{key}: the templates of this release have no such key; {_hint(key, keys, elsewhere)}")
    if problems:
        problems.append(f"the keys of this release are {', '.join(key for key in keys if key not in fixed)}")
    values = {**{key: default for key, (_, default) in KEYS.items()}, **given, **fixed}
    for found in asked.values():
        problems += _problems(found, values)
    if problems:
        raise TemplateError("\n".join(problems))
    filled = {model: _filled(texts[model], found, values) for model, found in asked.items()}
    for model, text in filled.items():
        left = slots(text, f"{model}/config.pbtxt")
        if left:
            raise TemplateError(f"{left[0].where}: {left[0].key} was not filled")
    return filled
