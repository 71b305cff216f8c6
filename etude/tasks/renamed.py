"""The same task under another package's name.

Owns `renamed` and `made_up`. A small model that practises on thirty packages knows their paths by heart: where it meets
another, it writes `bolions/strutils.py` for `boltons/strutils.py`, and never reads the file. With a name of its own in
each task, a path can only be copied. Whether a task is sound under its new name, whoever makes it finds out by running
it. Runs nothing.
"""

from __future__ import annotations

import keyword
import random
import re
import sys
from itertools import starmap

from etude.tasks.realcalls import CallRecord

_CONSONANTS, _VOWELS = "bbcdddfghjkllmmnnprrssttvwxz", "aaeeiioouy"
_ENDS = ("", "", "", "", "s", "z", "x", "er", "py", "lib", "kit", "tools", "core", "2")
FRAME = ("tool", "call", "function", "parameter", "response", "command", "pattern", "path", "python", "check", "def")
"""Words that the form of a call, or an answer, is made of. A model that has learned when to say these does not copy a
name that begins with one, such as toolz, unless it has seen that."""
FRAMED = 0.2
"""The share of names that begin with such a word."""


def renamed(record: CallRecord) -> CallRecord:
    """Another top-level name wherever a path, a text or a call has it as a word; the same for the same record."""
    old = record.path.split("/")[0].removesuffix(".py")
    rng = random.Random(f"renamed {record.id}")
    texts = [record.wrong, *record.files.values(), *(part for case in (*record.shown, *record.hidden) for part in case)]
    new = made_up(rng)
    while any(new in text for text in texts):
        new = made_up(rng)
    word = re.compile(rf"\b{re.escape(old)}\b")

    def of(text: str) -> str:
        return word.sub(new, text)

    def case(arguments: str, value: str) -> tuple[str, str]:
        return of(arguments), of(value)

    return record.model_copy(
        update={
            "path": of(record.path),
            "right": of(record.right),
            "wrong": of(record.wrong),
            "files": {of(path): of(text) for path, text in record.files.items()},
            "shown": tuple(starmap(case, record.shown)),
            "hidden": tuple(starmap(case, record.hidden)),
        }
    )


def made_up(rng: random.Random) -> str:
    """A name as packages have them, that Python knows nothing by."""
    while True:
        words = [_word(rng) for _ in range(rng.choice((1, 1, 1, 2)))]
        if rng.random() < FRAMED:
            words[0] = rng.choice(FRAME) + rng.choice(("", "s", "z", "ie", "let", words[0]))
        name = rng.choice(("", "_")).join(words) + rng.choice(_ENDS)
        if not (keyword.iskeyword(name) or name in sys.stdlib_module_names):
            return name


def _word(rng: random.Random) -> str:
    syllables = (rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.choice((1, 2, 2, 3))))
    return rng.choice(("", "", rng.choice(_VOWELS))) + "".join(syllables) + rng.choice(("", rng.choice(_CONSONANTS)))
