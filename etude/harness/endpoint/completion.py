"""An endpoint's answer, in a form that does not depend on the dialect.

Owns the pieces of a streamed message, the complete message, and the two protocols that a dialect implements. Data only.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class TextDelta:
    """More of what the model says, or of what it thinks."""

    text: str
    kind: Literal["text", "reasoning"] = "text"


@dataclass(frozen=True)
class CallDelta:
    """More of a call's arguments, which are JSON. The first piece of a call may be empty: it tells the name."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True)
class Retry:
    """The message is asked for once more: what was told of it counts no longer."""

    why: str
    after_s: float


Delta: TypeAlias = TextDelta | CallDelta | Retry
OnDelta: TypeAlias = Callable[[Delta], None]


@dataclass(frozen=True)
class NativeCall:
    """A call as the endpoint tells it; `arguments` are JSON text, unless the server sends what is none."""

    id: str
    name: str
    arguments: Any

    @property
    def raw(self) -> str:
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)
        return f"{self.name}({text})"


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, as the server counts them."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True)
class Completion:
    """One message. `items` are how it stands in the conversation that goes back to the endpoint."""

    text: str
    reasoning: str
    calls: tuple[NativeCall, ...]
    cut: bool
    usage: Usage | None
    items: tuple[Json, ...]
    as_written: bool = False
    """Whether the text is the whole message of a model of ours, calls and all: some of them are malformed."""


class BadAnswer(Exception):
    """An answer that is none: it broke off, or tells of an error. Becomes another attempt, or an error that says what
    to do; `code` is the server's name for it."""

    def __init__(self, why: str, code: str = "") -> None:
        super().__init__(why)
        self.code = code


class Reader(Protocol):
    """Reads one answer, as events or whole. Raises Fault."""

    def event(self, event: Json) -> None: ...

    def whole(self, answer: Json) -> None: ...

    @property
    def complete(self) -> bool:
        """Whether the answer was ended by the server, and not by its connection."""
        ...

    def completion(self) -> Completion: ...


class Dialect(Protocol):
    """How a conversation is written as one route wants it."""

    path: str
    items_key: str

    def opening(self, system: str, user: str) -> list[Json]: ...

    def user(self, text: str, images: Sequence[str] = ()) -> Json:
        """The user's words, and pictures after them, each as a `data:` address."""
        ...

    def result(self, call_id: str, text: str) -> Json: ...

    def head(self, tools: Sequence[Json], max_tokens: int) -> Json:
        """A request's body, but for its items. `tools` are schemas, as `ToolSchema.json_schema` gives them."""
        ...

    def adapt(self, said: str) -> bool:
        """Leave out or rename what the server says it does not know, of what this dialect adds by itself; False if
        there is nothing."""
        ...

    def reader(self, tell: OnDelta) -> Reader: ...


def written(text: str, read: Completion) -> Completion:
    """A message as its model wrote it, in place of what the server could make of it."""
    message = {"role": "assistant", "content": text}
    return replace(read, text=text, calls=(), items=(message,), as_written=True)


def fault_of(error: Any) -> BadAnswer:
    """An error told inside an answer that began well."""
    if not isinstance(error, dict):
        return BadAnswer(str(error)[:300])
    return BadAnswer(str(error.get("message") or error)[:300], str(error.get("code") or error.get("type") or ""))


def sendable_arguments(arguments: object) -> str:
    """A call's arguments as they can stand in a conversation. Servers fail on what is no JSON object: its text is
    wrapped, so that the model still sees what it wrote."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    return json.dumps({"malformed": text} if text.strip() else {})


_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


def sendable_name(name: str) -> str:
    """A tool's name as it can stand in a conversation: endpoints check its form, whatever their model writes."""
    return _NO_NAME.sub("_", name)[:64] or "nameless"


def with_ids(calls: Sequence[NativeCall]) -> tuple[NativeCall, ...]:
    """The calls of a message, each with an id of its own; some servers give none, or one to all."""
    seen: set[str] = set()
    named = []
    for call in calls:
        id = call.id if call.id and call.id not in seen else f"call_{secrets.token_hex(8)}"
        seen.add(id)
        named.append(replace(call, id=id))
    return tuple(named)


def as_object(value: Any) -> Json:
    """An object, or an empty one for null. Raises Fault for what is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAnswer(f"where an object belongs stands {str(value)[:80]!r}")
    return value


def as_list(value: Any) -> list[Any]:
    """A list, or an empty one for null. Raises Fault for what is none."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAnswer(f"where a list belongs stands {str(value)[:80]!r}")
    return value


def as_word(value: Any) -> str:
    """A name or an id: some servers number them; empty for what is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else ""


def first_int(table: object, *keys: str) -> int:
    """The first of these keys that holds a count; 0 if none does. A server's word is none that could lower a bill."""
    if isinstance(table, Mapping):
        for key in keys:
            if isinstance(value := table.get(key), int) and value >= 0:
                return int(value)
    return 0
