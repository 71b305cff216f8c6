"""Makes tasks of proposals: runs the tests and linters on right and broken files, and keeps what they tell apart.

Owns `GenerateConfig` and `Maker`, which `generate` drives. A failure of our machinery is raised, and decides nothing.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from etude.config import Config
from etude.environments.base import Backend
from etude.records import Limits, Task
from etude.rewards.mining.fail_to_pass import Outcomes, Tests, compared
from etude.rewards.mining.journal import Decision
from etude.rewards.unseen import ask_unseen
from etude.rewards.validate import validate
from etude.tasks.generate.bugs import bugs
from etude.tasks.generate.debt import RUFF, TY, lint_debts, mended, type_debts
from etude.tasks.generate.deletion import deletions
from etude.tasks.generate.proposal import Kind, Proposal, Source
from etude.tasks.generate.reverts import reverts
from etude.tasks.harbor import write_task
from etude.tasks.mined.environment import Environment, Environments, Requirements, Unavailable, requirements_of
from etude.tasks.mined.history import History
from etude.tasks.mined.split import Rejected
from etude.tasks.rubric import CHANGE
from etude.tasks.scrub import scrub_task
from etude.tasks.verifiers import PytestRun, pytest_verifier

LINTERS = {"lint": RUFF, "types": TY}


class GenerateConfig(Config):
    """What is generated, and how sure one wants to be."""

    kinds: tuple[Kind, ...] = Field(("bug", "deletion", "revert"), min_length=1)
    """What is made; docs/tasks.md says what each kind is."""
    levels: tuple[int, ...] = ()
    """From 1 to 5; of each kind and level `count` tasks are made. Empty: `count` of each kind, whatever their level."""
    count: int = Field(5, ge=1)
    """Tasks of each kind, or of each kind and level."""
    tries: int = Field(50, ge=1)
    """Most proposals that are tried of each."""
    seed: int = 0
    """The same seed proposes the same."""
    name: str | None = None
    """What tasks call the repository; None: its directory's name."""
    revision: str = "HEAD"
    """The commit that tasks are made of."""
    commits: int = Field(200, ge=1)
    """Of how many of the newest commits one may be reverted."""
    workspace_mb: int = Field(32, ge=1, le=48)
    """The largest repository, without its history."""
    before: int = Field(2, ge=2)
    """Runs of the tests with broken files."""
    after: int = Field(3, ge=3)
    """Runs of the tests with right files. The validator's runs come on top."""
    test_timeout_s: float = Field(120.0, gt=0)
    """For one run of the tests."""
    memory_mb: int = Field(1024, ge=64)
    """Of the sandbox that tests run in."""
    jobs: int = Field(2, ge=1)
    """Proposals tried at the same time."""


@dataclass(frozen=True)
class Made:
    """What tasks are made of: a repository at the commit `head`."""

    name: str
    head: str
    source: Source
    history: History


class Maker:
    """Of one repository, below one directory."""

    def __init__(
        self, of: Made, out: Path, backend: Backend, environments: Environments, config: GenerateConfig
    ) -> None:
        self.of, self.out, self.config = of, out, config
        self.backend, self.environments = backend, environments
        self._tests = Tests(backend, config.test_timeout_s, config.memory_mb)
        self._one_parser = asyncio.Lock()  # CPython 3.11 miscounts when two threads build syntax trees at once
        self._right: dict[tuple[str, ...], asyncio.Task[Outcomes | Rejected]] = {}
        """What the untouched repository's tests say, by the modules that are run."""

    async def proposals(self, kind: Kind, level: int | None) -> Iterator[Proposal]:
        """In an order of their own for each kind and level. For lint debt the linter is asked first."""
        source, rng = self.of.source, random.Random(f"{self.config.seed} {kind} {level}")
        match kind:
            case "bug":
                return bugs(source, level, rng)
            case "deletion":
                return deletions(source, level, rng)
            case "types":
                return type_debts(source, level, rng)
            case "revert":
                commits = await asyncio.to_thread(self.of.history.commits, self.of.head, self.config.commits)
                return reverts(source, self.of.history, commits, level, rng)
            case "lint":
                return lint_debts(source, await self._findings(), level, rng)

    async def draw(self, proposals: Iterator[Proposal]) -> Proposal | None:
        """The next one, or None."""
        async with self._one_parser:
            return await asyncio.to_thread(lambda: next(proposals, None))

    async def decide(self, proposal: Proposal) -> Decision:
        """A task on disk, or a reason. Raises what our own machinery raises."""
        started = time.monotonic()
        try:
            found = await self._try(proposal, await self._environment(proposal.kind))
        except Unavailable as error:
            found = Rejected("no environment", str(error))
        spent = round(time.monotonic() - started, 3)
        if isinstance(found, Rejected):
            return Decision(proposal.key, None, found.reason, found.detail[:500], spent)
        directory = self.out / found.id
        if directory.exists():  # a run was killed between this and its line in the journal
            await asyncio.to_thread(shutil.rmtree, directory)
        await asyncio.to_thread(write_task, found, directory)
        return Decision(proposal.key, found.id, None, "", spent, found.provenance["unseen"])

    async def _environment(self, kind: Kind) -> Environment:
        asked = requirements_of(self.of.source.tree.files)
        if kind in LINTERS:  # one environment for all linters
            linters = (linter.package for linter in LINTERS.values())
            asked = Requirements(asked.needed, tuple(sorted({*asked.wanted, *linters})))
        return await self.environments.get(asked)

    async def _try(self, proposal: Proposal, environment: Environment) -> Task | Rejected:
        source, key = self.of.source, proposal.key
        if proposal.kind == "lint":
            command = (f"{environment.path}/bin/ruff", "check", "--isolated", "--no-cache", "--fix", "--unsafe-fixes")
            rule, path = proposal.about["rule"], proposal.about["path"]
            text = await self._tests.mended(source.tree.files, (*command, f"--select={rule}", "--"), path)
            if isinstance(text, Rejected):
                return text
            if (complete := mended(proposal, source, text)) is None:
                return Rejected("nothing to mend", "the linter has no mend for it, or one of another level")
            proposal = complete
        given, answered = ({**source.tree.files, **files} for files in (proposal.broken, proposal.answer))
        run = PytestRun(environment.path, source.restored, proposal.modules)
        if proposal.kind in LINTERS:
            limited = await self._limited(proposal, run, given, answered)
            if isinstance(limited, Rejected):
                return limited
            run = limited
        tests = await self._telling(proposal, run, given, answered)
        return (
            tests if isinstance(tests, Rejected) else await self._whole(key, proposal, environment, run, given, *tests)
        )

    async def _telling(
        self, proposal: Proposal, run: PytestRun, given: dict[str, bytes], answered: dict[str, bytes]
    ) -> tuple[list[str], list[str]] | Rejected:
        """(fail-to-pass, pass-to-pass). Of debts no test need tell, but some must be there to keep what works."""
        if answered == self.of.source.tree.files:
            if run.modules not in self._right:
                again = self._tests.repeated(answered, run, self.config.after)
                self._right[run.modules] = asyncio.create_task(again)
            after = await self._right[run.modules]
        else:
            after = await self._tests.repeated(answered, run, self.config.after)
        if isinstance(after, Rejected):
            return after
        for part in proposal.parts:
            alone = compared(after, await self._tests.once({**answered, **part}, run))
            if isinstance(alone, Rejected):
                return alone
        found = compared(after, await self._tests.repeated(given, run, self.config.before))
        if run.lints and isinstance(found, Rejected) and found.reason == "no fail-to-pass":
            return [], sorted(test for test, outcome in after.items() if outcome == "passed")
        return found

    async def _limited(
        self, proposal: Proposal, run: PytestRun, given: dict[str, bytes], answered: dict[str, bytes]
    ) -> PytestRun | Rejected:
        """The run with a lint that allows what the right files have, if the broken ones have more."""
        roots = tuple(sorted({path.split("/")[0] for path in self.of.source.modules}))
        linter = LINTERS[proposal.kind]
        asked = replace(run, lints=(linter.lint(run.environment, roots, {}),))
        right, wrong = await self._tests.linted(answered, asked), await self._tests.linted(given, asked)
        for counted in (right, wrong):
            if isinstance(counted, Rejected):
                return counted
        assert not isinstance(right, Rejected) and not isinstance(wrong, Rejected)
        [most], [now] = right, wrong
        if not any(times > most.get(rule, 0) for rule, times in now.items()):
            return Rejected("nothing to mend", f"{linter.package} finds no more than in the right files")
        return replace(run, lints=(replace(asked.lints[0], most=most),))

    async def _findings(self) -> dict[str, dict[str, int]]:
        """What ruff finds in every module of the source, by rule. Raises Unavailable."""
        environment = await self._environment("lint")
        paths = tuple(self.of.source.modules)
        lints = tuple(RUFF.lint(environment.path, (path,), {}) for path in paths)
        counted = await self._tests.linted(self.of.source.tree.files, PytestRun(environment.path, {}, (), lints))
        if isinstance(counted, Rejected):
            raise Unavailable(counted.detail)
        return dict(zip(paths, counted, strict=True))

    async def _whole(
        self, key: str, proposal: Proposal, environment: Environment, run: PytestRun, given: dict[str, bytes],
        fail_to_pass: list[str], pass_to_pass: list[str],
    ) -> Task | Rejected:  # fmt: skip
        """The task, scrubbed and found sound."""
        told = proposal.instruction
        if proposal.names_tests:
            told += "\n\n" + "\n".join(f"- `{test}`" for test in fail_to_pass[:5])
        task = Task(
            id=f"{self.of.name}-{key}",
            instruction=f"{told}\n\nTests run with PYTHONPATH={run.environment} python3 -m pytest\n",
            files=given,
            verifier=pytest_verifier(run, [*fail_to_pass, *pass_to_pass], self.config.test_timeout_s),
            setup=(environment.setup,),
            solution=proposal.answer,
            rubric=CHANGE,
            limits=Limits(max_turns=60, max_context_tokens=32_768, max_sampled_tokens=32_768, wall_s=1800.0),
            provenance={
                "family": proposal.kind, "repository": self.of.name, "commit": self.of.head,
                "environment": environment.key, "fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass,
                "test_modules": list(run.modules), "left_out": list(self.of.source.tree.left_out),
                "difficulty": {
                    "level": proposal.level, "files": len(proposal.answer), "fail_to_pass": len(fail_to_pass),
                },
                **_lint_of(run), **proposal.about,
            },
        )  # fmt: skip
        async with self._one_parser:
            task, scrubbed = await asyncio.to_thread(scrub_task, task)
        if scrubbed.leaks:
            return Rejected("answer is in the workspace", "; ".join(map(str, scrubbed.leaks[:3])))
        if runs := [path for path in self.of.source.tree.executable if path in task.files]:
            task = replace(task, provenance={**task.provenance, "executable": runs})
        validation = await validate(task, self.backend, runs=1)
        if not validation.sound:
            return Rejected("not sound", "; ".join(validation.problems))
        return await ask_unseen(task, run, self.backend)


def _lint_of(run: PytestRun) -> dict[str, Any]:
    told = [{"command": " ".join((*lint.command, *lint.paths)), "most": dict(lint.most)} for lint in run.lints]
    return {"lints": told} if told else {}
