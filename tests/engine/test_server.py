"""The engine's server as its clients meet it: what it answers, what it refuses, and what it lets go."""

import asyncio
import base64
import io
import json

import numpy as np
import pytest
from engine_serving import TOKEN, said_in, serving
from small_models import SHAPE, plain_logits, random_decoder, shipped_tokenizer

from etude.engine.config import EngineConfig
from etude.models.state import export_bits
from etude.records import Version
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher

CHAT, GENERATE, COMPLETE = "/v1/chat/completions", "/generate", "/v1/completions"
ROOM = EngineConfig(cache_tokens=8192, max_running=4)


@pytest.fixture(scope="module")
def server():
    with serving() as made:
        yield made
        assert made.at_rest()


def over(server, scenario, seconds=60, **headers):
    async def whole():
        async with asyncio.timeout(seconds), server.http(**headers) as http:
            return await scenario(http)

    return asyncio.run(whole())


def refused(answer, status, code, *parts, param=None):
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert error.keys() == {"message", "type", "param", "code"} and error["type"]
    assert all(part in error["message"] for part in parts), error
    if param is not None:
        assert error["param"] == param, error
    return error


def ask(count=8, ids=range(3, 20), **given):
    sampling = {"max_tokens": count, "temperature": 0, "ignore_eos": True, **given.pop("sampling_params", {})}
    return {"token_ids": list(ids), "sampling_params": sampling, **given}


def messages(text="Say something.", **given):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "seed": 1, **given}


async def begun(server, count=1):
    while server.service.engine.stats()["running"] < count:
        await asyncio.sleep(0.001)


def joined(lists):
    return [each for some in lists for each in some]


def greedy_is(model, ids, tokens):
    logits = plain_logits(model, [*ids, *tokens])[len(ids) - 1 : -1]
    return logits.argmax(-1).tolist() == list(tokens)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_token_ids_in_and_out_are_plain_recomputations(server):
    async def scenario(http):
        told = (await http.post(GENERATE, json=ask(12, sampling_params={"logprobs": 2}))).json()
        (choice,) = told["choices"]
        assert greedy_is(random_decoder(), range(3, 20), choice["token_ids"])
        assert choice["weight_versions"] == [{"version": 0, "start": 0, "end": 12}]
        assert choice["finish_reason"] == "length"
        logits = plain_logits(random_decoder(), [*range(3, 20), *choice["token_ids"]]).log_softmax(-1)
        for place, entry in enumerate(choice["logprobs"]["content"]):
            assert entry["logprob"] == pytest.approx(float(logits[16 + place, entry["token_id"]]), abs=1e-4)
            assert entry["top_logprobs"][0]["token_id"] == entry["token_id"] and len(entry["top_logprobs"]) == 2
        routes = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
        assert routes.shape == (17 + 12 - 1, SHAPE.layers, SHAPE.experts_per_token) and routes.dtype == np.uint8
        same = (await http.post("/inference/v1/generate", json=ask(12))).json()["choices"][0]
        assert same["token_ids"] == choice["token_ids"]
        assert told["usage"]["total_tokens"] == 29

    over(server, scenario)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, messages(return_token_ids=True, logprobs=True, top_logprobs=2, return_routed_experts=True, n=3)),
        (COMPLETE, {"prompt": ["def a", "x"], "max_tokens": 9, "seed": 4, "n": 2, "return_token_ids": True,
                    "logprobs": 1, "return_routed_experts": True}),
        (GENERATE, ask(9, sampling_params={"n": 2, "temperature": 1, "seed": 3, "logprobs": 1})),
    ],
)  # fmt: skip
def test_a_stream_joins_to_the_whole_answer(server, path, body):
    async def scenario(http):
        whole = (await http.post(path, json=body)).json()
        told = said_in((await http.post(path, json={**body, "stream": True})).text)
        assert told[-1] == "[DONE]"
        chunks = [json.loads(each) for each in told[:-1]]
        for choice in whole["choices"]:
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            assert joined(c.get("token_ids", []) for c in mine) == choice["token_ids"]
            last = mine[-1]
            for key in ("finish_reason", "stop_reason", "weight_versions", "routed_experts"):
                assert last[key] == choice[key]
            if path == CHAT:
                words = "".join(c["delta"].get("content", "") for c in mine)
                assert words == choice["message"]["content"] and mine[0]["delta"]["role"] == "assistant"
                content = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
                assert content == choice["logprobs"]["content"] and len(content) == len(choice["token_ids"])
            elif path == COMPLETE:
                assert "".join(c["text"] for c in mine) == choice["text"]
                for key in ("tokens", "token_logprobs", "top_logprobs"):
                    assert joined(c["logprobs"][key] for c in mine if c["logprobs"]) == choice["logprobs"][key]
                assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        if path == CHAT:
            assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]

    over(server, scenario)


def test_the_same_seed_is_the_same_answer_and_more_choices_change_nothing(server):
    async def scenario(http):
        one = (await http.post(CHAT, json=messages(temperature=1.5))).json()["choices"][0]["message"]
        many = (await http.post(CHAT, json=messages(temperature=1.5, n=4))).json()["choices"]
        assert many[0]["message"] == one and len({each["message"]["content"] for each in many}) > 1

    over(server, scenario)


def test_text_ends_at_a_stop_string_and_its_tokens_with_it(server):
    async def scenario(http):
        body = {"prompt": "def add", "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        whole = (await http.post(COMPLETE, json=body)).json()["choices"][0]
        stop = whole["text"][20:23]
        cut = (await http.post(COMPLETE, json={**body, "stop": [stop, "never there"]})).json()["choices"][0]
        assert cut["text"] == whole["text"][: whole["text"].index(stop)]
        assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
        assert len(cut["token_ids"]) < 40 and cut["token_ids"] == whole["token_ids"][: len(cut["token_ids"])]
        kept = {**body, "stop": stop, "include_stop_str_in_output": True}
        assert (await http.post(COMPLETE, json=kept)).json()["choices"][0]["text"] == cut["text"] + stop

    over(server, scenario)


def test_usage_can_end_a_stream(server):
    async def scenario(http):
        body = messages(stream=True, stream_options={"include_usage": True})
        last = json.loads(said_in((await http.post(CHAT, json=body)).text)[-2])
        assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0

    over(server, scenario)


def test_a_gap_is_filled_where_the_tokenizer_has_the_marks(server):
    body = {"prompt": "def a():\n", "suffix": "\n    return x", "max_tokens": 4, "return_token_ids": True}
    over(server, lambda http: _no_gap(http, body))
    tokenizer = shipped_tokenizer()
    tokenizer.add_special_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    shape = SHAPE.model_copy(update={"vocab_size": tokenizer.get_vocab_size()})

    async def scenario(http):
        told = (await http.post(COMPLETE, json=body)).json()["choices"][0]
        marked = tokenizer.decode(told["prompt_token_ids"], skip_special_tokens=False)
        assert marked == "<|fim_prefix|>def a():\n<|fim_suffix|>\n    return x<|fim_middle|>"
        assert len(told["token_ids"]) <= 4

    with serving(random_decoder(0, shape), tokenizer) as filling:
        over(filling, scenario)


async def _no_gap(http, body):
    refused(await http.post(COMPLETE, json=body), 400, "unsupported_value", "fim_prefix", param="suffix")


def test_a_session_keeps_its_cache_between_requests(server):
    async def scenario(http):
        first = (await http.post(GENERATE, json=ask(5, range(3, 30), session_id="s"))).json()
        longer = [*range(3, 30), *first["choices"][0]["token_ids"], 7, 8, 9]
        second = (await http.post(GENERATE, json=ask(5, longer, session_id="s"))).json()
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 27 + 4
        server.service.engine.cancel("s")

    over(server, scenario)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_only_who_has_the_token_comes_in(server):
    for header, value, status, code in (
        ("Authorization", "", 401, "invalid_api_key"),
        ("Authorization", "Bearer other", 401, "invalid_api_key"),
        ("Host", "evil.example", 403, "forbidden"),
        ("Origin", "https://evil.example", 403, "forbidden"),
    ):

        async def scenario(http, value=value, status=status, code=code):
            routes = [("POST", "/health"), ("GET", "/metrics"), ("POST", CHAT), ("GET", "/nothing")]
            for method, path in (*routes, ("GET", "/health")) if value else routes:
                answer = await http.request(method, path)
                refused(answer, status, code)
                assert TOKEN not in answer.text

        over(server, scenario, **{header: value})


def test_whoever_watches_over_processes_learns_the_status_without_a_token_and_no_more(server, monkeypatch):
    """As Kubernetes and load balancers ask. With the token the answer is whole."""

    async def scenario(http):
        return [await http.get(path) for path in ("/health", "/ready")]

    def told(**headers):
        return [(answer.status_code, answer.json()) for answer in over(server, scenario, **headers)]

    assert told(Authorization="") == [(200, {"status": "ok"})] * 2
    assert told()[0] == (200, {"status": "ok", "paused": False})
    monkeypatch.setattr(server.service, "draining", True)
    assert told(Authorization="") == [(503, {"status": "unavailable"})] * 2
    assert [body["error"]["code"] for _, body in told()] == ["draining"] * 2


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "said"),
    [
        (CHAT, b"{", 400, None, "JSON"),
        (CHAT, {}, 400, "messages", "required"),
        (CHAT, messages(bogus=1), 400, "bogus", "unknown"),
        (CHAT, messages(model="gpt-9"), 404, "model", "small"),
        (CHAT, messages(temperature=3), 400, "temperature", "2"),
        (CHAT, messages(temperature="1"), 400, "temperature", "number"),
        (CHAT, messages(top_p=0), 400, "top_p", "greater"),
        (CHAT, messages(presence_penalty=0.5), 400, "presence_penalty", "not supported here; leave it out"),
        (CHAT, messages(presence_penalty=-1), 400, "presence_penalty", "not supported here; leave it out"),
        (CHAT, messages(logit_bias={"1": 2}), 400, "logit_bias", "not supported here; leave it out"),
        (CHAT, messages(top_logprobs=2), 400, "top_logprobs", "logprobs"),
        (CHAT, messages(tool_choice="required"), 400, "tool_choice", "no tools"),
        (CHAT, messages(response_format={"type": "yaml"}), 400, "response_format.type", "text"),
        (CHAT, messages(n=1000), 400, "n", "128"),
        (CHAT, messages("x " * 400), 400, None, "context"),
        (CHAT, messages(max_tokens=100_000), 400, None, "context"),
        (COMPLETE, {"prompt": []}, 400, "prompt", "at least"),
        (COMPLETE, {"prompt": [5000]}, 400, None, "5000"),
        (COMPLETE, {"prompt": "", "max_tokens": 2}, 400, None, "empty"),
        (GENERATE, ask(ids=[-1]), 400, "token_ids.0", ""),
        (GENERATE, ask(sampling_params={"stop": [""]}), 400, "sampling_params.stop", ""),
        ("/v1/responses", {"input": "x", "previous_response_id": "r"}, 400, "previous_response_id", "not supp"),
        ("/v1/responses", {"input": "x", "background": True}, 400, "background", "not supported"),
        ("/v1/responses", {"input": "x", "include": ["message.output_text.logprobs"]}, 400, "include.0", ""),
        ("/v1/responses", {"input": "x", "tools": [{"type": "custom", "name": "c"}]}, 400, "tools.0", "no tool known"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "i"}]}, 400, "input", "no item known"),
        ("/pause?mode=never", {}, 400, "mode", "keep"),
        ("/update_weights", {}, 409, None, "store"),
    ],
)
def test_what_is_wrong_is_named(server, path, body, status, param, said):
    async def scenario(http):
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        error = (await http.post(path, **sent)).json()["error"]
        assert error["param"] == param or (param and error["param"].startswith(param)), error
        assert said in error["message"], error
        assert (await http.post(path, **sent)).status_code == status

    over(server, scenario)


def test_what_is_not_there_is_said(server):
    async def scenario(http):
        refused(await http.get("/nothing"), 404, "no_route", "openapi")
        refused(await http.post("/v1/embeddings", json={"input": "a"}), 404, "no_embeddings", "no embedding model")
        wrong = await http.get(CHAT)
        refused(wrong, 405, "no_route")
        assert "POST" in wrong.headers["Allow"]
        refused(await http.get("/v1/models/other"), 404, "model_not_found", "'small'", param="model")
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert model == (await http.get("/v1/models/small")).json() and model["max_model_len"] == 256

    over(server, scenario)


def test_bodies_have_a_limit():
    async def scenario(http):
        refused(await http.post(CHAT, content=b" " * (2 << 20)), 413, "request_too_large")

    with serving(max_body_mb=1) as small:
        over(small, scenario)


# --- load, leaving and stopping ---------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_again():
    async def scenario(http):
        server.service.engine.pause()
        send = [asyncio.ensure_future(http.post(GENERATE, json=ask(3))) for _ in range(10)]
        while len(busy := [each for each in send if each.done()]) < 4:
            await asyncio.sleep(0.002)
        for each in busy:
            refused(each.result(), 429, "queue_full", "6 choices")
            assert int(each.result().headers["Retry-After"]) >= 1
        refused(await http.post(GENERATE, json=ask(3, sampling_params={"n": 7})), 400, "invalid_value", param="n")
        server.service.engine.resume()
        done = [each.status_code for each in await asyncio.gather(*send)]
        assert sorted(done) == [200] * 6 + [429] * 4

    with serving(engine=ROOM, max_waiting=2) as server:
        over(server, scenario)
        assert server.at_rest()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(stream):
    async def scenario(http):
        for path, body in ((GENERATE, ask(200, stream=stream)), (CHAT, messages(max_tokens=150, stream=stream))):
            body |= {"sampling_params": {**body["sampling_params"]}} if "sampling_params" in body else {}
            if path == CHAT:
                body["ignore_eos"] = True
            leaving = asyncio.ensure_future(http.post(path, json=body))
            await begun(server)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            assert await asyncio.to_thread(server.at_rest, 5)
        text = (await http.get("/metrics")).text
        assert f'etude_engine_requests_total{{outcome="cancelled",route="{CHAT}"}} 1.0' in text

    with serving(engine=ROOM) as server:
        over(server, scenario)
        assert server.service.engine.counters["cancelled"] == 2


def test_requests_are_aborted_by_name_with_what_they_have(server):
    async def scenario(http):
        one = asyncio.ensure_future(http.post(GENERATE, json=ask(200, request_id="one")))
        other = asyncio.ensure_future(http.post(GENERATE, json=ask(100, range(40, 60), request_id="other")))
        await begun(server, 2)
        refused(await http.post(GENERATE, json=ask(1, request_id="one")), 409, "request_id_taken", param="request_id")
        assert (await http.post("/abort_requests", json={"request_ids": ["one", "gone"]})).json() == {"aborted": 1}
        (cut,) = (await one).json()["choices"]
        assert cut["finish_reason"] == "abort" and len(cut["token_ids"]) < 200
        assert (await other).json()["choices"][0]["finish_reason"] == "length"

    over(server, scenario)


def test_pausing_keeps_ends_or_waits(server):
    async def scenario(http):
        for mode, finish in (("keep", "length"), ("wait", "length"), ("abort", "abort")):
            running = asyncio.ensure_future(http.post(GENERATE, json=ask(120)))
            await begun(server)
            assert (await http.post("/pause", params={"mode": mode})).json() == {"status": "paused"}
            assert (await http.get("/is_paused")).json() == {"is_paused": True}
            assert (await http.get("/health")).json()["paused"]
            late = asyncio.ensure_future(http.post(GENERATE, json=ask(2)))
            await asyncio.sleep(0.05)
            assert not late.done() and running.done() == (mode != "keep")
            await http.post("/resume")
            assert (await running).json()["choices"][0]["finish_reason"] == finish
            assert len((await late).json()["choices"][0]["token_ids"]) == 2

    over(server, scenario)


def test_draining_lets_nobody_in_and_what_runs_end():
    async def scenario(http):
        running = asyncio.ensure_future(http.post(GENERATE, json=ask(100)))
        await begun(server)
        draining = asyncio.ensure_future(asyncio.to_thread(asyncio.run, server.service.drain(20)))
        while not server.service.draining:
            await asyncio.sleep(0.001)
        answer = await http.post(GENERATE, json=ask(2))
        refused(answer, 503, "draining")
        assert int(answer.headers["Retry-After"]) >= 1
        refused(await http.get("/health"), 503, "draining")
        assert (await running).json()["choices"][0]["finish_reason"] == "length"
        await draining

    with serving() as server:
        over(server, scenario)


def test_an_engine_that_stopped_is_told_of(caplog):
    async def scenario(http):
        server.service.engine.close()
        refused(await http.post(GENERATE, json=ask(2)), 503, "engine_down", "closed")
        refused(await http.get("/health"), 503, "engine_down")

    with serving() as server:
        over(server, scenario)


# --- weights and figures ----------------------------------------------------------------------------------------------


def test_weights_come_from_the_store_verified(tmp_path):
    models = [random_decoder(seed) for seed in range(3)]
    publisher = Publisher(open_store(tmp_path))
    roots = [publisher.publish(Version(n), export_bits(model)).root for n, model in enumerate(models)]

    async def scenario(http):
        info = (await http.get("/weight_info")).json()
        assert (info["version"], info["root"], info["lag"]["version"], info["lag"]["lag_seconds"]) == (
            0,
            None,
            -1,
            None,
        )
        for version in (1, 2):
            told = (await http.post("/update_weights", json={"version": version})).json()
            assert (told["version"], told["root"]) == (version, roots[version]) and told["bytes"] > 0
            choice = (await http.post(GENERATE, json=ask(10))).json()["choices"][0]
            assert choice["weight_versions"][0]["version"] == version
            assert greedy_is(models[version], range(3, 20), choice["token_ids"])
        assert (await http.post("/update_weights")).json()["version"] == 2  # the newest is in
        refused(await http.post("/update_weights", json={"version": 9}), 409, "weights_refused", "9")
        info = (await http.get("/weight_info")).json()
        assert (info["version"], info["root"]) == (2, roots[2])
        lag = info["lag"]
        assert (lag["version"], lag["loads"], lag["load_failures"]) == (2, 2, 1) and "version 9" in lag["trouble"]
        assert 0 < lag["lag_seconds"] <= lag["longest_lag_seconds"] <= 600
        text = (await http.get("/metrics")).text
        assert (
            'etude_weights_version{region=""} 2.0' in text
            and 'etude_weights_load_failures_total{region=""} 1.0' in text
        )

    with serving(models[0], store=tmp_path) as server:
        over(server, scenario)


def test_figures_tell_what_happened():
    async def scenario(http):
        await http.post(CHAT, json=messages(max_tokens=3, ignore_eos=True))
        await http.post(CHAT, json={})
        await http.post(GENERATE, json=ask(4))
        text = (await http.get("/metrics")).text
        for line in (
            f'etude_engine_requests_total{{outcome="ok",route="{CHAT}"}} 1.0',
            f'etude_engine_requests_total{{outcome="refused",route="{CHAT}"}} 1.0',
            f'etude_engine_request_seconds_count{{route="{GENERATE}"}} 1.0',
            f'etude_engine_first_token_seconds_count{{route="{GENERATE}"}} 1.0',
            'etude_engine_tokens_total{kind="sampled"} 7.0',
            "etude_engine_decode_tokens_total",
            "etude_engine_running 0.0",
            "etude_engine_server_under_way 0.0",
        ):
            assert line in text, text

    with serving() as server:
        over(server, scenario)


def test_silence_is_broken_while_a_stream_waits(monkeypatch):
    monkeypatch.setattr("etude.serving.sse.SILENCE_S", 0.05)

    async def scenario(http):
        server.service.engine.pause()
        async with http.stream("POST", GENERATE, json=ask(2, stream=True)) as answer:
            async for line in answer.aiter_lines():
                if line == ": still here":
                    server.service.engine.resume()
        assert not server.service.engine.paused

    with serving() as server:
        over(server, scenario)


def test_a_deadline_is_an_event_in_a_stream_and_a_504_without():
    async def scenario(http):
        server.service.engine.pause()
        refused(await http.post(GENERATE, json=ask(2)), 504, "deadline_exceeded", "paused")
        told = said_in((await http.post(GENERATE, json=ask(2, stream=True))).text)
        assert json.loads(told[-1])["error"]["code"] == "deadline_exceeded"

    with serving(engine=ROOM, silence_s=0.2) as server:
        over(server, scenario)
        assert server.at_rest()
