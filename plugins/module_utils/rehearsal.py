# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What an engine is asked by the rehearsal, by `runner.py infer` and by the contract suite: `roles/ENGINE/rehearsal/engine.yml`.

```
question: what is machine learning  what is asked where nobody says
request:                            method (POST), path, body; $text is the question, $json the question read as JSON, $max_tokens a number
answer: [outputs, 0, data, 0]       keys and indices that lead to the answer in the response's JSON
expect: '"text_output"'             regular expression that the response to the question holds
stream:                             the same as server-sent events; only for engines that have them
  request: {path: …, body: …}
  answer: [text_output]
```

A folder `model` beside it is the model package that the image is rehearsed with. An image says which engine it has by the label `LABEL`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"
FILE = "rehearsal/engine.yml"
LABEL = "io.modelarts.engine.engine"


class RehearsalError(ValueError):
    """An engine says nothing, or not enough, of how it is asked; the message says where."""


@dataclass(frozen=True)
class Exchange:
    """A request and the way to its answer.

    :ivar body: anything JSON can hold; placeholders are whole strings.
    """

    path: str
    body: Any = None
    method: str = "POST"
    answer: list[str | int] = field(default_factory=list)

    def filled(self, text: str, max_tokens: int) -> Any:
        """The body with what is asked in its place.

        :raises RehearsalError: the engine takes JSON and the text is none.
        """
        return _fill(
            self.body, {"$text": lambda: text, "$json": lambda: _json(text), "$max_tokens": lambda: max_tokens}
        )

    def read(self, response: Any) -> Any:
        """The answer in a response's JSON.

        :raises RehearsalError: it is not there.
        """
        found = response
        for step in self.answer:
            try:
                found = found[step]
            except (KeyError, IndexError, TypeError) as error:
                raise RehearsalError(f"no {'.'.join(map(str, self.answer))} in {json.dumps(response)[:600]}") from error
        return found


@dataclass(frozen=True)
class Rehearsal:
    """How one engine is asked."""

    engine: str
    question: str
    exchange: Exchange
    expect: str = ""
    stream: Exchange | None = None


def load(engine: str) -> Rehearsal:
    """Reads what the role of this name says.

    :raises RehearsalError: there is no such engine, or its file is not as above.
    """
    path = ROLES / engine / FILE
    if engine not in engines():
        raise RehearsalError(f"there is no engine {engine}; there is {', '.join(engines())} (roles/*/{FILE})")
    try:
        said = yaml.safe_load(path.read_text())
        streamed = said.get("stream")
        return Rehearsal(
            engine,
            str(said["question"]),
            Exchange(**said["request"], answer=said["answer"]),
            str(said.get("expect", "")),
            Exchange(**streamed["request"], answer=streamed["answer"]) if streamed else None,
        )
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise RehearsalError(f"{path}: question, request and answer are needed ({error!r})") from error


def of_image(attributes: Mapping[str, Any]) -> Rehearsal:
    """What the engine of an image is asked.

    :param attributes: the image as the engine's API describes it.
    :raises RehearsalError: it does not say which engine it has.
    """
    name = (attributes["Config"].get("Labels") or {}).get(LABEL)
    if not name:
        raise RehearsalError(
            f"the image does not say which engine it has; its recipe must set the label {LABEL} in image_config"
        )
    return load(str(name))


def engines() -> list[str]:
    """Names of the roles that are engines, sorted."""
    return sorted(path.parents[1].name for path in ROLES.glob(f"*/{FILE}"))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RehearsalError(f"this engine takes JSON, for instance [1.0, 2.0]; {text!r} is none ({error})") from error


def _fill(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _fill(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [_fill(value, values) for value in node]
    return values[node]() if isinstance(node, str) and node in values else node
