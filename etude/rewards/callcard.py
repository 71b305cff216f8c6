"""What goes with the real-code sets that calls judge: whose source is in them, and their licences.

Owns `write_card` and `licence_texts`. The card says what the sets are made of, with counts; a licence stands in a file
of its package's name, as its distribution has it. Reads installed packages, and runs nothing.
"""

from __future__ import annotations

import importlib.metadata
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from etude.tasks.kept_out import STDLIB
from etude.tasks.realcalls import CallRecord

_TEXT = re.compile(r"(^|/)(licen[cs]e|copying|notice|authors)[^/]*$", re.IGNORECASE)

_CARD = """\
# The real-code sets that calls judge

`realcalls.jsonl.xz` holds {tasks} tasks: one small bug each in a function of the standard library of Python {python} or
of a package that `constraints.txt` pinned when it was made. {sets} No module and no function's name is in two sets. A
line is a record of `etude/tasks/realcalls.py`, which also has the SHA-256 of the unpacked text. To make it again, with
the same Python and packages: `python -m etude.rewards.callset`.

Source lines are unchanged but for the bug; only what a function needs of its module is there. It may be passed on
under the licences below, whose texts are in [licenses](licenses). Training data holds none of these packages and
modules, and no copy of these functions: `etude/tasks/kept_out.py` sees to it.

| package | version | licence | eval | exam |
|---|---|---|---|---|
{rows}

| kind of bug | eval | exam |
|---|---|---|
{bugs}
"""


def write_card(records: Sequence[CallRecord], directory: Path) -> None:
    """Write realcalls.md and the licences of all packages below `directory`."""
    about = {record.package: record for record in records}
    of = Counter((record.package, record.split) for record in records)
    kinds = Counter((record.bug, record.split) for record in records)
    rows = [f"| {name} | {one.version} | {one.licence} | {of[name, 'eval']} | {of[name, 'exam']} |"
            for name, one in sorted(about.items(), key=lambda item: item[0].lower())]  # fmt: skip
    bugs = [f"| {bug} | {kinds[bug, 'eval']} | {kinds[bug, 'exam']} |" for bug in sorted({bug for bug, _ in kinds})]
    sets = " ".join(
        f"`{split}` has {sum(of[name, split] for name in about)}, of "
        f"{len({record.module for record in records if record.split == split})} modules."
        for split in ("eval", "exam")
    )
    python = next((record.version for record in records if record.package == STDLIB), "3")
    card = _CARD.format(tasks=len(records), python=python, sets=sets, rows="\n".join(rows), bugs="\n".join(bugs))
    (directory / "realcalls.md").write_text(card)
    for name in about:
        (directory / "licenses" / f"{name}.txt").write_text(licence_texts(name))


def licence_texts(package: str) -> str:
    """The licence and notices of an installed package, or of the standard library, one after the other."""
    if package == STDLIB:
        return (Path(sysconfig.get_path("stdlib")) / "LICENSE.txt").read_text()
    there = importlib.metadata.distribution(package)
    paths = [path for path in there.files or () if ".dist-info" in str(path) and _TEXT.search(str(path))]
    texts = [path.read_text(encoding="utf-8").strip() for path in sorted(paths, key=str)]
    return "\n\n".join(text for text in dict.fromkeys(texts) if text) + "\n"
