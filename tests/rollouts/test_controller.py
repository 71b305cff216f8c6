"""A controller and its workers, in this process and those that it starts: what a death costs, step by step."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from etude.config import load_recipe
from etude.errors import EtudeError
from etude.records import Version
from etude.rollouts.cluster import Cluster
from etude.rollouts.config import RunConfig
from etude.rollouts.controller import Controller
from etude.rollouts.faults import RestartBudgetSpent, restarts_of
from etude.rollouts.ledger import GroupLedger
from etude.rollouts.loop import train
from etude.rollouts.session import RolloutRequest
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import TaskStream, of_family
from etude.tasks.ladder import ladder_task

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
from small import ROOT, SMALL

pytestmark = pytest.mark.timeout(420)


def controlled(directory, scenario, *overrides):
    """Run a scenario with a controller whose workers are ready and whose engines have the trainer's version."""
    sets = (*SMALL, "rollouts.concurrency=8", "rollouts.max_minutes=10", "faults.restarts=1000", *overrides)
    config = load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, sets)

    async def inside():
        directory.mkdir(exist_ok=True)
        cluster = await Cluster.start(config, directory)
        try:
            saved = await cluster.trainer.resume() or {}
            published = await cluster.trainer.publish()
            await cluster.fleet.deliver(published)
            stats = RunStats(directory / "metrics.jsonl", saved.get("stats"), saved.get("line"))
            source = of_family(config.rollouts.family, config.rollouts.rungs, config.seed)
            tasks = TaskStream(source, config.seed, saved=saved.get("stream"))
            controller = Controller(config, cluster, tasks, stats, GroupLedger(directory / "ledger"), saved)
            version = Version(published["version"])
            await controller.start(version, version)
            try:
                async with asyncio.timeout(400):
                    return await scenario(controller)
            finally:
                await controller.stop()
                controller.ledger.close()
        finally:
            await cluster.close()

    return asyncio.run(inside())


def kill(worker):
    os.kill(worker.process.identity.pid, signal.SIGKILL)


def at_step(controller, number, act):
    """Have something done as soon as a step is recorded."""
    record = controller.record

    def recorded(line):
        record(line)
        if line["step"] == number:
            act()

    controller.record = recorded


def ask_while_it_is_prepared(trainer):
    """Have the next step after a death be asked for while the new process still makes the one before again."""
    prepare, step = trainer.prepare, trainer.step
    making_again, asked = asyncio.Event(), asyncio.Event()

    async def prepared(process):
        call = process.call

        async def held(method, *arguments, **options):
            if method == "step":
                making_again.set()
                await asked.wait()
            return await call(method, *arguments, **options)

        process.call = held
        await prepare(process)
        process.call = call

    async def stepped(groups, state):
        await making_again.wait()
        stepping = asyncio.create_task(step(groups, state))
        await asyncio.sleep(0)
        asked.set()
        return await stepping

    trainer.prepare, trainer.step = prepared, stepped


@pytest.mark.proof(18)
def test_a_trainer_that_dies_after_a_step_without_a_checkpoint_makes_it_again(tmp_path):
    async def scenario(controller):
        trainer = controller.cluster.trainer

        def dies():
            ask_while_it_is_prepared(trainer)
            kill(trainer.worker)

        at_step(controller, 1, dies)
        await train(controller)
        await controller.stop()
        assert (controller.version, trainer.saved) == (3, None)  # the one that took over found no checkpoint
        return await controller.end()

    found = controlled(tmp_path / "run", scenario, "rollouts.max_steps=3", "rollouts.checkpoint_every=2")
    assert found["lost"] == found["trained_twice"] == 0 < found["trained"]
    assert restarts_of(tmp_path / "run" / "metrics.jsonl") == {"trainer": 1}


@pytest.mark.proof(25)
def test_samples_of_workers_that_die_are_had_all_the_same_and_another_controller_goes_on(tmp_path):
    async def first(controller):
        cluster = controller.cluster
        moved, killed = controller.slots.on_move, set()

        def on_move(slot, before):
            moved(slot, before)
            for state, pool in (("running", cluster.sessions), ("rewarding", cluster.rewards)):
                if slot.state == state and state not in killed and pool.serving():
                    killed.add(state)
                    kill(pool.serving()[0])

        controller.slots.on_move = on_move
        await train(controller)
        assert killed == {"running", "rewarding"}
        assert controller.stats.counters["attempts_lost"] >= 1
        assert controller.stats.counters["infra_failed"] == 0
        assert controller.version == 1

    async def second(controller):
        assert (controller.version, controller.stats.steps) == (1, 1)
        await train(controller)
        await controller.stop()
        return await controller.end()

    out = tmp_path / "run"
    controlled(out, first, "rollouts.max_steps=1")
    found = controlled(out, second, "rollouts.max_steps=2")
    assert found["lost"] == found["trained_twice"] == 0 < found["trained"]
    assert restarts_of(out / "metrics.jsonl") == {"sessions": 1, "rewards": 1}


@pytest.mark.proof(16)
def test_a_budget_that_is_spent_ends_training_with_what_died(tmp_path):
    async def scenario(controller):
        at_step(controller, 1, lambda: kill(controller.cluster.fleet.own.serving()[0]))
        with pytest.raises(EtudeError, match=r"the engine died 1 times .*engine-0 died.*faults\.restarts allows more"):
            await train(controller)
        with pytest.raises(RestartBudgetSpent):
            controller.cluster.fleet.raise_if_failed()

    controlled(tmp_path / "run", scenario, "faults.restarts=0")


@pytest.mark.proof(15)
@pytest.mark.parametrize("bug", ["rollout", "delivery"])
def test_a_bug_in_what_goes_on_beside_the_loop_ends_the_run_and_is_named(tmp_path, bug):
    async def scenario(controller):
        def broken(*_):
            raise KeyError("a bug")

        if bug == "rollout":
            controller.stats.rolled_out = broken
        else:
            controller.stats.swapped = broken
        with pytest.raises(EtudeError, match=rf"{bug} .* failed: KeyError\('a bug'\)"):
            await train(controller)

    controlled(tmp_path / "run", scenario)


@pytest.mark.proof(18)
def test_limits_of_a_task_beyond_the_models_context_are_the_contexts(tmp_path):
    async def scenario(controller):
        cluster, task = controller.cluster, ladder_task(1, "train", 0)
        wide = replace(task, limits=replace(task.limits, max_context_tokens=32_768, max_sampled_tokens=16_384))
        kept = cluster.evaluated.directory
        sample = await cluster.play_and_judge(RolloutRequest("g0/0", "g0", wide, 0, kept=kept, checkpoint_s=None))
        assert sample.usage.get("turns", 0) > 0, sample.outcome

    controlled(tmp_path / "run", scenario)
