"""Generates tasks from a repository as it is: proposals are tried one after the other, and the tests say which hold.

    proposal ─► right files ×3, broken ×2 ─► which tests tell, or the linter's count ─scrub─► task ─validate─► Harbor

Owns `generate`. What a proposal is, `tasks.generate` says. Every run is in a fresh sandbox without a network, and every
decision is in a journal before the next is made, so that a killed run goes on. The same seed proposes the same.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from etude.durable import write_whole
from etude.environments.base import Backend
from etude.errors import ConfigError
from etude.rewards.mining.journal import Decision, Funnel, Journal, funnel
from etude.rewards.mining.making import GenerateConfig, Made, Maker
from etude.tasks.generate.proposal import Kind, Source
from etude.tasks.mined.environment import Environments
from etude.tasks.mined.history import History


async def generate(
    repository: Path,
    out: Path,
    backend: Backend,
    environments: Environments,
    config: GenerateConfig,
    progress: Callable[[int, int, Decision | None], None] = lambda done, of, decision: None,
) -> Funnel:
    """Write a Harbor directory below `out` for every task; what `out` has already is not done again.

    `progress` is told how many tasks of how many wanted there are, and the latest decision. Raises ConfigError for a
    repository that cannot be read, a level that is none, or another run's `out`.
    """
    if wrong := [level for level in config.levels if not 1 <= level <= 5]:
        raise ConfigError(f"levels: {wrong[0]} is none; they go from 1 to 5")
    of = await asyncio.to_thread(_read, repository, config)
    free = {"name", "jobs", "revision", "count", "tries", "kinds", "levels"}
    asked = {"generated_from": of.name, "commit": of.head, **config.model_dump(mode="json", exclude=free)}
    journal = Journal(out / "journal.jsonl", asked)
    try:
        for torn in out.glob(".writing-*"):  # by a run that was killed
            shutil.rmtree(torn)
        maker = Maker(of, out, backend, environments, config)
        lanes = [(kind, level) for kind in config.kinds for level in (config.levels or (None,))]
        gate, kept = asyncio.Semaphore(config.jobs), 0

        async def lane(kind: Kind, level: int | None) -> None:
            nonlocal kept
            made = 0
            proposals = await maker.proposals(kind, level)
            for _ in range(config.tries):
                async with gate:
                    proposal = await maker.draw(proposals)
                    if proposal is None or made == config.count:
                        return
                    if (decision := journal.decisions.get(proposal.key)) is None:
                        decision = await maker.decide(proposal)
                        journal.add(decision)
                made += decision.task is not None
                kept += decision.task is not None
                progress(kept, config.count * len(lanes), decision)

        try:
            async with asyncio.TaskGroup() as group:
                for kind, level in lanes:
                    group.create_task(lane(kind, level))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        found = funnel(journal.decisions, {})
        write_whole(out / "report.json", (json.dumps(asdict(found), indent=1) + "\n").encode())
        return found
    finally:
        journal.close()


def _read(repository: Path, config: GenerateConfig) -> Made:
    history = History(repository)
    head = history.head(config.revision)
    given = config.name or repository.resolve().name.removesuffix(".git")
    name = re.sub(r"[^a-z0-9._-]+", "-", given.lower()).strip("-.") or "repository"
    tree = history.tree(head, config.workspace_mb << 20)
    if tree is None:
        raise ConfigError(f"{repository}: more than {config.workspace_mb} MB; raise workspace_mb, which may be 48")
    return Made(name, head, Source(tree), history)
