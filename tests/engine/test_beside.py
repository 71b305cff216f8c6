"""What is told beside the tokens: what each was drawn from, and what the model makes of the prompt."""

import asyncio
from itertools import pairwise

import pytest
import torch
from engine_serving import serving
from small_models import SHIPPED, plain_logits, random_decoder

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import NO_SESSION, SampleRequest
from etude.models.checkpoint import load_checkpoint
from etude.models.state import export_bits
from etude.records import Version

CUT = {"temperature": 0.8, "top_k": 12, "top_p": 0.9}


def request(ids=range(3, 60), count=12, session=NO_SESSION, **given):
    return SampleRequest(session, tuple(ids), count, frozenset(), **{"temperature": 1.0, "seed": 1, **given})


@pytest.fixture
def engine():
    made = TorchEngine(random_decoder(), EngineConfig(cache_tokens=2048, step_tokens=32, max_running=8))
    yield made
    made.close()
    made.cache.check(list(made._idle.values()))


def run(scenario, seconds=120):
    async def limited():
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(limited())


# --- the sampling mask ------------------------------------------------------------------------------------------------


def test_a_mask_is_enough_to_recompute_a_cut_log_probability(engine):
    """What a trainer does with it: its own logits, scaled over the same tokens."""
    done = run(engine.sample(request(sampling_mask=True, **CUT)))
    logits = plain_logits(random_decoder(), [*range(3, 60), *done.token_ids])[56:-1]
    assert len(done.masks) == len(done.token_ids) and len(set(map(len, done.masks))) > 1
    for row, token, logprob, mask in zip(logits, done.token_ids, done.logprobs, done.masks, strict=True):
        assert token in mask and 1 <= len(mask) <= 12 and list(mask) == sorted(set(mask))
        kept = torch.log_softmax(row[list(mask)] / 0.8, -1)
        assert float(kept[mask.index(token)]) == pytest.approx(logprob, abs=1e-4)


def test_what_was_drawn_from_everything_has_an_empty_mask(engine):
    for given in ({}, {"temperature": 0.0, "top_k": 3}):
        assert run(engine.sample(request(sampling_mask=True, **given))).masks == ((),) * 12
    assert run(engine.sample(request(**CUT))).masks == ()


# --- the prompt's log-probabilities -----------------------------------------------------------------------------------


def expected(model, ids):
    logprobs = torch.log_softmax(plain_logits(model, ids), -1)
    own = [logprobs[place, token] for place, token in enumerate(ids[1:])]
    return [(float(each), int((row > each).sum()) + 1) for each, row in zip(own, logprobs, strict=False)]


def agrees(model, ids, scores):
    assert [each.token for each in scores] == list(ids[1:])
    for each, (logprob, rank) in zip(scores, expected(model, ids), strict=True):
        assert each.logprob == pytest.approx(logprob, abs=1e-4) and abs(each.rank - rank) <= 1


def test_a_prompt_is_scored_in_chunks_and_though_it_is_cached(engine):
    ids = [3 + (7 * n) % 900 for n in range(150)]

    async def scenario():
        first = await engine.sample(request(ids, session="s"))
        asked = [
            request(ids, session="s", prompt_logprobs=0),
            *(request(ids[: 40 + n], prompt_logprobs=2) for n in range(6)),
        ]
        done = await asyncio.gather(*map(engine.sample, asked))
        assert done[0].token_ids == first.token_ids and done[0].cached_tokens == 0
        for one, found in zip(asked, done, strict=True):
            agrees(random_decoder(), one.prompt_ids, found.prompt_scores)
            assert {len(each.top) for each in found.prompt_scores} == {one.prompt_logprobs}
        assert all(each.rank == 1 for each in done[1].prompt_scores if each.top[0][0] == each.token)
        again = await engine.sample(request(ids))
        assert again.cached_tokens > 0 and again.prompt_scores == ()  # what was scored is a prefix for others

    run(scenario())
    assert engine.counters["scored_tokens"] == 149 + sum(39 + n for n in range(6))


def test_a_prompt_is_scored_once_though_it_is_preempted():
    engine = TorchEngine(random_decoder(), EngineConfig(cache_tokens=512, step_tokens=64, max_running=8))
    prompts = [[3 + (11 * n + k) % 900 for n in range(100)] for k in range(6)]

    async def scenario():
        asked = [request(ids, 120, prompt_logprobs=0, temperature=0.0) for ids in prompts]
        done = await asyncio.gather(*map(engine.sample, asked))
        for ids, found in zip(prompts, done, strict=True):
            agrees(random_decoder(), ids, found.prompt_scores)

    run(scenario())
    assert engine.counters["preemptions"] and engine.counters["scored_tokens"] == 6 * 99
    engine.close()


def test_a_prompt_of_one_token_has_nothing_to_score(engine):
    assert run(engine.sample(request([5], prompt_logprobs=3))).prompt_scores == ()


def test_new_weights_score_anew(engine):
    ids, other = list(range(3, 60)), random_decoder(1)

    async def scenario():
        await engine.sample(request(ids, prompt_logprobs=0))
        await asyncio.wrap_future(engine.swap(export_bits(other), Version(1)))
        agrees(other, ids, (await engine.sample(request(ids, prompt_logprobs=0))).prompt_scores)

    run(scenario())


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    model, tokenizer = load_checkpoint(SHIPPED)
    with serving(model, tokenizer) as made:
        yield made
        assert made.at_rest()


def post(server, path, body):
    async def asked():
        async with server.http() as http:
            return await http.post(path, json=body)

    return run(asked())


def test_masks_are_told_as_one_list_with_offsets(server):
    body = {"token_ids": list(range(3, 20)), "sampling_params": {"max_tokens": 9, "seed": 2, "ignore_eos": True, **CUT},
            "return_sampling_mask": True}  # fmt: skip
    (choice,) = post(server, "/generate", body).json()["choices"]
    ids, offsets = choice["sampling_mask"]["token_ids"], choice["sampling_mask"]["offsets"]
    assert offsets[0] == 0 and offsets[-1] == len(ids) and len(offsets) == 10
    rows = [ids[start:end] for start, end in pairwise(offsets)]
    assert all(token in row for token, row in zip(choice["token_ids"], rows, strict=True))
    plain = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1, "return_sampling_mask": True}
    (choice,) = post(server, "/v1/chat/completions", plain).json()["choices"]
    assert choice["sampling_mask"]["token_ids"] == [] and not any(choice["sampling_mask"]["offsets"])


def test_prompts_are_scored_in_vllms_form(server):
    ids = list(range(3, 20))
    sampling = {"max_tokens": 1, "prompt_logprobs": 2}
    whole = post(server, "/generate", {"token_ids": ids, "sampling_params": sampling}).json()
    scores = whole["prompt_logprobs"]
    assert scores[0] is None and len(scores) == len(ids)
    for token, entries in zip(ids[1:], scores[1:], strict=True):
        own = entries[str(token)]
        assert own.keys() == {"logprob", "rank", "decoded_token"} and own["logprob"] <= 0
        ranks = sorted(each["rank"] for each in entries.values())
        assert ranks == ([1, 2] if own["rank"] <= 2 else [1, 2, own["rank"]])
    body = {"prompt": [ids, ids[:9]], "n": 2, "max_tokens": 1, "prompt_logprobs": 2}
    told = post(server, "/v1/completions", body).json()["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in told] == [17, 17, 9, 9]
    assert [list(each) for each in told[0]["prompt_logprobs"][1:]] == [list(each) for each in scores[1:]]
    chat = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }
    told = post(server, "/v1/chat/completions", chat).json()
    assert len(told["prompt_logprobs"]) == len(told["prompt_token_ids"])
    assert (
        "prompt_logprobs" not in post(server, "/v1/completions", {"prompt": "a", "max_tokens": 1}).json()["choices"][0]
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"token_ids": [3], "sampling_params": {"prompt_logprobs": 0}}),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 0}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "prompt_logprobs": 0}),
    ],
)
def test_scores_are_not_streamed(server, path, body):
    answer = post(server, path, {**body, "stream": True})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt_logprobs"
