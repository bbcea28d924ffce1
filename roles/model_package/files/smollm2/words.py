"""Lists of words as TensorRT-LLM's models take them, and a grammar that keeps words out of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WORDS = 64
MAX_CHARACTERS = 512

_PIECE = re.compile(r'"((?:[^"]|"")*)"|([^,]+)')


def parse_words(elements: Iterable[str]) -> list[str]:
    """Return the words in the elements of a tensor, in order and once each.

    An element is one word or several, separated by commas. A word in double quotes may hold commas and doubled quotes.
    Blanks count, empty words do not. Raises ValueError for lists that are too long to be meant seriously.
    """
    words: dict[str, None] = {}
    for element in elements:
        for quoted, plain in _PIECE.findall(element):
            word = quoted.replace('""', '"') or plain
            if word:
                words[word] = None
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_CHARACTERS:
        raise ValueError(f"at most {MAX_WORDS} words with {MAX_CHARACTERS} characters in all are taken")
    return list(words)


def forbidding_grammar(words: Iterable[str]) -> str:
    """Return a GBNF grammar of all texts that hold none of the words.

    It is the automaton of Aho and Corasick written as rules: the rule of a state reads one character and goes on in
    the state of the longest end of the text that begins a word. A state that would complete a word has no rule. Unlike
    a ban of tokens it sees words across the borders of tokens, and leaves alone what only shares letters with a word.
    """
    children: list[dict[str, int]] = [{}]
    completes = [False]
    for word in sorted(set(words)):
        state = 0
        for character in word:
            if character not in children[state]:
                children[state][character] = len(children)
                children.append({})
                completes.append(False)
            state = children[state][character]
        completes[state] = True

    # Breadth first, so what a state falls back to is known by then. Steps: the characters that do not lead to state 0.
    steps: dict[int, dict[str, int]] = {0: children[0]}
    fallback = {0: 0}
    rules = ["root ::= s0"]
    reached = [0]
    for state in reached:
        if state:
            steps[state] = steps[fallback[state]] | children[state]
        for character, child in children[state].items():
            fallback[child] = steps[fallback[state]].get(character, 0) if state else 0
            completes[child] |= completes[fallback[child]]
            if not completes[child]:
                reached.append(child)
        options = [f"[{_escape(read)}] s{after}" for read, after in steps[state].items() if not completes[after]]
        options.append(f"[^{''.join(map(_escape, steps[state]))}] s0")
        rules.append(f's{state} ::= {" | ".join(options)} | ""')
    return "\n".join(rules) + "\n"


def _escape(character: str) -> str:
    return f"\\U{ord(character):08X}"
