"""Tasks played by a checkpoint in this process: harness, sandboxes and verifier of a recipe, and an engine of its own.

Owns `played`, which plays requests and gives back trajectories, and `solved_tasks`, which plays each task once and says
which were solved. Benchmarks that evaluate a model share them; they train nothing and print nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from etude.config import load_recipe
from etude.engine.torch_engine import TorchEngine
from etude.environments.backends import open_backend
from etude.errors import EtudeError
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.models.expert_format import set_expert_format
from etude.records import InfraFailed, Task, Trajectory, solved
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play
from etude.trainer.attempts import as_they_end

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "quickstart.toml"
RETRIES = 2


def recipe(overrides: Iterable[str] = (), path: Path = RECIPE) -> RunConfig:
    return load_recipe(path, RunConfig, list(overrides))


async def played(
    model: Path, config: RunConfig, requests: Iterable[RolloutRequest]
) -> AsyncIterator[tuple[RolloutRequest, Trajectory]]:
    """Plays and judges each request; yields in the order they end. The next is asked for when there is room for it
    among the `rollouts.concurrency`, so whoever gives them may stop when it likes. What our machinery failed is played
    again; EtudeError where it fails every time.
    """
    decoder, tokenizer = load_checkpoint(model)
    set_expert_format(decoder, config.model.expert_format)
    engine, chat, backend = (
        TorchEngine(decoder, config.engine), ChatRenderer(tokenizer), open_backend(config.environment),
    )  # fmt: skip
    judges = config.rewards.judges()

    async def one(request: RolloutRequest) -> tuple[RolloutRequest, Trajectory]:
        for _ in range(1 + RETRIES):
            trajectory = await play(request, config, backend, engine, chat, judges)
            if not isinstance(trajectory.outcome, InfraFailed):
                return request, trajectory
        raise EtudeError(f"{request.id} failed {1 + RETRIES} times for infrastructure: {trajectory.outcome.what}")

    try:
        async with contextlib.aclosing(as_they_end(requests, one, config.rollouts.concurrency)) as over:
            async for pair in over:
                yield pair
    finally:
        engine.close()
        await judges.close()
        await backend.close()


def solved_tasks(
    model: Path, config: RunConfig, tasks: Iterable[Task], label: str, temperature: float = 1.0
) -> dict[str, bool]:
    """Whether the model solves each task, by id: one rollout each, with the same draws for every model."""
    return asyncio.run(_solved(model, config, [request_of(task, label, temperature) for task in tasks]))


def request_of(task: Task, label: str, temperature: float = 1.0) -> RolloutRequest:
    return RolloutRequest(task.id, label, task, random.Random(f"{label} {task.id}").getrandbits(40), temperature)


async def _solved(model: Path, config: RunConfig, requests: list[RolloutRequest]) -> dict[str, bool]:
    return {request.task.id: solved(each.outcome) async for request, each in played(model, config, requests)}
