"""The quickstart at small size, in processes of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.environments.leftovers import leftovers

ROOT = Path(__file__).parents[2]
SMALL = [
    "evaluation.per_rung=1", "evaluation.heldout_per_rung=0", "evaluation.real=false", "control.enabled=false",
    "groups.size=4", "rollouts.groups_per_step=2", "rollouts.concurrency=16", "rollouts.rungs=[3, 6]",
]  # fmt: skip

LOCKSTEP = (
    "rollouts.schedule=lockstep", "rollouts.by_difficulty=false", "groups.straggler_s=", "groups.window_share=",
)  # fmt: skip
"""Without what the quickstart gives that lockstep has no use for."""


def command(out, *overrides, resume=False, recipe="quickstart"):
    sets = [part for override in (*SMALL, *overrides) for part in ("--set", override)]
    arguments = ["train", str(ROOT / f"recipes/{recipe}.toml"), "--out", str(out), "--json", *sets]
    return [sys.executable, "-m", "etude.cli.main", *arguments, *(["--resume"] if resume else [])]


def run(out, *overrides, resume=False, recipe="quickstart", **environment):
    return subprocess.run(
        command(out, *overrides, resume=resume, recipe=recipe), cwd=ROOT, env=variables(**environment),
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip


def variables(**environment):
    return {**os.environ, "PYTHONPATH": str(ROOT), **environment}


def lines(out, kind):
    """The whole lines of one kind in metrics.jsonl so far; a run may be writing the next."""
    path = out / "metrics.jsonl"
    found = path.read_text().split("\n")[:-1] if path.exists() else []
    return [line for line in map(json.loads, found) if line["kind"] == kind]


def steps(out):
    return lines(out, "step")


def waiting(out):
    """Groups with a scored sample that no step has trained on, and that were not dropped."""
    over = {group for line in steps(out) for group in line["groups"]}
    for line in map(json.loads, (out / "ledger/groups.jsonl").read_text().split("\n")[:-1]):
        if line.get("as", "ready") != "ready":
            over.add(f"g{line['closed']}")
    return {path.parent.parent.name for path in (out / "trajectories").glob("*/*/score")} - over


def left(within_s=90.0):
    """What sandboxes of ended processes have left on this machine; other tests' are swept within the time."""
    end = time.monotonic() + within_s
    while (found := leftovers()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def archived(out):
    """That a run's archive has all that was judged, once, and of each what became of it; returns the ids it has."""
    trained = {
        f"{group}/{member}": line
        for line in steps(out)
        for group, members in line["groups"].items()
        for member in members
    }
    closed = {}
    for line in map(json.loads, (out / "ledger/groups.jsonl").read_text().splitlines()):
        closed |= (
            {f"g{line['closed']}/{member}": line["as"] for member in line.get("members", ())}
            if "closed" in line
            else {}
        )
    tokens = {}
    with ArchiveReader(out) as reader:
        rows = {row.id: row for row in reader.every(Filter(phase="training"))}
        assert reader.count(Filter(phase="training")) == len(rows)
        assert not closed.keys() - rows.keys(), "judged, in a group, and not in the archive"
        assert {name: row.step for name, row in rows.items() if row.step} == {
            name: line["step"] for name, line in trained.items()
        }
        for name, row in rows.items():
            found = reader.trajectory(name)
            assert len(found.tokens.token_ids) == row.total_tokens > 0 and found.said[-1].event.kind == "end"
            assert row.outcome != "scored" or "tests" in row.parts
            assert found.verifier and found.task.instruction
            if name in trained:
                marks, logprobs = found.marks, found.tokens.logprobs[found.tokens.sampled]
                assert len(marks.mask) == len(logprobs) == row.sampled_tokens
                assert np.abs(marks.trainer_logprobs - logprobs).mean() < 1.0
                tokens[row.step] = tokens.get(row.step, 0) + len(marks.mask)
            elif closed.get(name, "ready") != "ready":
                assert row.dropped == closed[name]
    assert tokens == {line["step"]: line["trained_tokens"] for line in steps(out)}
    return sorted(rows)
