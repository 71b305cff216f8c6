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

from etude.durable import append_whole, write_whole
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.errors import ConfigError, EtudeError
from etude.harness.session import SessionResult
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.state import round_to_bf16
from etude.records import Task
from etude.rewards.judgement import Judges
from etude.tasks.families import family
from etude.tasks.harbor import read_tasks
from etude.tasks.mined.shown import install_missing, showing
from etude.trainer.attempts import Attempt, Player, as_they_end
from etude.trainer.documents import Document, ShuffledSource
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, Stage
from etude.trainer.taught import Kept, TaughtSessions, all_said, of_attempts, taught

if TYPE_CHECKING:
    from etude.trainer.warm_start import WarmStartConfig

FIRST_SEED = 20_000_000
"""Of the family's tasks that are played; reinforcement learning draws others."""
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
            return [self.given[each % len(self.given)] for each in numbers]
        config = self._config
        make, rungs, zero = family(config.family).task, config.rungs, FIRST_SEED + config.seed * 1_000_000
        return [make(rungs[each % len(rungs)], "train", zero + each) for each in range(first, first + count)]


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
    is_enough: Callable[[], bool] = lambda: False,
    learned: Callable[[SessionResult], Sequence[Document]] = all_said,
) -> None:
    """Play what has no verdict yet, until it `is_enough`; each is on the disk as it ends, with what can be `learned` of
    it."""
    roomy = {attempt.task.id: player.has_room(attempt.task) for attempt in attempts}
    if attempts and not any(roomy.values()):
        raise ConfigError(
            "no task leaves room for one turn in the model's context; "
            f"{attempts[0].task.id}: give its limits more max_context_tokens, or take a model with a longer context"
        )
    missing = of_attempts([each for each in attempts if roomy[each.task.id]], sessions.played())

    async def one(attempt: Attempt) -> None:
        judged = await player.play(attempt)
        session = taught(judged, sessions.masked(judged.why), learned)
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
            kept.dropped["not_played"] += 1
        else:
            kept.offer(session)


def counters(sessions: TaughtSessions, kept: Kept) -> Made:
    """Raises EtudeError where there is nothing to learn from."""
    played, dropped = len(sessions.played()), dict(kept.dropped.most_common())
    if not kept.sessions:
        why = ", ".join(f"{name} {count}" for name, count in dropped.items())
        raise EtudeError(
            f"none of {played} sessions can be learned from ({why}); take easier tasks, or play more sessions"
        )
    return {"played": played, "kept": kept.sessions, "dropped": dropped, **kept.notes}


# --- learning ---------------------------------------------------------------------------------------------------------


def learn(config: WarmStartConfig, documents: Sequence[Document], directory: Path) -> Made:
    """The base, trained on the documents, in `directory`/model, and a line for each step in `directory`/log.jsonl."""
    decoder, tokenizer = load_checkpoint(config.model)
    run = Midtraining(
        MidtrainingConfig(
            model=decoder.config,
            stages=(Stage(tokens=config.tokens, mixture={"sessions": 1.0}),),
            optimizer=config.optimizer,
            seed=config.seed,
            tokens_per_step=config.tokens_per_step,
            warmup_steps=10,
            observation_weight=0.0,
            frozen=config.frozen,
            format=config.format,
        ),
        {"sessions": ShuffledSource(documents, config.seed)},
        decoder,
    )
    directory.mkdir(parents=True, exist_ok=True)
    said = 0.0
    path = directory / "log.jsonl"
    write_whole(path, b"")
    with path.open("ab", buffering=0) as file:
        while run.tokens < run.total_tokens:
            metrics = run.step()
            said = metrics["said_loss"]
            line = json.dumps({**metrics, "step": run.step_count, "tokens": run.tokens})
            append_whole(file.fileno(), f"{line}\n".encode(), path)
    round_to_bf16(run.decoder)
    save_checkpoint(run.decoder, directory / "model", tokenizer, like=config.model)
    return {
        "segments": len(documents),
        "steps": run.step_count,
        "tokens": run.tokens,
        "said_loss": said,
        "model": str(directory / "model"),
    }
