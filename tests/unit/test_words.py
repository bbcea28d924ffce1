"""Stop and bad words of the local model: how lists are read, and the grammar that keeps words out."""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "roles/model_package/files/smollm2/words.py"
    spec = importlib.util.spec_from_file_location("words", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


words = _load()


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([], []),
        ([""], []),
        (["", ","], []),
        (["one"], ["one"]),
        (["one,two"], ["one", "two"]),
        (["one", "two"], ["one", "two"]),
        ([" one, two"], [" one", " two"]),
        (["\n"], ["\n"]),
        (['a,"b,c",d'], ["a", "b,c", "d"]),
        (['"say ""x"""'], ['say "x"']),
        ([",", '","'], [","]),
        (["one,two", "one"], ["one", "two"]),
        (["机器,学习"], ["机器", "学习"]),
    ],
)
def test_lists_are_read_as_tensorrt_llm_reads_them(elements: list[str], expected: list[str]) -> None:
    assert words.parse_words(elements) == expected


def test_a_list_may_be_as_long_as_the_limits_and_no_longer() -> None:
    assert len(words.parse_words([str(number) for number in range(64)])) == 64
    with pytest.raises(ValueError, match="64 words"):
        words.parse_words([str(number) for number in range(65)])
    assert words.parse_words(["x" * 512]) == ["x" * 512]
    with pytest.raises(ValueError, match="512 characters"):
        words.parse_words(["x" * 513])


def accepts(grammar: str, text: str) -> bool:
    """Whether a grammar whose rules read one character and name the next rule derives the text."""
    rules: dict[str, list[str]] = {}
    for line in grammar.splitlines():
        name, _, body = line.partition(" ::= ")
        rules[name] = body.split(" | ")
    assert rules["root"] == ["s0"]
    state = "s0"
    for character in text:
        after = []
        for option in rules[state]:
            if match := re.fullmatch(r"\[(\^?)((?:\\U[0-9A-F]{8})+)\] (s\d+)", option):
                listed = {chr(int(code, 16)) for code in match[2].split("\\U")[1:]}
                if (character in listed) != bool(match[1]):
                    after.append(match[3])
            else:
                assert option == '""'
        assert len(after) <= 1, "the grammar is ambiguous, which costs time"
        if not after:
            return False
        state = after[0]
    return '""' in rules[state]


@pytest.mark.parametrize(
    "forbidden", [["ab"], ["a"], ["aab", "ba"], ["abab"], ["aba", "bb"], ["ab", "abb", "b"], ["aa", "ab", "ba", "bb"]]
)
def test_exactly_the_texts_without_the_words_are_derived(forbidden: list[str]) -> None:
    grammar = words.forbidding_grammar(forbidden)
    for length in range(7):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            assert accepts(grammar, text) == (not any(word in text for word in forbidden)), text


def test_letters_that_mean_something_in_a_grammar_are_letters() -> None:
    forbidden = ["]", "^-", "\\x", '"', "\n\n", "🤖"]
    grammar = words.forbidding_grammar(forbidden)
    letters = random.Random(1)
    for _ in range(3000):
        text = "".join(letters.choices(']^-\\x"\n🤖a', k=5))
        assert accepts(grammar, text) == (not any(word in text for word in forbidden)), text


@pytest.mark.parametrize(
    "forbidden", [["".join(chr(0x4E00 + n) for n in range(512))], ["a" * 512], [f"{n:08}" for n in range(64)]]
)
def test_the_longest_lists_make_grammars_of_bearable_size(forbidden: list[str]) -> None:
    assert len(words.forbidding_grammar(forbidden)) < 100_000
