"""What a session knows: the fold of its log.

Owns `SessionState` and `Turn`. `apply` is the only thing that changes either, with each event as it is committed, or
with those of a log whose process is gone; so a session that was killed stands exactly where its log ends. Decides
nothing: `harness.session` does.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from etude.harness.conduct import LINTS, READS
from etude.harness.dialogue import Dialogue
from etude.harness.events import EventLog, Record, decoded
from etude.harness.rewind import Rewind
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools import ToolResult
from etude.records import Event, EventKind, Segment

Stop: TypeAlias = Literal["finished", "turns", "context", "tokens", "wall", "repetition"]
"""How a prompt ended: by itself, by a limit, or because the model fell into saying or doing the same over and over."""

_COUNTS = (
    "turns", "tool_calls", "malformed_calls", "parallel_turns", "cut_messages", "sampled_tokens", "observed_tokens",
    "error_observations", "overdue_calls", "summaries",
)  # fmt: skip


def no_counts() -> dict[str, int]:
    """What a session counts, before its first turn."""
    return dict.fromkeys(_COUNTS, 0)


_WRITING = ("edit_file", "write_file")
_LOOKING = READS | {LINTS}
"""Tools that leave everything as it was. The same call of any other, or of a plug-in, may mean something else the next
time, if it succeeds: a command that waits for a server is no repetition."""
_LATELY = 4
"""Turns that a repetition is looked for in. What is read once more after many others may have been forgotten."""


@dataclass
class Turn:
    """A message of the model, until what it called for has been answered."""

    number: int
    tokens: int
    cut: bool
    calls: Sequence[ToolCall | MalformedCall]
    announced: int = 0
    """How many of the calls are in the log."""
    started: set[int] = field(default_factory=set)
    results: dict[int, ToolResult] = field(default_factory=dict)
    repeated: str = ""
    """What it said over and over, where it was cut for that."""

    def name(self, index: int) -> str:
        call = self.calls[index]
        return call.name if isinstance(call, ToolCall) else "malformed"

    def texts(self) -> list[str]:
        """The results, in call order; a message cut off before it called for anything is told so."""
        if self.repeated:
            return [f"error: {cut_for(self.repeated)}, and no call in it was run; go on, and say or do something else"]
        if not self.calls and self.cut:
            return [f"error: your message was cut off after {self.tokens} tokens; write shorter ones"]
        return [self.results[index].text for index in sorted(self.results)]


@dataclass
class Cut:
    """The end of a context: the model was asked for a summary, and perhaps has written it."""

    reason: Literal["context", "command"]
    before: int
    """How many tokens the context had when it was asked."""
    text: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A moment to go back to: the files, and how many lines of the log lead there."""

    of: Literal["prompt", "turn"]
    """Before a prompt, or after a turn."""
    turn: int
    line: int
    snapshot: str


class SessionState:
    """Takes up a log with a past. `dialogue` is folded along: it must be fresh, and nobody else may tell it anything.

    Segments that were sealed are kept, of a dialogue that knows token ids.
    """

    def __init__(self, dialogue: Dialogue, log: EventLog) -> None:
        self.dialogue, self.log = dialogue, log
        self._fold()

    def _fold(self) -> None:
        """Everything anew, from the events that stand."""
        self.dialogue.seal("turns")
        self.usage = no_counts()
        self.begun = False
        self.model = ""
        """The name of the model that is asked; empty where no name tells it, as in training."""
        self.system = ""
        """The system prompt that the model was told last."""
        self.prompts: list[str] = []
        """What the user said, in order; the first is the task."""
        self.turn: Turn | None = None
        """The last message of the model, until its answer is in the context."""
        self.turns_before_prompt = 0
        self.turns_before_context = 0
        """Turns that were over when the last prompt, and when this context, began."""
        self.repetitions = 0
        """Messages since the last prompt that were cut for repeating themselves."""
        self.stale_turns = 0
        """Turns in a row, up to the last one, that told the model nothing: it had made each of their calls within the
        turns just before, was answered the same, and none of them acted."""
        self._answered: deque[set[bytes]] = deque(maxlen=_LATELY)
        self.tools_s = 0.0
        """Seconds since the last prompt in which a call ran, as far as such stretches are over."""
        self._running: set[int] = set()
        self._running_since = 0.0
        self.stop: Stop | None = None
        """How the last prompt ended; None while it has not."""
        self.cut: Cut | None = None
        self.contexts = 0
        """How many have been cut."""
        self.summary = ""
        """Of the last of them; empty where there is none."""
        self.changed: dict[str, None] = {}
        """Files that tools changed, in the order of their first change."""
        self.todos = ""
        """The answer to the last change of the list."""
        self.checkpoints: list[Checkpoint] = []
        self.sealed: list[Segment] = []
        if (journal := self.log.journal) is not None:
            rewind = Rewind(event for event, _ in decoded(journal.path))
            for line, (event, record) in enumerate(decoded(journal.path)):
                if rewind.is_current(line) or event.kind == "model":  # which model is asked is no part of what was said
                    self._apply(event, record)

    def commit(self, kind: EventKind, record: Record | None = None, **data: Any) -> None:
        """Make it so: in the log first, and then here."""
        event = self.log.add(kind, record=record, **data)
        if kind in ("undo", "redo"):
            self._fold()
        else:
            self._apply(event, record or {})

    @property
    def tools_run(self) -> bool:
        """Whether a call runs now."""
        return bool(self._running)

    @property
    def open_turn(self) -> Turn:
        """The turn that must be open now."""
        assert self.turn is not None, "an event of a call stands outside any turn"
        return self.turn

    def _apply(self, event: Event, record: Record) -> None:
        """Take one event in. Kinds that change nothing here are for those who watch."""
        data = event.data
        match event.kind:
            case "session":
                self.begun, self.model = True, data.get("model", "")
            case "model":
                self.model = data["model"]
            case "prompt":
                self._prompt(event, record)
            case "completion":
                self._completion(event, record)
            case "tool_call":
                self.open_turn.announced += 1
            case "tool_started":
                self.open_turn.started.add(data["index"])
                self._running_since = self._running_since if self._running else event.at
                self._running.add(data["index"])
            case "tool_result":
                self._result(self.open_turn, data["index"], _result_of(data))
                if self._running:
                    self._running.discard(data["index"])
                    self.tools_s += 0.0 if self._running else event.at - self._running_since
            case "resumed":
                self._running.clear()  # nobody knows for how long it ran
            case "observation" | "opening":
                self.dialogue.append_input(record)
                self.usage["observed_tokens"] += data["tokens"]
                self.turn, self.system = None, data.get("system", self.system)
            case "summary_asked":
                self.dialogue.append_input(record)
                self.usage["observed_tokens"] += data["tokens"]
                self.turn, self.cut = None, Cut(data["reason"], data["before"])
            case "summary":
                self._summary(event, record)
            case "segment_sealed":
                self._seal(data["segment"])
            case "checkpoint" if "snapshot" in data:
                self.checkpoints.append(Checkpoint(data["of"], data["turn"], data["line"], data["snapshot"]))
            case "end":
                self.stop = data["stop"]

    def _prompt(self, event: Event, record: Record) -> None:
        if self.prompts:
            self.usage["observed_tokens"] += event.data["tokens"]
        self.system = event.data["system"]
        self.prompts.append(event.data["user"])
        self.dialogue.append_input(record)
        self.turn, self.stop, self.turns_before_prompt = None, None, self.usage["turns"]
        self.tools_s, self.repetitions = 0.0, 0
        self._forget_turns()
        self._running.clear()

    def _completion(self, event: Event, record: Record) -> None:
        data, cut = event.data, event.data["finish"] != "stop"
        self.dialogue.append_reply(record)
        calls = self.dialogue.calls(record, data["text"], cut)
        well_formed = sum(isinstance(call, ToolCall) for call in calls)
        self.turn = Turn(data["turn"], data["tokens"], cut, calls, repeated=data.get("repeated", ""))
        self.repetitions += bool(self.turn.repeated)
        self.usage["turns"] += 1
        self.usage["sampled_tokens"] += data["tokens"]
        self.usage["cut_messages"] += cut
        self.usage["tool_calls"] += well_formed
        self.usage["malformed_calls"] += len(calls) - well_formed
        self.usage["parallel_turns"] += well_formed >= 2

    def _result(self, turn: Turn, index: int, result: ToolResult) -> None:
        turn.results[index] = result
        self.usage["error_observations"] += result.error
        self.usage["overdue_calls"] += result.overdue
        if len(turn.results) == len(turn.calls):
            self._weigh(turn)
        call = turn.calls[index]
        if result.error or not isinstance(call, ToolCall):
            return
        if call.name in _WRITING:
            self.changed[str(call.arguments["path"])] = None
        elif call.name == "todo_write":
            self.todos = result.text

    def _weigh(self, turn: Turn) -> None:
        """Whether a turn with all its results has told the model anything."""
        answered = {_digest(turn.calls[index], result.text) for index, result in turn.results.items()}
        acted = any(turn.name(index) not in _LOOKING and not result.error for index, result in turn.results.items())
        self.stale_turns = 0 if acted or answered - set().union(*self._answered) else self.stale_turns + 1
        self._answered.append(answered)

    def _forget_turns(self) -> None:
        self.stale_turns = 0
        self._answered.clear()

    def _summary(self, event: Event, record: Record) -> None:
        assert self.cut is not None, "a summary stands where none was asked for"
        self.dialogue.append_reply(record)
        self.usage["sampled_tokens"] += event.data["tokens"]
        self.usage["summaries"] += 1
        self.cut.text = event.data["text"]

    def _seal(self, kind: Literal["turns", "summary"]) -> None:
        segment = self.dialogue.seal(kind)
        if segment is not None:
            self.sealed.append(segment)
        if self.cut is not None:
            self.contexts += 1
            self.summary = self.cut.text or ""
            self._forget_turns()  # as the model does: what it reads again is no repetition
        self.cut, self.turns_before_context = None, self.usage["turns"]


def cut_for(repeated: str) -> str:
    """What is said, to the model and to the user, of a message that was cut for what it repeated."""
    return f"the answer was cut off, because it repeated {repeated}"


def _digest(call: ToolCall | MalformedCall, answer: str) -> bytes:
    """Stands for a call with its answer, which may be long."""
    said = call.raw if isinstance(call, MalformedCall) else [call.name, dict(call.arguments)]
    return hashlib.blake2b(json.dumps([said, answer], sort_keys=True).encode(), digest_size=16).digest()


def _result_of(data: Mapping[str, Any]) -> ToolResult:
    return ToolResult(data["text"], data["error"], data.get("overdue", False))
