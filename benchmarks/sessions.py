"""Sessions of the scripted seeker on real histories, kept as a run keeps its own: what an embedder learns from them.

    python benchmarks/sessions.py --clone ../click@2c8cd3ac --most 40 --out runs/seeker

One session for each of a clone's newest commits that the miner takes by its files and message. The seeker
(searching/seeker.py) has the message and the product's own tools, and looks for what to change. It changes nothing
itself: where it had read a function that the commit changed, the commit's own patch stands for its edits and the
session counts as passed, though no test was run; elsewhere it failed. So what a session searched for and opened is
played, and what it edited is the history's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from searching.seeker import Seeker
from searching.seeking import Workspace, cache_at, figures_of, opened
from searching.sets import Question, answered

from etude.archive.records import FileChange, Kept, KeptTask, Said, Tokens
from etude.archive.writer import ArchiveWriter
from etude.records import Event, Scored

_FAILED = ("no file ", "nothing found", "no match")


async def played(clone: Path, revision: str, most: int, writer: ArchiveWriter, number: int) -> tuple[int, int]:
    """How many sessions there were, and how many of them passed."""
    passed = count = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, cache_at(Path(place) / "cache"):
        here = await opened(Path(place), str(clone))
        try:
            for question, after in answered(clone, revision, most):
                here.become(question.tree)
                kept = await _session(here, question, after, f"g{number + count}/0", clone.name)
                writer.keep(kept)
                count, passed = count + 1, passed + (kept.outcome == _PASSED)
        finally:
            await here.sandbox.destroy()
    return count, passed


_PASSED, _NOT = Scored(1.0, {"tests": 1.0}), Scored(0.0, {"tests": 0.0})


async def _session(here: Workspace, question: Question, after: dict[str, bytes], name: str, repository: str) -> Kept:
    said: list[Said] = []
    begun = time.time()

    async def ask(tool: str, arguments: dict[str, Any]) -> str:
        where = {"turn": len(said) // 2 + 1, "index": 0, "name": tool}
        at = time.time() - begun
        said.append(Said(Event("tool_call", at, {**where, "arguments": arguments}), None))
        text = await here.ask(tool, arguments)
        result = {**where, "text": text, "error": text.startswith(_FAILED)}
        said.append(Said(Event("tool_result", time.time() - begun, result), None))
        return text

    found = figures_of(question, await Seeker(ask, question.text, searches=True).seek())
    passed = found["functions_found"] > 0
    changes = [FileChange(path, question.tree.get(path), data) for path, data in sorted(after.items())]
    task = KeptTask(f"{repository}-{name}", question.text, tuple(sorted(question.tree)), "", "train",
                    {"repository": repository})  # fmt: skip
    none = Tokens((), np.array([], np.int32), np.array([], np.bool_), np.array([], np.float32), np.array([], np.int32))
    return Kept(
        id=name, group_id=name.partition("/")[0], task=task, tokens=none, said=said,
        outcome=_PASSED if passed else _NOT, findings=(), usage={"turns": len(said) // 2}, conduct={}, environment={},
        seed=0, temperature=0.0, attempt=1, worker="seeker", begun_at=begun, ended_at=time.time(),
        files=changes if passed else (), verifier="no test was run: the patch is the commit's",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clone", action="append", required=True, metavar="DIRECTORY@COMMIT")
    parser.add_argument("--most", type=int, default=40, help="sessions on each clone")
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    options = parser.parse_args()
    total = solved = 0
    with ArchiveWriter(options.out) as writer:
        for named in options.clone:
            place, _, revision = named.rpartition("@")
            count, passed = asyncio.run(played(Path(place), revision, options.most, writer, total))
            print(f"{place}: {count} sessions, {passed} passed", flush=True)
            total, solved = total + count, solved + passed
    print(json.dumps({"sessions": total, "passed": solved}))


if __name__ == "__main__":
    main()
