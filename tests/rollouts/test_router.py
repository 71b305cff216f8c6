"""Sessions to engines: groups together, loads by speed, and no session lost with its engine. Real engines sample."""

import asyncio
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.errors import ContextOverflow, DeadlineExceeded, EtudeError
from etude.harness.sampler import SampleRequest
from etude.rollouts.router import MUCH_OVER, OVER, SLACK, FleetView, Member, RemoteSampler, Router
from etude.rollouts.worker import WorkerGone

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from small_models import random_decoder


class Near:
    """A link to an engine in this process. Ending the engine is the death of its process."""

    def __init__(self, engine):
        self.engine, self.asked = engine, 0

    async def sample(self, request, deadline_s):
        self.asked += 1
        try:
            async with asyncio.timeout(deadline_s):
                return await self.engine.sample(request)
        except TimeoutError:
            raise DeadlineExceeded("an engine to sample", deadline_s) from None
        except EtudeError as error:
            if "closed" in str(error):
                raise WorkerGone("the engine died") from None
            raise

    async def drop(self, session):
        self.engine.cancel(session)


def view(number, *members, state="all is well", failure=None):
    return FleetView(number, members, state, failure)


def member(name, speed=1.0, link=None, leaving=False):
    return Member(name, link, speed, leaving)


def routed(*members):
    router = Router()
    router.update(view(0, *members))
    return router


def test_a_group_begins_on_one_engine_and_a_session_stays_there():
    router = routed(*(member(f"e{n}") for n in range(4)))
    placed = {f"g{g}/{m}": router.place(f"g{g}/{m}", 0.0).name for g in range(16) for m in range(4)}
    together = [len({placed[f"g{g}/{m}"] for m in range(4)}) == 1 for g in range(16)]
    assert sum(together) >= 10  # the others met an engine that had its share
    assert {session: router.place(session, 0.0).name for session in placed} == placed
    assert router.counters["sessions_moved"] == 0


def test_a_group_that_is_larger_than_a_share_is_split_and_no_engine_is_much_fuller_than_its_speed():
    router = routed(member("slow", 1.0), member("fast", 3.0))
    for each in range(200):
        router.place(f"one-group/{each}", 0.0)
    held = Counter(router.placed.values())
    assert held["fast"] <= OVER * 150 + SLACK + 1
    assert held["slow"] <= OVER * 50 + SLACK + 1
    many = routed(member("slow", 1.0), member("fast", 3.0))
    for each in range(400):
        many.place(f"g{each}/0", 0.0)
    assert 2.2 < Counter(many.placed.values())["fast"] / Counter(many.placed.values())["slow"] < 4.0


def test_what_joins_or_leaves_moves_few():
    members = [member(f"e{n}") for n in range(4)]
    router = routed(*members)
    before = {f"g{n}/0": router.place(f"g{n}/0", 0.0).name for n in range(100)}
    router.update(view(1, *members, member("new")))
    assert {session: router.place(session, 0.0).name for session in before} == before
    fresh = Counter(router.place(f"h{n}/0", 0.0).name for n in range(100))
    assert fresh["new"] >= 15
    assert router.update(view(2, *members[1:], member("new"))) == {"e0"}
    moved = {session for session, name in before.items() if router.place(session, 0.0).name != name}
    assert moved == {session for session, name in before.items() if name == "e0"}
    assert router.update(view(1, member("old"))) == set()  # what comes late changes nothing
    assert "old" not in router.members


def test_an_engine_that_leaves_is_given_no_more_and_a_much_fuller_one_gives_some_away():
    router = routed(member("a", leaving=True), member("b"))
    assert {router.place(f"g{n}/0", 0.0).name for n in range(20)} == {"b"}
    router.update(view(1, member("a"), member("b")))
    for n in range(20):
        router.place(f"g{n}/0", 0.0)
    held = Counter(router.placed.values())
    assert held["b"] == 20  # cold caches cost more than a queue that is not much longer
    for n in range(20, 40):
        router.place(f"g{n}/0", 0.0)
    router.update(view(2, member("a", 20.0), member("b")))
    for n in range(40):
        router.place(f"g{n}/0", 0.0)
    assert router.counters["sessions_moved_for_load"] > 0
    assert Counter(router.placed.values())["b"] <= MUCH_OVER * 40 / 21 + SLACK + 1
    for n in range(40):
        router.ended(f"g{n}/0")
    assert router.placed == {} and not any(router._load.values())


@contextmanager
def engines(count, **config):
    made = [TorchEngine(random_decoder(), EngineConfig(cache_tokens=4096, **config)) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def run(scenario):
    async def within_a_minute():
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(within_a_minute())


def request(session, seed=7, tokens=40, prompt=(5, 6, 7)):
    return SampleRequest(session, prompt, tokens, frozenset(), seed=seed)


def sampler_over(**links):
    sampler = RemoteSampler(sample_deadline_s=20, engine_deadline_s=20)
    sampler.update(view(0, *(member(name, link=link) for name, link in links.items())))
    return sampler


def test_sessions_of_an_engine_that_dies_sample_the_same_tokens_elsewhere():
    async def scenario(first, second):
        sessions = [f"g{n}/0" for n in range(12)]
        alone = [await second.sample(request(session, seed=n)) for n, session in enumerate(sessions)]
        sampler = sampler_over(a=Near(first), b=Near(second))
        turns = [asyncio.ensure_future(sampler.sample(request(s, seed=n))) for n, s in enumerate(sessions)]
        while not first.stats()["running"]:
            await asyncio.sleep(0)
        first.close()
        assert [each.token_ids for each in await asyncio.gather(*turns)] == [each.token_ids for each in alone]
        assert sampler.router.counters["turns_resampled"] == sampler.router.counters["sessions_moved"] > 0
        assert set(sampler.router.placed.values()) == {"b"}
        sampler.update(view(1, *(member(n, link=Near(e)) for n, e in (("a", first), ("b", second)))))
        assert set(sampler.router.members) == {"b"}  # the fleet learns of it later, and that changes nothing

    with engines(2) as made:
        run(scenario(*made))


def test_what_the_fleet_takes_away_is_left_in_the_middle_of_a_turn():
    async def scenario(hung, well):
        await asyncio.wrap_future(hung.pause())
        sampler = sampler_over(a=Near(hung))
        turn = asyncio.ensure_future(sampler.sample(request("g/0")))
        while not hung.stats()["waiting"]:
            await asyncio.sleep(0)
        sampler.update(view(1, member("b", link=Near(well))))
        assert len((await turn).token_ids) == 40
        while hung.stats()["waiting"]:
            await asyncio.sleep(0)  # the engine is told, and forgets it

    with engines(2) as made:
        run(scenario(*made))


def test_an_engine_that_fails_rests_and_is_asked_again():
    async def scenario(stopped, well):
        await asyncio.wrap_future(stopped.pause())
        only = RemoteSampler(sample_deadline_s=0.05, engine_deadline_s=20)
        link = Near(stopped)
        only.update(view(0, member("a", link=link)))
        turn = asyncio.ensure_future(only.sample(request("g/0")))
        while link.asked < 2:
            await asyncio.sleep(0.01)
        only.sample_deadline_s = 20
        stopped.resume()
        assert len((await turn).token_ids) == 40
        assert only.router.counters["turns_resampled"] >= 1
        with pytest.raises(ContextOverflow):
            await only.sample(request("g/0", tokens=5000))  # the request's own fault: nobody is asked again

    with engines(2) as made:
        run(scenario(*made))


def test_a_wait_for_an_engine_says_for_what():
    async def scenario(sampler):
        sampler.update(view(0, state="engine-0 is gone: killed, engine-1 is starting"))
        with pytest.raises(DeadlineExceeded, match=r"an engine to sample for g/0.*engine-1 is starting"):
            await sampler.sample(request("g/0"))
        sampler.update(view(1, failure="the engine died 9 times"))
        with pytest.raises(EtudeError, match="died 9 times"):
            await sampler.sample(request("g/0"))
        assert sampler.router.counters["engine_waits"] >= 1

    asyncio.run(scenario(RemoteSampler(sample_deadline_s=1, engine_deadline_s=0.05)))
