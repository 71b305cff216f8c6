"""One trajectory as a page shows it: turns with their calls, what came of it, and its tokens in columns.

Owns the view of an `Archived`: nothing here is computed that the log does not say, and all of it is bounded, as a model
may have written it. Text is sent as it is; that it can be nothing but text is the page's care.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from etude.archive.archived import Archived
from etude.archive.notes import Note
from etude.archive.records import MASKS, KeptTask, Said
from etude.studio.archive_shapes import (
    CallAnswer,
    CallResult,
    FileAnswer,
    FilePage,
    FindingAnswer,
    MarksAnswer,
    OutcomeAnswer,
    OutputAnswer,
    SegmentAnswer,
    TaskAnswer,
    TokenColumns,
    TrajectoryAnswer,
    TurnAnswer,
)
from etude.studio.diffs import file_of
from etude.studio.files import shallow

MOST_TURNS, MOST_TOKENS, MOST_CHARS, MOST_CALLS = 500, 10_000, 1_000_000, 200
_ANSWER_CHARS, _LITTLE_CHARS = 500_000, 200
"""Of all outputs in one answer, and of each that comes after so many."""
_FIRST_CHARS, _ARGUMENT_CHARS, _TEXT_CHARS = 4000, 20_000, 100_000
_FIRST_FILES, _COUNTED_FILES, _NAMES = 200, 300, 500
_CALLS, _THINKING = "<tool_call>", re.compile(r"\s*<think>(.*?)(?:</think>|\Z)\s*", re.DOTALL)
_PLACE = re.compile(r"\b(?:call|turn) (\d+)")


def answer_of(found: Archived, notes: Sequence[Note], first: int, count: int) -> TrajectoryAnswer:
    """All but tokens; `count` turns from the number `first` on, from 0."""
    row, about = found.row, found.about
    turns = turns_of(found)
    files = found.files
    marks = found.marks
    prompts = [str(said.event.data.get("user", "")) for said in found.said if said.event.kind == "prompt"]
    return TrajectoryAnswer(
        row=row,
        task=task_of(found.task),
        prompts=[_bounded(each, _TEXT_CHARS) for each in prompts[:100]],
        segments=_segments(found, turns),
        turns=_sent(turns[first : first + count]),
        turns_total=len(turns),
        outcome=OutcomeAnswer(
            row.outcome,
            row.reward,
            row.solved,
            row.parts,
            row.limit,
            _bounded(str(about.get("evidence", "")), _TEXT_CHARS),
        ),
        findings=[_finding(str(text), turns) for text in about.get("findings", ())],
        files=[file_of(each, at < _COUNTED_FILES) for at, each in enumerate(files[:_FIRST_FILES])],
        files_total=len(files),
        verifier=_beginning(found.verifier),
        marks=None if marks is None or row.step is None else MarksAnswer(row.step, marks.trained_tokens),
        usage=shallow(about.get("usage", {})),
        environment=shallow(about.get("environment", {})),
        annotations=list(notes),
    )


def task_of(task: KeptTask | None) -> TaskAnswer | None:
    if task is None:
        return None
    return TaskAnswer(
        task.id, _bounded(task.instruction, _TEXT_CHARS), list(task.files[:_NAMES]), task.verifier, task.split,
        shallow(dict(task.provenance)),
    )  # fmt: skip


# --- turns ------------------------------------------------------------------------------------------------------------


def turns_of(found: Archived) -> list[TurnAnswer]:
    """Each message of the model, and the calls in it with their results."""
    begun = found.row.begun_at
    segments = [(each.start, each.stop) for each in found.tokens.segments]
    turns: list[dict[str, Any]] = []
    calls: dict[tuple[str, str], dict[str, Any]] = {}
    for number, said in enumerate(found.said):
        event, data = said.event, said.event.data
        key = str(data.get("turn")), str(data.get("index"))
        if event.kind in ("completion", "summary"):
            turns.append(_message(number, said, begun, segments))
        elif event.kind == "tool_call" and turns:
            calls[key] = _call(number, data)
            turns[-1]["calls"].append(calls[key])
        elif event.kind == "tool_started" and key in calls:
            calls[key]["started_at"] = begun + event.at
        elif event.kind == "tool_result" and key in calls:
            called = calls.pop(key)
            called |= {
                "ended_at": begun + event.at, "failed": bool(data.get("error")),
                "result": _beginning(str(data.get("text", ""))),
            }  # fmt: skip
    for turn in turns:
        turn["calls"] = [CallAnswer(**call) for call in turn["calls"]]
    return [TurnAnswer(n=n, calls_total=len(turn["calls"]), **turn) for n, turn in enumerate(turns)]


def _sent(turns: Sequence[TurnAnswer]) -> list[TurnAnswer]:
    """Turns as an answer has them: a model that makes thousands of calls in one message freezes nobody's tab."""
    left, sent = _ANSWER_CHARS, []
    for turn in turns:
        calls = []
        for call in turn.calls[:MOST_CALLS]:
            result = call.result
            if result is not None and (left := left - len(result.text)) < 0 and len(result.text) > _LITTLE_CHARS:
                call = replace(call, result=CallResult(result.text[:_LITTLE_CHARS], result.bytes, True))
            calls.append(call)
        sent.append(replace(turn, calls=calls))
    return sent


def _message(number: int, said: Said, begun: float, segments: Sequence[tuple[int, int]]) -> dict[str, Any]:
    data, text = said.event.data, str(said.event.data.get("text", ""))
    thought = _THINKING.match(text)
    shown = text[thought.end() :] if thought else text
    place = None
    if said.tokens is not None and said.tokens[0] < len(segments):
        segment, start, stop = said.tokens
        place = (segment, start - segments[segment][0], stop - segments[segment][0])
    version, reasoning = data.get("version"), said.record.get("reasoning")
    return {
        "event": number, "kind": "summary" if said.event.kind == "summary" else "turn", "at": begun + said.event.at,
        "text": _bounded(shown.partition(_CALLS)[0].rstrip(), _TEXT_CHARS),
        "thinking": _bounded(thought[1].strip(), _TEXT_CHARS) if thought else
        _bounded(str(reasoning), _TEXT_CHARS) if reasoning else None,
        "version": version if isinstance(version, int) else None, "calls": [], "tokens": place,
    }  # fmt: skip


def _call(number: int, data: Any) -> dict[str, Any]:
    arguments = data.get("arguments")
    given = arguments if isinstance(arguments, dict) else {}
    told = {str(name): _argument(value) for name, value in given.items()}
    raw = data.get("raw")
    return {
        "event": number, "name": str(data.get("name", "")), "arguments": told,
        "raw": _bounded(str(raw), _ARGUMENT_CHARS) if raw is not None else None, "started_at": None, "ended_at": None,
        "failed": None, "result": None,
    }  # fmt: skip


def _argument(value: Any) -> Any:
    """As it was given, or the beginning of its text: a model may nest lists a thousand deep, or write megabytes."""
    if isinstance(value, dict | list):
        value = shallow(value)
        text = json.dumps(value)
        return value if len(text) <= _ARGUMENT_CHARS else _bounded(text, _ARGUMENT_CHARS)
    return _bounded(value, _ARGUMENT_CHARS) if isinstance(value, str) else value


def line_of(turn: TurnAnswer) -> str:
    """A turn in one line: its calls, or what it says."""
    if not turn.calls:
        words = " ".join(turn.text.split())
        return f"says: {words[:80]}" if turn.kind == "turn" else "summary"
    return "; ".join(f"{call.name}({_given(call)})" for call in turn.calls)[:300]


def _given(call: CallAnswer) -> str:
    values = [call.raw] if call.raw is not None else call.arguments.values()
    return ", ".join(" ".join(str(value).split())[:60] for value in values)


def _segments(found: Archived, turns: Sequence[TurnAnswer]) -> list[SegmentAnswer]:
    told = []
    for number, span in enumerate(found.tokens.segments):
        first = next((turn.n for turn in turns if turn.tokens and turn.tokens[0] >= number), len(turns))
        sampled = int(found.tokens.sampled[span.start : span.stop].sum())
        told.append(SegmentAnswer(span.kind, span.stop - span.start, sampled, first))
    return told


def _finding(text: str, turns: Sequence[TurnAnswer]) -> FindingAnswer:
    """With the call that it quotes: by its words, where one call alone has them."""
    quoted = re.findall(r"[`'\"]([^`'\"\n]{8,200})[`'\"]", text)
    for words in quoted:
        having = [
            call.event for turn in turns for call in turn.calls
            if any(words in str(value) for value in (call.raw, *call.arguments.values()))
        ]  # fmt: skip
        if having:
            return FindingAnswer(_bounded(text, _TEXT_CHARS), having[0])
    return FindingAnswer(_bounded(text, _TEXT_CHARS), None)


# --- long texts -------------------------------------------------------------------------------------------------------


def output_of(found: Archived, event: int | None, first: int, count: int) -> OutputAnswer | None:
    """Characters of a call's result, by the number of its call's event; of the verifier's output without one. None
    where there is no such result."""
    text = found.verifier if event is None else _result(found.said, event)
    if text is None:
        return None
    return OutputAnswer(text[first : first + count], min(first, len(text)), len(text))


def _result(said: Sequence[Said], event: int) -> str | None:
    if event >= len(said) or said[event].event.kind != "tool_call":
        return None
    called = said[event].event.data
    wanted = called.get("turn"), called.get("index")
    for each in said[event:]:
        data = each.event.data
        if each.event.kind == "tool_result" and (data.get("turn"), data.get("index")) == wanted:
            return str(data.get("text", ""))
    return None


def files_of(found: Archived, after: int, limit: int) -> FilePage:
    """Changed files from the number `after` on."""
    files = found.files
    rows: list[FileAnswer] = [file_of(each, True) for each in files[after : after + limit]]
    more = after + limit < len(files)
    return FilePage(rows, len(files), after + limit if more else None)


def _beginning(text: str) -> CallResult:
    size = len(text.encode("utf-8", "surrogatepass"))
    return CallResult(text[:_FIRST_CHARS], size, len(text) > _FIRST_CHARS)


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


# --- tokens -----------------------------------------------------------------------------------------------------------


def columns_of(
    found: Archived, segment: int, first: int, count: int, texts: Callable[[Sequence[int]], list[str] | None]
) -> TokenColumns | None:
    """Tokens of a segment; None where it has no such segment. `texts` gives the text of each of some ids."""
    tokens = found.tokens
    if segment >= len(tokens.segments):
        return None
    span = tokens.segments[segment]
    here = slice(min(span.start + first, span.stop), min(span.start + first + count, span.stop))
    ids, sampled = tokens.token_ids[here].tolist(), tokens.sampled[here]
    return TokenColumns(
        begins=here.start - span.start,
        total=span.stop - span.start,
        id=ids,
        text=texts(ids),
        sampled=sampled.tolist(),
        logprob=_where(sampled, tokens.logprobs[here]),
        version=[int(v) if was else None for v, was in zip(tokens.versions[here], sampled, strict=True)],
        **_marked(found, here),
    )


def _marked(found: Archived, here: slice) -> dict[str, Any]:
    """What the step made of these tokens: columns over all of them, from those over the sampled ones."""
    marks, names, sampled = found.marks, ("advantage", "trainer_logprob", "entropy"), found.tokens.sampled
    if marks is None or len(marks.mask) != int(sampled.sum()):  # of another session by that name
        return dict.fromkeys((*names, "mask"))
    before = int(sampled[: here.start].sum())
    of_sampled = slice(before, before + int(sampled[here].sum()))
    columns = (marks.advantages, marks.trainer_logprobs, marks.entropies)
    told: dict[str, Any] = {
        name: _where(sampled[here], _spread(sampled[here], column[of_sampled]))
        for name, column in zip(names, columns, strict=True)
    }
    codes = np.full(len(sampled[here]), len(MASKS))
    codes[sampled[here]] = marks.mask[of_sampled]
    told["mask"] = [MASKS[code] if code < len(MASKS) else None for code in codes.tolist()]
    return told


def _spread(sampled: np.ndarray, values: np.ndarray) -> np.ndarray:
    column = np.full(len(sampled), np.nan, np.float32)
    column[sampled] = values
    return column


def _where(sampled: np.ndarray, values: np.ndarray) -> list[float | None]:
    return [
        float(f"{value:.6g}") if is_sampled and math.isfinite(value) else None
        for value, is_sampled in zip(values.tolist(), sampled.tolist(), strict=True)
    ]
