"""A generated family that does not fit the context: a trail of modules, each of which notes a word and the next module.

Owns `trail_task(rung, split, seed)`, and the words in which a module notes something. Which module comes next stands in
the one before, so they must be read one after the other; the words of all of them, in order, must stand in one file at
the end. The window holds few modules. What was read in an earlier one is known only to who wrote it down in the summary
that goes on, so every rung but the first is out of reach for an agent that never summarises:

    1  two modules, which fit the window: solved with summaries and without
    2  five modules: two summaries at most, the second of which must hold what the first one held
    3  seven modules: three summaries

Words and names are training words, in the `heldout` split words that no training data contains (`tasks.holdout`). Runs
nothing.
"""

from __future__ import annotations

import random
import re
import zlib
from typing import Literal

from etude.records import Limits, Task, Verifier
from etude.tasks.grammar import make_function
from etude.tasks.words import HELD_OUT_WORDS, TRAIN_WORDS

Split = Literal["train", "eval", "heldout"]
MODULES = {1: 2, 2: 5, 3: 7}
"""How many modules a trail of each rung has."""
CHECK, ANSWER, EMPTY = "words.py", "words.txt", "none"
WINDOW, MAX_SAMPLED_TOKENS, SPARE_TURNS = 480, 384, 3
_CODE_BYTES = range(92, 116)
"""Of every module's code, so that the window holds about as many modules of one task as of another."""
_NOTE = re.compile(r'^"""(\w+): ', re.MULTILINE)
_NEXT = re.compile(r"there is a bug in (\S+\.py)\.")
_CHECK = '''\
"""Run me: python3 words.py"""
import zlib

found = open("words.txt").read().split()
print("passed" if zlib.crc32(" ".join(found).encode()) == {checksum} else "failed")
'''


def trail_task(rung: int, split: Split, seed: int) -> Task:
    """The task of that rung, split and seed; the same on every machine."""
    rng = random.Random(f"etude trail v1 {rung} {split} {seed}")
    count = MODULES[rung]
    pool = HELD_OUT_WORDS if split == "heldout" else TRAIN_WORDS
    drawn = rng.sample(pool, 3 * count)
    paths, words, functions = [f"{name}.py" for name in drawn[:count]], drawn[count : 2 * count], drawn[2 * count :]
    files = {
        path: _module(rng, word, after, function).encode()
        for path, word, after, function in zip(paths, words, [*paths[1:], None], functions, strict=True)
    }
    answer = f"{' '.join(words)}\n".encode()
    files[ANSWER] = f"{EMPTY}\n".encode()
    files[CHECK] = _CHECK.format(checksum=zlib.crc32(answer.strip())).encode()
    return Task(
        id=f"trail-{split}-r{rung}-{seed}",
        instruction=f"python3 {CHECK} fails: there is a word in {paths[0]}. Write them to {ANSWER}.",
        files={path: files[path] for path in sorted(files)},
        verifier=_verifier(answer),
        solution={ANSWER: answer},
        limits=Limits(count + SPARE_TURNS, WINDOW, MAX_SAMPLED_TOKENS),
        split=split,
        provenance={
            "family": "trail", "rung": rung, "path": ANSWER, "trail": paths, "facts": words,
            "protected": [CHECK, *sorted(paths)],
        },
    )  # fmt: skip


def read_note(text: str) -> tuple[str, str | None] | None:
    """The word that a module notes and the path it names, None at the trail's end; None for any other text."""
    if (word := _NOTE.search(text)) is None:
        return None
    following = _NEXT.search(text)
    return word[1], None if following is None else following[1]


def next_hint(after: str | None) -> str:
    """Where a trail goes on, in the words that modules have for it and the ladder's instructions, too."""
    return "this is the end" if after is None else f"there is a bug in {after}"


def _module(rng: random.Random, word: str, after: str | None, function: str) -> str:
    while True:
        code = make_function(rng, function, "train").render()
        if len(code) in _CODE_BYTES:
            break
    return f'"""{word}: {next_hint(after)}."""\n\n{code}'


def _verifier(answer: bytes) -> Verifier:
    """No code of the agent's is run: the file is compared, its last newline left aside."""
    script = (
        "mkdir -p /logs/verifier\n"
        'if [ "$(cat /workspace/words.txt 2>/dev/null)" = "$(cat /tests/words.txt)" ]; then echo 1; else echo 0; fi '
        "> /logs/verifier/reward.txt\n"
    )
    return Verifier({"/tests/test.sh": script.encode(), f"/tests/{ANSWER}": answer}, timeout_s=10.0)
