"""The engine against plain recomputation: same tokens, same log-probabilities, same routes, whatever the batch."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_serving import waiting
from proofs import one_of_each
from small_models import random_decoder

from etude.engine.config import EngineConfig
from etude.engine.kv_cache import CachedSequence, OutOfPages, PagedCache
from etude.engine.sampling import distribution, draw, uniform
from etude.engine.torch_engine import TorchEngine
from etude.errors import ContextOverflow, DeadlineExceeded, EtudeError
from etude.harness.prompt import render_result, system_prompt
from etude.harness.sampler import SampleRequest
from etude.harness.tools import TOOLS
from etude.kernels.paged_attention import PAGE
from etude.models.attention import PackedAttention
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.models.config import LatentConfig, ModelConfig
from etude.models.state import export_bits
from etude.records import Version
from etude.tasks.ladder import ladder_task

ROOT = Path(__file__).parents[2]
torch.set_num_threads(1)
MODEL = ModelConfig(
    vocab_size=128, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16, max_context=256
)
DENSE = ModelConfig(
    vocab_size=128, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=48, max_context=256
)
LATENT = ModelConfig(
    vocab_size=128, width=32, layers=3, heads=4, max_context=256,
    latent=LatentConfig(query_rank=24, rank=20, plain_width=12, rope_width=8, value_width=10),
    experts=300, experts_per_token=3, expert_width=8, shared_width=16, router="sigmoid", expert_groups=4,
    groups_per_token=2, gate_scale=2.5, dense_layers=(0,), dense_width=48,
)  # fmt: skip
SHAPES = {"mixture": MODEL, "dense": DENSE, "latent": LATENT}
STOP = 2


def decoder(seed=0, config=MODEL):
    """Random, but scaled so that its choices are clear-cut as a trained model's are."""
    return random_decoder(seed, config)


@torch.no_grad()
def plain(model, ids):
    output = model(torch.tensor(ids), torch.arange(len(ids)), PackedAttention([len(ids)]))
    return model.logits(output.hidden_ND), output.routing.experts_NLK.numpy()


def greedy(model, ids, count):
    ids, start = list(ids), len(ids)
    for _ in range(count):
        ids.append(int(plain(model, ids)[0][-1].argmax()))
        if ids[-1] == STOP:
            break
    return ids[start:]


def request(session, ids, count, temperature=0.0, seed=1):
    return SampleRequest(session, tuple(ids), count, frozenset((STOP,)), temperature, seed)


async def check_session(engine, model, name, rng, prefix):
    """Three turns of one session, each compared with plain recomputation."""
    ids = prefix[: rng.choice([10, 40])] + [rng.randrange(3, 128) for _ in range(rng.randint(1, 30))]
    for _ in range(3):
        done = await engine.sample(request(name, ids, rng.randint(1, 6)))
        assert list(done.token_ids) == greedy(model, ids, len(done.token_ids))
        full = ids + list(done.token_ids)
        logits, routes = plain(model, full)
        expected = logits.log_softmax(-1)[torch.arange(len(ids) - 1, len(full) - 1), torch.tensor(done.token_ids)]
        assert list(done.logprobs) == expected.tolist()
        assert done.routed_experts.dtype == (np.uint8 if model.config.experts <= 256 else np.uint16)
        assert (done.routed_experts == routes[: len(full) - 1]).all()
        ids = full + [rng.randrange(3, 128) for _ in range(rng.randint(1, 12))]


SMALL = EngineConfig(cache_tokens=24 * PAGE, step_tokens=24)


LARGE = EngineConfig(cache_tokens=16384)


@pytest.mark.parametrize(
    ("shape", "config", "sessions"),
    one_of_each(
        0.8,
        [
            *(("mixture", LARGE, n) for n in (12, 1, 2, 3, 5, 8, 32, 64, 128)),
            *((shape, LARGE, n) for shape in ("dense", "latent") for n in (12, 1)),
            *((shape, SMALL, 20) for shape in SHAPES),
        ],
        lambda shape, config, sessions: (shape, id(config), sessions == 1),
    ),
)
def test_greedy_tokens_equal_plain_recomputation(shape, config, sessions):
    model, rng = decoder(config=SHAPES[shape]), random.Random(sessions)
    prefix = [rng.randrange(3, 128) for _ in range(40)]
    engine = TorchEngine(model, config)

    async def play():
        await asyncio.gather(*(check_session(engine, model, f"s{n}", rng, prefix) for n in range(sessions)))

    asyncio.run(play())
    engine.cache.check(list(engine._idle.values()))
    if config is SMALL:
        assert engine.counters["preemptions"] + engine.counters["sessions_evicted"] > 0
        assert engine.counters["prefix_hit_tokens"] > 0
    else:
        assert engine.counters["session_cache_tokens"] > 0
    engine.close()


@pytest.mark.parametrize("sessions", one_of_each(1.5, [12, 1, 2, 3, 5, 8, 16, 32, 64, 128]))
def test_the_shipped_model_says_greedily_what_plain_recomputation_says(sessions):
    """Real sessions: the ladder's prompts, the model's own calls, and made-up results, three turns each."""
    model, tokenizer = load_checkpoint(ROOT / "models/etude-tiny")
    chat, engine = ChatRenderer(tokenizer), TorchEngine(model, EngineConfig())
    checked = 0

    async def play(number):
        nonlocal checked
        task = ladder_task(1 + number % 5, "eval", number)
        ids = chat.opening(system_prompt(TOOLS), task.instruction)
        for _ in range(3):
            done = await engine.sample(SampleRequest(f"s{number}", tuple(ids), 48, chat.stop_ids, 0.0, 1))
            logits, _ = plain(model, ids + list(done.token_ids))
            assert done.token_ids == tuple(logits[len(ids) - 1 : -1].argmax(-1).tolist())
            checked += len(done.token_ids)
            files = [render_result(text.decode()) for name, text in task.files.items() if name != "check.py"]
            ids = [*ids, *done.token_ids, *chat.observation(random.Random(number).choice(files))]

    async def play_all():
        await asyncio.gather(*map(play, range(sessions)))

    asyncio.run(play_all())
    assert checked > 30 * sessions
    assert engine.counters["session_cache_tokens"] > 0
    engine.close()


def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_batch():
    engine = TorchEngine(decoder(), EngineConfig(cache_tokens=8192))
    asked = [request(f"a{n}", range(3, 20 + n), 12, temperature=1.0, seed=n) for n in range(24)]

    async def together():
        return await asyncio.gather(*(engine.sample(r) for r in asked))

    batch = asyncio.run(together())
    for one, same in zip(asked, batch, strict=True):
        alone = asyncio.run(engine.sample(SampleRequest(f"b{one.session_id}", *list(vars(one).values())[1:])))
        assert alone.token_ids == same.token_ids
    assert len({done.token_ids for done in batch}) > 1
    engine.close()


def test_a_swap_goes_in_between_two_steps_and_marks_every_token():
    old, new = decoder(0), decoder(1)
    engine = TorchEngine(decoder(0), EngineConfig(cache_tokens=8192))

    async def play():
        long = [asyncio.ensure_future(engine.sample(request(f"s{n}", range(3, 30), 150, 1.0, n))) for n in range(4)]
        while engine.counters["decode_tokens"] < 40:
            await asyncio.sleep(0.001)
        assert await asyncio.wrap_future(engine.swap(export_bits(new), Version(7))) > 0  # seconds
        return await asyncio.gather(*long)

    results = asyncio.run(play())
    assert engine.counters["in_flight_swaps"] == 1
    changed = [r for r in results if len(set(r.versions)) == 2]
    assert changed
    for result in changed:
        assert list(result.versions) == sorted(result.versions)
        first_new = result.versions.index(7)
        ids = [*range(3, 30), *result.token_ids]
        before = plain(old, ids)[0].log_softmax(-1)
        for place in range(first_new):
            assert result.logprobs[place] == pytest.approx(float(before[26 + place, result.token_ids[place]]), abs=1e-4)
    fresh = asyncio.run(engine.sample(request("fresh", range(3, 30), 1)))
    assert list(fresh.token_ids) == greedy(new, list(range(3, 30)), 1)  # no page of the old version was taken up
    engine.close()


def test_with_recompute_what_follows_a_swap_is_the_new_weights_own():
    """The same tokens, log-probabilities and routes as if the new weights had read the whole context; what was sampled
    before keeps its routes, over the session's next turn and over a second swap.
    """
    models = [decoder(seed) for seed in range(3)]
    engine = TorchEngine(decoder(0), EngineConfig(cache_tokens=8192, in_flight="recompute"))
    prompt = list(range(3, 30))

    def swap_at(*places):
        due = dict(zip(places, enumerate(models[1:], 1), strict=False))
        count = 0

        def hear(_):
            nonlocal count
            count += 1
            if count in due:
                version, model = due[count]
                engine.swap(export_bits(model), Version(version))
            return False

        return hear

    def is_right(ids, first, done):
        for place, (token, logprob, version) in enumerate(
            zip(done.token_ids, done.logprobs, done.versions, strict=True)
        ):
            logits, routes = plain(models[version], [*ids, *done.token_ids[:place]])
            assert logprob == pytest.approx(float(logits[-1].log_softmax(-1)[token]), abs=1e-4)
            end = len(ids) + place
            assert np.array_equal(done.routed_experts[max(first, end - 1) : end], routes[max(first, end - 1) : end])

    never = frozenset()
    asked = SampleRequest("s", tuple(prompt), 40, never, 1.0, 5)
    one = asyncio.run(engine.sample(asked, swap_at(12, 25)))
    assert set(one.versions) == {0, 1, 2}
    is_right(prompt, 0, one)
    assert engine.counters["recomputed_tokens"] > 60
    ids = [*prompt, *one.token_ids, 7, 8, 9]
    two = asyncio.run(engine.sample(SampleRequest("s", tuple(ids), 10, never, 1.0, 6)))
    is_right(ids, len(ids) - 1, two)
    assert np.array_equal(two.routed_experts[: len(one.routed_experts)], one.routed_experts)
    engine.swap(export_bits(models[0]), Version(0)).result(30)
    third = asyncio.run(engine.sample(SampleRequest("s", (*ids, *two.token_ids, 4), 5, never, 1.0, 7)))
    assert np.array_equal(third.routed_experts[: len(two.routed_experts)], two.routed_experts)
    is_right([*ids, *two.token_ids, 4], len(ids) + len(two.token_ids), third)
    engine.cache.check([each.sequence for each in engine._running] + list(engine._idle.values()))
    engine.close()


def test_a_swap_that_does_not_fit_changes_nothing():
    engine = TorchEngine(decoder(), EngineConfig(cache_tokens=4096))
    before = asyncio.run(engine.sample(request("a", range(3, 20), 4)))
    with pytest.raises(EtudeError, match="fit the model"):
        engine.swap({"nothing": np.zeros(1, np.uint16)}, Version(1)).result(120)
    assert asyncio.run(engine.sample(request("b", range(3, 20), 4))).token_ids == before.token_ids
    engine.close()


def test_what_does_not_fit_is_refused_and_a_stuck_engine_is_named():
    engine = TorchEngine(decoder(), waiting(0.2, EngineConfig(cache_tokens=4096)))
    with pytest.raises(ContextOverflow, match="256"):
        asyncio.run(engine.sample(request("a", range(3, 128), 200)))
    engine.pause()
    with pytest.raises(DeadlineExceeded, match="paused"):
        asyncio.run(engine.sample(request("a", range(3, 20), 2)))
    engine.resume()
    assert asyncio.run(engine.sample(request("b", range(3, 20), 2))).token_ids
    engine.close()
    with pytest.raises(EtudeError, match="closed"):
        asyncio.run(engine.sample(request("a", range(3, 20), 2)))


def test_an_error_in_the_loop_reaches_everyone_who_waits():
    model = decoder()
    engine = TorchEngine(model, EngineConfig(cache_tokens=4096))
    model.embed.weight.data = model.embed.weight.data[:5]
    with pytest.raises(IndexError):
        asyncio.run(engine.sample(request("a", range(3, 20), 2)))
    with pytest.raises(EtudeError, match="IndexError"):
        asyncio.run(engine.sample(request("b", range(3, 20), 2)))


def test_cancelling_frees_the_pages():
    engine = TorchEngine(decoder(), EngineConfig(cache_tokens=4096))

    async def play():
        running = asyncio.ensure_future(engine.sample(request("a", range(3, 30), 200, 1.0)))
        while not engine.counters["decode_tokens"]:
            await asyncio.sleep(0.001)
        engine.cancel("a")
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(play())
    engine.close()
    engine.cache.check([])


def test_pages_are_shared_evicted_and_never_lost():
    cache, rng = PagedCache(MODEL, pages=24), random.Random(0)
    alive: list[CachedSequence] = []
    for step in range(400):
        if alive and rng.random() < 0.4:
            cache.release(alive.pop(rng.randrange(len(alive))))
        else:
            shared = [1] * rng.choice([0, PAGE, 3 * PAGE])
            sequence = CachedSequence(shared + [rng.randrange(9) for _ in range(rng.randint(1, 60))])
            cache.begin(sequence, version=step // 200)
            cache.adopt(sequence)
            try:
                cache.reserve(sequence, len(sequence.token_ids))
            except OutOfPages:
                cache.release(sequence)
                continue
            sequence.computed = len(sequence.token_ids)
            cache.share_full_pages(sequence)
            alive.append(sequence)
        cache.check(alive)
    assert cache._index


def test_sampling_follows_the_distribution_and_greedy_takes_the_best():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7]])).repeat(4000, 1)
    logprobs = distribution(logits, [1.0] * 4000)
    tokens = draw(logprobs, [1.0] * 4000, [uniform(n, 0) for n in range(4000)])
    np.testing.assert_allclose(np.bincount(tokens) / 4000, [0.1, 0.2, 0.7], atol=0.03)
    np.testing.assert_allclose(logprobs.exp(), np.tile([0.1, 0.2, 0.7], (4000, 1)), atol=1e-5)
    assert draw(distribution(logits[:1], [0.0]), [0.0], [0.0]) == [2]
    hot = distribution(logits[:200], [100.0] * 200)
    flat = draw(hot, [100.0] * 200, [uniform(n, 1) for n in range(200)])
    assert np.bincount(flat).min() > 40
    assert draw(distribution(torch.zeros(1, 3), [1.0]), [1.0], [1 - 1e-12]) == [2]
