"""What a session knows: the fold of its log.

Owns `SessionState` and `Turn`. `apply` is the only thing that changes either, with each event as it is committed, or
with those of a log whose process is gone; so a session that was killed stands exactly where its log ends. Does no I/O
and makes no decision: `harness.session` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from etude.harness.dialogue import Dialogue
from etude.harness.events import Record
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools import ToolResult
from etude.records import Event, Segment

Stop: TypeAlias = Literal["finished", "turns", "context", "tokens", "wall"]

_COUNTS = (
    "turns", "tool_calls", "malformed_calls", "parallel_turns", "cut_messages", "sampled_tokens", "observed_tokens",
    "error_observations",
)  # fmt: skip


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

    def texts(self) -> list[str]:
        """The results, in call order; a message cut off before it called for anything is told so."""
        if not self.calls and self.cut:
            return [f"error: your message was cut off after {self.tokens} tokens; write shorter ones"]
        return [self.results[index].text for index in sorted(self.results)]


class SessionState:
    """`dialogue` is folded along: it must be fresh, and nobody else may tell it anything."""

    def __init__(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self.usage = dict.fromkeys(_COUNTS, 0)
        self.begun = False
        self.system = ""
        self.prompts: list[str] = []
        """What the user said, in order; the first is the task."""
        self.turn: Turn | None = None
        """The last message of the model, until its answer is in the context."""
        self.turns_before = 0
        """Turns that were over before the last prompt."""
        self.stop: Stop | None = None
        """How the last prompt ended; None while it has not."""
        self.sealed: list[Segment] = []

    def replay(self, events: Iterable[tuple[Event, Record]]) -> None:
        for event, record in events:
            self.apply(event, record)

    def apply(self, event: Event, record: Record) -> None:
        """Take one committed event in. Kinds that change nothing here are for those who watch."""
        data = event.data
        match event.kind:
            case "session":
                self.begun = True
            case "prompt":
                self._prompt(event, record)
            case "completion":
                self._completion(event, record)
            case "tool_call":
                self.open_turn.announced += 1
            case "tool_started":
                self.open_turn.started.add(data["index"])
            case "tool_result":
                self.open_turn.results[data["index"]] = ToolResult(data["text"], data["error"])
                self.usage["error_observations"] += data["error"]
            case "observation":
                self.dialogue.hear(record)
                self.usage["observed_tokens"] += data["tokens"]
                self.turn = None
            case "segment_sealed":
                if segment := self.dialogue.seal(data["segment"]):
                    self.sealed.append(segment)
            case "end":
                self.stop = data["stop"]

    @property
    def open_turn(self) -> Turn:
        """The turn that must be open now."""
        assert self.turn is not None, "an event of a call stands outside any turn"
        return self.turn

    def _prompt(self, event: Event, record: Record) -> None:
        if self.prompts:
            self.usage["observed_tokens"] += event.data["tokens"]
        else:
            self.system = event.data["system"]
        self.prompts.append(event.data["user"])
        self.dialogue.hear(record)
        self.turn, self.stop, self.turns_before = None, None, self.usage["turns"]

    def _completion(self, event: Event, record: Record) -> None:
        data, cut = event.data, event.data["finish"] == "length"
        self.dialogue.take(record)
        calls = self.dialogue.calls(record, data["text"], cut)
        well_formed = sum(isinstance(call, ToolCall) for call in calls)
        self.turn = Turn(data["turn"], data["tokens"], cut, calls)
        self.usage["turns"] += 1
        self.usage["sampled_tokens"] += data["tokens"]
        self.usage["cut_messages"] += cut
        self.usage["tool_calls"] += well_formed
        self.usage["malformed_calls"] += len(calls) - well_formed
        self.usage["parallel_turns"] += well_formed >= 2
