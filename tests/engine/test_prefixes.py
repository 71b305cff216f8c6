"""What several sequences are to read is computed once: whoever needs it meanwhile waits, and takes it up."""

import asyncio
import random
import time

import numpy as np
import pytest
import torch
from small_models import random_decoder

from etude.engine.config import EngineConfig
from etude.engine.kv_cache import CachedSequence, PagedCache
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import SampleRequest
from etude.kernels.paged_attention import PAGE
from etude.models.config import LatentConfig, ModelConfig
from etude.models.state import export_bits
from etude.records import Version

torch.set_num_threads(1)
SMALL = {"vocab_size": 200, "width": 32, "heads": 4, "max_context": 512, "further_token": True}
SHAPES = {
    "mixture": ModelConfig(**SMALL, layers=2, head_width=8, experts=4, expert_width=16),
    "dense": ModelConfig(**SMALL, layers=2, head_width=24, kv_heads=1, experts=0, dense_width=40),
    "latent": ModelConfig(
        **SMALL, layers=2, experts=8, experts_per_token=3, expert_width=8, shared_width=16, router="sigmoid",
        latent=LatentConfig(query_rank=24, rank=20, plain_width=12, rope_width=8, value_width=10),
        expert_groups=4, groups_per_token=2, gate_scale=2.5, dense_layers=(0,), dense_width=48,
    ),
}  # fmt: skip
REST = 5
"""Tokens of a prompt behind its last full page."""


def model(seed=4, shape="mixture"):
    return random_decoder(seed, SHAPES[shape])


def drawn(seed, count):
    return tuple(random.Random(seed).randrange(3, 200) for _ in range(count))


PROMPT = drawn(1, 10 * PAGE + REST)


def asked(name, prompt=PROMPT, seed=0, count=30, temperature=1.0, **more):
    return SampleRequest(name, tuple(prompt), count, frozenset(), temperature, seed, **more)


def group(prompt=PROMPT, name="s", size=8, **more):
    return [asked(f"{name}{n}", prompt, n, **more) for n in range(size)]


async def started(engine, requests, hear=None, of=0):
    """Tasks of requests that are admitted in the same step. `hear` is told each token of one of them."""
    engine.pause()
    tasks = [asyncio.ensure_future(engine.sample(each, hear if n == of else None)) for n, each in enumerate(requests)]
    end = time.monotonic() + 60
    while len(engine._waiting) < len(requests):
        assert time.monotonic() < end, "requests did not arrive"
        await asyncio.sleep(0.001)
    engine.resume()
    return tasks


def sampled(engine, requests, hear=None, of=0):
    """What each is told, all begun at once."""

    async def play():
        return await asyncio.gather(*await started(engine, requests, hear, of))

    return asyncio.run(play())


def closed(engine):
    """Its books balance at its end."""
    engine.close()
    engine.cache.check([*(each.sequence for each in engine._running), *engine._idle.values()])


def told(done):
    return done.token_ids, done.logprobs, done.finish, done.routed_experts.tolist()


def alone(decoder, requests):
    """What each is told by an engine that has met no other."""
    answers = []
    for request in requests:
        engine = TorchEngine(decoder, EngineConfig())
        answers.append(told(asyncio.run(engine.sample(request))))
        closed(engine)
    return answers


@pytest.mark.parametrize("guesses", [{}, {"lookup_tokens": 6}, {"further_tokens": 2}], ids=["plain", "lookup", "layer"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_group_computes_its_prompt_once_and_holds_it_once(shape, guesses):
    decoder, requests = model(shape=shape), group()
    engine, held = TorchEngine(decoder, EngineConfig(**guesses)), []

    def hear(_):
        held.append(engine.cache.gauges()["pages_held"])
        return False

    done = sampled(engine, requests, hear)
    closed(engine)
    assert [told(each) for each in done] == alone(decoder, requests)
    assert engine.counters["prefill_tokens"] == len(PROMPT) + 7 * REST
    assert engine.counters["prefix_hit_tokens"] == sum(each.cached_tokens for each in done) == 7 * 10 * PAGE
    assert max(held) <= 10 + 8 * 2
    assert engine.counters["prefix_waits"] > 0


def test_a_prompt_in_many_steps_is_computed_once_too():
    requests, decoder = [*group(count=6), *group(drawn(2, 90), "t", count=6)], model()
    engine = TorchEngine(decoder, EngineConfig(step_tokens=23))
    done = sampled(engine, requests)
    closed(engine)
    assert [told(each) for each in done] == alone(decoder, requests)
    whole = len(PROMPT) + 7 * REST + 90 + 7 * (90 % PAGE)
    assert whole - 16 <= engine.counters["prefill_tokens"] <= whole  # the last token of a chunk may count as decoded


def test_what_is_said_alike_is_held_once():
    """Greedy answers of one prompt are the same; each keeps only its own last page."""
    requests, decoder = group(temperature=0.0, count=3 * PAGE), model(5)
    engine = TorchEngine(decoder, EngineConfig())
    done = sampled(engine, requests)
    assert len({each.token_ids for each in done}) == 1
    length = len(PROMPT) + len(done[0].token_ids) - 1
    assert engine.cache.gauges()["pages_held"] == length // PAGE + 8 * (length % PAGE > 0)
    assert length > len(PROMPT) + 2 * PAGE
    closed(engine)


def test_sessions_share_each_segment_that_they_have_in_common():
    """One opening for all, a task for each group, and a context begun anew behind the opening."""
    opening, decoder = drawn(3, 3 * PAGE + 9), model()
    first = [
        asked(f"s{task}.{n}", (*opening, *drawn(10 + task, 70), *drawn(100 + n, 4 * n)), n, 8)
        for task in range(3)
        for n in range(4)
    ]
    second = [asked(each.session_id, (*opening, *drawn(each.seed % 2, 60)), each.seed, 8) for each in first]
    engine = TorchEngine(decoder, EngineConfig(step_tokens=200))
    done = sampled(engine, first)
    assert engine.counters["prefill_tokens"] == tokens_once(first, set())
    again = sampled(engine, second)
    closed(engine)
    assert [told(each) for each in (*done, *again)] == alone(decoder, [*first, *second])
    known = set()
    assert engine.counters["prefill_tokens"] == tokens_once(first, known) + tokens_once(second, known)


def tokens_once(requests, known):
    """How many tokens are computed, if each page of a prompt is that is no other's yet, and what is behind them."""
    count = 0
    for ids in (each.prompt_ids for each in requests):
        full = (len(ids) - 1) // PAGE
        begun = {ids[: PAGE * page] for page in range(1, full + 1)}
        count += PAGE * len(begun - known) + len(ids) - PAGE * full
        known |= begun
    return count


CLOCK = asked("clock", drawn(5, 8), 1, 300)
"""Says a token in each step from the first on."""


@pytest.mark.parametrize("cancelled", ["session", "request"])
def test_where_the_one_that_computes_is_cancelled_another_does(cancelled):
    decoder, requests = model(), group()
    engine, ticks = TorchEngine(decoder, EngineConfig(step_tokens=12)), []

    async def play():
        async def stop(n):
            if cancelled == "session":
                return engine.cancel(f"s{n}")
            tasks[1 + n].cancel()
            await asyncio.wait({tasks[1 + n]})

        def hear(_):  # the engine's step lasts until this has ended
            ticks.append(engine.counters["prefill_tokens"])
            if len(ticks) in (6, 12, 18):
                asyncio.run_coroutine_threadsafe(stop(len(ticks) // 6 - 1), loop).result(60)
            return False

        loop = asyncio.get_running_loop()
        tasks = await started(engine, [CLOCK, *requests], hear)
        return await asyncio.gather(*tasks, return_exceptions=True)

    done = asyncio.run(play())
    closed(engine)
    assert all(isinstance(each, asyncio.CancelledError) for each in done[1:4])
    assert [told(each) for each in done[4:]] == alone(decoder, requests[3:])
    assert engine.counters["prefix_waits"] > 20
    once = len(CLOCK.prompt_ids) + len(PROMPT) + 4 * REST
    assert once < engine.counters["prefill_tokens"] < once + 3 * PAGE  # the page that each of the three was at is lost


def test_where_the_one_that_computes_loses_its_pages_nothing_changes():
    decoder = model()
    older, requests = asked("older", drawn(9, 90), 9, 150), group(size=12)
    engine, lost = TorchEngine(decoder, EngineConfig(cache_tokens=13 * PAGE, step_tokens=30)), []
    forget = engine.cache.forget

    def forgets(sequence):
        if sequence.shared_pages < 10:  # within its prompt
            lost.extend(each.request.session_id for each in engine._running if each.sequence is sequence)
        forget(sequence)

    engine.cache.forget = forgets
    done = sampled(engine, [older, *requests])
    closed(engine)
    assert [told(each) for each in done] == alone(decoder, [older, *requests])
    assert engine.counters["prefix_waits"] > 0 and "s0" in lost


@pytest.mark.parametrize("in_flight", ["keep", "recompute"])
def test_new_weights_in_the_midst_are_told_apart(in_flight):
    """Whoever had nothing yet begins with the new ones; so does everybody, if all is recomputed."""
    decoder, new = model(), model(8)
    bits, requests = export_bits(new), [*group(), *group(drawn(2, 6 * PAGE + REST), "t")]
    engine, ticks = TorchEngine(decoder, EngineConfig(step_tokens=17, in_flight=in_flight)), []

    def hear(_):
        ticks.append(engine.counters["prefill_tokens"])
        if len(ticks) == 8:
            engine.swap(bits, Version(1))
        return False

    done = sampled(engine, [CLOCK, *requests], hear)[1:]
    closed(engine)
    assert 3 * PAGE < ticks[7] < 5 * PAGE
    assert {version for each in done for version in each.versions} == {1}
    expected = alone(new, requests)
    assert [told(each) for each in done[8:]] == expected[8:]
    computed = engine.counters["prefill_tokens"]
    if in_flight == "recompute":
        assert [told(each)[:3] for each in done[:8]] == [each[:3] for each in expected[:8]]  # read ones keep routes
        again = tokens_once(requests, set()) + len(CLOCK.prompt_ids) + len(ticks[:8])
        assert again < computed < ticks[7] + again + 17
    else:  # the first group's pages are of both weights, each one's own; the second's are of the new ones
        assert computed < len(CLOCK.prompt_ids) + 8 * len(PROMPT) + tokens_once(requests[8:], set())


def test_tokens_sampled_before_a_preemption_keep_their_routes_over_new_weights():
    decoder, bits = model(), export_bits(model(8))
    late, older = asked("late", drawn(2, 20), 2, 120), asked("older", drawn(9, 20), 9, 140)
    engine, told_before = TorchEngine(decoder, EngineConfig(cache_tokens=8 * PAGE)), []
    tokens, _, _, routes = alone(decoder, [late])[0]

    def hear(token):
        told_before.append(token)
        if len(told_before) == 90:
            engine.swap(bits, Version(1))
        return False

    _, done = sampled(engine, [older, late], hear, of=1)
    closed(engine)
    assert engine.counters["preemptions"] and done.versions.index(1) == 90
    assert done.token_ids[:90] == tokens[:90]
    end = len(late.prompt_ids) + 90 - 1
    assert done.routed_experts[:end].tolist() == routes[:end]


def test_who_waits_moves_with_the_one_that_it_waits_for():
    """A request of which nothing is computed fails after a while; one that waits for its prompt must not."""
    engine, moved = TorchEngine(model(), EngineConfig(step_tokens=9)), []

    def hear(_):
        moved.extend(each.moved_at for each in engine._running if each.request.session_id == "s7")
        return len(moved) == 30

    sampled(engine, [CLOCK, *group(count=1)], hear)
    closed(engine)
    assert len(set(moved)) > 20 and moved == sorted(moved)
    assert engine.counters["prefix_waits"] > 7 * 20


def test_a_prompt_that_is_scored_is_computed_whole_and_nobody_waits_for_it():
    decoder = model()
    scored, requests = asked("scored", count=4, prompt_logprobs=0), group(size=2)
    engine = TorchEngine(decoder, EngineConfig(step_tokens=2 * len(PROMPT)))
    done = sampled(engine, [scored, *requests])
    closed(engine)
    assert len(done[0].prompt_scores) == len(PROMPT) - 1
    assert [told(each) for each in done] == alone(decoder, [scored, *requests])
    assert engine.counters["prefill_tokens"] == 2 * len(PROMPT) + REST
    assert done[0].cached_tokens == 0


def filled(cache, token_ids, computed, seed=0):
    """A sequence that has computed so many tokens on pages of its own."""
    sequence = CachedSequence(list(token_ids))
    cache.begin(sequence, 0)
    cache.reserve(sequence, computed)
    sequence.computed = computed
    routes = cache.routes[sequence.pages]
    cache.routes[sequence.pages] = np.random.default_rng(seed).integers(0, 4, routes.shape)
    return sequence


@pytest.mark.parametrize("computed", [3 * PAGE, 2 * PAGE + 7], ids=["whole", "begun"])
def test_an_equal_page_is_held_instead_of_ones_own_unless_its_routes_differ(computed):
    ids = drawn(1, 4 * PAGE)
    for seed, shared in ((0, computed // PAGE + (computed % PAGE > 0)), (1, 0)):
        cache = PagedCache(SHAPES["mixture"], 20)
        first, second = filled(cache, ids, 3 * PAGE), filled(cache, ids, computed, seed)
        own = cache.routes_of(second, computed)
        cache.share_full_pages(first)
        cache.share_full_pages(second)
        assert cache.adopt(second) == (3 * PAGE - computed if shared else 0)
        assert sum(one == other for one, other in zip(first.pages, second.pages, strict=True)) == shared
        assert np.array_equal(cache.routes_of(second, computed), own)
        cache.check([first, second])
        cache.release(first)
        cache.release(second)
        cache.check([])
