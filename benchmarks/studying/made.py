"""Runs for the studio to show, of any size: their lines and archives by the writers that a run has itself."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from made_run import BEGUN, TASK, kept, make_run

from etude.archive.columns import split
from etude.archive.fates import LEDGER
from etude.archive.records import Marks
from etude.archive.writer import ArchiveWriter
from etude.records import Cheated, Event, InfraFailed, Outcome, Scored, Truncated
from etude.rollouts.lines import note

FIGURES = (
    "reward", "solve_rate", "sampled_tokens", "turns", "mean_age", "max_age", "entropy", "loss", "grad_norm",
    "max_abs_dlogp", "masked_share", "step_wall_s",
)  # fmt: skip
"""Those that a run's page begins with: a chart each."""
TOOLS = ("read_file", "edit_file", "write_file", "list_dir", "grep", "run_terminal_cmd")
WORDS = ("parser", "date", "index", "cache", "retry", "header", "offset", "token", "queue", "lease", "sum", "digest")
_MEMBERS = 8
Json = dict[str, Any]


def curves(steps: int, seed: int = 1) -> Iterator[tuple[int, dict[str, float]]]:
    """Random walks with noise on them, as figures of training are: the same for whoever draws them."""
    chance = random.Random(seed)
    level = dict.fromkeys(FIGURES, 1.0)
    for step in range(1, steps + 1):
        level = {name: value + chance.gauss(0, 0.01) for name, value in level.items()}
        yield step, {name: value + chance.gauss(0, 0.1) for name, value in level.items()}


def run_with_curves(run: Path, steps: int) -> Path:
    make_run(run, 0, run.name, summary=True)
    for step, figures in curves(steps):
        note(run / "metrics.jsonl", "step", {"step": step, "elapsed_s": 7.0 * step, "version": step, **figures})
    return run


def run_with_trajectories(run: Path, count: int) -> Path:
    """So many, kept by two processes as reward workers keep theirs; of four groups a step, two were trained on."""
    make_run(run, 0, run.name, summary=True)
    groups = math.ceil(count / _MEMBERS)
    ledger = run / LEDGER
    ledger.parent.mkdir(exist_ok=True)
    with ledger.open("w") as file:
        for group in range(1, groups + 1):
            why = {2: "zero_variance", 3: "stale"}.get(group % 4, "ready")
            file.write(json.dumps({"closed": group, "as": why, "members": list(range(_MEMBERS))}) + "\n")
    halves = (range(1, groups // 2 + 1), range(groups // 2 + 1, groups + 1))
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(keep_groups, (run, run), halves))
    return run


def keep_groups(run: Path, groups: range) -> None:
    with ArchiveWriter(run) as writer:
        for group in groups:
            ids = [keep_one(writer, group, member) for member in range(_MEMBERS)]
            if group % 4 < 2:
                writer.mark(1 + group // 4, [_marks(id) for id in ids])


def keep_one(writer: ArchiveWriter, group: int, member: int) -> str:
    chance = random.Random(f"{group} {member}")
    said = " ".join(chance.choices(WORDS, k=30))
    calls = [(tool, {"path": f"{chance.choice(WORDS)}.py"}) for tool in chance.choices(TOOLS, k=3)]
    task = replace(TASK, id=f"t{group % 500}", instruction=f"Fix the {chance.choice(WORDS)} of {group % 500}.")
    begun, rare = BEGUN + group + member / 10, " zephyr" if group % 5000 == 0 else ""
    id = f"g{group}/{member}"
    one = kept(
        id, result=said, calls=calls, last=f"{said}{rare}", task=task, outcome=_outcome(chance), version=group // 4,
        begun_at=begun, ended_at=begun + chance.random() * 60, worker=f"here/{member % 4}",
    )  # fmt: skip
    writer.keep(one)
    return id


def _outcome(chance: random.Random) -> Outcome:
    kind, reward = chance.random(), chance.random()
    if kind < 0.9:
        reward = reward if kind < 0.5 else 0.0
        return Scored(reward, {"tests": 1.0 if reward > 0.7 else reward})
    if kind < 0.97:
        return Truncated("turns", reward / 10, {"tests": 0.0})
    return Cheated("it wrote what its check reads", -1.0) if kind < 0.99 else InfraFailed("sandbox", True)


def _marks(id: str) -> Marks:
    sampled = 5  # of what `kept` makes
    column = np.full(sampled, 0.5, np.float32)
    return Marks(id, column, -column, column, np.zeros(sampled, np.uint8))


def keep_long(run: Path, tokens: int, turns: int = 200) -> str:
    """One of so many tokens, which was trained on: a prompt of a hundredth of them, then turns that are two thirds
    observation."""
    id = "g900001/0"
    log = list(_long_log(tokens, turns))
    with ArchiveWriter(run) as writer:
        columns, said = split(log)
        writer.keep(replace(kept(id), tokens=columns, said=said))
        sampled = int(columns.sampled.sum())
        noise = np.random.default_rng(1).normal(size=(3, sampled)).astype(np.float32)
        writer.mark(1, [Marks(id, noise[0], -abs(noise[1]), abs(noise[2]), np.zeros(sampled, np.uint8))])
    return id


def _long_log(tokens: int, turns: int) -> Iterator[tuple[Event, Json]]:
    chance, text = random.Random(3), " ".join(WORDS)
    prompt, each = tokens // 100, (tokens - tokens // 100) // turns
    yield Event("session", 0.0, {"id": "s", "toolset": "small", "tools": list(TOOLS)}), {}
    asked = {"system": "You are.", "user": "Fix it.", "tokens": prompt}
    yield Event("prompt", 0.1, asked), {"ids": chance.choices(range(400), k=prompt)}
    for turn in range(1, turns + 1):
        sampled, observed = each // 3, each - each // 3
        more = {
            "ids": chance.choices(range(400), k=sampled), "logprobs": [-chance.random() for _ in range(sampled)],
            "versions": [turn // 50] * sampled,
        }  # fmt: skip
        about = {"turn": turn, "text": text, "tokens": sampled, "version": turn // 50}
        yield Event("completion", float(turn), about), more
        call = {"turn": turn, "index": 0, "name": "grep", "arguments": {"pattern": text}}
        yield Event("tool_call", turn + 0.1, call), {}
        told = {"turn": turn, "index": 0, "name": "grep", "text": f"{text}\n" * 20, "error": False}
        yield Event("tool_result", turn + 0.2, told), {}
        ids = {"ids": chance.choices(range(400), k=observed)}
        yield Event("observation", turn + 0.3, {"turn": turn, "tokens": observed}), ids
    yield Event("segment_sealed", turns + 1.0, {"segment": "turns"}), {}
    yield Event("end", turns + 1.0, {"stop": "finished", "usage": {"turns": turns}}), {}


def tell_hour(run: Path, share: range, of: int, pace: Json) -> None:
    """A part of an hour's events: `share` of `of` equal parts, as much of everything as `pace` has a second."""
    with ArchiveWriter(run) as writer:
        for part in share:
            for step in _within(part, of, pace["steps_per_s"]):
                _, figures = next(curves(1, seed=step))
                line = {"step": step, "elapsed_s": 7.0 * step, "version": step, "age_tokens": {"0": 90}, **figures}
                note(run / "metrics.jsonl", "step", line)
                delivered = {"version": step, "root": "ab", "delta_bytes": 10**5, "raw_bytes": 10**6}
                note(run / "metrics.jsonl", "delivery", {**delivered, "publish_ms": 3.0, "engines": {"engine 0": 1.0}})
            for number in _within(part, of, pace["rollouts_per_s"]):
                group, member = divmod(number, _MEMBERS)
                id = keep_one(writer, group, member)
                note(run / "metrics.jsonl", "rollout", {"id": id, "group": f"g{group}", "reward": 0.5})


def _within(part: int, of: int, per_s: float) -> range:
    """Numbers, from 1, of what happens in a part of an hour."""
    whole = round(3600 * per_s)
    return range(1 + whole * part // of, 1 + whole * (part + 1) // of)


def size_of(run: Path) -> int:
    """Bytes of all its files."""
    return sum(path.stat().st_size for path in run.rglob("*") if path.is_file())


def lines_of(run: Path) -> int:
    return (run / "metrics.jsonl").read_bytes().count(b"\n")


def dumped(steps: int) -> str:
    """The curves as JSON lines, for whoever writes them in another form."""
    return "".join(json.dumps([step, figures]) + "\n" for step, figures in curves(steps))
