"""How long a stranger's tokenizer.json can make a text, told before anything is made of it.

Owns `growth_of`. A rule that writes two letters for one is harmless; thirty-six of them in a row make a terabyte of one
word, and the `tokenizers` library then ends the process, already while it loads a token that is itself normalised. So
rules are multiplied here as they stand in the file. What the bounds rest on is the library's own rules, of which those
that are not known by name count as more than any of them does. Never runs a rule.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

MOST = 256
"""Times. By this count the rules of published models make less than 200, and those of most less than 70."""
_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")
_ENCODING = ("normalizer", "pre_tokenizer", "post_processor")
_STEADY = {
    "Sequence", "Strip", "StripAccents", "Nmt", "Replace", "Prepend", "Precompiled", "Split", "Whitespace",
    "WhitespaceSplit", "Digits", "Punctuation", "CharDelimiterSplit", "UnicodeScripts", "FixedLength",
    "BertPreTokenizer", "Fuse", "ByteFallback", "RobertaProcessing", "BertProcessing", "TemplateProcessing",
}  # fmt: skip
"""Rules that only part or shorten a text, or whose keys say what they add."""
_COMPATIBLE = {"NFKC", "NFKD"}
_COMPATIBLE_GROWTH = 11
"""One Arabic sign of three bytes is a sentence of 33."""
_OTHER = 4
"""Of any other rule: byte-level ones write two bytes for one, marks of spaces are three and may be put in front."""


def growth_of(rules: Mapping[str, Any]) -> float:
    """How many bytes a single one can become on its way to tokens or back, by the tables of a tokenizer.json."""
    return max(_grown([rules.get(key) for key in _ENCODING], 1.0), _grown(rules.get("decoder"), 1.0))


def _grown(step: Any, length: float) -> float:
    """The length behind a step or a sequence of them. A key counts whatever the step calls itself: the library goes by
    keys where it knows no such name."""
    if isinstance(step, list):
        for each in step:
            length = _grown(each, length)
    if not isinstance(step, dict):
        return length
    for key in _NESTED:
        length = _grown(step.get(key), length)
    if step.get("type") in _COMPATIBLE:
        length *= _COMPATIBLE_GROWTH
    elif step.get("type") not in _STEADY:
        length *= _OTHER
    if "pattern" in step and "content" in step:
        length *= _replaced(step["pattern"], _bytes(step["content"]))
    if "precompiled_charsmap" in step:
        length *= _mapped(str(step["precompiled_charsmap"]))
    for key in ("single", "pair"):  # of a template: how often it repeats the text
        pieces = step.get(key)
        length *= max(1, sum("Sequence" in piece for piece in pieces)) if isinstance(pieces, list) else 1
    return length + _bytes(step.get("prepend", ""))


def _bytes(text: Any) -> int:
    return len(str(text).encode(errors="replace"))


def _replaced(pattern: Any, content: int) -> float:
    """An expression may be found before every letter."""
    found = _bytes(pattern.get("String", "")) if isinstance(pattern, dict) else 0
    return max(1.0, content / found) if found else 1.0 + content


def _mapped(charsmap: str) -> float:
    """SentencePiece's table of what is written for what: a trie behind its size, and the texts, each ended by a zero.
    The longest is Unicode's of a sign of three bytes."""
    table = base64.b64decode(charsmap)
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1.0, max(map(len, texts.split(b"\0"))) / 3)
