"""What an engine is asked lives with its role, and is found by the role's name or by an image's label."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import rehearsal

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(ROOT.glob("playbooks/build_*.yml"))


@pytest.mark.parametrize("name", rehearsal.engines())
def test_each_engine_has_a_request_that_can_be_sent(name: str) -> None:
    asked = rehearsal.load(name)
    body = asked.exchange.filled(asked.question, 7)
    assert asked.exchange.path.startswith("/")
    assert "$" not in str(body), "a placeholder that nothing fills"
    assert body != asked.exchange.body, "the question is not part of the request"
    assert asked.expect, "any answer would do"
    re.compile(asked.expect)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_each_recipe_names_its_engine_and_has_its_short_way(recipe: Path) -> None:
    """The label is what the rehearsal, `serve`, `infer` and `verify` know an image's engine by."""
    (play,) = yaml.safe_load(recipe.read_text())
    # A recipe may add further settings by a template; the label is written out.
    (engine,) = re.findall(rf"{re.escape(rehearsal.LABEL)}'?: '?(\w+)", json.dumps(play["vars"]).replace('"', "'"))
    roles = {role for stage in play["vars"]["image_stages"] for role in stage["roles"]}
    assert engine in rehearsal.engines()
    assert engine in roles
    (short,) = yaml.safe_load((ROOT / recipe.name).read_text())
    assert short["ansible.builtin.import_playbook"] == f"playbooks/{recipe.name}"


def exchange(**more: Any) -> rehearsal.Exchange:
    return rehearsal.Exchange(
        "/ask", {"texts": ["$text", "price: $text"], "numbers": "$json", "limit": "$max_tokens"}, **more
    )


def test_placeholders_are_whole_strings_and_keep_their_type() -> None:
    assert exchange().filled("[1.5, 2]", 3) == {
        "texts": ["[1.5, 2]", "price: $text"],
        "numbers": [1.5, 2],
        "limit": 3,
    }


def test_a_text_for_an_engine_of_numbers_is_refused() -> None:
    with pytest.raises(rehearsal.RehearsalError, match=r"'what is' is none"):
        exchange().filled("what is", 3)


def test_the_answer_is_found_or_missed_by_name() -> None:
    way = exchange(answer=["outputs", 0, "data"])
    assert way.read({"outputs": [{"data": [1]}]}) == [1]
    with pytest.raises(rehearsal.RehearsalError, match=r"no outputs\.0\.data in .*error"):
        way.read({"error": "no such model"})


def test_an_image_without_the_label_or_with_a_foreign_one_is_refused() -> None:
    with pytest.raises(rehearsal.RehearsalError, match=r"label io\.modelarts\.engine\.engine in image_config"):
        rehearsal.of_image({"Config": {"Labels": None}})
    with pytest.raises(rehearsal.RehearsalError, match=r"no engine tritn; there is .*triton"):
        rehearsal.of_image({"Config": {"Labels": {rehearsal.LABEL: "tritn"}}})


@pytest.mark.parametrize("text", ["", "question: x", "question: x\nanswer: []\nrequest: {pat: /x}"])
def test_a_file_that_says_too_little_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "lame" / rehearsal.FILE
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setattr(rehearsal, "ROLES", tmp_path)
    with pytest.raises(rehearsal.RehearsalError, match=re.escape(str(path))):
        rehearsal.load("lame")
