"""What all kinds of warm start share: the tasks, the playing of what is judged, and the fine-tuning.

Owns `Tasks`, `sandboxes`, `play_missing` and `learn`. Whose sessions they are, `warm_start` and its kinds say.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from etude.durable import write_whole
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.errors import ConfigError, EtudeError
from etude.made_by import require_same
from etude.models.checkpoint import load_checkpoint, save_checkpoint, shape_of
from etude.models.files import hashes_of
from etude.models.state import round_to_bf16
from etude.records import Task
from etude.rewards.judgement import Judges
from etude.tasks.families import family
from etude.tasks.harbor import read_tasks
from etude.tasks.mined.shown import install_missing, showing
from etude.trainer.attempts import Attempt, Player, as_they_end
from etude.trainer.documents import Document, ShuffledSource, digest
from etude.trainer.midtraining import MidtrainingConfig, Stage, pretrain
from etude.trainer.taught import Kept, Lesson, TaughtSessions, of_attempts, taught

if TYPE_CHECKING:
    from etude.trainer.warm_start import WarmStartConfig

FIRST_SEED = 20_000_000
"""Of the family's tasks that are played; reinforcement learning draws others."""
_NOT_PLAYED = "not_played"
Made = dict[str, Any]
log = structlog.get_logger()


class Tasks:
    """Those that are played: of a family fresh ones without end, of directories the same over and over, in an order of
    the seed: by their names, the first would all be of one repository."""

    def __init__(self, config: WarmStartConfig) -> None:
        self._config = config
        self.given = _training_tasks(config.directories) if config.directories else []
        random.Random(f"tasks {config.seed}").shuffle(self.given)

    def take(self, first: int, count: int) -> list[Task]:
        """So many, from number `first` on; none of them twice."""
        if self.given:
            numbers = range(first, first + min(count, len(self.given)))
            return self._config.limits.given_to([self.given[each % len(self.given)] for each in numbers])
        config = self._config
        make, rungs, zero = family(config.family).task, config.rungs, FIRST_SEED + config.seed * 1_000_000
        made = [make(rungs[each % len(rungs)], "train", zero + each) for each in range(first, first + count)]
        return config.limits.given_to(made)


def _training_tasks(directories: Sequence[Path]) -> list[Task]:
    found = read_tasks(directories)
    tasks = [task for task in found if task.split == "train"]
    if not tasks:
        raise ConfigError(
            f"directories: none of their {len(found)} tasks is of the split train; the others are kept for measuring"
        )
    if len(tasks) < len(found):
        log.info("left out: tasks that are kept for measuring", tasks=len(found) - len(tasks))
    return tasks


# --- playing ----------------------------------------------------------------------------------------------------------


async def play_missing(
    attempts: Sequence[Attempt],
    player: Player[Any],
    sessions: TaughtSessions,
    concurrency: int,
    lesson: Lesson,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Play what has no verdict yet, until it `is_enough`; each is on the disk as it ends, with its `lesson`."""
    roomy = {attempt.task.id: player.has_room(attempt.task) for attempt in attempts}
    if attempts and not any(roomy.values()):
        raise ConfigError(
            "no task leaves room for one turn in the model's context; "
            f"{attempts[0].task.id}: give its limits more max_context_tokens, or take a model with a longer context"
        )
    missing = of_attempts([each for each in attempts if roomy[each.task.id]], sessions.played())

    async def one(attempt: Attempt) -> None:
        judged = await player.play(attempt)
        session = taught(judged, sessions.masked(judged.why), lesson)
        if session.played or session.cost.requests:
            await sessions.add(session, judged.result.events if session.cost.requests and judged.result else ())
        log.info("played", session=attempt.id, solved=session.solved, why=session.why)
        player.raise_if_hopeless(session.why)

    waiting = itertools.takewhile(lambda _: not is_enough(), missing)
    async with contextlib.aclosing(as_they_end(waiting, one, concurrency)) as ended:
        async for _ in ended:
            pass


@contextlib.asynccontextmanager
async def sandboxes(config: WarmStartConfig, tasks: Sequence[Task]) -> AsyncGenerator[tuple[Backend, Judges]]:
    """Where the tasks are played, and who judges them."""
    await install_missing(tasks, config.environment)
    backend = open_backend(showing(config.environment))
    try:
        async with Judges(audited=True) as judges:
            yield backend, judges
    finally:
        await backend.close()


def offer(attempts: Sequence[Attempt], sessions: TaughtSessions, kept: Kept) -> None:
    """In the attempts' order, whichever ended first."""
    played = sessions.played()
    for attempt in attempts:
        if (session := played.get(attempt.id)) is None:
            kept.dropped[_NOT_PLAYED] += 1
        else:
            kept.offer(session)


def counters(kept: Kept) -> Made:
    """Of the sessions that were offered: a directory may hold others, of tasks that were named before. Raises
    EtudeError where there is nothing to learn from."""
    dropped = dict(kept.dropped.most_common())
    played = kept.sessions + sum(count for why, count in dropped.items() if why != _NOT_PLAYED)
    if not kept.sessions:
        why = ", ".join(f"{name} {count}" for name, count in dropped.items())
        raise EtudeError(
            f"none of {played} sessions can be learned from ({why}); take easier tasks, or play more sessions"
        )
    return {"played": played, "kept": kept.sessions, "dropped": dropped, **kept.notes}


# --- learning ---------------------------------------------------------------------------------------------------------


def learn(config: WarmStartConfig, documents: Sequence[Document], directory: Path) -> Made:
    """The base, trained on the documents, in `directory`/model, and a line for each step in `directory`/log.jsonl. One
    that was stopped goes on; what has been learned is not learned again. Other documents are learned from the start.
    Raises ConfigError where one that was stopped is to go on by other settings, and Interrupted as `pretrain` does."""
    training = MidtrainingConfig(
        model=shape_of(config.model),
        stages=(Stage(tokens=config.tokens, mixture={"sessions": 1.0}),),
        optimizer=config.optimizer,
        seed=config.seed,
        tokens_per_step=config.tokens_per_step,
        warmup_steps=10,
        observation_weight=0.0,
        frozen=config.frozen,
        format=config.format,
        threads=config.threads,
        checkpoint_every=10,
    )
    told, checkpoint, model = (directory / name for name in ("learned.json", "midtraining.pt", "model"))
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"model": hashes_of(config.model), **training.model_dump(mode="json", exclude={"threads"})}
    of = {"documents": digest(documents), **settings}
    known: Made = json.loads(told.read_bytes()) if told.exists() else {}
    if known.get("of") != of:
        if checkpoint.exists() and isinstance(begun := known.get("of"), dict):
            require_same(checkpoint, begun | {"documents": of["documents"]}, of)
            log.info("learning anew: the sessions are others than those it began with")
        checkpoint.unlink(missing_ok=True)
        write_whole(told, json.dumps({"of": of}).encode())
    elif "learned" in known and model.exists():
        return known["learned"] | {"model": str(model)}
    decoder, tokenizer = load_checkpoint(config.model)
    sources = {"sessions": ShuffledSource(documents, config.seed)}
    run = pretrain(training, sources, directory, resume=checkpoint.exists(), decoder=decoder)
    round_to_bf16(run.decoder)
    save_checkpoint(run.decoder, model, tokenizer, like=config.model)
    last = json.loads((directory / "log.jsonl").read_text().splitlines()[-1])
    learned = {
        "segments": len(documents),
        "steps": run.step_count,
        "tokens": run.tokens,
        "said_loss": last["said_loss"],
    }
    write_whole(told, json.dumps({"of": of, "learned": learned}).encode())
    checkpoint.unlink()
    return learned | {"model": str(model)}
