"""The engine seam over HTTP: vLLM's and SGLang's contracts, kept by servers that really sample, or broken."""

import asyncio
import contextlib
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from foreign_stand_in import SglangStandIn, VllmStandIn, plain_text
from proofs import one_of_each
from small_models import random_decoder

from etude.config import parse
from etude.engine.config import EngineConfig
from etude.engine.foreign.config import ForeignConfig, SglangConfig, VllmConfig
from etude.engine.foreign.engine import ForeignEngine
from etude.engine.foreign.http import ServerRefused
from etude.engine.opening import open_engine
from etude.engine.torch_engine import TorchEngine
from etude.errors import ConfigError, ContextOverflow, DeadlineExceeded, EtudeError, InvalidRequest, WeightError
from etude.harness.sampler import NO_ROUTES, SampleRequest
from etude.models.config import ModelConfig
from etude.models.state import export_bits, round_to_bf16
from etude.records import Version

torch.set_num_threads(1)
MODEL = ModelConfig(
    vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16, max_context=256
)
STOP = 2
KINDS = {"vllm": (VllmStandIn, VllmConfig, "npy"), "sglang": (SglangStandIn, SglangConfig, "flat")}


def decoder(seed=0):
    """Random, but scaled so that what it says depends on its weights as a trained model's does."""
    return random_decoder(seed, MODEL)


def request(session, prompt, count, temperature=1.0, seed=None):
    return SampleRequest(session, tuple(prompt), count, frozenset({STOP}), temperature, seed)


def endless(session, seed):
    """Samples to the end of the context: nothing stops it before."""
    return SampleRequest(session, tuple(range(3, 20)), 220, frozenset(), 1.0, seed)


async def until(seen):
    end = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def config_of(kind, url, directory, **more):
    return KINDS[kind][1](urls=(url,), weights_dir=directory, tolerance=0.01, **more)


@pytest.fixture(autouse=True)
def short_probe(monkeypatch):
    """What the small model says differs by less, and less surely, over a longer one."""
    monkeypatch.setattr(ForeignConfig, "probe_tokens", 64)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


ONE_KIND = pytest.mark.parametrize("kind", one_of_each(0.7, KINDS), indirect=True)
"""For what our side does alike whoever serves: one kind of server is always asked, the other is a proof."""


@pytest.fixture
def serve(kind, tmp_path):
    """Starts a stand-in and an engine over it; both end with the test."""
    ends = []

    def start(fault=None, encoding=None, **more):
        stand_in = KINDS[kind][0](decoder(), encoding or KINDS[kind][2], fault).__enter__()
        engine = open_engine(config_of(kind, stand_in.url, tmp_path / "weights", **more), decoder())
        ends.append((stand_in, engine))
        return stand_in, engine

    yield start
    for stand_in, engine in ends:
        engine.close()
        stand_in.__exit__()


def sample(engine, *requests):
    async def play():
        return await asyncio.gather(*map(engine.sample, requests))

    return asyncio.run(play())


def test_what_comes_over_http_is_what_our_own_engine_says(serve):
    _, engine = serve()
    asked = [request(f"s{n}", range(3, 10 + 3 * n), 20, temperature=0.8, seed=n) for n in range(12)]
    own = TorchEngine(decoder(), EngineConfig(cache_tokens=8192))
    for ours, theirs in zip(sample(own, *asked), sample(engine, *asked), strict=True):
        assert theirs.token_ids == ours.token_ids
        assert theirs.versions == ours.versions
        assert theirs.finish == ours.finish
        np.testing.assert_allclose(theirs.logprobs, ours.logprobs, atol=1e-5)
        assert theirs.routed_experts.dtype == ours.routed_experts.dtype
        assert np.array_equal(theirs.routed_experts, ours.routed_experts)
    own.close()
    assert engine.stats()["requests"] == 12
    assert engine.stats()["busy_s"] > 0


def test_what_is_cut_from_the_distribution_is_cut_there_too(serve):
    _, engine = serve()
    asked = replace(request("a", range(3, 12), 30, 1.3, 4), top_k=5, top_p=0.8, min_p=0.02)
    own = TorchEngine(decoder(), EngineConfig(cache_tokens=8192))
    (ours,), (theirs,) = sample(own, asked), sample(engine, asked)
    own.close()
    assert theirs.token_ids == ours.token_ids
    np.testing.assert_allclose(theirs.logprobs, ours.logprobs, atol=1e-5)
    for more in ({"sampling_mask": True}, {"prompt_logprobs": 1}):
        with pytest.raises(InvalidRequest, match="own engine only"):
            sample(engine, replace(asked, **more))


def test_a_swap_in_flight_is_served_checked_and_marked(serve, tmp_path):
    stand_in, engine = serve()
    assert sample(engine, request("a", range(3, 9), 4))[0].versions == (0, 0, 0, 0)

    async def play():
        long = [asyncio.ensure_future(engine.sample(endless(f"s{n}", n))) for n in range(4)]
        await until(lambda: stand_in.engine.counters["decode_tokens"] > 40)
        stand_in.engine.pause()  # or it may be done before the new weights are on the disk; the swap resumes it
        assert await asyncio.wrap_future(engine.swap(export_bits(decoder(1)), Version(3))) > 0  # seconds
        return await asyncio.gather(*long)

    results = asyncio.run(play())
    assert engine.version == 3
    assert any(set(result.versions) == {0, 3} for result in results)
    assert all(list(result.versions) == sorted(result.versions) for result in results)
    own = TorchEngine(decoder(1), EngineConfig(cache_tokens=8192), Version(3))
    asked = request("fresh", range(3, 30), 12, 0.0, 1)
    ours, theirs = sample(own, asked)[0], sample(engine, asked)[0]
    own.close()
    assert (theirs.token_ids, theirs.versions) == (ours.token_ids, ours.versions)
    assert engine.stats()["swaps"] == engine.stats()["checks"] == engine.stats()["in_flight_swaps"] == 1
    assert engine.stats()["check_max_abs_dlogp"] < 1e-4
    assert len(list((tmp_path / "weights").iterdir())) == 1
    salts = {body.get("cache_salt", body.get("extra_key")) for body in stand_in.seen}
    assert {"version 0", "version 3"} < salts


@pytest.mark.parametrize("mode", ["abort", "wait or retract"])
def test_running_requests_may_also_be_given_up_or_waited_for(serve, kind, mode):
    chosen = mode if mode == "abort" else {"vllm": "wait", "sglang": "retract"}[kind]
    stand_in, engine = serve(in_flight=chosen)

    async def play():
        running = asyncio.ensure_future(engine.sample(endless("s", 1)))
        await until(lambda: stand_in.engine.counters["decode_tokens"] > 4)
        await asyncio.wrap_future(engine.swap(export_bits(decoder(1)), Version(1)))
        return await running

    done = asyncio.run(play())
    assert set(done.versions) == {"abort": {1}, "wait": {0}, "retract": {0, 1}}[chosen]
    assert engine.stats().get("sampled_anew", 0) == (chosen == "abort")


def nudged(scale):
    """The base after an update as small as a step of reinforcement learning."""
    model = decoder()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.abs().mean() * scale)
    round_to_bf16(model)
    return export_bits(model)


@ONE_KIND
@pytest.mark.parametrize("fault", ["deaf", "torn"])
def test_weights_that_are_not_the_asked_ones_are_never_sampled_from(serve, fault):
    _, engine = serve(fault)
    with pytest.raises(WeightError, match="served as version 1 is not that version"):
        engine.swap(export_bits(decoder(1)), Version(1)).result(60)
    with pytest.raises(WeightError, match="not that version"):
        sample(engine, request("a", range(3, 9), 4))
    assert engine.version == 0


@ONE_KIND
def test_an_update_within_rounding_that_was_not_taken_is_found_too(serve):
    stand_in, engine = serve()
    engine.swap(export_bits(decoder()), Version(1)).result(60)
    engine.swap(nudged(1e-3), Version(2)).result(60)
    assert engine.stats()["checks_of_the_step"] == 1
    stand_in.fault = "deaf"
    with pytest.raises(WeightError, match="the weights before are still there"):
        engine.swap(nudged(2e-3), Version(3)).result(60)
    stand_in.fault = None
    engine.swap(nudged(2e-3), Version(4)).result(60)  # an update that passes makes it good again
    assert set(sample(engine, request("a", range(3, 9), 4))[0].versions) == {4}


@ONE_KIND
def test_log_probabilities_of_another_distribution_are_found(serve):
    _, engine = serve("raw")
    with pytest.raises(WeightError, match="leave the temperature out"):
        engine.swap(export_bits(decoder()), Version(1)).result(60)


def test_routes_are_asked_for_and_missed(serve, kind):
    _, engine = serve(encoding="none")
    with pytest.raises(ServerRefused, match="enable-return-routed-experts"):
        sample(engine, request("a", range(3, 9), 4))
    _, without = serve(encoding="none", routes=False)
    assert sample(without, request("a", range(3, 9), 4))[0].routed_experts is NO_ROUTES


@pytest.mark.parametrize("encoding", ["table", "lists"])
def test_other_encodings_of_vllm(kind, serve, encoding):
    if kind != "vllm":
        encoding = "npy"
    _, engine = serve(encoding=encoding)
    done = sample(engine, request("a", range(3, 9), 4))[0]
    assert done.routed_experts.shape == (5 + len(done.token_ids), 2, 2)


@ONE_KIND
def test_a_busy_server_is_asked_again(serve):
    _, engine = serve("busy")
    assert len(sample(engine, *(request(f"s{n}", range(3, 9), 4) for n in range(6)))) == 6
    assert engine.stats()["retries"] > 0


@ONE_KIND
def test_waits_end_and_say_for_what(serve, monkeypatch):
    stand_in, engine = serve()
    stand_in.engine.pause()
    monkeypatch.setattr(ForeignConfig, "request_s", 0.5)
    with pytest.raises(DeadlineExceeded, match="sample for a"):
        sample(engine, request("a", range(3, 9), 4))
    stand_in.engine.resume()
    answered = []
    while not answered:  # it is asked again where a busy machine needs longer
        with contextlib.suppress(DeadlineExceeded):
            answered = sample(engine, request("a", range(3, 9), 4))


def test_cancelling_ends_a_session_at_the_server(serve):
    stand_in, engine = serve()

    async def play():
        running = asyncio.ensure_future(engine.sample(endless("a", 3)))
        await until(lambda: stand_in.engine.counters["decode_tokens"] > 2)
        engine.cancel("a")
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())
    assert engine.stats()["running"] == 0
    asyncio.run(until(lambda: not stand_in.engine.stats()["running"]))


@ONE_KIND
def test_what_does_not_fit_is_refused_and_a_closed_engine_says_so(serve):
    _, engine = serve()
    with pytest.raises(ContextOverflow, match="256"):
        sample(engine, request("a", range(3, 90), 200))
    engine.close()
    with pytest.raises(EtudeError, match="closed"):
        sample(engine, request("a", range(3, 9), 4))


@ONE_KIND
@pytest.mark.parametrize(
    ("status", "said", "error", "match"),
    [
        (403, "forbidden", ServerRefused, "403.*(enable-scale-out|admin key)"),
        (404, "Not Found", ServerRefused, "404.*(DEV_MODE|too old)"),
        (400, "This model's maximum context length is 9 tokens", ContextOverflow, "maximum context length"),
        (200, "<html>", ServerRefused, "no JSON"),
        (500, "it broke", ServerRefused, "500: it broke"),
    ],
)
def test_answers_of_a_server_that_cannot(kind, tmp_path, status, said, error, match):
    class Refusing(KINDS[kind][0]):
        def table(self):
            handler = plain_text(said, status)
            return {"/inference/v1/generate": handler, "/generate": handler}

    with Refusing(decoder(), "none") as stand_in:
        engine = ForeignEngine(config_of(kind, stand_in.url, tmp_path), decoder(), stand_in.url)
        with pytest.raises(error, match=match):
            sample(engine, request("a", range(3, 9), 4))
        engine.close()


@ONE_KIND
def test_nobody_there_is_a_deadline(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(ForeignConfig, "request_s", 0.4)
    config = config_of(kind, "http://127.0.0.1:9", tmp_path)
    engine = ForeignEngine(config, decoder(), config.urls[0])
    with pytest.raises(DeadlineExceeded, match=r"127\.0\.0\.1:9"):
        sample(engine, request("a", range(3, 9), 4))
    engine.close()


def test_configs_refuse_what_they_do_not_know(kind):
    raw = {"urls": ["http://engine:8000"], "weights_dir": "/shared/weights"}
    assert parse(raw, KINDS[kind][1], "recipe").replicas == 1
    with pytest.raises(ConfigError, match="cache_tokens"):
        parse(raw | {"cache_tokens": 1}, KINDS[kind][1], "recipe")
    with pytest.raises(ConfigError, match="urls"):
        parse(raw | {"urls": ["engine:8000"]}, KINDS[kind][1], "recipe")
    with pytest.raises(ConfigError, match="in_flight"):
        parse(raw | {"in_flight": "drop"}, KINDS[kind][1], "recipe")
