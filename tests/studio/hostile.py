"""What a page might be harmed by, kept by the archive's own writer."""

from __future__ import annotations

from pathlib import Path

from made_run import BEGUN, kept

from etude.archive.records import FileChange, KeptTask
from etude.archive.writer import ArchiveWriter
from etude.records import Cheated, Truncated

TEXT = "<script>window.hit=1</script><img src=x onerror=window.hit=1>\x1b[31mred\x00 user\u202etxt.exe \ud800 \u200b."
LONG = "x" * 100_000 + "\n" + "word " * 20_000
NAMES = ("plain.py", "new\nline.py", "\u202egnp.exe", "<b>.py", "deep/" * 40 + "end.py")
FILES = 3000


def keep_hostile(run: Path) -> None:
    """`h1/0`, all of whose texts are hostile and long, and `h2/0`, which changed thousands of files."""
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
