"""The life of a worker, row by row of its table, with processes of Ray's that are killed, stopped and closed."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest
from proofs import one_of_each

from etude.config import load_recipe
from etude.deadlines import VARIABLE
from etude.environments.cluster.calls import actor
from etude.errors import ConfigError, DeadlineExceeded, EtudeError
from etude.records import Version
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import FaultConfig, Patience, RestartBudgetSpent, Restarts, restarts_of
from etude.rollouts.own_ray import start_ray, stop_ray
from etude.rollouts.ray_process import STOP_S, ActorBase, NotStarted, RayProcess
from etude.rollouts.trainer_worker import TrainerWorker
from etude.rollouts.worker import STATES, TABLE, Worker, WorkerGone, WrongEvent
from etude.rollouts.worker_pool import WorkerPool
from etude.weights.background import publish_seconds

pytestmark = pytest.mark.timeout(300)


@actor(num_cpus=0, max_concurrency=100)
class Counting(ActorBase):
    """Counts its orders in a process of its own; one whose file says so does not start, or is of no use."""

    def __init__(self, file):
        self.file, self.count, self.under_way = file, 0, {}
        if self._says() == "broken":
            raise ValueError("the file says that it is broken")

    def _says(self):
        return self.file.read_text() if self.file.exists() else ""

    async def stats(self):
        return {"pid": os.getpid(), "count": self.count}

    async def add(self, name):
        self.under_way[name] = asyncio.Event()
        self.count += 1
        await self.under_way[name].wait()
        return os.getpid()

    async def cancel(self, names):
        for name in names:
            if name in self.under_way:
                self.under_way[name].set()

    async def is_of_use(self):
        if self._says() == "useless":
            raise WorkerGone("it is of no use")
        if self._says() == "wrong":
            raise ConfigError("the recipe is wrong")

    async def close(self):
        self.file.with_name("closed").touch()


class ProcessSpec:
    kind = "sessions"

    def __init__(self, file):
        self.file, self.opened = file, 0

    def open(self, place):
        self.opened += 1
        return RayProcess(f"life {self.opened}", Counting.remote(self.file))

    async def prepare(self, process):
        await process.call("stats", seconds=100, what="it to answer")

    async def look(self, process, deadline_s):
        await process.answers(deadline_s)
        await process.call("is_of_use", seconds=deadline_s, what="it to answer")


@pytest.fixture(scope="module", autouse=True)
def with_ray(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ray")
    start_ray(directory, {}, num_cpus=1, object_store_memory=80 * 1024 * 1024)
    yield
    stop_ray(directory)


@pytest.fixture
def life(tmp_path):
    """Runs a scenario with a worker, and returns what that went through: (state, event, state)."""

    def run(scenario, restarts=8, longest_pause_s=0.01, **patience):
        async def inside():
            config = FaultConfig(restarts=restarts)
            often = Patience(**{"ping_every_s": 0.05, "longest_pause_s": longest_pause_s} | patience)
            budget, rows, changed = Restarts(config, tmp_path / "metrics.jsonl", often), [], asyncio.Event()

            def took(worker, event, before):
                rows.append((before, event, worker.state))
                changed.set()

            async def until(*row):
                while row not in rows:
                    changed.clear()
                    await changed.wait()

            worker = Worker(ProcessSpec(tmp_path / "file"), 0, budget, took)
            try:
                async with asyncio.timeout(240):
                    await scenario(worker, until)
            finally:
                await worker.close()
            assert all(TABLE[before, event][0] == after for before, event, after in rows)
            return rows

        return asyncio.run(inside())

    return run


async def pid(worker):
    return (await (await worker.ready()).call("stats", seconds=100, what="its number"))["pid"]


def test_one_that_is_killed_rests_and_is_started_anew(life, tmp_path):
    async def scenario(worker, until):
        first = await pid(worker)
        os.kill(first, signal.SIGKILL)
        await until("resting", "rested", "starting")
        assert await pid(worker) != first

    assert life(scenario)[:4] == [
        ("starting", "ready", "ready"), ("ready", "died", "resting"), ("resting", "rested", "starting"),
        ("starting", "ready", "ready"),
    ]  # fmt: skip
    assert restarts_of(tmp_path / "metrics.jsonl") == {"sessions": 1}


def test_one_that_is_stopped_hangs_and_is_started_anew(life):
    async def scenario(worker, until):
        os.kill(await pid(worker), signal.SIGSTOP)
        await until("ready", "died", "resting")
        assert worker.restarts.hung == 1
        worker.restarts.ping_s = 30
        await worker.ready()

    life(scenario, ping_s=0.3)


def test_one_that_dies_while_it_starts_is_started_anew(life):
    async def scenario(worker, until):
        worker.lost(worker.process, "found dead")
        worker.lost(worker.process, "found dead again")  # changes nothing
        assert (worker.state, worker.why) == ("resting", "found dead")
        await worker.ready()

    assert life(scenario)[0] == ("starting", "died", "resting")


@pytest.mark.proof(2.5)
def test_one_that_is_of_no_use_is_started_anew_until_the_budget_is_spent(life, tmp_path):
    async def scenario(worker, until):
        await worker.ready()
        (tmp_path / "file").write_text("useless")
        await until("resting", "end", "gone")
        with pytest.raises(RestartBudgetSpent, match=r"died 3 times .* of no use.*faults\.restarts allows more"):
            await worker.ready()

    life(scenario, restarts=2)
    assert restarts_of(tmp_path / "metrics.jsonl") == {"sessions": 2}


def test_what_another_would_meet_too_ends_it_at_once(life, tmp_path):
    async def scenario(worker, until):
        await worker.ready()
        (tmp_path / "file").write_text("wrong")
        await until("ready", "end", "gone")
        with pytest.raises(ConfigError, match="the recipe is wrong"):
            await worker.ready()

    life(scenario, ping_s=0.1)
    assert restarts_of(tmp_path / "metrics.jsonl") == {}


def test_a_first_process_that_cannot_start_ends_it(life, tmp_path):
    async def scenario(worker, until):
        with pytest.raises(NotStarted, match="did not start: ValueError: the file says that it is broken"):
            await worker.ready()

    (tmp_path / "file").write_text("broken")
    assert life(scenario) == [("starting", "end", "gone")]


@pytest.mark.proof(3)
def test_a_later_process_that_cannot_start_is_tried_again(life, tmp_path):
    async def scenario(worker, until):
        first = await pid(worker)
        (tmp_path / "file").write_text("broken")
        os.kill(first, signal.SIGKILL)
        await until("starting", "died", "resting")
        (tmp_path / "file").unlink()
        assert await pid(worker) != first

    life(scenario, restarts=1000, longest_pause_s=0.5)


def test_one_that_is_renewed_is_another_and_the_budget_does_not_count_it(life, tmp_path):
    async def scenario(worker, until):
        first = await pid(worker)
        await worker.renew("replaced by an operator")
        assert await pid(worker) != first

    assert life(scenario, restarts=0)[1] == ("ready", "renew", "starting")
    assert restarts_of(tmp_path / "metrics.jsonl") == {"sessions": 1}


def test_one_that_leaves_ends_in_order_when_its_work_is_done(life, tmp_path):
    async def scenario(worker, until):
        await worker.ready()
        drained = asyncio.Event()
        leaving = asyncio.ensure_future(worker.leave(drained.wait(), "asked to"))
        await until("ready", "leave", "leaving")
        assert not (tmp_path / "closed").exists()
        drained.set()
        await leaving
        assert (tmp_path / "closed").exists()

    assert life(scenario)[-1] == ("leaving", "end", "gone")


def test_one_that_dies_while_it_leaves_is_not_replaced(life):
    async def scenario(worker, until):
        number = await pid(worker)
        leaving = asyncio.ensure_future(worker.leave(until("leaving", "died", "gone"), "asked to"))
        await until("ready", "leave", "leaving")
        os.kill(number, signal.SIGKILL)
        await leaving
        assert worker.spec.opened == 1

    assert life(scenario)[-1] == ("leaving", "died", "gone")


@pytest.mark.parametrize("state", one_of_each(2, ["ready", "starting", "resting"]))
def test_one_that_is_closed_is_gone_from_wherever_it_is(life, state):
    async def scenario(worker, until):
        if state != "starting":
            await worker.ready()
        if state == "resting":
            worker.lost(worker.process, "found dead")
        await worker.close()
        with pytest.raises(WorkerGone):
            await worker.ready()

    assert life(scenario, longest_pause_s=20)[-1] == (state, "end", "gone")


def test_what_the_table_does_not_have_is_refused(life):
    async def scenario(worker, until):
        await worker.ready()
        for state in STATES:
            worker.state = state
            for event in {event for _, event in TABLE} - {each for before, each in TABLE if before == state}:
                with pytest.raises(WrongEvent, match=f"no way from {state} by {event}"):
                    worker._take(event)
        worker.state = "ready"

    life(scenario)


# --- several of them --------------------------------------------------------------------------------------------------


def pooled(tmp_path, scenario, size=1, spares=0, **faults):
    async def inside():
        patience = Patience(ping_every_s=60, longest_pause_s=0.01)
        restarts = Restarts(FaultConfig(**faults), tmp_path / "metrics.jsonl", patience)
        pool = WorkerPool("sessions", lambda: Counting.remote(tmp_path / "file"), size, spares, restarts)
        try:
            async with asyncio.timeout(240):
                await pool.start()
                await scenario(pool)
        finally:
            await pool.close()

    asyncio.run(inside())


async def order(pool, name):
    async with pool.given(name) as process:
        return await pool.call(process, "add", name, seconds=200, what=name)


async def begun(pool, count):
    while sum(each["count"] for each in await pool.each("stats")) < count:
        await asyncio.sleep(0.01)


def test_orders_go_to_whoever_has_least_to_do_and_are_cancelled_where_they_are(tmp_path):
    async def scenario(pool):
        orders = [asyncio.ensure_future(order(pool, f"order {n}")) for n in range(4)]
        await begun(pool, 4)
        assert sorted(each["count"] for each in await pool.each("stats")) == [2, 2]
        await pool.cancel(f"order {n}" for n in range(4))
        assert len(set(await asyncio.gather(*orders))) == 2
        assert pool.placed == {}

    pooled(tmp_path, scenario, size=2)


def test_a_spare_takes_over_from_one_that_dies_with_an_order(tmp_path):
    async def scenario(pool):
        spare = pool.ready[1].process
        (dying,) = await pool.each("stats")
        lost = asyncio.ensure_future(order(pool, "order"))
        await begun(pool, 1)
        os.kill(dying["pid"], signal.SIGKILL)
        with pytest.raises(WorkerGone):
            await lost
        async with pool.given("another") as process:
            assert process is spare
        await pool.until(lambda: len(pool.ready) == 2, 100, "the next spare")
        assert pool.spares_used == 1

    pooled(tmp_path, scenario, spares=1)


def test_a_pool_that_is_renewed_finishes_what_it_has_begun(tmp_path):
    async def scenario(pool):
        (old,) = await pool.each("stats")
        under_way = asyncio.ensure_future(order(pool, "order"))
        await begun(pool, 1)
        renewing = asyncio.ensure_future(pool.renew(pool.drained))
        await pool.until(lambda: pool.ready and pool.ready[0].place == 1, 100, "the new one")
        (new,) = await pool.each("stats")
        assert new["pid"] != old["pid"] and not under_way.done()
        await pool.cancel(["order"])
        assert await under_way == old["pid"]
        assert await renewing == 1
        assert [worker.place for worker in pool.all] == [1]

    pooled(tmp_path, scenario)


def test_a_pool_whose_budget_is_spent_says_so_to_whoever_waits(tmp_path):
    async def scenario(pool):
        lost = asyncio.ensure_future(order(pool, "order"))
        await begun(pool, 1)
        os.kill((await pool.each("stats"))[0]["pid"], signal.SIGKILL)
        with pytest.raises(WorkerGone):
            await lost
        with pytest.raises(EtudeError, match=r"faults\.restarts allows more"):
            await order(pool, "another")

    pooled(tmp_path, scenario, restarts=0)


def test_a_version_is_waited_for_as_long_as_its_model_is_large(tmp_path, monkeypatch):
    """A trainer that is stopped answers nothing: what is waited for is named, with the seconds that it was given."""
    config, scale = load_recipe(Path(__file__).parents[2] / "recipes/quickstart.toml", RunConfig, []), 1e-5

    async def scenario():
        restarts = Restarts(config.faults, tmp_path / "metrics.jsonl")
        trainer = TrainerWorker(config, config.store_of(tmp_path), tmp_path, restarts)
        try:
            async with asyncio.timeout(240):
                assert await trainer.resume() is None and (await trainer.publish())["version"] == 0
                os.kill(trainer.worker.process.identity.pid, signal.SIGSTOP)
                monkeypatch.setenv(VARIABLE, str(scale))
                with pytest.raises(DeadlineExceeded) as publishing:
                    await trainer.publish()
                with pytest.raises(DeadlineExceeded) as published:
                    await trainer.published(Version(3))
        finally:
            trainer.worker.release()
            trainer.worker.process.kill()
        return publishing.value, published.value

    publishing, published = asyncio.run(scenario())
    assert publishing.waited_for == "the trainer to publish its version"
    assert published.waited_for == "version 3 to be published"
    size = sum(file.stat().st_size for file in config.model.path.glob("*.safetensors"))
    assert publish_seconds(size) > publish_seconds(0)
    assert publishing.seconds == published.seconds == pytest.approx(scale * (publish_seconds(size) + STOP_S))


@pytest.mark.proof(40)
def test_all_ranks_of_a_trainer_start_anew_when_one_hangs_or_is_killed(tmp_path):
    """And publish what they would have: both have their part in it again."""
    config = load_recipe(Path(__file__).parents[2] / "recipes/mesh.toml", RunConfig, ["trainer.ranks={ep=2}"])

    async def scenario():
        restarts = Restarts(config.faults, tmp_path / "metrics.jsonl", Patience(ping_s=3.0, ping_every_s=0.2))
        trainer = TrainerWorker(config, config.store_of(tmp_path), tmp_path, restarts)
        roots = []
        try:
            async with asyncio.timeout(280):
                for number in (signal.SIGSTOP, signal.SIGKILL, None):
                    await trainer.resume()
                    roots.append((await trainer.publish())["root"])
                    process = trainer.worker.process
                    if number is not None:
                        os.kill(process.others[0].identity.pid, number)
                    while number is not None and trainer.worker.process is process:
                        await asyncio.sleep(0.1)
        finally:
            trainer.worker.release()
            trainer.worker.process.kill()
        assert len(set(roots)) == 1
        return restarts.hung

    assert asyncio.run(scenario()) == 1
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    hung, killed = [json.loads(line)["why"] for line in lines]
    assert re.fullmatch(r"waited 3\.0 s for rank 1 of the trainer, on .+, to answer", hung)
    assert re.match(r"rank 1 of the trainer, on .+, died", killed)
