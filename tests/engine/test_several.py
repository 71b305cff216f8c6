"""Several engines side by side: each session stays with one, all get some, and what is said is what one engine says."""

import asyncio

import torch
from small_models import random_decoder

from etude.engine.cache_size import available_bytes, position_bytes
from etude.engine.config import EngineConfig
from etude.engine.several import open_engines
from etude.harness.sampler import SampleRequest
from etude.kernels.paged_attention import PAGE
from etude.models.config import ModelConfig

MODEL = ModelConfig(
    vocab_size=128, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=48, max_context=256
)
TURNS, SESSIONS = 3, 6


async def said(engines) -> dict[str, list[tuple]]:
    """By session: the tokens of its turns, each after all that came before, with their log-probabilities."""

    async def session(number: int) -> list[tuple]:
        ids, turns = [number + 3] * 9, []
        for turn in range(TURNS):
            request = SampleRequest(f"s{number}", tuple(ids), 12, frozenset(), 1.0, seed=number * TURNS + turn)
            completion = await engines.sample(request)
            turns.append((completion.token_ids, completion.logprobs))
            ids += [*completion.token_ids, 5]
        return turns

    names = [f"s{number}" for number in range(SESSIONS)]
    return dict(zip(names, await asyncio.gather(*map(session, range(SESSIONS))), strict=True))


def test_several_say_what_one_says_and_all_have_sessions():
    decoder, threads = random_decoder(0, MODEL), torch.get_num_threads()
    with open_engines(decoder, EngineConfig(), 1) as one:
        alone = asyncio.run(said(one))
    with open_engines(decoder, EngineConfig(), 2) as two:
        assert torch.get_num_threads() == 1
        assert asyncio.run(said(two)) == alone
    assert torch.get_num_threads() == threads
    stats = [each.stats() for each in two.engines]
    assert all(each["decode_tokens"] > 0 for each in stats)
    # a session's second and third turn find its cache: they are with the engine of its first
    assert sum(each["session_cache_tokens"] for each in stats) == one.engines[0].stats()["session_cache_tokens"] > 0


def test_caches_of_several_fit_the_memory_together():
    long = MODEL.model_copy(update={"max_context": available_bytes() // 4 // position_bytes(MODEL) // PAGE * PAGE})
    with open_engines(random_decoder(0, long), EngineConfig(), 8) as eight:
        taken = sum(each.max_context for each in eight.engines) * position_bytes(long)
    assert available_bytes() // 4 < taken < available_bytes() * 0.7, "half of what is free, for one context each"
