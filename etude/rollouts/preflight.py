"""Looks at what a run needs before any process of it starts, so that what is missing is one message at once.

Owns the checks and their order: what the recipe names of others, the model, room on the disk and in the model's
context, the sandbox. Starts no actor; the sandbox it makes to see that sandboxes work is gone when it returns.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from etude.environments.backends import open_backend, plugin_of
from etude.environments.cluster.config import ClusterConfig
from etude.environments.doctor import diagnose
from etude.environments.plugin import BackendTable
from etude.environments.remote import RemoteConfig
from etude.errors import CheckpointError, ConfigError, EtudeError, MissingDependency
from etude.harness.sampler import Chat
from etude.harness.session import check_room, token_dialogue
from etude.plugins import find
from etude.records import Task
from etude.rollouts.config import ModelSource, RunConfig
from etude.rollouts.fleet import places_of
from etude.rollouts.router import RemoteSampler
from etude.tasks.families import family
from etude.tasks.harbor import read_tasks
from etude.tasks.mined.shown import install_missing
from etude.tasks.planted import is_planted, script_of
from etude.trainer.mesh.device import DEVICE, caveat
from etude.trainer.mesh.sizes import Sizes

if TYPE_CHECKING:
    from etude.models.config import ModelConfig

ROOM_MB = 64
"""Least free space to start with: two checkpoints, the weight store, log and report of a small model."""


async def preflight(config: RunConfig, directory: Path) -> None:
    """Raises the error that the run would have ended with, before it begins."""
    if isinstance(config.environment, ClusterConfig) != (config.cluster is not None):
        raise ConfigError("cluster: goes with environment.kind = 'cluster': give both, or neither")
    if config.model.expert_format != "plain" and config.engine.kind != "etude":
        raise ConfigError("model.expert_format: only Etude's own engine serves the codes that the trainer holds")
    if config.trainer.credit.needs_segments and config.harness.summary is None:
        raise ConfigError("trainer.credit: every session is one segment; give it a harness.summary, or leave it out")
    _import_named(config)
    places_of(config)
    shape, chat = _model(config.model)
    if config.trainer.replays(shape) and not getattr(config.engine, "routes", True):
        raise ConfigError(
            "trainer.router_replay: the engine gives no routes to replay; set engine.routes, or router_replay = false"
        )
    if config.trainer.mesh is not None:
        from etude.trainer.mesh.opening import require_kernels  # torch, which is loaded by now

        Sizes.of(config.trainer.mesh).require(shape)
        _remark_on_gpus(config)
        require_kernels()
    _room(directory)
    tasks = read_tasks(config.rollouts.tasks) if config.rollouts.tasks else []
    _room_for_a_turn(config, shape, chat, tasks)
    _plants(config, tasks)
    if tasks:
        await install_missing(tasks, config.environment)
    if isinstance(config.environment, RemoteConfig):
        await open_backend(config.environment).close()  # raises where the server is not there, or not what is asked for
        return
    for backend in _local_backends(config):
        for finding in await asyncio.to_thread(diagnose, backend):
            if not finding.ok:
                raise MissingDependency(f"{finding.subject}: {finding.detail}; {finding.remedy}")


def _local_backends(config: RunConfig) -> tuple[BackendTable, ...]:
    """Those that this machine must offer; in a cluster it is one machine of several, all alike."""
    if config.cluster is not None:
        return config.cluster.backends
    return (config.environment,) if plugin_of(config.environment).probe is not None else ()


def _remark_on_gpus(config: RunConfig) -> None:
    """Where there are some, which a mesh would leave idle."""
    from etude.kernels.devices import present

    said = caveat(config.trainer, "this run leaves the GPUs of this computer to others")
    if said and present() != DEVICE:
        structlog.get_logger("train").warning(said)


def _import_named(config: RunConfig) -> None:
    """What the recipe names of others, which reading it only looks up: importing it may load torch."""
    named = {
        "trainer.loss.formula": ("losses", config.trainer.loss.formula),
        "trainer.advantages.baseline": ("advantages", config.trainer.advantages.baseline),
        **{f"rewards.parts.{name}": ("rewards", name) for name in config.rewards.parts},
    }
    for key, (group, name) in named.items():
        try:
            find(group, name)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error
    try:
        config.harness.chosen()
    except ConfigError as error:
        raise ConfigError(f"harness.tools: {error}") from error


def _room_for_a_turn(config: RunConfig, shape: ModelConfig, chat: Chat, tasks: list[Task]) -> None:
    """In the model's context: of every task that is given, and of one of each rung of the family."""
    own, played = family(config.rollouts.family), config.evaluation
    rungs = own.rungs if played.per_rung or played.heldout_per_rung or not config.rollouts.tasks else ()
    dialogue = token_dialogue(RemoteSampler(), chat, config.harness, session_id="preflight", seed=0, temperature=1.0)
    for task in (*tasks, *(own.task(rung, "train", 0) for rung in rungs)):
        try:
            check_room(task, dialogue, config.harness, task.limits.within(shape.max_context))
        except ConfigError as error:
            raise ConfigError(f"{task.id}: {error}") from None


def _plants(config: RunConfig, tasks: list[Task]) -> None:
    """A planted cheat is there to be found."""
    for task in filter(is_planted, tasks):
        script_of(task)
        if config.rewards.audit != "quarantine":
            raise ConfigError(f'{task.id}: plants a cheat; set rewards.audit to "quarantine", or leave the task out')


def _model(source: ModelSource) -> tuple[ModelConfig, Chat]:
    from etude.models.chat import open_chat
    from etude.models.checkpoint import check_checkpoint  # torch: nothing else in the controller loads it
    from etude.models.expert_format import require_expert_format

    try:
        shape = check_checkpoint(source.path)
        chat = open_chat(source.path)  # a template that cannot be trained with is refused before anything starts
    except CheckpointError as error:
        raise ConfigError(
            f"{error} (model.path is {source.path}: --set model.path=DIRECTORY names another; "
            "relative paths start where the command is run)"
        ) from None
    require_expert_format(shape, source.expert_format)
    return shape, chat


def _room(directory: Path) -> None:
    free = shutil.disk_usage(directory).free / 1e6
    if free < ROOM_MB:
        raise EtudeError(
            f"{directory}: {free:.0f} MB left on this disk, a run needs at least {ROOM_MB}; make room or choose "
            "another --out"
        )
