"""An endpoint is asked over real HTTP: both dialects, streams, every way servers break, and what users are told."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs import often, one_of_each
from pydantic import ValidationError
from scripted_openai import Json, Reply, ScriptedServer

from etude.errors import ConfigError, ContextOverflow, DeadlineExceeded, EndpointError
from etude.harness.endpoint import CallDelta, Delta, Endpoint, EndpointConfig, Retry, TextDelta
from etude.harness.endpoint.chat import ChatReader
from etude.harness.endpoint.client import encode, silence
from etude.harness.endpoint.completion import BadAnswer, Completion, Usage
from etude.harness.endpoint.responses import ResponsesReader
from etude.harness.endpoint.wire import TIMEOUTS, Timeouts
from etude.harness.schema import Parameter, ToolSchema

LOOK = ToolSchema("look", "Look.", (Parameter("path", "Where."), Parameter("line", "", "integer", required=False)))
GOOD = Reply("I look.", [("look", {"path": "a.py"}), ("look", {"path": "é\n"})], reasoning="Hm, so.", cached_tokens=60)
BOTH = pytest.mark.parametrize("dialect", ["chat", "responses"])
Script = Iterable[Reply] | Callable[[Json], Reply]


def asked(
    script: Script, messages: int = 1, told: list[Delta] | None = None, patience: Timeouts = TIMEOUTS, **config: Any
) -> tuple[list[Completion], ScriptedServer, Endpoint]:
    """Ask so many messages of a scripted server, each after the ones before, and return them."""

    async def whole(server: ScriptedServer) -> tuple[list[Completion], Endpoint]:
        endpoint = Endpoint(EndpointConfig(**{"url": server.url, "model": "m", **config}), patience=patience)
        said: list[Completion] = []
        items = [encode(item) for item in endpoint.dialect.opening("Be good.", "Hello.")]
        try:
            for _ in range(messages):
                said.append(
                    await endpoint.ask(items, [LOOK.json_schema()], 50, "s1", silence if told is None else told.append)
                )
                items += [encode(item) for item in said[-1].items]
                items += [encode(endpoint.dialect.result(call.id, "ok")) for call in said[-1].calls]
        finally:
            await endpoint.close()
        return said, endpoint

    with ScriptedServer(script) as server:
        said, endpoint = asyncio.run(whole(server))
    return said, server, endpoint


def refused(script: Script, error: type[Exception], match: str, **config: Any) -> None:
    with pytest.raises(error, match=match):
        asked(script, **config)


# --- what is said -----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("piece", [1, 1000])
def test_a_message_is_the_same_however_it_comes(dialect: str, stream: bool, piece: int) -> None:
    told: list[Delta] = []
    reply = Reply(GOOD.text, GOOD.calls, GOOD.reasoning, cached_tokens=60, piece=piece)
    [said], server, endpoint = asked([reply], dialect=dialect, stream=stream, told=told)
    assert (said.text, said.reasoning, said.cut) == ("I look.", "Hm, so.", False)
    assert [(call.id, call.name, json.loads(call.arguments)) for call in said.calls] == [
        ("call_1", "look", {"path": "a.py"}), ("call_2", "look", {"path": "é\n"}),
    ]  # fmt: skip
    assert said.usage == Usage(prompt=100, cached=60, completion=10)
    assert endpoint.counters == {
        "requests": 1, "prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 10, "retries": 0,
    }  # fmt: skip
    for kind, whole in (("text", said.text), ("reasoning", said.reasoning)):
        assert "".join(each.text for each in told if isinstance(each, TextDelta) and each.kind == kind) == whole
    pieces = [each for each in told if isinstance(each, CallDelta)]
    for number, call in enumerate(said.calls):
        mine = [each for each in pieces if each.index == number]
        assert "".join(each.arguments for each in mine) == call.arguments and {each.name for each in mine} == {"look"}
    assert server.requests[0].body["stream"] is stream


@BOTH
def test_a_conversation_only_grows_at_its_end(dialect: str) -> None:
    said, server, _ = asked([GOOD, GOOD, Reply("Done.")], messages=3, dialect=dialect)
    key = "messages" if dialect == "chat" else "input"
    bodies = server.bodies
    for before, after in itertools.pairwise(bodies):
        count = len(before[key])
        assert after[key][:count] == before[key] and len(after[key]) > count
        assert {**before, key: []} == {**after, key: []} and list(before) == list(after)
    results = [item for item in bodies[-1][key] if "tool_call_id" in item or item.get("type") == "function_call_output"]
    assert [item.get("tool_call_id") or item["call_id"] for item in results] == [f"call_{n}" for n in (1, 2, 3, 4)]
    assert said[-1].calls == () and said[-1].text == "Done."


def test_what_is_asked_for() -> None:
    _, server, _ = asked(
        [GOOD], temperature=0.5, body={"top_p": 0.9}, headers={"X-Team": "a"}, cache_key=True, stream=True
    )
    [request] = server.requests
    function = {"type": "function", "function": LOOK.json_schema()}
    assert request.body == {
        "model": "m", "max_tokens": 50, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
        "tools": [function], "top_p": 0.9, "prompt_cache_key": "s1",
        "messages": [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Hello."}],
    }  # fmt: skip
    assert request.headers["x-team"] == "a" and "authorization" not in request.headers
    assert request.headers["x-acp-model-request-id"]


def test_a_key_comes_from_where_it_is_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ETUDE_TEST_KEY", " secret\n")
    _, server, _ = asked([GOOD], key_env="ETUDE_TEST_KEY")
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    (tmp_path / "key").write_text("other\n")
    _, server, _ = asked([GOOD], key_file=tmp_path / "key")
    assert server.requests[0].headers["authorization"] == "Bearer other"
    for wrong, match in (
        ({"key_env": "ETUDE_NO_KEY"}, "ETUDE_NO_KEY is not set"),
        (
            {"key_file": tmp_path / "none"},
            "cannot be read .No such file or directory.; it holds the key of .*token_file",
        ),
        ({"key_env": "ETUDE_TEST_KEY", "key_file": tmp_path / "key"}, "not both"),
    ):
        refused([GOOD], ConfigError, match, **wrong)
    monkeypatch.setenv("ETUDE_TEST_KEY", "two words")
    refused([GOOD], ConfigError, "holds no key", key_env="ETUDE_TEST_KEY")


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "localhost:8000"},
        {"url": "http://me:key@host/v1"},
        {"url": "http://host/v1?key=x"},
        {"body": {"messages": []}},
        {"attempts": 0},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EndpointConfig(**{"url": "http://host/v1", "model": "m", **wrong})
    assert EndpointConfig(url="https://host/v1/chat/completions", model="m").url == "https://host/v1"


@BOTH
def test_a_message_cut_off_and_one_that_is_filtered(dialect: str) -> None:
    [said], _, _ = asked([Reply("I lo", finish="length")], dialect=dialect)
    assert said.cut and said.text == "I lo"
    refused([Reply("", finish="content_filter")], EndpointError, "filter", dialect=dialect)
    [said], _, _ = asked([Reply("No.", finish="content_filter")], dialect=dialect)
    assert said.text == "No."


# --- reasoning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_its_own_name(key: str) -> None:
    reply = Reply("", GOOD.calls, "Hm.", reasoning_key=key)
    _, server, _ = asked([reply, Reply("x")], messages=2)
    assert server.bodies[1]["messages"][2][key] == "Hm."
    _, server, _ = asked([reply, Reply("x")], messages=2, reasoning="drop")
    assert key not in server.bodies[1]["messages"][2]


def test_sealed_reasoning_goes_back_as_it_came() -> None:
    _, server, _ = asked([GOOD, Reply("x")], messages=2, dialect="responses")
    [item] = [item for item in server.bodies[1]["input"] if item.get("type") == "reasoning"]
    assert item["encrypted_content"] == "sealed" and server.bodies[0]["include"] == ["reasoning.encrypted_content"]
    _, server, _ = asked([GOOD, Reply("x")], messages=2, dialect="responses", reasoning="drop")
    assert "include" not in server.bodies[0]
    assert not [item for item in server.bodies[1]["input"] if item.get("type") == "reasoning"]


def test_what_a_server_adds_for_itself_goes_back() -> None:
    details = [{"type": "reasoning.text", "index": 0, "text": text} for text in ("Hm, ", "so.")]
    details.append({"type": "reasoning.text", "index": 0, "signature": "sig"})
    details.append({"type": "reasoning.encrypted", "index": 1, "data": "xyz"})
    call = {"id": "c", "index": 0, "function": {"name": "look", "arguments": "{}"}, "extra_content": {"signature": "s"}}
    events = [delta(reasoning="Hm", reasoning_details=[each]) for each in details] + [delta(tool_calls=[call]), ended()]
    _, server, _ = asked([Reply(events=events), Reply("x")], messages=2)
    message = server.bodies[1]["messages"][2]
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Hm, so.", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
    ]
    assert message["tool_calls"][0]["extra_content"] == {"signature": "s"} and "reasoning" not in message


# --- servers that are nearly compatible -------------------------------------------------------------------------------


def delta(**part: Any) -> Json:
    return {"choices": [{"index": 0, "delta": part, "finish_reason": None}]}


def ended(finish: str = "stop") -> Json:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}


def piece(arguments: Any = None, **about: Any) -> Json:
    function = {key: about.pop(key) for key in ("name",) if key in about}
    return delta(tool_calls=[{**about, "function": {**function, "arguments": arguments}}])


TWO = [("look", '{"path": "a"}'), ("look", '{"path": "b"}')]


@pytest.mark.parametrize(
    "events",
    [
        [piece('{"path": ', id="1", name="look"), piece('"a"}'), piece('{"path": "b"}', id="2", name="look")],
        [piece(TWO[0][1], index=0, id="1", name="look"), piece(TWO[1][1], index=0, id="2", name="look")],
        [piece(TWO[0][1], name="look"), piece(TWO[1][1], name="look")],
        [piece(TWO[0][1], index=0, id="x", name="look"), piece(TWO[1][1], index=1, id="x", name="look")],
        [piece("", index=0, id="1", name="look"), piece("", index=1, id="2", name="look"),
         piece('{"path": "b"', index=1), piece(TWO[0][1], index=0), piece("}", index=1)],
        [piece('{"path": ', index=0, id="1", name="look"), piece('"a"}', index=0, id="1", name="look"),
         piece(TWO[1][1], index=1, id=2, name="look")],
        [delta(tool_calls=[{"index": n, "id": str(n), "function": {"name": name, "arguments": text}}
                           for n, (name, text) in enumerate(TWO)])],
    ],
)  # fmt: skip
def test_calls_as_servers_stream_them(events: list[Json]) -> None:
    [said], _, _ = asked([Reply(events=[*events, ended("tool_calls")])])
    assert [(call.name, call.arguments) for call in said.calls] == TWO
    assert len({call.id for call in said.calls}) == 2 and all(call.id for call in said.calls)


def test_content_as_servers_send_it() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "b"}]
    events = [delta(content="a"), delta(content=parts), delta(content=None, refusal="c"), ": a comment\n\n", ended()]
    [said], _, _ = asked([Reply(events=events)])
    assert said.text == "abc" and said.usage is None
    both = {"reasoning": "Hm", "reasoning_content": "Hm"}
    [said], _, _ = asked([Reply("x", message=both)], stream=False)
    assert said.reasoning == "Hm"
    calls = [{"function": {"name": "look", "arguments": {"path": "a"}}}]
    [said], _, _ = asked([Reply("x", message={"tool_calls": calls})], stream=False)
    assert said.calls[0].arguments == {"path": "a"} and said.calls[0].id
    assert said.items[0]["tool_calls"][0]["function"]["arguments"] == '{"path": "a"}'


def test_what_cannot_stand_in_a_conversation_is_wrapped() -> None:
    reply = Reply("", [("no such tool!", '{"path": "a')])
    for dialect in ("chat", "responses"):
        [said], _, _ = asked([reply], dialect=dialect)
        sent = json.dumps(said.items)
        assert said.calls[0].arguments == '{"path": "a' and "no_such_tool_" in sent and "malformed" in sent


@pytest.mark.parametrize(
    ("dialect", "complaint", "key"),
    [
        ("chat", "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "max_tokens"),
        ("chat", "unknown field stream_options", "stream_options"),
        ("responses", "include: unknown here; take it out", "include"),
        ("responses", "Encrypted content is not supported with this model.", "include"),
    ],
)
def test_what_a_server_does_not_know_is_left_out(dialect: str, complaint: str, key: str) -> None:
    script = [Reply(status=400, body={"error": {"message": complaint}}), GOOD, GOOD]
    _, server, _ = asked(script, messages=2, dialect=dialect)
    assert [key in body for body in server.bodies] == [True, False, False]
    assert dialect != "chat" or key != "max_tokens" or server.bodies[2]["max_completion_tokens"] == 50


@settings(max_examples=often(30, 100))
@given(st.data())
def test_no_event_makes_a_reader_fail_otherwise_than_it_says(data: st.DataObject) -> None:
    words = st.sampled_from(
        ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "index", "type",
         "error", "code", "usage", "finish_reason", "item", "output", "response", "response.completed", "status",
         "response.output_item.done", "function_call", "reasoning", "summary", "output_index", "reasoning_details"]
    )  # fmt: skip
    values = st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
        max_leaves=25,
    )
    for reader in (ChatReader(silence, True), ResponsesReader(silence, True)):
        try:
            for event in data.draw(st.lists(st.dictionaries(words, values, max_size=5), max_size=3)):
                reader.event(event)
            reader.whole(data.draw(st.dictionaries(words, values, max_size=5)))
            said = reader.completion()
        except BadAnswer:
            continue
        assert isinstance(said.text, str) and json.dumps(said.items)


# --- busy, broken and absent servers ----------------------------------------------------------------------------------


BROKEN = {
    "429": Reply(status=429, headers={"retry-after": "0"}),
    "503": Reply(status=503, headers={"retry-after-ms": "20"}, body="<html>busy</html>"),
    "500": Reply(status=500, headers={"retry-after": "0"}),
    "dropped": Reply("half of it", drop_after=3),
    "dropped-first": Reply("half of it", drop_after=0),
    "garbage": Reply(events=["data: {not json\n\n"]),
    "nothing": Reply(events=[]),
    "error": Reply(events=[{"type": "error", "error": {"message": "overloaded", "code": "overloaded_error"}}]),
    "code": Reply(events=[{"type": "error", "error": {"message": "busy", "code": 503}}]),
    "silent": Reply("late", stall_s=0.9),
    "stalls": Reply("late, and later", drop_after=2, stall_s=0.9),
}
BREAKS = [(dialect, how) for how in BROKEN for dialect in ("chat", "responses")]


@pytest.mark.parametrize(("dialect", "how"), one_of_each(0.6, BREAKS, lambda dialect, how: how))
def test_a_message_that_broke_is_asked_for_anew(dialect: str, how: str) -> None:
    told: list[Delta] = []
    broken = BROKEN[how]
    script = itertools.chain([broken], itertools.repeat(GOOD))
    patience = Timeouts(silence_s=0.5 if broken.stall_s else 60.0)
    [said], server, endpoint = asked(script, dialect=dialect, told=told, patience=patience)
    assert said.text == "I look." and len(said.calls) == 2
    assert len(server.requests) - 1 == endpoint.counters["retries"] >= 1
    at = max(at for at, each in enumerate(told) if isinstance(each, Retry))
    assert "".join(each.text for each in told[at:] if isinstance(each, TextDelta) and each.kind == "text") == "I look."


def test_an_end_without_farewell_is_an_end() -> None:
    [said], server, _ = asked([Reply(events=[delta(content="Done."), ended()], drop_after=2)])
    assert said.text == "Done." and len(server.requests) == 1


@BOTH
def test_who_fails_always_is_given_up(dialect: str) -> None:
    refused(lambda _: Reply(status=502, headers={"retry-after": "0"}), EndpointError, "failed 3 times.*502",
            dialect=dialect, attempts=3)  # fmt: skip
    refused(lambda _: Reply("x" * 50, drop_after=2), EndpointError, "failed 2 times", dialect=dialect, attempts=2)


def test_every_wait_has_a_deadline_that_says_what_for() -> None:
    silent = r"waited .* for http://.*/chat/completions to write a message: silence for 0.2 s, after 2 attempts"
    refused(lambda _: Reply("x", stall_s=0.4), DeadlineExceeded, silent, patience=Timeouts(silence_s=0.2), attempts=2)
    whole = r"waited 1.[45] s for .* to write a message: status 503"
    refused(lambda _: Reply(status=503, headers={"retry-after": "0"}, stall_s=0.1), DeadlineExceeded, whole,
            patience=Timeouts(message_s=1.5), attempts=1000)  # fmt: skip
    slow = Reply("An answer that flows is never late.", piece=1, pace_s=0.1)  # longer than the deadline, all in all
    [said], _, _ = asked([slow], patience=Timeouts(message_s=2.5))
    assert said.text == slow.text
    pause = [Reply(status=429, headers={"retry-after": "3600"})]  # refused without waiting: a test has less time
    refused(pause, DeadlineExceeded, "asks for a pause of 3600 s", patience=Timeouts(message_s=3000))


def test_a_stream_that_trickles_is_not_silent() -> None:
    events = [each for _ in range(4) for each in (delta(content="x"), ": still here\n\n")]

    class Slow(ScriptedServer):
        async def _stream(self, reply: Reply, told: Sequence[Json | str], last: str) -> Any:
            async for event in super()._stream(reply, told, last):
                await asyncio.sleep(0.15)
                yield event

    async def whole(server: ScriptedServer) -> Completion:
        endpoint = Endpoint(EndpointConfig(url=server.url, model="m", attempts=1), patience=Timeouts(silence_s=1.0))
        try:
            return await endpoint.ask([], [], 5, "s", silence)
        finally:
            await endpoint.close()

    with Slow([Reply(events=[*events, ended()])]) as server:
        assert asyncio.run(whole(server)).text == "xxxx"


def test_a_server_that_is_not_there() -> None:
    async def whole() -> None:
        endpoint = Endpoint(EndpointConfig(url="http://127.0.0.1:1/v1", model="m"))
        try:
            assert await endpoint.models() == []
            await endpoint.ask([], [], 5, "s", silence)
        finally:
            await endpoint.close()

    with pytest.raises(EndpointError, match=r"127.0.0.1:1/v1 cannot be reached .* is it running"):
        asyncio.run(whole())


def test_a_server_that_is_there_no_more() -> None:
    """It is asked as often as one that is busy, since it may come back, and then said to be as one never there."""

    async def whole(server: ScriptedServer) -> Endpoint:
        endpoint = Endpoint(EndpointConfig(url=server.url, model="m", attempts=3))
        try:
            with server:
                await endpoint.ask([], [], 5, "s", silence)
            with pytest.raises(EndpointError, match=r"/v1 cannot be reached \(ConnectError.*\); is it running, and"):
                await endpoint.ask([], [], 5, "s", silence)
        finally:
            await endpoint.close()
        return endpoint

    assert asyncio.run(whole(ScriptedServer([Reply("Done.")]))).counters["retries"] == 2


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (401, {"error": {"message": "bad key"}}, EndpointError, "refuses the key.*bad key.*endpoint.key_env"),
        (403, {"error": "no"}, EndpointError, "refuses the key"),
        (404, {"detail": "no model m"}, EndpointError, "no model m.*it has scripted.*usually ending in /v1.*'m'"),
        (405, "", EndpointError, "knows no such route"),
        (402, {"error": {"message": "pay"}}, EndpointError, "want of credit"),
        (429, {"error": {"message": "over", "code": "insufficient_quota"}}, EndpointError, "want of credit"),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, ContextOverflow, "context_length"),
        (400, {"object": "error", "message": "maximum context length is 100 tokens"}, ContextOverflow, "100 tokens"),
        (500, {"error": {"message": "the request exceeds the available context size"}}, ContextOverflow, "size"),
        (413, [{"error": {"message": "prompt is too long"}}], ContextOverflow, "too long"),
        (422, {"detail": [{"msg": "tools: wrong"}]}, EndpointError, "does not take the request.*tools: wrong"),
        (308, "", EndpointError, "moved to http://elsewhere/v1.*endpoint.url"),
        (200, None, EndpointError, "no JSON object"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(status: int, body: Any, error: type[Exception], says: str) -> None:
    headers = {"location": "http://elsewhere/v1"} if status == 308 else {}
    reply = Reply(status=status, body=body, headers=headers)
    if status == 200:
        reply = Reply(status=299, body="<html>a login page</html>")
    refused([reply], error, f"(?s){says}")


@BOTH
@pytest.mark.parametrize("stream", [True, False])
def test_an_error_told_inside_an_answer(dialect: str, stream: bool) -> None:
    long = {"error": {"message": "too big", "code": "context_length_exceeded"}}
    wrong = {"error": {"message": "your tools are odd", "code": "invalid_prompt"}}
    for said, error in ((long, ContextOverflow), (wrong, EndpointError)):
        event = {"type": "response.failed", "response": said} if dialect == "responses" else said
        reply = Reply(events=[event]) if stream else Reply(status=200 + 99, body=said)
        refused([reply], error, "too big|odd", dialect=dialect, stream=stream)
