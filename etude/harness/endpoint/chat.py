"""Chat completions: the dialect that every compatible server speaks, each a little differently.

Owns how a conversation is written for `/chat/completions`, and how answers are read, whole or as deltas. Servers
differ in whether calls carry an index, an id or a name more than once, in what reasoning is called, and in how a
stream ends; all of that is read. What a server adds to a call or a message for itself (sealed reasoning, signatures)
goes back as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.harness.endpoint.completion import (
    BadAnswer,
    CallDelta,
    Completion,
    Json,
    NativeCall,
    OnDelta,
    TextDelta,
    Usage,
    as_list,
    as_object,
    as_word,
    fault_of,
    first_int,
    sendable_arguments,
    sendable_name,
    with_ids,
    written,
)
from etude.harness.endpoint.config import EndpointConfig

_CUT = {"length", "max_tokens", "model_length"}
_REASONING = ("reasoning_content", "reasoning")
_SEALED, _IN_PIECES = "reasoning_details", {"text", "summary", "data"}


class ChatCompletions:
    """Implements `Dialect`."""

    path = "/chat/completions"
    items_key = "messages"

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._limit_key = "max_tokens"
        self._asks_usage = True

    def opening(self, system: str, user: str) -> list[Json]:
        return [{"role": "system", "content": system}, self.user(user)]

    def user(self, text: str, images: Sequence[str] = ()) -> Json:
        if not images:
            return {"role": "user", "content": text}
        parts = [{"type": "image_url", "image_url": {"url": image}} for image in images]
        return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}

    def result(self, call_id: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    def head(self, tools: Sequence[Json], max_tokens: int) -> Json:
        head: Json = {"model": self._config.model, self._limit_key: max_tokens, "stream": self._config.stream}
        if self._config.stream and self._asks_usage:
            head["stream_options"] = {"include_usage": True}
        if self._config.temperature is not None:
            head["temperature"] = self._config.temperature
        if tools:
            head["tools"] = [{"type": "function", "function": tool} for tool in tools]
        return head

    def adapt(self, said: str) -> bool:
        if "max_completion_tokens" in said and self._limit_key == "max_tokens":
            self._limit_key = "max_completion_tokens"
        elif "stream_options" in said and self._asks_usage:
            self._asks_usage = False
        else:
            return False
        return True

    def reader(self, tell: OnDelta) -> ChatReader:
        return ChatReader(tell, self._config.reasoning == "return")


@dataclass(eq=False)
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    other: Any = None
    """Arguments that are no text."""
    extra: Json = field(default_factory=dict)

    @property
    def arguments(self) -> Any:
        return "".join(self.pieces) if self.other is None else self.other


class ChatReader:
    """Implements `Reader`."""

    def __init__(self, tell: OnDelta, keep_reasoning: bool) -> None:
        self._tell, self._keep_reasoning = tell, keep_reasoning
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_key = _REASONING[0]
        self._sealed: list[Json] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._written: str | None = None

    def event(self, event: Json) -> None:
        self._take(event, "delta")

    def whole(self, answer: Json) -> None:
        if not answer.get("choices") and not answer.get("error"):
            raise fault_of(answer)
        self._take(answer, "message")
        self._finish = self._finish or "stop"

    @property
    def complete(self) -> bool:
        return self._finish is not None

    def completion(self) -> Completion:
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        calls = with_ids([NativeCall(call.id, call.name, call.arguments) for call in self._calls])
        if self._finish == "content_filter" and not text and not calls:
            raise BadAnswer("a filter of the server's stopped the answer", "content_filter")
        read = Completion(
            text, reasoning, calls, self._finish in _CUT, self._usage, (self._message(text, reasoning, calls),)
        )
        return read if self._written is None else written(self._written, read)

    def _take(self, answer: Json, key: str) -> None:
        if error := answer.get("error"):
            raise fault_of(error)
        if isinstance(usage := answer.get("usage"), dict):
            self._usage = _usage(usage)
        for choice in map(as_object, as_list(answer.get("choices"))):
            self._message_part(as_object(choice.get(key)))
            self._finish = as_word(choice.get("finish_reason")) or self._finish
            if isinstance(as_written := choice.get("as_written"), str):
                self._written = as_written

    def _message_part(self, part: Json) -> None:
        for key in _REASONING:
            if isinstance(words := part.get(key), str) and words:
                self._reasoning_key = key
                self._reasoning.append(words)
                self._tell(TextDelta(words, "reasoning"))
                break  # some servers send it under both names
        for detail in as_list(part.get(_SEALED)):
            self._seal(as_object(detail))
        for words in (_text_of(part.get("content")), part.get("refusal")):
            if isinstance(words, str) and words:
                self._text.append(words)
                self._tell(TextDelta(words))
        for piece in as_list(part.get("tool_calls")):
            self._call_part(as_object(piece))

    def _seal(self, detail: Json) -> None:
        """Reasoning that goes back piece by piece, each of which may itself come in pieces."""
        last = self._sealed[-1] if self._sealed else {}
        if detail.get("index") is None or any(detail.get(key) != last.get(key) for key in ("index", "type")):
            self._sealed.append(dict(detail))
            return
        for key, value in detail.items():
            if key in _IN_PIECES and isinstance(last.get(key), str) and isinstance(value, str):
                last[key] += value
            elif value is not None:
                last[key] = value

    def _call_part(self, piece: Json) -> None:
        call = self._call_of(piece)
        function = as_object(piece.get("function"))
        call.extra |= {key: piece[key] for key in piece.keys() - {"index", "id", "type", "function"} if piece[key]}
        call.name = call.name or as_word(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            call.other = arguments
        self._tell(CallDelta(self._calls.index(call), call.name, arguments if isinstance(arguments, str) else ""))

    def _call_of(self, piece: Json) -> _Call:
        """The call a piece belongs to: by its index, unless an id or the lack of any index tells otherwise."""
        given, id = piece.get("index"), as_word(piece.get("id"))
        index = given if isinstance(given, int) else None
        named = bool(as_object(piece.get("function")).get("name"))
        known = (self._calls or [None])[-1] if index is None else self._by_index.get(index)
        if known is not None and named and known.name:
            another = id != known.id if id and known.id else not id and index is None
            known = None if another else known
        if known is None:
            known = _Call()
            self._calls.append(known)
            if index is not None:
                self._by_index[index] = known
        known.id = known.id or id
        return known

    def _message(self, text: str, reasoning: str, calls: Sequence[NativeCall]) -> Json:
        """As it goes back. A message with calls alone has no content; an empty one is refused by some."""
        message: Json = {"role": "assistant", "content": text or (None if calls else "")}
        if self._keep_reasoning and self._sealed:
            message[_SEALED] = self._sealed
        elif self._keep_reasoning and reasoning:
            message[self._reasoning_key] = reasoning
        if calls:
            message["tool_calls"] = [
                {**own.extra, "id": call.id, "type": "function", "function": _function(call)}
                for call, own in zip(calls, self._calls, strict=True)
            ]
        return message


def _function(call: NativeCall) -> Json:
    return {"name": sendable_name(call.name), "arguments": sendable_arguments(call.arguments)}


def _text_of(content: Any) -> str:
    """Content is text, or parts of which the text ones count."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


def _usage(usage: Json) -> Usage:
    details = usage.get("prompt_tokens_details")
    cached = first_int(details, "cached_tokens") or first_int(usage, "prompt_cache_hit_tokens", "cached_tokens")
    return Usage(first_int(usage, "prompt_tokens"), cached, first_int(usage, "completion_tokens"))
