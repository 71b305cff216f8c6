"""The responses dialect: a conversation is a list of items, and reasoning goes back sealed.

Owns how a conversation is written for `/responses`, and how answers are read, whole or as typed events. Nothing is
stored at the server: every request holds the whole conversation, so that a session's log is all there is of it.
"""

from __future__ import annotations

from collections.abc import Sequence

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

_SEALED = "reasoning.encrypted_content"
_TEXT = {"response.output_text.delta", "response.refusal.delta"}
_REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}
_ENDS = {"response.completed", "response.incomplete", "response.done"}


class Responses:
    """Implements `Dialect`."""

    path = "/responses"
    items_key = "input"

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._asks_sealed = config.reasoning == "return"

    def opening(self, system: str, user: str) -> list[Json]:
        return [{"role": "system", "content": system}, self.user(user)]

    def user(self, text: str, images: Sequence[str] = ()) -> Json:
        if not images:
            return {"role": "user", "content": text}
        parts = [{"type": "input_image", "image_url": image} for image in images]
        return {"role": "user", "content": [{"type": "input_text", "text": text}, *parts]}

    def result(self, call_id: str, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call_id, "output": text}

    def head(self, tools: Sequence[Json], max_tokens: int) -> Json:
        head: Json = {"model": self._config.model, "max_output_tokens": max_tokens, "stream": self._config.stream}
        head["store"] = False
        if self._asks_sealed:
            head["include"] = [_SEALED]
        if self._config.temperature is not None:
            head["temperature"] = self._config.temperature
        if tools:
            head["tools"] = [{"type": "function", **tool} for tool in tools]
        return head

    def adapt(self, said: str) -> bool:
        """Models that do not reason have nothing to seal, and some servers do not know the key."""
        if not self._asks_sealed or ("include" not in said and "encrypted" not in said.lower()):
            return False
        self._asks_sealed = False
        return True

    def reader(self, tell: OnDelta) -> ResponsesReader:
        return ResponsesReader(tell, self._config.reasoning == "return")


class ResponsesReader:
    """Implements `Reader`."""

    def __init__(self, tell: OnDelta, keep_reasoning: bool) -> None:
        self._tell, self._keep_reasoning = tell, keep_reasoning
        self._items: dict[int, Json] = {}
        """Items that are done, by their place in the output."""
        self._names: dict[int, str] = {}
        self._end: Json | None = None

    def event(self, event: Json) -> None:
        kind, place = as_word(event.get("type")), first_int(event, "output_index")
        if kind in _TEXT or kind in _REASONING:
            if words := event.get("delta"):
                self._tell(TextDelta(str(words), "text" if kind in _TEXT else "reasoning"))
        elif kind == "response.output_item.added":
            self._begin(place, as_object(event.get("item")))
        elif kind == "response.function_call_arguments.delta":
            self._tell(CallDelta(self._number(place), self._names.get(place, ""), str(event.get("delta") or "")))
        elif kind == "response.output_item.done":
            self._items[place] = as_object(event.get("item"))
        elif kind in _ENDS:
            self._ended(as_object(event.get("response")))
        elif kind == "response.failed":
            raise fault_of(as_object(event.get("response")).get("error") or "the response failed")
        elif kind == "error":
            raise fault_of(event.get("error") or event)

    def whole(self, answer: Json) -> None:
        if "output" not in answer and not answer.get("error"):
            raise fault_of(answer)
        self._ended(answer)
        said = self.completion()
        for words in (TextDelta(said.reasoning, "reasoning"), TextDelta(said.text)):
            if words.text:
                self._tell(words)
        for number, call in enumerate(said.calls):
            self._tell(CallDelta(number, call.name, call.arguments if isinstance(call.arguments, str) else ""))

    @property
    def complete(self) -> bool:
        return self._end is not None

    def completion(self) -> Completion:
        end = self._end or {}
        items = [self._items[place] for place in sorted(self._items)]
        text = "".join(_content(item, "output_text", "refusal") for item in items if item.get("type") == "message")
        reasoning = "".join(_reasoning(item) for item in items if item.get("type") == "reasoning")
        found = [item for item in items if item.get("type") == "function_call"]
        calls = with_ids(
            [
                NativeCall(as_word(each.get("call_id")), as_word(each.get("name")), each.get("arguments"))
                for each in found
            ]
        )
        why = as_object(end.get("incomplete_details")).get("reason") if end.get("status") == "incomplete" else None
        if why == "content_filter" and not text and not calls:
            raise BadAnswer("a filter of the server's stopped the answer", "content_filter")
        usage = end.get("usage")
        counted = _usage(usage) if isinstance(usage, dict) else None
        back = tuple(self._back(items, calls))
        read = Completion(text, reasoning, calls, why not in (None, "content_filter"), counted, back)
        return written(end["as_written"], read) if isinstance(end.get("as_written"), str) else read

    def _begin(self, place: int, item: Json) -> None:
        if item.get("type") == "function_call":
            self._names[place] = as_word(item.get("name"))
            self._tell(CallDelta(self._number(place), self._names[place], ""))

    def _number(self, place: int) -> int:
        """A call's number among the calls."""
        return sum(other < place for other in self._names)

    def _ended(self, response: Json) -> None:
        if response.get("status") == "failed" or response.get("error"):
            raise fault_of(response.get("error") or "the response failed")
        self._end = response
        for place, item in enumerate(as_list(response.get("output"))):  # left empty by some, who streamed it all
            self._items[place] = as_object(item)

    def _back(self, items: Sequence[Json], calls: Sequence[NativeCall]) -> list[Json]:
        """The output as it goes back: as it came, but for arguments that are none and reasoning that says nothing."""
        back: list[Json] = []
        named = iter(calls)
        for item in items:
            kept = {key: value for key, value in item.items() if value is not None}
            if item.get("type") == "function_call":
                call = next(named)
                arguments = sendable_arguments(call.arguments)
                kept |= {"call_id": call.id, "name": sendable_name(call.name), "arguments": arguments}
            elif item.get("type") == "reasoning":
                if not self._keep_reasoning or not (item.get("encrypted_content") or item.get("content")):
                    continue
            elif item.get("type") == "message" and not _content(item, "output_text", "refusal"):
                continue
            back.append(kept)
        return back


def _content(item: Json, *kinds: str) -> str:
    if isinstance(said := item.get("content"), str):
        return said
    parts = [part for part in as_list(said) if isinstance(part, dict) and part.get("type") in kinds]
    return "".join(as_word(part.get("text")) or as_word(part.get("refusal")) for part in parts)


def _reasoning(item: Json) -> str:
    """What a reasoning item shows: its own words where the server gives them, else their summary."""
    shown = as_list(item.get("content")) or as_list(item.get("summary"))
    return "\n".join(as_word(part.get("text")) for part in shown if isinstance(part, dict))


def _usage(usage: Json) -> Usage:
    cached = first_int(usage.get("input_tokens_details"), "cached_tokens")
    return Usage(first_int(usage, "input_tokens"), cached, first_int(usage, "output_tokens"))
