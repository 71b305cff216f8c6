"""A judged trajectory as a frame: what an index needs in its head, the rest in sections that are read one by one.

    head      row (as TrajectoryRow, without what comes later), findings, said (what full text is searched in)
    about     outcome's evidence, usage, conduct, environment, seed, temperature, attempt, segments
    events    calls, outputs, messages (`columns.events_packed`)
    tokens    ids, which were sampled, log-probabilities, versions
    files     those that the session changed, before and after
    verifier  what it printed

Owns `frame_of`, `task_frame`, `marks_frames` and `row_of`. Everything a policy can make longer is bounded here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from types import NoneType
from typing import Any

import numpy as np

from etude.archive.columns import events_packed, files_packed, marks_packed, tokens_packed
from etude.archive.frames import Kind, encoded
from etude.archive.query import MOST_WHOLE
from etude.archive.records import FileChange, Kept, KeptTask, Marks, Said, TrajectoryRow, evidence_of, kind_of
from etude.errors import CheckpointError
from etude.records import Cheated, Scored, Truncated, reward_of, solved

FINAL, ARGUMENT, ARGUMENTS, FINDINGS = 4_000, 500, 16_000, 8_000
"""Characters that full text is searched in: of the last message, of one argument, of all, of the findings."""
FILE_BYTES, FILES_BYTES, FILES = 256 << 10, 4 << 20, 2_000
"""Of one side of a changed file, of all of them, and how many there may be with their contents."""
VERIFIER_CHARS = 64_000
_LATER = ("step", "trained_tokens", "dropped")
_ANNOTATED = {field.name: str(field.type) for field in fields(TrajectoryRow) if field.name not in _LATER}
_ROW = tuple(_ANNOTATED)
_TIMES = ("begun_at", "ended_at", "seconds")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float, int), "bool": (bool,), "str | None": (str, NoneType),
    "int | None": (int, NoneType), "float | None": (float, int, NoneType), "OutcomeKind": (str,),
    "Mapping[str, float]": (dict,), "tuple[str, ...]": (list,),
}  # fmt: skip
"""Of what JSON has of a row: an archive may come from anywhere."""


def frame_of(kept: Kept) -> bytes:
    tokens, said = kept.tokens, kept.said
    row = asdict(_row(kept))
    head = {
        "row": {name: row[name] for name in _ROW},
        "findings": _bounded(_held_against(kept), FINDINGS),
        "said": {"final": _final(said)[:FINAL], "calls": "\n".join(_bounded(_arguments(said), ARGUMENTS))},
    }
    about = {
        "evidence": evidence_of(kept.outcome), "usage": dict(kept.usage), "conduct": kept.conduct,
        "environment": dict(kept.environment), "seed": kept.seed, "temperature": kept.temperature,
        "attempt": kept.attempt, "findings": _held_against(kept),
        "segments": [[each.kind, each.start, each.stop] for each in tokens.segments],
    }  # fmt: skip
    sections = {"about": _json(about), "events": events_packed(said), "tokens": tokens_packed(tokens)}
    if kept.files:
        sections["files"] = files_packed(bounded(kept.files))
    if kept.verifier:
        sections["verifier"] = kept.verifier[-VERIFIER_CHARS:].encode("utf-8", "replace")
    return encoded(Kind.TRAJECTORY, head, sections)


def task_frame(task: KeptTask) -> bytes:
    return encoded(Kind.TASK, {"task": json.loads(_json(asdict(task)))})


def task_of(head: Mapping[str, Any]) -> KeptTask:
    """Of a head that `task_frame` made. Raises CheckpointError for another's."""
    try:
        told: dict[str, Any] = {**head["task"], "files": tuple(head["task"]["files"])}
        if not isinstance(told["id"], str) or not isinstance(told["instruction"], str):
            raise TypeError(told["id"])
        return KeptTask(**told)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"a frame of the archive is of no task: {error!r}") from None


def step_of(head: Mapping[str, Any], *others: str) -> tuple[int, ...]:
    """The step that `marks_frames` or `resumed_frame` were told, and other numbers. Raises CheckpointError."""
    given = [head.get(name) for name in ("step", *others)]
    found = tuple(each for each in given if isinstance(each, int) and _is_within(each))
    if len(found) < len(given):
        raise CheckpointError(f"a frame of the archive has no step: {given}")
    return found


def marks_frames(step: int, marks: Iterable[Marks]) -> bytes:
    """One each, end to end."""
    return b"".join(
        encoded(
            Kind.MARKS,
            {"id": each.id, "step": step, "trained_tokens": each.trained_tokens},
            {"marks": marks_packed(each)},
        )
        for each in marks
    )


def resumed_frame(step: int) -> bytes:
    """A trainer goes on after that step: marks of later ones, by an earlier life, hold no more."""
    return encoded(Kind.RESUMED, {"step": step})


def row_of(head: Mapping[str, Any]) -> TrajectoryRow:
    """Of a head that `frame_of` made: what comes later is None. Raises CheckpointError for another's."""
    try:
        told: dict[str, Any] = {name: head["row"][name] for name in _ROW}
        wrong = [name for name, value in told.items() if not isinstance(value, _TYPES[_ANNOTATED[name]])]
        wrong += [name for name, kind in (("findings", list), ("said", dict)) if not isinstance(head[name], kind)]
        texts = (*told["tools"], *head["findings"], head["said"]["final"], head["said"]["calls"])
        if wrong or not all(isinstance(each, str) for each in texts):
            raise TypeError(wrong)
        numbers = [each for each in told.values() if isinstance(each, int)] + [told[name] for name in _TIMES]
        if not all(map(_is_within, numbers)) or not all(map(_is_number, told["parts"].values())):
            raise TypeError("a number that no index can have")
        told |= {"tools": tuple(told["tools"]), "step": None}
        return TrajectoryRow(**told)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"a frame of the archive is of no trajectory: {error!r}") from None


def _is_within(value: float) -> bool:
    """Whether it is no larger than SQLite's whole numbers, and so neither infinite nor NaN."""
    return abs(value) <= MOST_WHOLE


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and _is_within(value))


def phase_of(trajectory_id: str) -> str:
    """Slots of training are named g12/3, those of an evaluation by its label: development-30/… is of step 30."""
    first = trajectory_id.partition("/")[0]
    return "training" if first[:1] == "g" and first[1:].isdigit() else re.sub(r"-\d+$", "", first)


def bounded(files: Sequence[FileChange]) -> list[FileChange]:
    """As much of the contents as is kept; of what is beyond that, the names alone."""
    left, found = FILES_BYTES, []
    for number, change in enumerate(files):
        sides = [side for side in (change.before, change.after) if side is not None]
        most = min(FILE_BYTES, max(0, left // 2)) if number < FILES else 0
        longest = max(map(len, sides), default=0)
        left -= sum(min(len(side), most) for side in sides)
        if longest > most:
            before, after = (None if side is None else side[:most] for side in (change.before, change.after))
            change = FileChange(change.path, before, after, cut=True)
        found.append(change)
    return found


def _row(kept: Kept) -> TrajectoryRow:
    outcome, tokens = kept.outcome, kept.tokens
    versions = tokens.versions[tokens.sampled]
    judged = isinstance(outcome, Scored | Truncated)
    calls = [each.event.data for each in kept.said if each.event.kind == "tool_call"]
    return TrajectoryRow(
        id=kept.id,
        phase=phase_of(kept.id),
        group_id=kept.group_id,
        task_id=kept.task.id,
        step=None,
        outcome=kind_of(outcome),
        reward=reward_of(outcome),
        solved=solved(outcome),
        parts=dict(outcome.parts) if judged else {},
        findings=len(_held_against(kept)),
        turns=int(kept.usage.get("turns", 0)),
        calls=len(calls),
        sampled_tokens=len(versions),
        total_tokens=len(tokens.token_ids),
        oldest_version=int(versions.min()) if len(versions) else None,
        newest_version=int(versions.max()) if len(versions) else None,
        worker=kept.worker,
        begun_at=kept.begun_at,
        ended_at=kept.ended_at,
        seconds=round(kept.ended_at - kept.begun_at, 4),
        tools=tuple(sorted({str(call["name"]) for call in calls})),
        limit=outcome.limit if isinstance(outcome, Truncated) else None,
    )


def _held_against(kept: Kept) -> list[str]:
    """What a cheat broke is held against it, whoever found it."""
    shown = [kept.outcome.evidence] if isinstance(kept.outcome, Cheated) and not kept.findings else []
    return [*kept.findings, *shown]


def _final(said: Sequence[Said]) -> str:
    """The model's last message."""
    texts = (each.event.data.get("text", "") for each in reversed(said) if each.event.kind == "completion")
    return next(texts, "")


def _arguments(said: Sequence[Said]) -> Iterable[str]:
    for each in said:
        data = each.event.data
        if each.event.kind == "tool_call":
            given = data.get("arguments")
            values = given.values() if isinstance(given, Mapping) else (data.get("raw", ""),)
            yield " ".join((str(data["name"]), *(str(value)[:ARGUMENT] for value in values)))


def _bounded(texts: Iterable[str], most: int) -> list[str]:
    """As many of them as there is room for; the last of these is cut."""
    found = []
    for text in texts:
        if most <= 0:
            break
        found.append(text[:most])
        most -= len(text)
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode(
        "utf-8", "backslashreplace"
    )


def _plain(value: Any) -> Any:
    """What JSON does not know: NumPy's numbers, mappings that are no dicts, what provenance holds."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
