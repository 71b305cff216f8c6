"""The engine by kernels of a device: what it samples is what the exact kernels say, near to their log-probabilities."""

import asyncio
import random

import numpy as np
import pytest
import torch
from small_models import random_decoder
from test_engine import DENSE, LATENT, MODEL, SMALL, plain, request

from etude.engine.config import EngineConfig
from etude.engine.sampling import GREEDY_BELOW, Truncation, distribution, draw, uniform
from etude.engine.torch_engine import TorchEngine
from etude.kernels.choice import choose
from etude.kernels.padded import PaddedCached
from etude.models.state import export_bits
from etude.records import Version

torch.set_num_threads(1)
SHAPES = {"mixture": MODEL, "dense": DENSE, "latent": LATENT}
NEAR = 1e-4


async def turns(engine, name, rng, temperature):
    """What was asked and answered in two turns of a session; the second goes on from the first's cache."""
    ids, told = [rng.randrange(3, 128) for _ in range(rng.randint(1, 60))], []
    for _ in range(2):
        done = await engine.sample(request(name, ids, rng.randint(2, 6), temperature, seed=len(ids)))
        told.append((list(ids), done))
        ids += [*done.token_ids, *(rng.randrange(3, 128) for _ in range(rng.randint(1, 8)))]
    return told


def sampled(kernels, shape, config=SMALL, sessions=6, temperature=0.0):
    engine = TorchEngine(random_decoder(shape=SHAPES[shape]).place(choose(kernels)), config)

    async def all_turns():
        return await asyncio.gather(
            *(turns(engine, f"s{at}", random.Random(at), temperature) for at in range(sessions))
        )

    try:
        told = [turn for session in asyncio.run(all_turns()) for turn in session]
        return told, engine.stats()
    finally:
        engine.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["mixture", "dense", "latent"])
def test_sessions_say_what_the_exact_kernels_say(shape, temperature):
    (found, stats), (wanted, _) = (sampled(each, shape, temperature=temperature) for each in ("torch", "exact"))
    compare(found, wanted, shape)
    assert stats["session_cache_tokens"] > 0 and "array_steps" not in stats


def compare(found, wanted, shape):
    assert [(ids, done.token_ids) for ids, done in found] == [(ids, done.token_ids) for ids, done in wanted]
    model = random_decoder(shape=SHAPES[shape])
    for (ids, done), (_, exact) in zip(found, wanted, strict=True):
        assert done.logprobs == pytest.approx(exact.logprobs, abs=NEAR)
        routes = plain(model, ids + list(done.token_ids))[1]
        assert np.array_equal(done.routed_experts, routes[: len(done.routed_experts)])


def test_triton_kernels_sample_too():
    """In Triton's interpreter, which is slow: one layer, and few tokens."""
    SHAPES["small"] = MODEL.model_copy(update={"layers": 1, "heads": 2, "kv_heads": 1})
    told = []
    for kernels in ("triton", "exact"):
        engine = TorchEngine(random_decoder(shape=SHAPES["small"]).place(choose(kernels)), SMALL)
        try:
            done = asyncio.run(engine.sample(request("a", [5, 6, 7, 8, 9], 3)))
        finally:
            engine.close()
        told.append([([5, 6, 7, 8, 9], done)])
    compare(*told, "small")


def test_guessed_tokens_change_nothing_on_a_device_either():
    further = MODEL.model_copy(update={"further_token": True})
    SHAPES["further"] = further
    config = EngineConfig(cache_tokens=4096, lookup_tokens=3, further_tokens=2)
    (found, stats), (wanted, _) = sampled("torch", "further", config), sampled("torch", "further", SMALL)
    assert [done.token_ids for _, done in found] == [done.token_ids for _, done in wanted]
    assert stats["guessed_tokens"] > 0


def test_new_weights_are_put_in_where_the_engine_computes():
    engine = TorchEngine(random_decoder().place(choose("torch")), EngineConfig(cache_tokens=4096))
    other = random_decoder(seed=1)
    try:
        engine.swap(export_bits(other), Version(1)).result(120)
        done = asyncio.run(engine.sample(request("a", [5, 6, 7], 4)))
    finally:
        engine.close()
    logits, _ = plain(other, [5, 6, 7, *done.token_ids])
    assert list(done.token_ids) == logits[2:-1].argmax(-1).tolist()[: len(done.token_ids)]
    assert set(done.versions) == {1}


def test_a_device_draws_the_tokens_that_a_host_draws():
    logits = torch.randn(400, 50, generator=torch.Generator().manual_seed(0)) * 2
    temperatures = [0.0 if at % 7 == 0 else 0.7 for at in range(400)]
    cuts = [Truncation(*((5, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.2), (0, 1.0, 0.0))[at % 4]) for at in range(400)]
    uniforms = [uniform(3, at) for at in range(398)] + [0.0, 1.0]
    logprobs = distribution(logits, temperatures, cuts)
    tokens = draw(logprobs, temperatures, uniforms, on_host=False)
    assert tokens == draw(logprobs, temperatures, uniforms)
    assert torch.isfinite(logprobs[torch.arange(400), tokens]).all(), "what was cut is never drawn"
    assert sum(temperature < GREEDY_BELOW for temperature in temperatures) > 50 and len(set(tokens)) > 20


def test_new_tokens_see_their_own_sequence_up_to_themselves():
    generator = torch.Generator().manual_seed(0)
    counts, lengths, places = [1, 5, 1, 3, 4], [9, 5, 1, 40, 12], []
    free = torch.randperm(100, generator=generator).numpy()
    for length in lengths:
        places.append(free[:length])
        free = free[length:]
    q, k, v = (torch.randn(n, h, c, generator=generator) for n, h, c in ((14, 4, 8), (100, 2, 8), (100, 2, 6)))
    out, at = PaddedCached(counts, places, torch.device("cpu")).attend(q, k, v, 0.3), 0
    for count, length, place in zip(counts, lengths, places, strict=True):
        for number in range(count):
            seen = place[: length - count + number + 1]
            odds = (torch.einsum("hc,tgc->ght", q[at], k[seen])[[0, 0, 1, 1], range(4)] * 0.3).softmax(-1)
            wanted = torch.einsum("ht,thv->hv", odds, v[seen][:, [0, 0, 1, 1]])
            torch.testing.assert_close(out[at], wanted)
            at += 1
