"""What a page might be harmed by, kept by the archive's own writer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from made_run import BEGUN, kept

from etude.archive.columns import split
from etude.archive.records import FileChange, KeptTask
from etude.archive.writer import ArchiveWriter
from etude.records import Cheated, Event, Truncated

TEXT = "<script>window.hit=1</script><img src=x onerror=window.hit=1>\x1b[31mred\x00 user\u202etxt.exe \ud800 \u200b."
LONG = "x" * 100_000 + "\n" + "word " * 20_000
NAMES = ("plain.py", "new\nline.py", "\u202egnp.exe", "<b>.py", "deep/" * 40 + "end.py")
FILES = 10_000
TOKENS = 20_000
HUGE = 50_000_000
"""Characters of one output."""
SPRINKLED = "a\x1b" * 50_000
"""As many hidden characters as others, none beside another."""
SIDE_BY_SIDE = "\x1b\u202e" * 50_000
CALLS = 5000
"""In one message."""


def keep_hostile(run: Path) -> None:
    """`h1/0`, of hostile and long texts, `h2/0`, which changed ten thousand files, `h3/0` of many tokens, `h4/0` with
    an output of fifty megabytes, and `h5/0` with thousands of calls in one message."""
    task = KeptTask("t<b>\u202e", TEXT, NAMES, TEXT, "train", {"why": TEXT})
    calls = ((TEXT[:40], {TEXT: TEXT}), ("run_terminal_cmd", {"command": LONG}))
    files = tuple(
        FileChange(name, b"old\n" * 50, TEXT.replace("\0", "").encode("utf-8", "replace") * 50) for name in NAMES
    )
    many = tuple(FileChange(f"src/f{each:05}.py", b"a\n", b"b\n") for each in range(FILES))
    with ArchiveWriter(run) as writer:
        writer.keep(
            kept("h1/0", result=LONG, task=task, outcome=Cheated(TEXT, -1.0), findings=(TEXT, f"it ran {LONG}"),
                 calls=calls, last=TEXT, files=files, verifier=LONG, begun_at=BEGUN + 10, ended_at=BEGUN + 20)
        )  # fmt: skip
        writer.keep(kept("h2/0", outcome=Truncated("turns", 0.2, {"tests": 0.2}), files=many))
        tokens, said = split(long_log())
        writer.keep(replace(kept("h3/0"), tokens=tokens, said=said))
        writer.keep(kept("h4/0", result=huge(), calls=(("run_terminal_cmd", {"command": "yes"}),)))
        many_calls = tuple(("grep", {"pattern": f"{each}\x1b"}) for each in range(CALLS))
        sprinkled = replace(task, id="t2", instruction=SPRINKLED)
        writer.keep(kept("h5/0", result=SIDE_BY_SIDE[:2000], calls=many_calls, last=SPRINKLED, task=sprinkled))


def huge() -> str:
    """Coloured lines, as a compiler prints them, and at the end another."""
    line = "\x1b[31merror\x1b[0m: <script>window.hit=1</script> \u202eworse " + "x" * 60 + "\n"
    return (line * (HUGE // len(line) + 1))[: HUGE - 13] + "\nthe very end"


def long_log() -> Iterator[tuple[Event, dict[str, Any]]]:
    """A session of one turn, whose token ids count up."""
    yield Event("session", 0.0, {"id": "s", "toolset": "small", "tools": []}), {}
    yield Event("prompt", 0.1, {"system": "You are.", "user": "Fix it.", "tokens": 0}), {"ids": []}
    ids = [each % 1000 for each in range(TOKENS)]
    sampled = {"ids": ids, "logprobs": [-each / TOKENS for each in range(TOKENS)], "versions": [3] * TOKENS}
    yield Event("completion", 9.0, {"turn": 1, "text": "So.", "tokens": TOKENS, "version": 3}), sampled
    yield Event("segment_sealed", 9.1, {"segment": "turns"}), {}
    yield Event("end", 9.2, {"stop": "finished", "usage": {"turns": 1}}), {}
