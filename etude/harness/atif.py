"""A session in the Agent Trajectory Interchange Format, version 1.8, which Harbor reads.

Owns `trajectory`, a view of a session's log, and `encoded`, its bytes. A step is one message: of the system, of the
user, or of the model with its calls and their results. What was undone is left out. The context after a summary is
written in full, as the model read it, and marked as copied, so that it is not trained on twice. Each message has its
token ids, log-probabilities and versions where the log has them; text is never tokenised here. Reads only events and
their records, and imports nothing of Harbor.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from etude.harness.events import Record
from etude.harness.rewind import Rewind
from etude.harness.state import Turn
from etude.harness.summary import REQUEST
from etude.harness.tools import TOOLSETS
from etude.records import Event

SCHEMA = "ATIF-v1.8"
_AGENT = "etude"
Json: TypeAlias = dict[str, Any]


def trajectory(log: Iterable[tuple[Event, Record]], version: str) -> Json:
    """The whole session as one trajectory. `version` is Etude's, of a log that does not tell which one wrote it."""
    lines = list(log)
    rewind, told = Rewind(event for event, _ in lines), _TrajectoryBuilder()
    standing = 0
    for number, (event, record) in enumerate(lines):
        standing += rewind.is_current(number)
        if rewind.is_current(number) or event.kind == "model":  # which model is asked is no part of what is undone
            told.take(event, record)
    about = told.about
    agent: Json = {"name": _AGENT, "version": about.get("version", version), "model_name": about.get("model")}
    agent["tool_definitions"] = _tool_definitions(about)
    extra = {key: about[key] for key in ("workspace", "parent", "parent_line", "seed", "temperature") if key in about}
    extra |= {"events": len(lines), "events_undone": len(lines) - standing, "contexts": told.context}
    whole = {
        "schema_version": SCHEMA, "session_id": about.get("id"), "agent": agent, "steps": told.steps,
        "final_metrics": told.final_metrics(), "extra": extra,
    }  # fmt: skip
    return _without_none(whole)


def encoded(whole: Json) -> bytes:
    """JSON, for people too. A lone surrogate, which no reader of UTF-8 takes, becomes `?`."""
    return json.dumps(whole, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"


class _TrajectoryBuilder:
    """The fold of a log into steps."""

    def __init__(self) -> None:
        self.steps: list[Json] = []
        self.about: Mapping[str, Any] = {}
        self.context = 1
        self._model: str | None = None
        self._system: str | None = None
        self._fresh = False
        """Whether a context has ended and the next one has not begun."""
        self._turns: dict[int, Json] = {}
        self._ids: list[int] = []
        """Of the context so far."""
        self._totals: Counter[str] = Counter()
        self._usage: Mapping[str, int] = {}
        self._clock: tuple[datetime, float] | None = None
        """A time of day, and what the log's clock showed then."""

    def take(self, event: Event, record: Record) -> None:
        data = event.data
        match event.kind:
            case "session" | "resumed":
                self._begin(event)
            case "model":
                self._model = data["model"]
            case "prompt" | "opening":
                self._open(event, record)
            case "completion":
                self._message(event, record)
            case "tool_call":
                self._call(data)
            case "tool_result":
                self._result(data)
            case "observation":
                self._hear(record)
                self._told_of_a_cut(self._turns[data["turn"]])
            case "summary_asked":
                self._hear(record)
                self._step(
                    event,
                    "system",
                    data.get("request", REQUEST),
                    asked_because=data["reason"],
                    context_tokens=data["before"],
                )
            case "summary":
                said = {key: data[key] for key in ("number", "reason", "before", "after")}
                self._by_model(event, record, data["text"], summary=said)
            case "segment_sealed":
                self.context, self._fresh, self._ids = self.context + 1, True, []
            case "end":
                self._usage = data["usage"]

    def final_metrics(self) -> Json:
        totals = {f"total_{name}": count for name, count in self._totals.items()}
        return {**totals, "total_steps": len(self.steps), "extra": dict(self._usage) or None}

    # --- what was said ------------------------------------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        if event.kind == "session":
            self.about, self._model = event.data, event.data.get("model")
        if time := event.data.get("time"):
            self._clock = datetime.fromisoformat(time), event.at

    def _open(self, event: Event, record: Record) -> None:
        """A prompt, or a context that goes on where a summary ended the one before."""
        data = event.data
        copied, self._fresh = self._fresh, False
        if copied or data["system"] != self._system:
            self._step(event, "system", data["system"], copied)
            self._system = data["system"]
        if copied:
            self._step(event, "user", _words_for_user(record), copied)
        if event.kind == "prompt":
            self._step(event, "user", data["user"])
        self._hear(record)

    def _message(self, event: Event, record: Record) -> None:
        data = event.data
        more = {"cut_off": True} if data["finish"] != "stop" else {}
        more |= {"repeated": data["repeated"]} if "repeated" in data else {}
        self._turns[data["turn"]] = self._by_model(event, record, data["text"], turn=data["turn"], **more)

    def _call(self, data: Mapping[str, Any]) -> None:
        call: Json = {"tool_call_id": _call_id(data), "function_name": data["name"]}
        if "arguments" in data:
            call["arguments"] = data["arguments"]
        else:
            call |= {"arguments": {}, "extra": {"malformed": data["raw"]}}
        self._turns[data["turn"]].setdefault("tool_calls", []).append(call)

    def _result(self, data: Mapping[str, Any]) -> None:
        """Results stand in the order of their calls, whichever came first."""
        step = self._turns[data["turn"]]
        results = step.setdefault("observation", {"results": []})["results"]
        extra = {"error": True} if data["error"] else None
        results.append({"source_call_id": _call_id(data), "content": data["text"], "extra": extra})
        order = [call["tool_call_id"] for call in step["tool_calls"]]
        results.sort(key=lambda result: order.index(result["source_call_id"]))

    def _told_of_a_cut(self, step: Json) -> None:
        """A message that was cut off before it called for anything is answered all the same."""
        if "cut_off" in step["extra"] and "tool_calls" not in step:
            extra = step["extra"]
            tokens, repeated = step["metrics"]["completion_tokens"], extra.get("repeated", "")
            turn = Turn(extra["turn"], tokens, cut=True, calls=(), repeated=repeated)
            step["observation"] = {"results": [{"content": text} for text in turn.texts()]}

    # --- as steps -----------------------------------------------------------------------------------------------------

    def _step(self, event: Event, source: str, message: str, copied: bool = False, **extra: Any) -> Json:
        step: Json = {
            "step_id": len(self.steps) + 1, "timestamp": self._time(event), "source": source, "message": message,
            "is_copied_context": copied or None, "extra": {"context": self.context, **extra},
        }  # fmt: skip
        self.steps.append(step)
        return step

    def _by_model(self, event: Event, record: Record, text: str, **extra: Any) -> Json:
        step = self._step(event, "agent", text, **extra)
        step |= {"model_name": self._model, "reasoning_content": record.get("reasoning") or None, "llm_call_count": 1}
        step["metrics"] = self._metrics(event.data, record)
        self._hear(record)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            self._totals[name] += step["metrics"].get(name, 0)
        return step

    def _metrics(self, data: Mapping[str, Any], record: Record) -> Json:
        """As the endpoint counted, where it did; exact where the log has the ids themselves."""
        if "ids" in record:
            known: Json = {"prompt_tokens": len(self._ids), "completion_tokens": len(record["ids"])}
            known |= {"prompt_token_ids": list(self._ids), "completion_token_ids": list(record["ids"])}
            return {**known, "logprobs": list(record["logprobs"]), "extra": {"versions": list(record["versions"])}}
        usage = record.get("usage")
        if not usage:
            return {"completion_tokens": data["tokens"]}
        counted = {"prompt_tokens": usage["prompt"], "completion_tokens": usage["completion"] or data["tokens"]}
        return {**counted, "cached_tokens": usage["cached"]}

    def _hear(self, record: Record) -> None:
        self._ids += record.get("ids", ())

    def _time(self, event: Event) -> str | None:
        if self._clock is None:
            return None
        then, at = self._clock
        return (then + timedelta(seconds=event.at - at)).isoformat(timespec="milliseconds")


def _call_id(data: Mapping[str, Any]) -> str:
    return f"{data['turn']}.{data['index']}"


def _words_for_user(record: Record) -> str:
    """What the user was made to say, where the record holds words; the ids of a record of ids stand beside messages."""
    items: Sequence[Json] = record.get("items", ())
    said = [item["content"] for item in items if item.get("role") == "user"]
    return "\n".join(each for each in said if isinstance(each, str))


def _tool_definitions(about: Mapping[str, Any]) -> list[Json] | None:
    """Of Etude's own tools; those of MCP servers are in no log."""
    tools = {tool.name: tool for tool in TOOLSETS.get(about.get("toolset", ""), ())}
    names = [name for name in about.get("tools", ()) if name in tools]  # others may not be installed here
    return [{"type": "function", "function": tools[name].json_schema()} for name in names] or None


def _without_none(value: Any) -> Any:
    """Keys without a value are left out; what a model or a tool said is never looked into."""
    if isinstance(value, dict):
        return {key: _without_none(each) if key in _OURS else each for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


_OURS = {"agent", "steps", "observation", "results", "metrics", "final_metrics"}
