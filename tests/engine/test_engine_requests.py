"""What whoever asks an engine can do to their request, and that the engine and everybody else survive it."""

import asyncio
import random

import pytest
from engine_serving import waiting
from small_models import random_decoder

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.errors import ContextOverflow, DeadlineExceeded, EtudeError, InvalidRequest
from etude.harness.sampler import NO_SESSION, SampleRequest
from etude.kernels.paged_attention import PAGE
from etude.records import Version

CONFIG = EngineConfig(cache_tokens=4096, max_running=8)


def request(ids=range(3, 20), count=8, session=NO_SESSION, **given):
    return SampleRequest(session, tuple(ids), count, frozenset(), **{"temperature": 0.0, "seed": 1, **given})


@pytest.fixture
def engine():
    made = TorchEngine(random_decoder(), CONFIG)
    yield made
    made.close()
    made.cache.check(list(made._idle.values()))


def run(scenario, seconds=60):
    async def limited():
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(limited())


async def until(true, what):
    for _ in range(5000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"never: {what}")


def at_rest(engine):
    now = engine.stats()
    return now["running"] == now["waiting"] == now["pages_held"] == 0


def test_who_gives_up_leaves_nothing(engine):
    async def scenario():
        rng = random.Random(0)
        tasks = [asyncio.ensure_future(engine.sample(request(range(3, 30 + n), 200, seed=n))) for n in range(24)]
        await until(lambda: engine.counters["decode_tokens"] > 20, "decoding")
        for task in rng.sample(tasks, 20):  # some run, and some wait for one of the eight places
            task.cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(0.002)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(each, asyncio.CancelledError) for each in done) == 20
        await until(lambda: at_rest(engine), "rest")

    run(scenario())
    assert engine.counters["cancelled"] == 20


def test_who_gives_up_while_it_is_paused_leaves_nothing_either(engine):
    async def scenario():
        task = asyncio.ensure_future(engine.sample(request(count=200)))
        await until(lambda: engine.counters["decode_tokens"], "decoding")
        await asyncio.wrap_future(engine.pause())
        task.cancel()
        await until(lambda: at_rest(engine), "rest")

    run(scenario())


def test_cancelling_a_session_spares_what_it_asks_for_next(engine):
    async def scenario():
        first = asyncio.ensure_future(engine.sample(request(count=200, session="s")))
        await until(lambda: engine.counters["decode_tokens"], "decoding")
        engine.cancel("s")
        second = asyncio.ensure_future(engine.sample(request(count=5, session="s")))
        assert len((await second).token_ids) == 5
        with pytest.raises(asyncio.CancelledError):
            await first

    run(scenario())
    assert engine.counters["cancelled"] == 1


def test_a_deadline_gives_the_pages_back():
    engine = TorchEngine(random_decoder(), waiting(0.1, CONFIG))

    async def scenario():
        engine.pause()
        with pytest.raises(DeadlineExceeded, match="paused"):
            await engine.sample(request())
        await until(lambda: at_rest(engine), "rest")

    run(scenario())
    engine.close()


def test_paused_it_computes_nothing_and_goes_on_where_it_was(engine):
    async def scenario():
        expected = await engine.sample(request(count=60))
        task = asyncio.ensure_future(engine.sample(request(count=60)))
        before = engine.counters["decode_tokens"]
        await until(lambda: engine.counters["decode_tokens"] > before + 5, "decoding")
        await asyncio.wrap_future(engine.pause("keep"))
        steps = engine.counters["steps"]
        await asyncio.sleep(0.05)
        assert engine.counters["steps"] == steps and not task.done() and engine.paused
        engine.resume()
        assert (await task).token_ids == expected.token_ids

    run(scenario())


def test_a_pause_can_wait_for_what_runs_while_what_comes_waits(engine):
    async def scenario():
        running = asyncio.ensure_future(engine.sample(request(count=100)))
        await until(lambda: engine.counters["decode_tokens"], "decoding")
        paused = asyncio.ensure_future(asyncio.wrap_future(engine.pause("wait")))
        late = asyncio.ensure_future(engine.sample(request(count=2)))
        await paused
        await asyncio.sleep(0.02)
        assert running.done() and not late.done() and engine.stats()["waiting"] == 1
        engine.resume()
        assert len((await late).token_ids) == 2

    run(scenario())


def test_a_pause_that_is_resumed_at_once_is_over(engine):
    rested = engine.pause("wait")
    engine.resume()
    rested.result(120)


def test_two_requests_of_one_session_side_by_side_lose_no_page(engine):
    async def scenario():
        asked = [request(range(3, 40 + n), 20, session="twin") for n in range(6)]
        together = await asyncio.gather(*map(engine.sample, asked))
        for one, done in zip(asked, together, strict=True):
            alone = await engine.sample(SampleRequest(NO_SESSION, *list(vars(one).values())[1:]))
            assert alone.token_ids == done.token_ids
        engine.cancel("twin")
        await until(lambda: at_rest(engine), "rest")

    run(scenario())


def test_a_listener_hears_every_token_and_can_end_the_request(engine):
    async def scenario():
        heard = []

        def listen(sampled):
            heard.append(sampled)
            return len(heard) == 5

        done = await engine.sample(request(count=50, top_logprobs=3), listen)
        assert [each.token for each in heard] == list(done.token_ids) and len(heard) == 5
        assert [each.logprob for each in heard] == list(done.logprobs)
        assert all(each.top[0] == (each.token, each.logprob) and len(each.top) == 3 for each in heard)
        assert done.finish == "stop" and len(done.routed_experts) == 17 + 5 - 1

    run(scenario())


def test_a_listener_that_fails_ends_its_own_request_only(engine):
    async def scenario():
        def broken(sampled):
            raise ZeroDivisionError

        other = asyncio.ensure_future(engine.sample(request(count=40)))
        with pytest.raises(ZeroDivisionError):
            await engine.sample(request(range(50, 90)), broken)
        assert len((await other).token_ids) == 40
        await until(lambda: at_rest(engine), "rest")

    run(scenario())


@pytest.mark.parametrize(
    ("ids", "error", "said"),
    [
        ((), InvalidRequest, "empty"),
        ((3, 1024), InvalidRequest, "1024"),
        ((-1, 3), InvalidRequest, "-1"),
        (range(3, 255), ContextOverflow, "256"),
    ],
)
def test_what_could_never_be_done_is_refused_and_harms_nobody(engine, ids, error, said):
    with pytest.raises(error, match=said):
        run(engine.sample(request(ids)))
    assert run(engine.sample(request())).token_ids


def test_a_seed_gives_the_same_tokens_from_a_cut_distribution_in_any_batch(engine):
    cut = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01}

    async def scenario():
        asked = [request(range(3, 20 + n), 20, seed=n, **cut) for n in range(8)]
        together = await asyncio.gather(*map(engine.sample, asked))
        for one, done in zip(asked, together, strict=True):
            assert (await engine.sample(one)).token_ids == done.token_ids
        assert len({done.token_ids for done in together}) > 1

    run(scenario())
    assert engine.counters["cut_tokens"] == 2 * 8 * 20


def test_the_cached_part_of_a_prompt_is_told(engine):
    async def scenario():
        first = await engine.sample(request(range(3, 60)))
        again = await engine.sample(request(range(3, 60)))
        assert (first.cached_tokens, again.cached_tokens) == (0, 56 // PAGE * PAGE)
        assert again.token_ids == first.token_ids

    run(scenario())


def test_an_error_of_the_engine_is_told_at_once_to_everybody():
    """Wherever a request is at that moment: just taken up, running, or waiting; and to who swaps weights."""
    for broken in ("adopt", "reserve", "routes_of", "release"):
        engine = TorchEngine(random_decoder(), CONFIG.model_copy(update={"max_running": 2}))

        def fails(*_):
            raise ZeroDivisionError

        async def scenario(engine=engine, broken=broken, fails=fails):
            tasks = [asyncio.ensure_future(engine.sample(request(count=30 + n))) for n in range(4)]
            await until(lambda: engine.counters["decode_tokens"], "decoding")
            setattr(engine.cache, broken, fails)
            tasks.append(asyncio.ensure_future(engine.sample(request())))
            told = await asyncio.gather(*tasks, return_exceptions=True)
            assert any(isinstance(each, ZeroDivisionError) for each in told)
            assert not any(isinstance(each, DeadlineExceeded) for each in told)
            with pytest.raises(EtudeError, match="the engine has stopped: ZeroDivisionError"):
                await engine.sample(request())
            with pytest.raises(EtudeError, match="the engine has stopped"):
                engine.swap({}, Version(1))

        run(scenario())
        engine.close()


def test_weights_that_break_the_engine_are_told_to_who_staged_them():
    engine = TorchEngine(random_decoder(), CONFIG)
    with pytest.raises(TypeError):
        engine.swap(None, Version(1)).result(120)  # no mapping at all: not an error that a store could lead to
    with pytest.raises(EtudeError, match="stopped"):
        engine.raise_if_down()
    engine.close()
