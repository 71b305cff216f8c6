"""A dialogue with a model behind an endpoint: messages instead of token ids.

Owns `EndpointDialogue`, the session's seam over an `Endpoint`. What the endpoint said goes back to it as it said it;
its calls are checked against the tools' schemas, leniently. A message without native calls may hold some in Etude's own
form: where the config says so, or where the server's own reader of calls missed them. How long the context is, the
endpoint tells with each answer; what was added since is estimated. Runs no tool, writes no log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal
from uuid import uuid4

from etude.harness.coerce import check_json_call
from etude.harness.dialogue import Reply
from etude.harness.dialogue import Words as Prepared
from etude.harness.endpoint.client import Endpoint, encode, silence
from etude.harness.endpoint.said import Again, Delta, Json, NativeCall, Said, Tell, Words
from etude.harness.events import Record
from etude.harness.prompt import explained_prompt, render_results
from etude.harness.protocol import CallParser, Text, calls_of, parse_message
from etude.harness.schema import MalformedCall, ToolCall, ToolSchema

_CHARACTERS_A_TOKEN = 3.5
_ITEM_TOKENS = 6
_CUT = "the message was cut off inside this call; write less at once"


class EndpointDialogue:
    """Implements `Dialogue`. `on_delta` is told the model's words as they come, and must be quick."""

    def __init__(
        self, endpoint: Endpoint, tools: Mapping[str, ToolSchema], *, session_id: str, on_delta: Tell = silence
    ) -> None:
        self._endpoint, self._tools, self._session_id, self._on_delta = endpoint, dict(tools), session_id, on_delta
        self._native = endpoint.config.calls == "native"
        self._clear()

    def _clear(self) -> None:
        self._items: list[bytes] = []
        self._open_ids: list[str] = []
        """Of the native calls of the last message, whose results come next."""
        self._tokens = 0

    @property
    def tokens(self) -> int:
        return self._tokens

    def system(self, persona: str) -> str:
        """The system prompt. Tools that are told natively need no word of it: Etude's own server makes of persona and
        tools, byte for byte, what its model was trained with."""
        return persona if self._native else explained_prompt(self._tools.values(), persona)

    def opening(self, system: str, user: str) -> Prepared:
        told = self._told_tools()
        estimate = sum(_estimate(encode(tool.json_schema())) for tool in told)
        return _prepared(self._endpoint.dialect.opening(system, user), estimate)

    def observation(self, results: Sequence[str], user: str | None = None) -> Prepared:
        dialect, count = self._endpoint.dialect, min(len(self._open_ids), len(results))
        items = [dialect.result(id, text) for id, text in zip(self._open_ids[:count], results[:count], strict=True)]
        words = [render_results(results[count:])] if results[count:] else []
        if said := "\n".join([*words, *([user] if user is not None else [])]):
            items.append(dialect.user(said))
        return _prepared(items)

    async def reply(self, max_tokens: int, draw: int) -> Reply:
        """`draw` is of no use here: an endpoint draws as it likes."""
        tell = self._on_delta if self._native else _WordsOnly(self._tools, self._on_delta)
        request_id = uuid4().hex
        said = await self._endpoint.ask(self._items, self._told_tools(), max_tokens, self._session_id, tell, request_id)
        if isinstance(tell, _WordsOnly):
            tell.finish()
        size = sum(_estimate(encode(item)) for item in said.items)
        tokens = said.usage.completion if said.usage and said.usage.completion else size
        context = said.usage.prompt + tokens if said.usage and said.usage.prompt else self._tokens + size
        return Reply(said.text, tokens, context, said.cut, version=0, record=_record(said, context, request_id))

    def calls(self, reply: Record, text: str, cut: bool) -> list[ToolCall | MalformedCall]:
        native = [NativeCall(*call) for call in reply["calls"]]
        if native:
            return [self._checked(call, cut and call is native[-1]) for call in native]
        written = calls_of(parse_message(text, self._tools, cut, lenient=True))
        # a model with native calls that writes about the XML form means none of it, unless a call stands there whole
        return written if not self._native or any(isinstance(call, ToolCall) for call in written) else []

    def hear(self, words: Record) -> None:
        self._add(words["items"])
        self._open_ids = []
        self._tokens += words["tokens"]

    def take(self, reply: Record) -> None:
        self._add(reply["items"])
        self._open_ids = [id for id, _, _ in reply["calls"]]
        self._tokens = reply["context"]

    def seal(self, kind: Literal["turns", "summary"]) -> None:
        self._clear()

    def _told_tools(self) -> Sequence[ToolSchema]:
        return tuple(self._tools.values()) if self._native else ()

    def _add(self, items: Sequence[Json]) -> None:
        self._items += map(encode, items)

    def _checked(self, call: NativeCall, may_be_cut: bool) -> ToolCall | MalformedCall:
        checked = check_json_call(self._tools, call.name, call.arguments, call.raw)
        if may_be_cut and isinstance(checked, MalformedCall):
            return MalformedCall(_CUT, call.raw)
        return checked


class _WordsOnly:
    """Tells a message that holds calls as text without them, as it comes."""

    def __init__(self, tools: Mapping[str, ToolSchema], tell: Tell) -> None:
        self._tools, self._tell = tools, tell
        self._parser = CallParser(tools, eager=True)

    def __call__(self, delta: Delta) -> None:
        if isinstance(delta, Words) and delta.kind == "text":
            self._told(self._parser.feed(delta.text))
            return
        if isinstance(delta, Again):
            self._parser = CallParser(self._tools, eager=True)
        self._tell(delta)

    def finish(self) -> None:
        self._told(self._parser.finish())

    def _told(self, items: Sequence[object]) -> None:
        for item in items:
            if isinstance(item, Text):
                self._tell(Words(item.text))


def _prepared(items: Sequence[Json], more: int = 0) -> Prepared:
    tokens = more + sum(_estimate(encode(item)) for item in items)
    return Prepared(tokens, {"items": items, "tokens": tokens})


def _record(said: Said, context: int, request_id: str) -> Record:
    return {
        "items": said.items,
        "calls": [[call.id, call.name, call.arguments] for call in said.calls],
        "context": context,
        "reasoning": said.reasoning,
        "usage": asdict(said.usage) if said.usage else None,
        "request_id": request_id,
    }


def _estimate(item: bytes) -> int:
    """Tokens of an item, rather too many than too few."""
    return _ITEM_TOKENS + int(len(item) / _CHARACTERS_A_TOKEN)
