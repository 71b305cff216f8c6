"""A rollout whose own commands end its sandbox is scored, tokens and all; and what it left stops nobody else."""

import asyncio
import errno

import killed_rollout
import pytest

from etude.environments.namespace import NamespaceBackend
from etude.errors import SandboxError, SandboxSpoiled
from etude.records import InfraFailed, Scored, Task, Verifier
from etude.rollouts.session import RolloutRequest, judge_as_blocked, play, play_request

PASSES = Verifier({"/tests/test.sh": b"mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"})
TASK = Task("ledger", "Fill the ledger.", {"ledger": b""}, PASSES, limits=killed_rollout.LIMITS)


def nothing(order, event):
    del order, event


async def judged(order, config, backend, model, chat, on_event):
    async with config.rewards.judges() as judges:
        return await play(order, config, backend, model, chat, judges, on_event)


def played(how, kept, changed):
    """`changed` may change each sandbox of the backend before it is used."""

    async def whole():
        chat, backend = killed_rollout.small_chat(), NamespaceBackend()
        create = backend.create

        async def create_changed(spec):
            box = await create(spec)
            changed(box)
            return box

        backend.create = create_changed
        try:
            model = killed_rollout.FromContext(chat, 0)
            order = RolloutRequest("g7/2", "g7", TASK, 5, kept=kept)
            return await how(order, killed_rollout.config(), backend, model, chat, nothing)
        finally:
            await backend.close()

    return asyncio.run(whole())


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("error", [SandboxSpoiled, SandboxError])
def test_a_session_that_ends_its_sandbox_is_scored_with_its_tokens(tmp_path, error, keep):
    """What the agent says of process 1 stands here for what commands did to it; any other end is ours."""
    boxes = []

    def changed(box):
        boxes.append(box)
        if len(boxes) > 1:
            return
        execute, count = box.exec, [0]

        async def dying(command, **options):
            count[0] += "ledger;" in command
            if count[0] == 3:
                await box.destroy()
                raise error("process 1 was ended by its commands")
            return await execute(command, **options)

        box.exec = dying

    trajectory = played(judged, tmp_path if keep else None, changed)
    if error is SandboxError:
        assert isinstance(trajectory.outcome, InfraFailed)
        return
    assert isinstance(trajectory.outcome, Scored) and trajectory.outcome.parts["tests"] == 0.0, trajectory.outcome
    assert sum(segment.sampled.sum() for segment in trajectory.segments) > 50
    assert trajectory.events[-1].kind == "end" and len(boxes) == 1, "there was nothing to verify"


def test_a_checkpoint_that_cannot_be_laid_down_is_not_gone_on_from(tmp_path):
    seen = []

    def stops(box):
        execute, count = box.exec, [0]

        async def failing(command, **options):
            count[0] += "ledger;" in command
            if count[0] == 4:
                raise SandboxError("our machine is gone")
            return await execute(command, **options)

        box.exec = failing

    first = played(play_request, tmp_path, stops)
    assert first.sealed is None and list(tmp_path.glob("g7/2/*.files"))

    def refuses(box):
        seen.append(box)
        if len(seen) == 1:

            async def no_room(archive, path):
                raise OSError(errno.ENOSPC, "No space left on device", path)

            box.upload = no_room

    second = played(play_request, tmp_path, refuses)
    assert len(seen) == 2 and second.sealed is not None and not second.sealed.blocked
    assert "taken_up" not in second.trajectory.usage and second.trajectory.usage["turns"] > 3
    whole = played(play_request, None, lambda box: None)
    ids = [[segment.token_ids.tolist() for segment in each.trajectory.segments] for each in (second, whole)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("well", [True, False])
def test_what_no_judge_comes_to_the_end_with_is_at_the_floor_if_the_machine_is_well(well):
    async def blamed(order, config, backend, *rest):
        rollout = await play_request(order, config, backend, *rest)
        backend.create = backend.create if well else refused
        return await judge_as_blocked(rollout, "two judges met their deadline", config, backend)

    async def refused(spec):
        raise SandboxError("our machine is gone")

    trajectory = played(blamed, None, lambda box: None)
    if well:
        assert isinstance(trajectory.outcome, Scored) and trajectory.outcome.parts["tests"] == 0.0
    else:
        assert isinstance(trajectory.outcome, InfraFailed) and not trajectory.outcome.retryable
        assert "our machine is gone" in trajectory.outcome.what
