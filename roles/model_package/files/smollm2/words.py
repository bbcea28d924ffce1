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
    forbidden = sorted(set(words))
    alphabet = sorted(set("".join(forbidden)))
    begun = {word[:length] for word in forbidden for length in range(len(word))}
    # The root has to be the first, and only states that can be reached have a rule.
    states = [""]
    rules = ["root ::= s0"]
    for state in states:
        elsewhere = []
        options = []
        for character in alphabet:
            text = state + character
            if any(text.endswith(word) for word in forbidden):
                elsewhere.append(character)
                continue
            after = next(text[start:] for start in range(len(text) + 1) if text[start:] in begun)
            if after:
                if after not in states:
                    states.append(after)
                elsewhere.append(character)
                options.append(f"[{_escape(character)}] s{states.index(after)}")
        options.append(f"[^{''.join(map(_escape, elsewhere))}] s0")
        rules.append(f's{states.index(state)} ::= {" | ".join(options)} | ""')
    return "\n".join(rules) + "\n"


def _escape(character: str) -> str:
    return f"\\U{ord(character):08X}"
