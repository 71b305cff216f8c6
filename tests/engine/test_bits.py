"""The sampler's log-probabilities and the trainer's are the same bits: any batch, chunking, cache, and weights."""

import asyncio
import random
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from proofs import one_of_each
from small_models import random_decoder
from torch.utils.checkpoint import checkpoint

from etude.engine.attention import PagedAttention
from etude.engine.config import EngineConfig
from etude.engine.kv_cache import CachedSequence, PagedCache
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import SampleRequest
from etude.kernels.paged_attention import PAGE
from etude.models.attention import PackedAttention
from etude.models.checkpoint import load_checkpoint
from etude.models.config import LatentConfig, ModelConfig
from etude.models.state import export_bits, round_to_bf16
from etude.records import Version

ROOT = Path(__file__).parents[2]
torch.set_num_threads(1)
SMALL = {"vocab_size": 200, "width": 32, "heads": 4, "max_context": 320}
MIXTURE = ModelConfig(**SMALL, layers=2, head_width=8, experts=4, expert_width=16)
DENSE = ModelConfig(**SMALL, layers=2, head_width=24, kv_heads=1, experts=0, dense_width=40)
LATENT = ModelConfig(
    **SMALL, layers=3, experts=16, experts_per_token=3, expert_width=8, shared_width=16, router="sigmoid",
    latent=LatentConfig(query_rank=24, rank=20, plain_width=12, rope_width=8, value_width=10),
    expert_groups=4, groups_per_token=2, gate_scale=2.5, dense_layers=(0,), dense_width=48,
)  # fmt: skip
SHAPES = {"mixture": MIXTURE, "dense": DENSE, "latent": LATENT}


def random_model(seed=0, dtype=torch.float32, shape="mixture"):
    return random_decoder(seed, SHAPES[shape]).to(dtype)


@torch.no_grad()
def packed_logprobs(model, sequences, temperature):
    """As the trainer does: all sequences in one packed forward, then the rows that predict."""
    ids = torch.tensor([token for sequence in sequences for token in sequence])
    lengths = [len(sequence) for sequence in sequences]
    positions = torch.cat([torch.arange(length) for length in lengths])
    output = model(ids, positions, PackedAttention(lengths))
    logprobs = torch.log_softmax(model.logits(output.hidden_ND) / temperature, dim=-1)
    return logprobs[:-1].gather(1, ids[1:, None]).squeeze(1), np.cumsum([0, *lengths])


async def session(engine, rng, name, prefix, temperature, turns):
    """Some turns of one session; returns its tokens, and what was said of those that were sampled, by position."""
    ids = prefix[: rng.choice([0, 20, 40])] + [rng.randrange(200) for _ in range(rng.randint(1, 60))]
    said = {}
    for turn in range(turns):
        seed = rng.randrange(10**6)
        done = await engine.sample(
            SampleRequest(name, tuple(ids), rng.randint(1, 20), frozenset((2,)), temperature, seed)
        )
        said |= {len(ids) + i: (logprob, done.versions[i]) for i, logprob in enumerate(done.logprobs)}
        ids += done.token_ids
        if turn < turns - 1:
            ids += [rng.randrange(200) for _ in range(rng.randint(1, 20))]
    return ids, said


def differences(model, played, temperature):
    """Of every sampled token: what the engine said less what the packed forward says."""
    logprobs, starts = packed_logprobs(model, [ids for ids, _ in played], temperature)
    return [
        logprob - float(logprobs[start + at - 1])
        for (_, said), start in zip(played, starts, strict=False)
        for at, (logprob, _) in said.items()
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "mix"),
    one_of_each(
        1,
        [*(("mixture", n) for n in range(6)), *((shape, n) for shape in ("dense", "latent") for n in (6, 2))],
        lambda shape, mix: shape,
    ),
)
def test_sampled_and_trained_log_probabilities_have_the_same_bits(dtype, shape, mix):
    rng = random.Random(mix)
    sessions, temperature = rng.choice([1, 2, 3, 7, 16, 64]), rng.choice([1.0, 0.7, 1.3])
    config = EngineConfig(cache_tokens=rng.choice([30, 120, 1000]) * PAGE, step_tokens=rng.choice([16, 23, 64, 512]))
    model = random_model(mix, dtype, shape)
    engine = TorchEngine(model, config)
    prefix = [rng.randrange(200) for _ in range(40)]

    async def play():
        return await asyncio.gather(
            *(session(engine, rng, f"s{n}", prefix, temperature, rng.randint(1, 3)) for n in range(sessions))
        )

    played = asyncio.run(play())
    engine.close()
    found = differences(model, played, temperature)
    assert len(found) >= sessions and set(found) == {0.0}


def test_the_mixes_meet_evictions_cache_hits_and_chunks():
    model, rng = random_model(), random.Random(3)
    engine = TorchEngine(model, EngineConfig(cache_tokens=40 * PAGE, step_tokens=23))
    prefix = [rng.randrange(200) for _ in range(40)]

    async def play():
        return await asyncio.gather(*(session(engine, rng, f"s{n}", prefix, 1.0, 3) for n in range(24)))

    played = asyncio.run(play())
    engine.close()
    assert set(differences(model, played, 1.0)) == {0.0}
    for counter in ("preemptions", "prefix_hit_tokens", "session_cache_tokens"):
        assert engine.counters[counter] > 0, counter


def test_what_starts_after_a_swap_has_the_bits_of_the_new_version():
    """A sequence that was running keeps keys of older weights; whoever starts later has nothing of them."""
    old, new = random_model(1), random_model(2)
    bits = export_bits(new)
    engine, rng = TorchEngine(random_model(1), EngineConfig()), random.Random(0)
    prefix = [rng.randrange(200) for _ in range(40)]

    async def play():
        first = [asyncio.ensure_future(session(engine, rng, f"a{n}", prefix, 1.0, 3)) for n in range(16)]
        while not engine.counters["decode_tokens"]:
            await asyncio.sleep(0.001)
        swapped = asyncio.wrap_future(engine.swap(bits, Version(1)))
        await swapped
        later = [session(engine, rng, f"b{n}", prefix, 1.0, 2) for n in range(16)]
        return await asyncio.gather(*first), await asyncio.gather(*later)

    before, after = asyncio.run(play())
    engine.close()
    assert set(differences(new, after, 1.0)) == {0.0}
    assert {version for _, said in after for _, version in said.values()} == {1}
    untouched = [each for each in before if {version for _, version in each[1].values()} == {0}]
    assert set(differences(old, untouched, 1.0)) <= {0.0} if untouched else True
    assert engine.counters["in_flight_swaps"] == 1


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_speculation_changes_no_token_and_no_bit(temperature):
    """Prompts that repeat themselves, so that there is much to guess, and some of it right."""
    model, rng = random_model(4), random.Random(1)
    phrases = [[rng.randrange(200) for _ in range(12)] for _ in range(3)]
    prompts = [[*chain.from_iterable(rng.choices(phrases, k=6)), rng.randrange(200)] for _ in range(24)]

    def play(**given):
        engine = TorchEngine(model, EngineConfig(step_tokens=100, **given))

        async def one(n):
            request = SampleRequest(f"s{n}", tuple(prompts[n]), 40, frozenset((2,)), temperature, n)
            first = await engine.sample(request)
            more = (*request.prompt_ids, *first.token_ids, *phrases[n % 3])
            return first, await engine.sample(SampleRequest(f"s{n}", more, 40, frozenset((2,)), temperature, n))

        async def everyone():
            return await asyncio.gather(*(one(n) for n in range(len(prompts))))

        done = asyncio.run(everyone())
        engine.close()
        engine.cache.check(list(engine._idle.values()))
        return engine.counters, [
            (each.token_ids, each.logprobs, each.finish, each.routed_experts.tolist()) for pair in done for each in pair
        ]

    plain, expected = play()
    counters, said = play(lookup_tokens=8)
    assert said == expected
    assert 0 < counters["guessed_right"] < counters["guessed_tokens"]
    assert not plain["guessed_tokens"]
    assert temperature or counters["steps"] < plain["steps"]  # drawn tokens are seldom the guessed ones here


def test_the_shipped_model_too():
    model, _ = load_checkpoint(ROOT / "models/etude-tiny")
    round_to_bf16(model)
    engine, rng = TorchEngine(model, EngineConfig(step_tokens=200)), random.Random(5)
    prefix = [rng.randrange(200) for _ in range(40)]

    async def play():
        return await asyncio.gather(*(session(engine, rng, f"s{n}", prefix, 1.0, 3) for n in range(40)))

    played = asyncio.run(play())
    engine.close()
    assert set(differences(model, played, 1.0)) == {0.0}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_forward_that_is_recomputed_for_its_gradient_has_the_bits_too(shape):
    """Activation checkpointing runs a block twice; what it gives, and its gradients, are those of running it once."""
    model, rng = random_model(7, shape=shape), random.Random(7)
    engine = TorchEngine(model, EngineConfig(step_tokens=33))
    played = [asyncio.run(session(engine, rng, f"s{n}", [5] * 40, 1.0, 2)) for n in range(5)]
    engine.close()
    ids = torch.tensor([token for whole, _ in played for token in whole])
    lengths = [len(whole) for whole, _ in played]
    positions = torch.cat([torch.arange(length) for length in lengths])

    def run():
        output = model(ids, positions, PackedAttention(lengths))
        logprobs = model.logits(output.hidden_ND).log_softmax(-1)[:-1].gather(1, ids[1:, None]).squeeze(1)
        return logprobs.detach(), torch.autograd.grad(logprobs.sum(), list(model.parameters()))

    (once, gradients), blocks = run(), [block.forward for block in model.blocks]
    for block, forward in zip(model.blocks, blocks, strict=True):
        block.forward = partial(checkpoint, forward, use_reentrant=False)
    again, gradients_again = run()
    assert torch.equal(once, again)
    assert all(torch.equal(one, other) for one, other in zip(gradients, gradients_again, strict=True))
    starts = np.cumsum([0, *lengths])
    for (_, said), start in zip(played, starts, strict=False):
        assert all(logprob == float(again[start + at - 1]) for at, (logprob, _) in said.items())


def test_sequences_that_threads_share_have_the_same_bits():
    cache = PagedCache(MIXTURE, 40)
    (groups, width), heads = cache.keys.shape[2:4], 4 * cache.keys.shape[2]
    batch = []
    for number in range(9):
        sequence = CachedSequence(list(range(50)))
        cache.reserve(sequence, 20 + 9 * number)
        sequence.computed = 20 + 8 * number
        batch.append((sequence, number))
    count, found, before = sum(number for _, number in batch), [], torch.get_num_threads()
    queries, keys, values = (torch.randn(count, some, width).numpy() for some in (heads, groups, groups))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = np.zeros_like(queries)
            PagedAttention(cache, batch).run(0, queries, keys, values, 0.3, out)
            found.append(out)
    finally:
        torch.set_num_threads(before)
    assert found[0].any() and np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_sequences_that_share_pages_read_them_together_and_get_the_bits_of_each_alone():
    cache, tokens, before = PagedCache(MIXTURE, 60), random.Random(4), torch.get_num_threads()
    for stored in (cache.keys, cache.values):
        stored.normal_(generator=torch.Generator().manual_seed(4))
    prompts, batch = [[tokens.randrange(200) for _ in range(length)] for length in (150, 70)], []
    for number in range(8):  # in turns from one family and the other
        prompt = prompts[number % 2]
        sequence = CachedSequence([*prompt, *(tokens.randrange(200) for _ in range(10 * number + 5))])
        cache.begin(sequence, 0)
        assert cache.adopt(sequence) == len(prompt) // PAGE * PAGE * (number > 1)
        cache.reserve(sequence, len(sequence.token_ids))
        sequence.computed = len(sequence.token_ids) - 1 - number % 3
        cache.share_full_pages(sequence)
        batch.append((sequence, 1 + number % 3))
    (groups, width), count = cache.keys.shape[2:4], sum(count for _, count in batch)
    queries, keys, values = (torch.randn(count, some, width).numpy() for some in (4 * groups, groups, groups))
    alone, start = np.zeros_like(queries), 0
    for pair in batch:
        own = slice(start, start + pair[1])
        PagedAttention(cache, [pair]).run(0, queries[own], keys[own], values[own], 0.3, alone[own])
        start = own.stop
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, together = np.zeros_like(queries), PagedAttention(cache, batch)
            together.run(0, queries, keys, values, 0.3, out)
            assert np.array_equal(out, alone)
    finally:
        torch.set_num_threads(before)
    assert abs(np.diff(together.rows[together.order] % 2)).sum() == 1, "families are not side by side"
