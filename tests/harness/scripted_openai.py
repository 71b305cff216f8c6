"""An OpenAI-compatible server that says what a test tells it to: real HTTP on a port of this machine, no model.

`ScriptedServer(replies)` serves `/v1/chat/completions` and `/v1/responses`, whole or as server-sent events, in the
dialect that the request is made in. A script is replies, one a request, or a function from the request's
body to a reply. A `Reply` says what a good model says (words, reasoning, calls) or breaks in a way that servers break:
a status, a dropped or silent stream, raw pieces that no server should send. What was asked is in `server.requests`.

    with ScriptedServer([Reply(calls=[("read_file", {"path": "a.py"})]), Reply("Done.")]) as server:
        ...  # point a client at server.url, which ends in /v1
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One answer. `calls` are (tool, arguments): a mapping is written as JSON, a string is sent as it stands."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()
    reasoning: str = ""
    finish: str | None = None
    """Instead of the fitting one: "length" cuts the message off, "content_filter" refuses."""
    status: int = 200
    body: Json | str | None = None
    """Of an answer that is no 200; a string is sent as it stands."""
    headers: Mapping[str, str] = field(default_factory=dict)
    piece: int = 7
    """Characters of one streamed piece, of words and of arguments alike."""
    drop_after: int | None = None
    """The connection breaks after so many events of a stream."""
    stall_s: float = 0.0
    """Silence before the answer's first byte, or before the place where it would be dropped."""
    pace_s: float = 0.0
    """Silence after each event of a stream."""
    ids: Sequence[str] | None = None
    """The calls' ids, instead of call_1, call_2, … counted over the whole script."""
    indexed: bool = True
    """Whether streamed calls carry their index; some servers leave it out."""
    reasoning_key: str = "reasoning_content"
    """What chat completions call the reasoning: "reasoning_content", or "reasoning" as newer servers do."""
    prompt_tokens: int = 100
    cached_tokens: int = 0
    completion_tokens: int = 10
    usage: bool = True
    message: Json | None = None
    """Put into chat completions' whole message, over what it would hold."""
    events: Iterable[Json | str] | None = None
    """A stream's events instead of all the above: JSON, or a string sent as it stands. They may never end."""


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: Json


Script = Iterable[Reply] | Callable[[Json], Reply]


class ScriptedServer:
    """Use as a context manager. A sequence that is used up answers 500, and says so. `context` is what it tells of its
    model, if anything."""

    def __init__(self, script: Script, context: int | None = None) -> None:
        self._context = {} if context is None else {"max_model_len": context}
        self.requests: list[Asked] = []
        self._script: Iterator[Reply] | Callable[[Json], Reply] = script if callable(script) else iter(script)
        self._ids = 0
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/responses", self._responses, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        until = time.monotonic() + 120
        while not self._server.started:
            assert time.monotonic() < until and self._thread.is_alive(), "the scripted server does not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(120)

    @property
    def bodies(self) -> list[Json]:
        return [each.body for each in self.requests]

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model", **self._context}]})

    # --- the two dialects ---------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat_whole, chat_events, "data: [DONE]\n\n")

    async def _responses(self, request: Request) -> Response:
        return await self._answer(request, responses_whole, responses_events, "")

    async def _answer(
        self,
        request: Request,
        whole: Callable[[Reply, Sequence[str], Json], Json],
        events: Callable[[Reply, Sequence[str], Json], Iterable[Json]],
        last: str,
    ) -> Response:
        body = await request.json()
        self.requests.append(Asked(request.url.path, dict(request.headers), body))
        reply = self._next(body)
        if reply.status != 200:
            await asyncio.sleep(reply.stall_s)
            said = {"error": {"message": f"scripted {reply.status}"}} if reply.body is None else reply.body
            text = said if isinstance(said, str) else json.dumps(said)
            return Response(text, reply.status, dict(reply.headers), media_type="application/json")
        ids = list(reply.ids) if reply.ids is not None else self._new_ids(len(reply.calls))
        if not body.get("stream"):
            await asyncio.sleep(reply.stall_s)
            return JSONResponse(whole(reply, ids, body), headers=dict(reply.headers))
        told = list(events(reply, ids, body)) if reply.events is None else reply.events
        stream = self._stream(reply, told, last if reply.events is None else "")
        return StreamingResponse(stream, headers=dict(reply.headers), media_type="text/event-stream")

    async def _stream(self, reply: Reply, events: Iterable[Json | str], last: str) -> AsyncIterator[str]:
        if reply.drop_after is None:
            await asyncio.sleep(reply.stall_s)
        kept = events if reply.drop_after is None else itertools.islice(events, reply.drop_after)
        for event in kept:
            yield event if isinstance(event, str) else _event(event)
            await asyncio.sleep(reply.pace_s)  # each event is a write of its own
        if reply.drop_after is not None:
            await asyncio.sleep(reply.stall_s)
            raise ConnectionError("dropped by the script")
        if last:
            yield last

    def _next(self, body: Json) -> Reply:
        if callable(self._script):
            return self._script(body)
        spent = Reply(status=500, body={"error": {"message": "the script is used up"}})
        return next(self._script, spent)

    def _new_ids(self, count: int) -> list[str]:
        self._ids += count
        return [f"call_{number}" for number in range(self._ids - count + 1, self._ids + 1)]


def _event(event: Json) -> str:
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event)}\n\n"


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _arguments(arguments: Mapping[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


# --- chat completions -------------------------------------------------------------------------------------------------


def chat_whole(reply: Reply, ids: Sequence[str], body: Json) -> Json:
    message: Json = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message[reply.reasoning_key] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}
            for id, (name, arguments) in zip(ids, reply.calls, strict=True)
        ]
    message |= reply.message or {}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body.get("model", "")}
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {**answer, "choices": [choice], **({"usage": chat_usage(reply)} if reply.usage else {})}


def chat_events(reply: Reply, ids: Sequence[str], body: Json) -> Iterator[Json]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model", "")}

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply.reasoning, reply.piece):
        yield chunk({reply.reasoning_key: piece})
    for piece in _pieces(reply.text, reply.piece):
        yield chunk({"content": piece})
    for index, (id, (name, arguments)) in enumerate(zip(ids, reply.calls, strict=True)):
        at = {"index": index} if reply.indexed else {}
        function: Json = {"name": name, "arguments": ""}
        yield chunk({"tool_calls": [{**at, "id": id, "type": "function", "function": function}]})
        for piece in _pieces(_arguments(arguments), reply.piece):
            yield chunk({"tool_calls": [{**at, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(reply))
    if reply.usage and (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": chat_usage(reply)}


def chat_usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


# --- responses --------------------------------------------------------------------------------------------------------


def output_items(reply: Reply, ids: Sequence[str]) -> list[Json]:
    items: list[Json] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "sealed"})
    if reply.text or not reply.calls:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content})
    for id, (name, arguments) in zip(ids, reply.calls, strict=True):
        call = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name}
        items.append({**call, "arguments": _arguments(arguments), "status": "completed"})
    return items


def responses_whole(reply: Reply, ids: Sequence[str], body: Json) -> Json:
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish or "")
    answer = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": body.get("model", ""), "error": None,
        "status": "incomplete" if cut else "completed", "incomplete_details": {"reason": cut} if cut else None,
        "output": output_items(reply, ids),
    }  # fmt: skip
    return {**answer, **({"usage": responses_usage(reply)} if reply.usage else {})}


def responses_events(reply: Reply, ids: Sequence[str], body: Json) -> Iterator[Json]:
    whole = responses_whole(reply, ids, body)
    yield {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
    for index, item in enumerate(whole["output"]):
        at: Json = {"output_index": index, "item_id": item["id"]}
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        if item["type"] == "reasoning":
            for piece in _pieces(reply.reasoning, reply.piece):
                yield {"type": "response.reasoning_summary_text.delta", **at, "summary_index": 0, "delta": piece}
        elif item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            yield {"type": "response.content_part.added", **at, "content_index": 0, "part": part}
            for piece in _pieces(reply.text, reply.piece):
                yield {"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece}
        else:
            for piece in _pieces(item["arguments"], reply.piece):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            yield {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def responses_usage(reply: Reply) -> Json:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _begun(item: Json) -> Json:
    empty: Json = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}
    return {**item, **empty[item["type"]], **({"status": "in_progress"} if "status" in item else {})}
