"""Lets the model `ensemble` take the types of the platform's tutorial in every release.

The tutorial sends max_tokens, end_id and pad_id as UINT32, which upstream's ensemble takes up to v0.6.1; later ones take INT32, and Triton
refuses a request of another type before a model sees it. Where a release's ensemble wants INT32, upstream's becomes
`ensemble_upstream`, and `ensemble` is a Python model (ensemble.py) that casts and passes everything on. What names no type
(`/generate`) works either way.
"""

from __future__ import annotations

import re
from typing import Mapping

import templates

NAMES = ("max_tokens", "end_id", "pad_id")
INNER = "ensemble_upstream"
CODE = "ensemble.py"
MOST = 8  # processes that pass requests on

_TYPED = re.compile(r'(name:\s*"(?:{})"\s*,?\s*data_type:\s*)TYPE_INT32'.format("|".join(NAMES)))


def _field(text: str, name: str) -> str:
    """What follows a field of the configuration's top level: a list with its brackets, or a value."""
    depth, start, before = 0, -1, ""
    for token in templates.TOKEN.finditer(text):
        word = token.group()
        if token.lastgroup in ("space", "comment"):
            continue
        if start >= 0 and depth == 0 and word not in ":{[":
            return word
        if word in ("{", "["):
            if depth == 0 and before == name:
                start = token.start()
            depth += 1
        elif word in ("}", "]"):
            depth -= 1
            if depth == 0 and start >= 0:
                return text[start : token.end()]
        if depth == 0 and before == name and word == ":":
            start = token.start()
            continue
        before = word
    raise templates.TemplateError(f"ensemble/config.pbtxt has no {name}")


def adapt(filled: Mapping[str, str], batch: int) -> tuple[dict[str, str], dict[str, str]]:
    """Puts the casting model before upstream's ensemble, where that takes INT32.

    :param filled: each model's name and configuration.
    :param batch: requests that are worked on at the same time.
    :returns: the same with the casting model, and for each model that is not in the templates under its name where its files are.
    """
    theirs = filled.get("ensemble", "")
    inputs, typed = _TYPED.subn(r"\1TYPE_UINT32", _field(theirs, "input")) if theirs else ("", 0)
    if not typed:
        return dict(filled), {}
    decoupled = bool(re.search(r"decoupled:\s*true", filled.get("tensorrt_llm", "")))
    ours = f"""\
# Takes the types of the platform's tutorial; {INNER} is the release's own ensemble.
name: "ensemble"
backend: "python"
max_batch_size: {_field(theirs, "max_batch_size")}
model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}
input {inputs}
output {_field(theirs, "output")}
instance_group [ {{ count: {max(1, min(MOST, batch))} kind: KIND_CPU }} ]
"""
    inner = re.sub(r'^name:\s*"ensemble"', f'name: "{INNER}"', theirs, count=1, flags=re.MULTILINE)
    if inner == theirs:
        raise templates.TemplateError('ensemble/config.pbtxt does not begin with name: "ensemble"')
    return {**filled, INNER: inner, "ensemble": ours}, {INNER: "ensemble", "ensemble": CODE}
