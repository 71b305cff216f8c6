"""Guesses: where they come from, how many are made, and that they change no token and no bit."""

import asyncio
import random
from itertools import chain

import numpy as np
import pytest
import torch
from proofs import one_of_each
from small_models import random_decoder

from etude.engine.config import EngineConfig
from etude.engine.lookup import NgramCache, PromptLookup
from etude.engine.speculation import AcceptanceRate
from etude.engine.torch_engine import TorchEngine
from etude.errors import ConfigError
from etude.harness.sampler import SampleRequest
from etude.kernels.paged_attention import PAGE
from etude.models.config import LatentConfig, ModelConfig
from etude.models.decoder import Decoder
from etude.models.state import export_bits, round_to_bf16
from etude.records import Version
from etude.trainer.config import OptimizerConfig
from etude.trainer.documents import Document, ShuffledSource
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, Stage

torch.set_num_threads(1)
SMALL = {"vocab_size": 200, "width": 32, "heads": 4, "max_context": 320, "further_token": True}
GROUPED = ModelConfig(**SMALL, layers=2, head_width=8, experts=4, expert_width=16)
LATENT = ModelConfig(
    **SMALL, layers=2, experts=8, experts_per_token=3, expert_width=8, shared_width=16, router="sigmoid",
    latent=LatentConfig(query_rank=24, rank=20, plain_width=12, rope_width=8, value_width=10),
    expert_groups=4, groups_per_token=2, gate_scale=2.5, dense_layers=(0,), dense_width=48,
)  # fmt: skip


# --- prompt lookup ---------------------------------------------------------------------------------------------------


def test_of_several_places_the_one_that_agrees_longest_is_guessed_from():
    tokens = [1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 8, 1, 2, 3, 4]
    guess = PromptLookup(3).propose(tokens, 2)
    assert guess == ([50, 9], "new 4")
    assert PromptLookup(3).propose([*tokens[5:], 9, 2, 3, 4], 1).tokens == [60]
    assert PromptLookup(3).propose([1, 2, 3, 4, 5, 6], 4).tokens == []


def test_what_another_sequence_said_is_guessed_token_by_token():
    habits = NgramCache()
    habits.learn([9, 1, 2, 3, 4, 5, 6], 3)  # only the last three were said; the others were read
    assert habits.propose([7, 1, 2, 3], 8).tokens == [4, 5, 6]
    assert habits.propose([7, 1, 2, 3], 2) == ([4, 5], "habit")
    assert habits.propose([9, 1, 2], 8).tokens == []
    habits.learn([2, 3, 4, 8], 1)
    assert habits.propose([1, 2, 3], 8).tokens == [4, 8]


def test_a_repetition_with_a_changed_token_goes_on_behind_it():
    read = list(range(100, 120))
    lookup, tokens = PromptLookup(3), [*read, 1, *read[:6]]
    assert lookup.propose(tokens, 4) == (read[6:10], "new 6")
    tokens += [read[6], 55]  # the guess broke at its second token
    assert lookup.propose(tokens, 4) == (read[8:12], "resumed")
    tokens += [read[8]]
    assert lookup.propose(tokens, 2) == (read[9:11], "resumed")
    tokens += read[9:11]
    assert lookup.propose(tokens, 2) == (read[11:13], "going 3")  # three in a row again


def test_what_is_mostly_right_is_guessed_far_and_what_costs_more_than_it_saves_is_not():
    odds = AcceptanceRate()
    for _ in range(50):
        odds.learn(4, 4)
    assert odds.draft_length(1) > 16 and odds.draft_length(64) > 4
    for _ in range(100):
        odds.learn(4, 1)
    assert 1 <= odds.draft_length(1) <= 4 and odds.draft_length(64) == 0
    for _ in range(20_000):
        odds.learn(1, 0)
    assert odds.draft_length(1) == 0


# --- the layer for a further token -----------------------------------------------------------------------------------


def play(model, prompts, temperature, swap=None, **given):
    """Two turns of each of 24 sessions; the counters, and all that was said."""
    engine = TorchEngine(model, EngineConfig(step_tokens=100, **given))

    async def one(n):
        request = SampleRequest(f"s{n}", tuple(prompts[n]), 30, frozenset((2,)), temperature, n)
        first = await engine.sample(request)
        more = (*request.prompt_ids, *first.token_ids, *prompts[n][:9])
        return first, await engine.sample(SampleRequest(f"s{n}", more, 30, frozenset((2,)), temperature, n))

    async def everyone():
        said = await asyncio.gather(*(one(n) for n in range(len(prompts))))
        if swap is not None:
            await asyncio.wrap_future(engine.swap(swap, Version(1)))
            said += await asyncio.gather(*(one(n) for n in range(3)))
        return said

    done = asyncio.run(everyone())
    engine.close()
    engine.cache.check(list(engine._idle.values()))
    return engine.counters, [
        (each.token_ids, each.logprobs, each.finish, each.routed_experts.tolist()) for pair in done for each in pair
    ]


@pytest.mark.parametrize("temperature", one_of_each(1.2, [1.0, 0.0]))
@pytest.mark.parametrize("shape", [GROUPED, LATENT], ids=["grouped", "latent"])
def test_further_tokens_change_no_token_and_no_bit(shape, temperature):
    model, rng = random_decoder(4, shape), random.Random(1)
    prefix = [rng.randrange(200) for _ in range(40)]
    prompts = [[*prefix, *(rng.randrange(200) for _ in range(rng.randint(1, 30)))] for _ in range(24)]
    swap = export_bits(random_decoder(5, shape))
    plain, expected = play(model, prompts, temperature, swap, cache_tokens=60 * PAGE)
    model = random_decoder(4, shape)
    counters, said = play(model, prompts, temperature, swap, cache_tokens=60 * PAGE, further_tokens=3)
    assert said == expected
    assert counters["preemptions"] and counters["prefix_hit_tokens"] and counters["session_cache_tokens"]
    assert counters["further_guessed"] > counters["further_right"]
    assert "further_guessed" not in plain


def test_of_several_guesses_the_kind_that_is_mostly_right_is_taken():
    model, rng = random_decoder(4, GROUPED), random.Random(1)
    phrases = [[rng.randrange(200) for _ in range(12)] for _ in range(3)]
    prompts = [[*chain.from_iterable(rng.choices(phrases, k=6)), rng.randrange(200)] for _ in range(24)]
    _, expected = play(model, prompts, 0.0)
    counters, said = play(model, prompts, 0.0, lookup_tokens=8, further_tokens=1)
    assert said == expected
    assert 0 < counters["further_guessed"] < counters["guessed_tokens"] / 2  # a layer that has learnt nothing


COUNTING = 40
"""Tokens of a game that one can learn in a minute: after token t comes t + 1 or, rarely, t + 2."""


def counted(rng, length):
    steps = rng.choice([1, 2], size=length, p=[0.85, 0.15])
    return ((rng.integers(COUNTING) + np.cumsum(steps)) % COUNTING).astype(np.int32)


@pytest.fixture(scope="module")
def begun():
    """Midtraining with the layer, and what its first steps told."""
    rng = np.random.default_rng(0)
    documents = [Document(counted(rng, 24), np.arange(24) > 0) for _ in range(400)]
    shape = ModelConfig(
        vocab_size=COUNTING, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16, max_context=128,
        further_token=True,
    )  # fmt: skip
    config = MidtrainingConfig(
        model=shape, stages=(Stage(tokens=60_000, mixture={"a": 1.0}),), further_weight=0.3, tokens_per_step=480,
        warmup_steps=5, optimizer=OptimizerConfig(lr=0.02),
    )  # fmt: skip
    run = Midtraining(config, {"a": ShuffledSource(documents, 0)})
    return run, [run.step() for _ in range(40)]


def test_the_layer_learns_in_midtraining_if_it_is_asked_to(begun):
    _, told = begun
    assert told[-1]["further_loss"] < 0.6 * told[0]["further_loss"]
    assert told[-1]["said_loss"] < 0.5 * told[0]["said_loss"]


@pytest.fixture(scope="module")
def trained(begun):
    run, told = begun
    for _ in range(125 - len(told)):
        run.step()
    round_to_bf16(run.decoder)
    return run.decoder


@pytest.mark.proof(7)
@pytest.mark.parametrize(("temperature", "accepted"), [(0.0, 0.9), (1.0, 0.5)])
def test_a_trained_layer_is_mostly_right_and_saves_steps(trained, temperature, accepted):
    decoder = trained
    prompts = [counted(np.random.default_rng(n), 12).tolist() for n in range(4)]
    plain, expected = play(decoder, prompts, temperature)
    counters, said = play(decoder, prompts, temperature, further_tokens=1)
    assert said == expected
    assert counters["further_right"] > accepted * counters["further_guessed"] > 0
    assert counters["steps"] < 0.8 * plain["steps"]


def test_a_checkpoint_without_the_layer_is_refused():
    with pytest.raises(ConfigError, match="further_tokens"):
        TorchEngine(random_decoder(0), EngineConfig(further_tokens=1))


def test_the_layer_and_its_loss_are_asked_for_together_and_off_by_default():
    stages = (Stage(tokens=1, mixture={"a": 1.0}),)
    with pytest.raises(ValueError, match="further_weight"):
        MidtrainingConfig(model=GROUPED, stages=stages)
    with pytest.raises(ValueError, match="no effect"):
        MidtrainingConfig(model=ModelConfig(vocab_size=8), stages=stages, further_weight=0.1)
    assert Decoder(ModelConfig(vocab_size=8)).further is None
