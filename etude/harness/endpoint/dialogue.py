"""A dialogue with a model behind an endpoint: messages instead of token ids.

Owns `EndpointDialogue`, the session's seam over an `Endpoint`. The endpoint's messages go back to it unchanged; its
calls are checked against the tools' schemas, leniently. A message without native calls may hold some in Etude's own
form: where the config says so, or where the server's own parser missed them. Each answer of the endpoint says how long
the context is; what was added since is estimated. Runs no tool, writes no log.

Tools may come and go while a session runs. Those that stand before a context's first word stay there to its end,
whatever becomes of them, so that no byte changes that a cache has seen; what has changed is told at the head of the
user's next words. Both are part of the records, so a session that is taken up says what it said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Literal
from uuid import uuid4

from etude.harness.coerce import check_json_call
from etude.harness.dialogue import PreparedInput as Prepared
from etude.harness.dialogue import Reply
from etude.harness.endpoint.client import Endpoint, encode, silence
from etude.harness.endpoint.completion import Completion, Delta, Json, NativeCall, OnDelta, Retry, TextDelta, Usage
from etude.harness.endpoint.repetition import Repeating, RepetitionWatch
from etude.harness.events import Record
from etude.harness.prompt import explained_prompt, render_results, tools_changed
from etude.harness.protocol import CallParser, Text, calls_of, parse_message
from etude.harness.schema import (
    MalformedCall,
    ToolCall,
    ToolSchema,
    foreign_schema,
    no_such_tool,
    present,
)

_CHARACTERS_A_TOKEN = 3.5
_ITEM_TOKENS = 6
_IMAGE_TOKENS = 1600
"""Guessed of a picture, whatever its size, until the endpoint has counted it."""
_PICTURES = "[The pictures of these results, in their order:]"
_CUT = "the message was cut off inside this call; write less at once"


class EndpointDialogue:
    """Implements `Dialogue`. `tools` may change while it is used; `on_delta` is told the model's words as they
    come, and must be quick; `image` gives the picture that a call's result stands for, as a `data:` address."""

    def __init__(
        self,
        endpoint: Endpoint,
        tools: Mapping[str, ToolSchema],
        *,
        session_id: str,
        on_delta: OnDelta = silence,
        image: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._endpoint, self._tools, self._session_id, self._on_delta = endpoint, tools, session_id, on_delta
        self._native, self._image = endpoint.config.calls == "native", image
        self.billed: list[Usage] = []
        """What the endpoint counted for each answer, in the dialogue's whole life in this process."""
        self._clear()

    def _clear(self) -> None:
        self._items: list[bytes] = []
        self._open_ids: list[str] = []
        """Of the native calls of the last message, whose results come next."""
        self._tokens = 0
        self._context_tools: Sequence[Json] | None = None
        """The schemas that stand before this context; None in one whose record does not say."""
        self._known: dict[str, Json] = {}
        """The schemas that the model has been told by now, by name, and are not gone."""
        self._offered_tools: dict[str, ToolSchema] = {}
        """All that it was ever told in this context: its messages are read by them, whichever tools there are today."""

    @property
    def tokens(self) -> int:
        return self._tokens

    def system(self, persona: str) -> str:
        """The system prompt. Tools that are told natively need no word of it: Etude's own server makes of persona and
        tools, byte for byte, what its model was trained with."""
        return persona if self._native else explained_prompt(present(self._tools).values(), persona)

    def opening(self, system: str, user: str) -> Prepared:
        told = self._schemas()
        estimate = sum(_estimate(encode(schema)) for schema in told)
        return _prepared(self._endpoint.dialect.opening(system, user), {"tools": told}, estimate)

    def observation(self, results: Sequence[str], user: str | None = None) -> Prepared:
        dialect, count = self._endpoint.dialect, min(len(self._open_ids), len(results))
        items = [dialect.result(id, text) for id, text in zip(self._open_ids[:count], results[:count], strict=True)]
        words = [render_results(results[count:])] if results[count:] else []
        new, gone = self._news() if user is not None else ([], [])
        if news := tools_changed((self._tools[schema["name"]] for schema in new), gone):
            words.append(f"{news}\n")
        pictures = [picture for text in results if (picture := self._image(text)) is not None]
        said = "\n".join([*words, *([_PICTURES] if pictures else []), *([user] if user is not None else [])])
        if said:
            items.append(dialect.user(said))
        ready = _prepared(items, {"new_tools": new, "gone_tools": gone} if news else {}, _IMAGE_TOKENS * len(pictures))
        if pictures:  # they are put in once all is counted: a picture's tokens do not go by its bytes
            items[-1] = dialect.user(said, pictures)
        return ready

    async def reply(self, max_tokens: int, draw: int) -> Reply:
        """`draw` is of no use here: an endpoint draws as it likes."""
        tell = self._on_delta if self._native else _TextOnly(self._tools, self._on_delta)
        request_id = uuid4().hex
        told = self._schemas() if self._context_tools is None else self._context_tools
        watched = RepetitionWatch(tell) if self._endpoint.config.repetition == "cut" else tell
        try:
            said = await self._endpoint.ask(self._items, told, max_tokens, self._session_id, watched, request_id)
        except Repeating as loop:
            return self._cut(loop, request_id)
        if isinstance(tell, _TextOnly):
            tell.finish()
        if said.usage is not None:
            self.billed.append(said.usage)
        size = sum(_estimate(encode(item)) for item in said.items)
        tokens = said.usage.completion if said.usage and said.usage.completion else size
        context = said.usage.prompt + tokens if said.usage and said.usage.prompt else self._tokens + size
        return Reply(said.text, tokens, context, said.cut, version=0, record=_record(said, context, request_id))

    def _cut(self, loop: Repeating, request_id: str) -> Reply:
        """What is kept of a message that became a loop. It has no calls; an empty message is refused by some."""
        message = {"role": "assistant", "content": loop.text or "…"}
        said = Completion(loop.text, loop.reasoning, (), True, None, (message,))
        context = self._tokens + _estimate(encode(message))
        record = {**_record(said, context, request_id), "repeated": str(loop)}
        tokens = int(loop.heard / _CHARACTERS_A_TOKEN)
        return Reply(loop.text, tokens, context, cut=True, version=0, record=record, repeated=str(loop))

    def calls(self, reply: Record, text: str, cut: bool) -> list[ToolCall | MalformedCall]:
        if "repeated" in reply:
            return []
        if "as_written" in reply:  # one of ours, which reads calls as training does
            return calls_of(parse_message(text, self._tools, cut))
        native = [NativeCall(*call) for call in reply["calls"]]
        if native:
            return [self._checked(call, cut and call is native[-1]) for call in native]
        written = calls_of(parse_message(text, {**self._offered_tools, **self._tools}, cut, lenient=True))
        # a model with native calls that writes about the XML form means none of it, unless a call stands there whole
        if self._native and not any(isinstance(call, ToolCall) for call in written):
            return []
        return [self._runnable(call) for call in written]

    def append_input(self, words: Record) -> None:
        self._add(words["items"])
        self._open_ids = []
        self._tokens += words["tokens"]
        if "tools" in words:
            self._context_tools, self._known = words["tools"], {}
        for schema in words.get("tools", words.get("new_tools", ())):
            self._known[schema["name"]] = schema
            self._offered_tools[schema["name"]] = foreign_schema(
                schema["name"], schema["description"], schema["parameters"]
            )
        for name in words.get("gone_tools", ()):
            self._known.pop(name, None)

    def append_reply(self, reply: Record) -> None:
        self._add(reply["items"])
        self._open_ids = [id for id, _, _ in reply["calls"]]
        self._tokens = reply["context"]

    def seal(self, kind: Literal["turns", "summary"]) -> None:
        self._clear()

    def _schemas(self) -> list[Json]:
        """Of the tools there are now, where they are told natively."""
        return [tool.json_schema() for tool in present(self._tools).values()] if self._native else []

    def _news(self) -> tuple[list[Json], list[str]]:
        """What the model does not know yet: the schemas of tools that are new or another's, and names of those gone."""
        if self._context_tools is None:
            return [], []
        now = {schema["name"]: schema for schema in self._schemas()}
        new = [schema for name, schema in now.items() if self._known.get(name) != schema]
        return new, [name for name in self._known if name not in now]

    def _runnable(self, call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
        """A tool that was there in the process that the call was made in may be none of this one's."""
        gone = isinstance(call, ToolCall) and call.name not in self._tools
        return no_such_tool(self._tools, call.name, call.raw) if gone else call

    def _add(self, items: Sequence[Json]) -> None:
        self._items += map(encode, items)

    def _checked(self, call: NativeCall, may_be_cut: bool) -> ToolCall | MalformedCall:
        checked = check_json_call(self._tools, call.name, call.arguments, call.raw)
        if may_be_cut and isinstance(checked, MalformedCall):
            return MalformedCall(_CUT, call.raw)
        return checked


class _TextOnly:
    """Tells a message that holds calls as text without them, as it comes."""

    def __init__(self, tools: Mapping[str, ToolSchema], tell: OnDelta) -> None:
        self._tools, self._tell = tools, tell
        self._parser = CallParser(tools, eager=True)

    def __call__(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta) and delta.kind == "text":
            self._emit(self._parser.feed(delta.text))
            return
        if isinstance(delta, Retry):
            self._parser = CallParser(self._tools, eager=True)
        self._tell(delta)

    def finish(self) -> None:
        self._emit(self._parser.finish())

    def _emit(self, items: Sequence[object]) -> None:
        for item in items:
            if isinstance(item, Text):
                self._tell(TextDelta(item.text))


def _prepared(items: Sequence[Json], tools: Record, more: int = 0) -> Prepared:
    """Words, with what they tell of tools, which takes so many tokens more."""
    tokens = more + sum(_estimate(encode(item)) for item in items)
    return Prepared(tokens, {"items": items, "tokens": tokens, **tools})


def _record(said: Completion, context: int, request_id: str) -> Record:
    return {
        "items": said.items,
        "calls": [[call.id, call.name, call.arguments] for call in said.calls],
        "context": context,
        "reasoning": said.reasoning,
        "usage": asdict(said.usage) if said.usage else None,
        "request_id": request_id,
        **({"as_written": True} if said.as_written else {}),
    }


def _estimate(item: bytes) -> int:
    """Tokens of an item, rather too many than too few."""
    return _ITEM_TOKENS + int(len(item) / _CHARACTERS_A_TOKEN)
