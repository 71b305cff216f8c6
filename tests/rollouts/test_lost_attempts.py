"""What becomes of attempts whose process died: they are made again, and are no failures of the machinery."""

import asyncio

import pytest
from played import logged

from etude.errors import EtudeError
from etude.records import InfraFailed, Scored, Trajectory
from etude.rollouts.config import EvaluationConfig
from etude.rollouts.evaluate import RETRIES, evaluate
from etude.rollouts.sample import sample_of
from etude.rollouts.slots import Slots
from etude.rollouts.trajectory_store import TrajectoryStore
from etude.tasks.ladder import ladder_task

TASK = ladder_task(1, "eval", 3)


class Place:
    """Where every attempt ends as the next of these outcomes."""

    def __init__(self, directory, *outcomes):
        self.outcomes, self.orders = iter(outcomes), []
        self.evaluated = TrajectoryStore(directory)

    async def play_and_judge(self, order):
        self.orders.append(order.id)
        await logged(self.evaluated, order.id)
        return sample_of(Trajectory(order.id, order.task.id, order.group_id, (), (), next(self.outcomes)))


def evaluated(directory, *outcomes):
    place = Place(directory, *outcomes)
    [judged], _ = asyncio.run(evaluate(place, [TASK], EvaluationConfig(), "base"))
    return judged, place.orders


def test_an_evaluation_makes_lost_attempts_again_and_counts_only_failures(tmp_path):
    died, failed = InfraFailed("died", lost=True), InfraFailed("failed")
    judged, orders = evaluated(tmp_path, died, failed, died, died, failed, died, Scored(1.0, {"tests": 1.0}))
    assert judged.solved and len(set(orders)) == 7
    with pytest.raises(EtudeError, match=f"failed {RETRIES + 1} times for infrastructure: failed"):
        evaluated(tmp_path, *(died, failed) * (RETRIES + 1))


def test_a_slot_remembers_what_its_attempts_came_to():
    slots = Slots(0)
    slots.open(0, 1)
    for at, how in (("starting", {"died": True}), ("running", {"failed": True}), ("rewarding", {"died": True})):
        slots.move("g0/0", "starting")
        if at != "starting":
            slots.advance_to("g0/0", slots["g0/0"].attempts, at)
        assert slots.requeue("g0/0", **how).state == "queued"
    assert (slots["g0/0"].attempts, slots["g0/0"].died, slots["g0/0"].failed) == (3, 2, 1)


def test_a_verdict_that_is_lost_leaves_the_sample_sealed():
    slots = Slots(0)
    slots.open(0, 1)
    slots.move("g0/0", "starting")
    assert slots.advance_to("g0/0", 1, "rewarding") and slots.advance_to("g0/0", 1, "sealed")
    assert slots["g0/0"].state == "sealed" and not slots.advance_to("g0/0", 1, "running")
    assert slots.advance_to("g0/0", 1, "scored") and slots.moves["rewarding", "sealed"] == 1
