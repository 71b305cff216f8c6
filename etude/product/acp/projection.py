"""What a client is shown of a session: its events, the model's words and the commands' output, as protocol updates.

Owns `Projection`. It is told everything as it happens, or, when a session is loaded, its past events one after the
other; both come to the same but for words, which a past message has whole. Calls are shown from the model's first word
of them: a file that is written at length can be seen to come. What no event ever ends (a call that was cancelled) is
closed by `settle`. Never waits and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from acp.helpers import text_block
from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    Cost,
    SessionInfoUpdate,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
    UserMessageChunk,
)

from etude.harness.endpoint import CallDelta, Delta, Retry, TextDelta
from etude.harness.events import Record
from etude.harness.protocol import Text, parse_message
from etude.harness.state import cut_for
from etude.product.acp import calls
from etude.product.acp.commands import Screen
from etude.product.acp.outbox import Update
from etude.product.files import on_this_machine, text_of
from etude.records import Event

_WHY = {
    "turns": "This prompt has used its turns (max_turns). /continue goes on.",
    "tokens": "This session has used its tokens (max_sampled_tokens).",
    "wall": "This prompt has used its time (wall_s). /continue goes on.",
    "context": "The model's context is too small to go on in.",
    "repetition": "The model repeats itself. Say what else it could try, or use another model.",
}


@dataclass
class _Call:
    """One that the client knows of."""

    name: str
    arguments: Mapping[str, Any]
    screen: Screen | None = None
    before: str | None = None
    comparable: bool = False
    """Whether the file of an edit can be shown as it was; `before` None is then one that was not there."""


class Projection:
    """Of one session. `size` is the model's context in tokens, `text_calls` whether calls stand in its text."""

    def __init__(
        self, add: Callable[[Update], None], directory: Path, size: int, *, terminals: bool, text_calls: bool
    ) -> None:
        self._add, self._directory, self._size = add, directory, size
        self.terminals, self._text_calls = terminals, text_calls
        self.live = True
        """Whether events are told as they happen, and not again."""
        self.asking: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """The calls of this turn that nobody has been asked about, by id: (tool, arguments)."""
        self.turn = 0
        """The last that the model has written."""
        self._open: dict[str, _Call] = {}
        self._era = 0
        """Counts undos: turns are numbered anew after one, and what the client knows by an id must stay that."""
        self.cost: Callable[[], Cost | None] = lambda: None
        """What the session has come to, where that is known."""
        self.titled = False
        """Whether the client knows what the session is about."""
        self._summarising = self._spoken = False
        self._noted: set[str] = set()

    # --- what is told -------------------------------------------------------------------------------------------------

    def event(self, event: Event, record: Record | None = None) -> None:
        """One event of the session. `record` is of use where it is a past one."""
        data = event.data
        match event.kind:
            case "prompt":
                self._prompt(data)
            case "completion":
                self._completion(data, record or {})
            case "tool_call":
                self._announced(data)
            case "tool_started":
                self._started(data)
            case "tool_result":
                self._result(data)
            case "observation" | "resumed":
                self.settle()
            case "undo" | "redo":
                self._era += 1
            case "summary_asked":
                self._summarising = True
            case "summary":
                self.note(f"The context was summarised: {data['before']} tokens before, {data['after']} after.")
                self.context(data["after"])
            case "segment_sealed":
                self._summarising = False
            case "checkpoint" if "error" in data and data["error"] not in self._noted:
                self._noted.add(data["error"])
                self.note(f"This turn cannot be undone: {data['error']}")
            case "end":
                self.settle()
                self.note(_WHY.get(data["stop"], ""))

    def delta(self, delta: Delta) -> None:
        """More of the message that the model writes."""
        match delta:
            case TextDelta():
                self._spoken = True
                self._say(delta.text, "thought" if self._summarising or delta.kind == "reasoning" else "message")
            case CallDelta() if delta.name and not self._summarising:
                id = self._id(self.turn + 1, delta.index)
                if id not in self._open and delta.name != calls.PLAN:
                    self._open[id] = _Call(delta.name, {})
                    self._start(id, delta.name, status="pending")
            case Retry():
                self.note(f"The model's endpoint is asked again in {delta.after_s:.0f} s: {delta.why}")

    def printed(self, index: int, piece: bytes) -> None:
        """What a command of this turn printed."""
        call = self._open.get(self._id(self.turn, index))
        if call is not None and call.screen is not None:
            call.screen.printed(piece)

    def preview(self, name: str, arguments: Mapping[str, Any]) -> list[calls.Content]:
        """What an edit would change."""
        return calls.will_change(self._directory, name, arguments, live=True)

    def note(self, text: str) -> None:
        """A word of ours, between those of the model."""
        if text:
            self._say(f"\n\n*{calls.shortened(text, 500)}*\n\n", "message")

    def say(self, text: str) -> None:
        """The answer to a command."""
        self._say(text, "message")

    def settle(self, why: str = "") -> None:
        """Close what is open: nothing of it will end any more."""
        for id in list(self._open):
            self._end(id, "failed", calls.words(why) if why else None)
        self.asking.clear()

    def context(self, tokens: int) -> None:
        """How full the context is."""
        self._add(UsageUpdate(session_update="usage_update", used=tokens, size=self._size, cost=self.cost()))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _say(self, text: str, kind: Literal["message", "thought"]) -> None:
        if text:
            block, id = text_block(calls.clean(text)), f"message-{self.turn + 1}-{self._era}"
            if kind == "message":
                self._add(AgentMessageChunk(session_update="agent_message_chunk", content=block, message_id=id))
            else:
                self._add(
                    AgentThoughtChunk(session_update="agent_thought_chunk", content=block, message_id=f"{id}-thought")
                )

    def _prompt(self, data: Mapping[str, Any]) -> None:
        self.settle()
        if not self.live:
            block = text_block(calls.clean(data["user"]))
            self._add(UserMessageChunk(session_update="user_message_chunk", content=block))
        if not self.titled:
            self.titled = True
            self._add(SessionInfoUpdate(session_update="session_info_update", title=calls.shortened(data["user"], 80)))

    def _completion(self, data: Mapping[str, Any], record: Record) -> None:
        if not self._spoken:
            self._say(str(record.get("reasoning") or ""), "thought")
            self._say(self._without_calls(data["text"]), "message")
        if "repeated" in data:
            self.note(f"{cut_for(data['repeated'])}.".capitalize())
        self._spoken, self.turn = False, data["turn"]
        self.context(data["context"])

    def _without_calls(self, text: str) -> str:
        if not self._text_calls:
            return text
        return "".join(item.text for item in parse_message(text, {}, False) if isinstance(item, Text))

    # --- calls --------------------------------------------------------------------------------------------------------

    def _id(self, turn: int, index: int) -> str:
        return f"call-{turn}-{index}-{self._era}"

    def _announced(self, data: Mapping[str, Any]) -> None:
        id, name = self._id(data["turn"], data["index"]), data["name"]
        arguments = data.get("arguments", {"malformed": data.get("raw", "")})
        if name == calls.PLAN and "arguments" in data:
            return
        shown = id in self._open
        call = self._open[id] = _Call(name, arguments)
        self.asking[id] = (name, arguments)
        content, meta = self._content_before(id, call)
        more: dict[str, Any] = {
            "status": "pending",
            "content": content,
            "locations": calls.locations_of(self._directory, arguments),
            "raw_input": calls.clean_json(dict(arguments)),
            "field_meta": meta,
        }
        if shown:
            self._update(id, title=calls.title_of(name, arguments), kind=calls.kind_of(name), **more)
        else:
            self._start(id, name, arguments, **more)

    def _content_before(self, id: str, call: _Call) -> tuple[list[calls.Content], dict[str, Any] | None]:
        if call.name in calls.EDITS:
            return calls.will_change(self._directory, call.name, call.arguments, live=self.live), None
        if call.name == calls.COMMAND:
            call.screen = Screen(id, self._directory, self.terminals, self._add)
            return call.screen.opening()
        return [], None

    def _started(self, data: Mapping[str, Any]) -> None:
        id = self._id(data["turn"], data["index"])
        if (call := self._open.get(id)) is None:
            return
        if self.live and call.name in calls.EDITS:
            path = on_this_machine(self._directory, str(call.arguments.get("path", "")))
            call.before = text_of(self._directory, path, calls.MAX_SHOWN_BYTES)
            call.comparable = call.before is not None or not path.exists()
        if self.live:
            self._update(id, status="in_progress")

    def _result(self, data: Mapping[str, Any]) -> None:
        id, text = self._id(data["turn"], data["index"]), data["text"]
        if data["name"] == calls.PLAN and not data["error"]:
            self._add(calls.plan_of(text))
        if (call := self._open.get(id)) is None:
            return
        if data["error"]:
            self._end(id, "failed", calls.words(text), raw_output={"error": calls.clean(text)})
            return
        content, meta = self._content_after(call, text)
        locations = calls.locations_of(self._directory, call.arguments, text) if call.name in calls.EDITS else None
        output = {"output": calls.clean(text)}
        self._end(id, "completed", content, locations=locations, raw_output=output, field_meta=meta)

    def _content_after(self, call: _Call, text: str) -> tuple[list[calls.Content] | None, dict[str, Any] | None]:
        if call.screen is not None:
            return call.screen.ended(text)
        if call.name not in calls.EDITS:
            return calls.output(text), None
        if not call.comparable:
            return None, None
        path = on_this_machine(self._directory, str(call.arguments["path"]))
        return calls.has_changed(path, call.before, text_of(self._directory, path, calls.MAX_SHOWN_BYTES)), None

    def _end(self, id: str, status: Literal["completed", "failed"], content: Any = None, **more: Any) -> None:
        call = self._open.pop(id)
        if status == "failed" and call.screen is not None:
            call.screen.close()
        self._update(id, status=status, content=content, **more)

    def _start(self, id: str, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> None:
        title = calls.title_of(name, arguments) if arguments is not None else calls.shortened(name)
        update = ToolCallStart(
            session_update="tool_call", tool_call_id=id, title=title, kind=calls.kind_of(name), **more
        )
        self._add(update)

    def _update(self, id: str, **more: Any) -> None:
        self._add(ToolCallProgress(session_update="tool_call_update", tool_call_id=id, **more))
