"""The cost to a run of its archive: the quickstart at small size, by turns with the archive and without.

Each arm runs in a copy of the package. In the one the functions that archive are timed by their threads' CPU; in the
other they do nothing. The share is of the whole training's CPU, all rounds with the archive. Beside it stands how long
they took by the clock, with what they waited for the disk and for a core.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from killing import Victim
from small import ROOT

TIMED = """

def _timed(function, listed=False):
    import os
    import time

    def timed(*given, **named):
        given = (list(given[0]), *given[1:]) if listed else given
        began, at = time.thread_time(), time.perf_counter()
        try:
            return function(*given, **named)
        finally:
            spent, took = time.thread_time() - began, time.perf_counter() - at
            line = f"{{function.__name__}} {{spent:.7f}} {{took:.7f}}\\n".encode()
            out = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(out, line)
            os.close(out)

    return timed

"""
WITH = {
    "rollouts/session.py": "split, kept_of = _timed(split, listed=True), _timed(kept_of)\n",
    "archive/writer.py": (
        "ArchiveWriter.keep = _timed(ArchiveWriter.keep)\nArchiveWriter.mark = _timed(ArchiveWriter.mark)\n"
    ),
    "rollouts/actors/trainer.py": "marks_of = _timed(marks_of)\n",
    "trainer/step.py": "seen_tokens = _timed(seen_tokens, listed=True)\n",
}
"""What is added to modules of the copy that archives. A log is decoded anyway: that is done before the clock runs."""
WITHOUT = {
    "rollouts/session.py": (
        "from types import SimpleNamespace as _Said\n"
        "def split(log): return None, [_Said(event=event) for event, _ in log]\n"
        "def kept_of(*given): return None\n"
    ),
    "archive/writer.py": (
        "ArchiveWriter.keep = lambda self, kept: 0\nArchiveWriter.mark = lambda self, step, marks: None\n"
    ),
    "rollouts/actors/trainer.py": (
        "from types import SimpleNamespace as _Marks\ndef marks_of(*given): return [_Marks(mask=b'1')]\n"
    ),
    "trainer/step.py": "def seen_tokens(*given): return NOTHING_SEEN\n",
}


def run_cost(place: Path, rounds: int, minutes: float) -> dict[str, Any]:
    roots = {"with": copied(place / "with", WITH, place / "cost"), "without": copied(place / "without", WITHOUT)}
    speeds: dict[str, list[float]] = {arm: [] for arm in roots}
    spent = rollouts = 0.0
    for number in range(rounds):
        for arm in list(roots) if number % 2 else reversed(roots):
            out = place / f"{arm}-{number}"
            with Victim(out, f"rollouts.max_minutes={minutes}", root=roots[arm]) as run:
                run.end(60 * minutes + 900)
            training = json.loads((out / "training.json").read_text())
            speeds[arm].append(training["samples_per_s"])
            print(f"round {number} {arm}: {training['samples_per_s']:.2f} rollouts/s", file=sys.stderr)
            if arm == "with":
                spent, rollouts = spent + training["cpu_s"], rollouts + training["rollouts"]
                share, kept = sizes(out)
    lines = [line.split() for line in (place / "cost").read_text().splitlines()]
    judged = sum(name == "keep" for name, *_ in lines)
    of = {name: [sum(float(line[at]) for line in lines if line[0] == name) for at in (1, 2)] for name, *_ in lines}
    cost, waited = (sum(each[at] for each in of.values()) for at in (0, 1))
    ratios = [one / other for one, other in zip(speeds["with"], speeds["without"], strict=True)]
    return {
        "run_cost_share": cost / spent, "archive_ms_per_rollout": 1000 * cost / judged,
        "archive_clock_ms_per_rollout": 1000 * waited / judged, "archive_bytes_per_rollout": share / kept,
        "archive_cpu_s": {name: round(cpu, 3) for name, (cpu, _) in of.items()}, "run_cpu_s": spent,
        "rollouts": rollouts, "rollouts_per_s": speeds,
        "rollouts_per_s_ratio": statistics.median(ratios),
    }  # fmt: skip


def copied(root: Path, added: dict[str, str], cost: Path | None = None) -> Path:
    """The tree that a run needs, with something added to its modules."""
    shutil.copytree(ROOT / "etude", root / "etude", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("recipes", "models"):
        (root / name).symlink_to(ROOT / name)
    for module, text in added.items():
        path = root / "etude" / module
        path.write_text(path.read_text() + (TIMED.format(path=str(cost)) if cost else "\n\n") + text)
    return root


def sizes(out: Path) -> tuple[int, int]:
    from etude.archive.reader import ArchiveReader

    with ArchiveReader(out) as reader:
        return reader.size()[0], reader.count()
