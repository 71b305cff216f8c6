"""Mines a repository: every commit that changes source and tests is tried, and becomes a task or is dropped.

    commit ─split─► two patches ─message─► instruction ─requirements─► environment
           ─before ×2, after ×3─► which tests tell ─scrub─► task ─validate─► Harbor directory

Owns `mine`. All runs are in fresh sandboxes without a network, and every decision is in the journal before the next is
made. A failure of our machinery decides nothing: the commit stays undecided, and the next run tries it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType

from pydantic import Field

from etude.config import Config
from etude.durable import write_whole
from etude.environments.base import Backend
from etude.errors import EtudeError
from etude.records import Limits, Task
from etude.rewards.mining.fail_to_pass import Tests, compared
from etude.rewards.mining.journal import Decision, Funnel, Journal, funnel
from etude.rewards.unseen import ask_unseen
from etude.rewards.validate import validate
from etude.tasks.difficulty import level_by_size
from etude.tasks.harbor import write_task
from etude.tasks.mined.environment import Environment, Environments, Unavailable, requirements_of
from etude.tasks.mined.history import Commit, History
from etude.tasks.mined.instruction import instruction_of
from etude.tasks.mined.issues import Issue, referenced_issue
from etude.tasks.mined.split import Candidate, MineLimits, Rejected, split_commit
from etude.tasks.rubric import CHANGE
from etude.tasks.scrub import scrub_task
from etude.tasks.verifiers import PytestRun, pytest_verifier


class MineConfig(Config):
    """What is mined, and how sure one wants to be."""

    name: str | None = None
    """What tasks call the repository; None: its directory's name."""
    revision: str = "HEAD"
    """Where the walk through the history starts."""
    most: int = Field(500, ge=1)
    """Commits looked at, from the newest back."""
    limits: MineLimits = MineLimits()
    before: int = Field(2, ge=2)
    """Runs of the tests without the source patch."""
    after: int = Field(3, ge=3)
    """Runs of the tests with it. The validator's runs come on top."""
    test_timeout_s: float = Field(120.0, gt=0)
    """For one run of a commit's test modules."""
    memory_mb: int = Field(1024, ge=64)
    """Of the sandbox that tests run in."""
    jobs: int = Field(2, ge=1)
    """Commits tried at the same time."""
    eval_since: date | None = None
    """Commits from this day on (UTC) are for evaluation, those before it for training; None: all for training."""


async def mine(
    repository: Path,
    out: Path,
    backend: Backend,
    environments: Environments,
    config: MineConfig,
    progress: Callable[[int, int, Decision | None], None] = lambda done, of, decision: None,
    issues: Mapping[int, Issue] = MappingProxyType({}),
) -> Funnel:
    """Write a Harbor directory below `out` for every task found; what `out` has already is not done again.

    `backend` shows `environments.root` at `environment.PLACE`. `progress` is told how many commits of how many are
    decided, and the latest decision. What a commit's issue says is what its task asks for, where `issues` has it.
    Raises ConfigError for a repository that cannot be read or another run's `out`.
    """
    history = History(repository)
    head = history.head(config.revision)
    given = config.name or repository.resolve().name.removesuffix(".git")
    name = re.sub(r"[^a-z0-9._-]+", "-", given.lower()).strip("-.") or "repository"
    asked = {"repository": name, **config.model_dump(mode="json", exclude={"name", "jobs", "revision", "most"})}
    if issues:
        asked["issues"] = hashlib.sha256(repr(sorted(issues.items())).encode()).hexdigest()[:16]
    journal = Journal(out / "journal.jsonl", asked)
    try:
        for torn in out.glob(".writing-*"):  # by a run that was killed
            shutil.rmtree(torn)
        commits = await asyncio.to_thread(history.commits, head, config.most)
        miner = _Miner(history, name, out, backend, environments, config, issues)
        undecided: dict[str, str] = {}
        gate = asyncio.Semaphore(config.jobs)

        async def decide(commit: Commit) -> None:
            async with gate:
                try:
                    decision = await miner.decide(commit)
                except EtudeError as error:
                    undecided[commit.id] = str(error)
                    return
                journal.add(decision)
                progress(sum(each.id in journal.decisions for each in commits), len(commits), decision)

        progress(sum(each.id in journal.decisions for each in commits), len(commits), None)
        try:
            async with asyncio.TaskGroup() as group:
                for commit in commits:
                    if commit.id not in journal.decisions:
                        group.create_task(decide(commit))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        found = funnel(journal.decisions, undecided)
        write_whole(out / "report.json", (json.dumps(asdict(found), indent=1) + "\n").encode())
        return found
    finally:
        journal.close()


class _Miner:
    def __init__(
        self, history: History, name: str, out: Path, backend: Backend, environments: Environments, config: MineConfig,
        issues: Mapping[int, Issue],
    ) -> None:  # fmt: skip
        self.issues = issues
        self.history, self.name, self.out, self.config = history, name, out, config
        self.backend, self.environments = backend, environments
        self._tests = Tests(backend, config.test_timeout_s, config.memory_mb)
        self._one_parser = asyncio.Lock()  # CPython 3.11 miscounts when two threads build syntax trees at once

    async def decide(self, commit: Commit) -> Decision:
        """A task on disk, or a reason. Raises what our own machinery raises."""
        spent = _Clock()
        found = await self._try(commit, spent)
        if isinstance(found, Rejected):
            return Decision(commit.id, None, found.reason, found.detail[:500], round(spent.seconds, 3))
        directory = self.out / found.id
        if directory.exists():  # a run was killed between this and its line in the journal
            await asyncio.to_thread(shutil.rmtree, directory)
        await asyncio.to_thread(write_task, found, directory)
        return Decision(commit.id, found.id, None, "", round(spent.seconds, 3), found.provenance["unseen"])

    async def _try(self, commit: Commit, spent: _Clock) -> Task | Rejected:
        candidate = await asyncio.to_thread(split_commit, self.history, commit, self.config.limits)
        if isinstance(candidate, Rejected):
            return candidate
        issue = referenced_issue(commit.message, self.issues)
        instruction = await asyncio.to_thread(instruction_of, candidate, issue)
        if isinstance(instruction, Rejected):
            return instruction
        try:
            environment = await self.environments.get(requirements_of(candidate.after.files))
        except Unavailable as error:
            return Rejected("no environment", str(error))
        run = PytestRun(environment.path, candidate.restored, candidate.test_modules)
        given, answered = candidate.before.files, {**candidate.before.files, **candidate.answer}
        with spent:
            tests = compared(
                after := await self._tests.repeated(answered, run, self.config.after),
                {} if isinstance(after, Rejected) else await self._tests.repeated(given, run, self.config.before),
            )
        if isinstance(tests, Rejected):
            return tests
        task = self._task(candidate, instruction, environment, run, *tests)
        async with self._one_parser:
            task, scrubbed = await asyncio.to_thread(scrub_task, task)
        if scrubbed.leaks:
            return Rejected("answer is in the workspace", "; ".join(map(str, scrubbed.leaks[:3])))
        runs = [path for path in candidate.before.executable if path in task.files]
        task = replace(task, provenance={**task.provenance, **({"executable": runs} if runs else {})})
        with spent:
            validation = await validate(task, self.backend, runs=1)
            if not validation.sound:
                return Rejected("not sound", "; ".join(validation.problems))
            return await ask_unseen(task, run, self.backend)

    def _task(
        self, candidate: Candidate, instruction: str, environment: Environment, run: PytestRun,
        fail_to_pass: list[str], pass_to_pass: list[str],
    ) -> Task:  # fmt: skip
        commit, since = candidate.commit, self.config.eval_since
        issue = referenced_issue(commit.message, self.issues)
        when = datetime.fromtimestamp(commit.when, UTC)
        return Task(
            id=f"mined-{self.name}-{commit.id[:12]}",
            instruction=f"{instruction}\nTests run with PYTHONPATH={run.environment} python3 -m pytest\n",
            files=candidate.before.files,
            verifier=pytest_verifier(run, [*fail_to_pass, *pass_to_pass], self.config.test_timeout_s),
            setup=(environment.setup,),
            solution=candidate.answer,
            rubric=CHANGE,
            limits=Limits(max_turns=60, max_context_tokens=32_768, max_sampled_tokens=32_768, wall_s=1800.0),
            split="eval" if since is not None and when.date() >= since else "train",
            provenance={
                "family": "mined",
                "repository": self.name,
                "commit": commit.id,
                "parent": commit.parent,
                "committed": when.isoformat(),
                "environment": environment.key,
                "fail_to_pass": fail_to_pass,
                "pass_to_pass": pass_to_pass,
                "test_modules": list(candidate.test_modules),
                "left_out": list(candidate.before.left_out),
                **({"issue": issue.number} if issue is not None else {}),
                "difficulty": {
                    "level": level_by_size(len(candidate.answer), candidate.lines),
                    "files": len(candidate.answer), "lines": candidate.lines, "fail_to_pass": len(fail_to_pass),
                },
            },
        )  # fmt: skip


class _Clock:
    """Adds up the time spent inside `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        self.seconds += time.monotonic() - self._started
