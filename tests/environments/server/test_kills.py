"""Servers and guest agents killed at random moments: every request ends, nothing is left, every sandbox is told of."""

import asyncio
import itertools
import json
import os
import random
import sqlite3
import time
from collections import Counter

import pytest

from etude.environments.base import SandboxSpec, Snapshot
from etude.environments.wire import ServerError

KILLS = int(os.environ.get("ETUDE_KILLS", "200"))
SEED = int(os.environ.get("ETUDE_SEED", str(time.time_ns() % 10_000)))
WINDOWS_S = {"create": 0.03, "exec": 0.12, "snapshot": 0.03, "fork": 0.1}
"""Each operation, and how long after its beginning a kill comes at most: about as long as it takes by itself."""
LADEN = "(setsid sleep 600 &); mkdir d; for i in $(seq 300); do echo $i > d/$i; done"
ALL_CUT_FROM = 100
"""From so many kills on, each operation must have been cut by a kill of the server, and by one of a guest."""


async def operation(backend, box, kind):
    """One thing that takes a while; its result, or the named error that it ended in."""
    try:
        if kind == "create":
            return await backend.create(SandboxSpec(files={"a": b"1"}))
        if kind == "exec":
            return await box.exec("(setsid sleep 600 &); for i in 1 2 3; do echo $i; sleep 0.02; done")
        if kind == "snapshot":
            return await box.snapshot()
        return await box.fork(3)
    except ServerError as error:
        if not error.retryable:
            raise
        return error


async def laden(backend):
    """A sandbox in which something runs, with files that take a moment to copy."""
    box = await backend.create(SandboxSpec(files={"b": b"2"}))
    assert (await box.exec(LADEN)).exit_code == 0
    return box


class Loop:
    """Rounds of kills on one server. `cut` counts the operations that ended in an error, by victim and kind."""

    def __init__(self, server, backend, dice):
        self.server, self.backend, self.dice = server, backend, dice
        self.kills = 0
        self.cut = Counter()

    async def guests(self):
        """One operation of each kind at once, each in a sandbox of its own, and for each a guest is killed."""
        boxes = dict(zip(WINDOWS_S, await asyncio.gather(*(laden(self.backend) for _ in WINDOWS_S)), strict=True))
        known, hit = set(self.server.guests()), []

        async def one(kind, box):
            under_way = asyncio.ensure_future(operation(self.backend, box, kind))
            own = self.server.inner(box)
            starting = kind == "create" or (kind == "fork" and self.dice.randrange(2))
            await asyncio.sleep(self.dice.uniform(0, WINDOWS_S[kind]))
            while not self.kill_one(lambda inner: inner not in known if starting else inner == own):
                if under_way.done():
                    break  # it was made, and another of these kills hit it
                await asyncio.sleep(0.002)
            else:
                hit.extend([] if starting else [box])
            result = await under_way
            self.cut["guest", kind] += isinstance(result, ServerError)
            return result

        results = await asyncio.gather(*(one(kind, box) for kind, box in boxes.items()))
        await self.are_lost(hit)
        await self.end(results, boxes.values())
        assert self.server.leaked() == []

    async def server_itself(self):
        """One operation of each kind at once, and the server is killed; a sandbox that stands still dies with it."""
        boxes = await asyncio.gather(*(laden(self.backend) for _ in WINDOWS_S))
        await boxes[0].pause()  # create, the first, needs none
        under_way = [
            asyncio.ensure_future(operation(self.backend, *each)) for each in zip(boxes, WINDOWS_S, strict=True)
        ]
        await asyncio.sleep(self.dice.uniform(0, max(WINDOWS_S.values())))
        await asyncio.to_thread(self.server.kill)
        self.kills += 1
        await asyncio.to_thread(self.server.start)
        results = await asyncio.gather(*under_way)
        for kind, result in zip(WINDOWS_S, results, strict=True):
            self.cut["server", kind] += isinstance(result, ServerError)
        await self.are_lost(boxes)
        await self.end(results, boxes)
        assert self.server.left() == [] and self.server.leaked() == []

    def kill_one(self, wanted):
        """Kill one guest of those wanted; False where there is none."""
        found = [inner for inner in self.server.guests() if wanted(inner)]
        if not found or not self.server.kill_guest(self.dice.choice(sorted(found))):
            return False
        self.kills += 1
        return True

    async def are_lost(self, boxes):
        for box in boxes:
            with pytest.raises(ServerError) as lost:
                await box.exec("true")
            assert lost.value.kind == "lost" and lost.value.retryable

    async def end(self, results, boxes):
        """What came of the operations works, or says that it is lost; afterwards nothing is alive."""
        flat = [each for result in results for each in (result if isinstance(result, list) else [result])]
        made = [each for each in flat if hasattr(each, "exec")]
        for end in await asyncio.gather(*(operation(self.backend, each, "exec") for each in made)):
            assert isinstance(end, ServerError) or end.exit_code == 0
        await asyncio.gather(*(self.backend.release(each) for each in flat if isinstance(each, Snapshot)))
        await asyncio.gather(*(each.destroy() for each in (*made, *boxes)))
        assert json.loads(await self.backend.connection.get("/sandboxes", "the list of sandboxes")) == []


@pytest.mark.proof(57)
@pytest.mark.timeout(900)
def test_random_kills_leave_nothing_and_every_request_ends(make_server):
    """ETUDE_KILLS says how many, ETUDE_SEED which; the seed is printed where it fails."""
    print("seed", SEED)
    server = make_server()

    async def scenario():
        backend = server.client(unreachable_s=120)
        loop = Loop(server, backend, random.Random(SEED))
        while loop.kills < KILLS:
            async with asyncio.timeout(120):
                await loop.guests()
                await loop.server_itself()
        await backend.close()
        print("cut:", dict(loop.cut))
        missed = [pair for pair in itertools.product(("guest", "server"), WINDOWS_S) if not loop.cut[pair]]
        assert missed == [] or KILLS < ALL_CUT_FROM, f"no kill came in the midst: WINDOWS_S no longer fits {missed}"

    asyncio.run(scenario())
    server.stop()
    assert server.left() == []
    every_sandbox_is_accounted_for(server)


def every_sandbox_is_accounted_for(server):
    lines = [json.loads(line) for line in (server.directory / "state" / "events.jsonl").read_text().splitlines()]
    begun = [line["sandbox"] for line in lines if line["event"] in ("created", "forked")]
    ended = [line["sandbox"] for line in lines if line["event"] in ("destroyed", "expired", "failed")]
    assert len(begun) == len(set(begun)) >= KILLS
    assert len(ended) == len(set(ended)) and set(begun) <= set(ended)
    with sqlite3.connect(server.directory / "state" / "journal.sqlite") as db:
        assert db.execute("SELECT count(*) FROM requests WHERE status IS NULL").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM sandboxes WHERE state = 'alive'").fetchone() == (0,)


def test_a_fork_that_fails_half_way_leaves_none_on_the_server(make_server):
    server = make_server()

    async def scenario():
        backend = server.client()
        box = await backend.create(SandboxSpec(files={"a": b"1"}))
        own, result = server.inner(box), None
        while not isinstance(result, ServerError):  # guests are killed as they start, until one is hit in time
            forking = asyncio.ensure_future(operation(backend, box, "fork"))
            while not forking.done():
                for inner in server.guests():
                    if inner != own:
                        server.kill_guest(inner)
                await asyncio.sleep(0.002)
            result = await forking
            await asyncio.gather(*(each.destroy() for each in (result if isinstance(result, list) else ())))
        alive = json.loads(await backend.connection.get("/sandboxes", "the list of sandboxes"))
        assert [each["id"] for each in alive] == [box.id] and set(server.guests()) == {own}
        assert (await box.exec("cat a")).output == b"1"
        await backend.close()

    async def within_a_minute():
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(within_a_minute())
