"""Anthropic's form of a conversation: messages made of blocks.

Owns the bodies of /v1/messages, how they become turns and tools, and an answer's blocks as they grow: each is begun,
grows by deltas and ends before the next begins. The same growth makes the whole answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from etude.engine.server.bodies import (
    BareSchema,
    Body,
    Common,
    Function,
    Many,
    NamedFunction,
    No,
    NoItems,
    Null,
    StopText,
    type_of,
)
from etude.engine.server.calls import CallPiece, Event, Words
from etude.engine.server.errors import bad
from etude.engine.server.inert import Ignored, Inert
from etude.engine.server.prompts import Turn

_HOSTED = r"^(web_search|web_fetch|code_execution|tool_search_tool_(regex|bm25))(_\d{8})?$"


class Block(Body):
    cache_control: Ignored = None
    """A hint where to cache; what has been computed is found again without it."""


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: NoItems | None = None


class CallBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]
    caller: Ignored = None


class ThoughtBlock(Body):
    """What another model thought. It is not told to ours."""

    model_config = ConfigDict(extra="allow")
    inert: ClassVar[bool] = True
    type: Literal["thinking", "redacted_thinking"]


class ResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[TextBlock] | None = None
    is_error: bool | None = None


def _block_kind(block: Any) -> str:
    kinds = {"text": "Text", "tool_use": "Call", "tool_result": "Result"}
    kind = type_of(block, "")
    return "Thought" if kind in ("thinking", "redacted_thinking") else kinds.get(kind, "none")


MessageBlock = Annotated[
    Annotated[TextBlock, Tag("Text")]
    | Annotated[CallBlock, Tag("Call")]
    | Annotated[ResultBlock, Tag("Result")]
    | Annotated[ThoughtBlock, Tag("Thought")],
    Discriminator(
        _block_kind,
        custom_error_type="block",
        custom_error_message="is no block known here: text, tool_use, tool_result, thinking; models here read text",
    ),
]


class MessageBody(Body):
    """One message. A system message may stand anywhere."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[Many[MessageBlock], Field(min_length=1)]


class Tool(Block):
    """A tool that the client runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: Ignored = None
    """Arguments are always streamed as they are written."""
    defer_loading: No | None = None
    allowed_callers: Many[Literal["direct"]] | None = None


class HostedTool(Body):
    """A tool that Anthropic's own server would run. There is none here, so the model is not told of it."""

    model_config = ConfigDict(extra="allow")
    inert: ClassVar[bool] = True
    type: str = Field(pattern=_HOSTED)
    name: str


def _tool_kind(tool: Any) -> str:
    kind = type_of(tool, "custom")
    return "Custom" if kind == "custom" else "Hosted" if re.match(_HOSTED, kind) else "none"


GivenTool = Annotated[
    Annotated[Tool, Tag("Custom")] | Annotated[HostedTool, Tag("Hosted")],
    Discriminator(
        _tool_kind,
        custom_error_type="tool",
        custom_error_message="is no tool known here: give its input_schema, and type custom or none",
    ),
]


class Choice(Body):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class ChosenTool(Body):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Leave to think first, up to a budget. Ours have no thoughts apart from what they say."""

    type: Literal["disabled", "enabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: str | None = None


class ClearThinking(Body):
    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Body):
    """What to leave out of a long conversation. Thoughts are left out in any case; anything else would be missed."""

    edits: Many[ClearThinking] = []


class OutputConfig(Body):
    effort: Ignored = None
    """How thorough to be, to a model that can be told; ours cannot."""
    format: BareSchema | None = None


class Conversation(Body):
    """What a prompt is made of."""

    messages: Many[MessageBody] = Field(min_length=1)
    system: str | Many[TextBlock] | None = None
    tools: Many[GivenTool] | None = Field(None, max_length=128)
    tool_choice: Choice | ChosenTool | None = None
    thinking: Annotated[Thinking | None, Inert()] = None
    context_management: Annotated[ContextManagement | None, Inert()] = None
    output_config: OutputConfig | None = None
    cache_control: Ignored = None


class CountBody(Conversation):
    """POST /v1/messages/count_tokens."""

    model: str | None = None


class MessagesBody(Common, Conversation):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Many[StopText] = Field([], max_length=16)
    metadata: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    container: Null = None
    mcp_servers: NoItems | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (*super().stops, *self.stop_sequences)


# --- from bodies ------------------------------------------------------------------------------------------------------


def turns_of_blocks(body: Conversation) -> list[Turn]:
    """The conversation. Raises ApiError for what could not be rendered faithfully."""
    turns = [] if body.system is None else [Turn("system", _text(body.system))]
    for number, message in enumerate(body.messages):
        blocks = [TextBlock(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        turns += _TURNS[message.role](blocks, f"messages.{number}.content")
    if not turns:
        raise bad("messages", "there is nothing in them but thoughts, and no model here is told those")
    if turns[-1].role == "assistant":
        raise bad("messages", "the last one is the assistant's; going on in the middle of a message is not built")
    return turns


def _of_assistant(blocks: Sequence[Body], where: str) -> list[Turn]:
    if any(isinstance(block, ResultBlock) for block in blocks):
        raise bad(where, "only a user's message brings tool results")
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    return [Turn("assistant", text, tuple((each.name, each.input) for each in blocks if isinstance(each, CallBlock)))]


def _of_user(blocks: Sequence[Body], where: str) -> list[Turn]:
    """Results come first in a turn, whatever the order of the blocks: the words that follow are about them."""
    if any(isinstance(block, CallBlock) for block in blocks):
        raise bad(where, "only an assistant calls tools")
    words = [block.text for block in blocks if isinstance(block, TextBlock)]
    results = [Turn("tool", _text(block.content or "")) for block in blocks if isinstance(block, ResultBlock)]
    return [*results, Turn("user", "".join(words))] if words else list(results)


def _of_system(blocks: Sequence[Body], where: str) -> list[Turn]:
    if not all(isinstance(block, TextBlock) for block in blocks):
        raise bad(where, "a system message is text")
    return [Turn("system", "".join(block.text for block in blocks if isinstance(block, TextBlock)))]


_TURNS = {"assistant": _of_assistant, "user": _of_user, "system": _of_system}


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def functions_of(tools: Iterable[Tool | HostedTool]) -> list[Function]:
    """Tools as the other routes know them, but for those that nobody here could run."""
    return [
        Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
        for tool in tools
        if isinstance(tool, Tool)
    ]


def choice_of(choice: Choice | ChosenTool | None) -> str | NamedFunction:
    """Which tools may or must be called, as the other routes say it."""
    if isinstance(choice, ChosenTool):
        return NamedFunction(name=choice.name)
    return {"any": "required", "none": "none"}.get("auto" if choice is None else choice.type, "auto")


# --- answers ----------------------------------------------------------------------------------------------------------


class Blocks:
    """The content of one answer. `content` holds what there is so far."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self._open = False
        self._call = -1
        """The open block's call, if it is one."""
        self._arguments = ""

    def grow(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """What is to be told of these."""
        for each in events:
            if isinstance(each, Words):
                yield from self._grow_text(each.text)
            else:
                yield from self._grow_call(each)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Nothing follows."""
        if self._open:
            self._open, self._call = False, -1
            yield self._told("content_block_stop")

    def _grow_text(self, text: str) -> Iterator[dict[str, Any]]:
        if not self._open or self._call >= 0:
            yield from self._begin({"type": "text", "text": ""}, -1)
        self.content[-1]["text"] += text
        yield self._told("content_block_delta", delta={"type": "text_delta", "text": text})

    def _grow_call(self, piece: CallPiece) -> Iterator[dict[str, Any]]:
        if not self._open or self._call != piece.index:
            block = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
            yield from self._begin(block, piece.index)
            self._arguments = ""
        self._arguments += piece.arguments
        yield self._told("content_block_delta", delta={"type": "input_json_delta", "partial_json": piece.arguments})
        if piece.complete:
            self.content[-1]["input"] = json.loads(self._arguments)
            yield from self.finish()

    def _begin(self, block: dict[str, Any], call: int) -> Iterator[dict[str, Any]]:
        yield from self.finish()
        self._open, self._call = True, call
        self.content.append(block)
        yield self._told("content_block_start", content_block=dict(block))

    def _told(self, kind: str, **told: Any) -> dict[str, Any]:
        return {"type": kind, "index": len(self.content) - 1, **told}
