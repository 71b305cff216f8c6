"""Several servers behind one door: load is spread, a snapshot keeps its place, who is gone is waited for once."""

import pytest
from scenarios import within

from etude.config import parse
from etude.environments.backends import open_backend
from etude.environments.base import SandboxSpec, Snapshot
from etude.environments.cluster.routed import RoutedConfig
from etude.environments.wire import ServerError
from etude.errors import ConfigError, DeadlineExceeded, SandboxError


class Routed(RoutedConfig):
    """Who leaves a place that was away alone for longer than a test takes."""

    away_s = 600.0


def routed(servers, scenario, **given):
    places = tuple(each.remote(**{"unreachable_s": 1.0, **given}) for each in servers)
    within(120, lambda: open_backend(Routed(places=places)), scenario)


def test_load_is_spread_and_a_snapshot_is_started_where_it_is(make_server):
    servers = [make_server(name) for name in ("one", "two")]

    async def scenario(backend):
        boxes = [await backend.create(SandboxSpec(files={"a": b"1"})) for _ in range(6)]
        assert [len(place.backend.live) for place in backend.places] == [3, 3]  # of two places, both are drawn
        assert [len(server.guests()) for server in servers] == [3, 3]
        home = next(place for place in backend.places if boxes[0].id in place.backend.live)
        snapshot = await boxes[0].snapshot()
        copies = [await backend.create(SandboxSpec(base=snapshot)) for _ in range(4)]
        assert all(each.id in home.backend.live for each in copies)
        assert (await copies[0].exec("cat a")).output == b"1"
        await backend.release(snapshot)
        for lost in (snapshot, Snapshot("never")):
            with pytest.raises(ServerError, match="no snapshot") as unknown:
                await backend.create(SandboxSpec(base=lost))
            assert unknown.value.kind == "not_found"

    routed(servers, scenario)
    assert [server.guests() for server in servers] == [{}, {}]


def test_a_place_that_is_lost_is_passed_over_and_taken_back(make_server):
    servers = [make_server(name) for name in ("one", "two")]

    async def scenario(backend):
        mine = next(place for place in backend.places if place.config.url == servers[0].url)
        kept = await backend.create(SandboxSpec())
        while not mine.backend.live:
            await backend.create(SandboxSpec())
        orphan = next(iter(mine.backend.live.values()))
        servers[0].kill()
        boxes = [await backend.create(SandboxSpec()) for _ in range(5)]  # one of them finds out
        assert all(box.id not in mine.backend.live for box in boxes) and servers[0].url in mine.why
        found_out = mine.away_until
        await backend.create(SandboxSpec())
        assert mine.away_until == found_out  # it was not asked again
        with pytest.raises(DeadlineExceeded):
            await orphan.exec("true")
        servers[0].start()
        with pytest.raises(ServerError) as lost:
            await orphan.exec("true")
        assert lost.value.retryable
        mine.away_until = 0.0
        before = len(mine.backend.live)
        await backend.create(SandboxSpec())  # the less busy of the two by far
        assert len(mine.backend.live) == before + 1
        assert kept is orphan or (await kept.exec("true")).exit_code == 0

    routed(servers, scenario)


def test_a_place_that_was_down_at_first_is_taken_in_when_it_answers(make_server):
    servers = [make_server(name) for name in ("one", "two")]
    servers[1].kill()

    async def scenario(backend):
        first = await backend.create(SandboxSpec())
        assert backend.places[1].backend is None and backend.places[1].why
        servers[1].start()
        backend.places[1].away_until = 0.0
        second = await backend.create(SandboxSpec())
        assert first.id in backend.places[0].backend.live and second.id in backend.places[1].backend.live

    routed(servers, scenario)


def test_where_none_can_be_reached_every_trouble_is_told(make_server):
    server = make_server()

    async def scenario(backend):
        server.kill()
        with pytest.raises(SandboxError, match=f"no place could start a sandbox: {server.url}: waited"):
            await backend.create(SandboxSpec())
        with pytest.raises(SandboxError, match=f"none of the places can be reached: {server.url}: no environment"):
            open_backend(backend.config)

    routed([server], scenario)


def test_what_is_wrong_with_the_request_is_said_at_once(make_server):
    servers = [make_server(name) for name in ("one", "two")]

    async def scenario(backend):
        with pytest.raises(ConfigError, match="no-such"):
            await backend.create(SandboxSpec(image="no-such"))
        assert not any(place.why for place in backend.places)

    routed(servers, scenario)


def test_no_places_is_a_wrong_config():
    with pytest.raises(ConfigError, match="places"):
        parse({"places": []}, RoutedConfig, "test")
