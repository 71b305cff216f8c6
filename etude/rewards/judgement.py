"""What is said of a session that is over: by its tests, the auditor, the quality of its change, and a rubric's judge.

Owns `Judgement`, which `rewards.sealed` fills and `rewards.reward` turns into an outcome, and `Judges`, who is asked.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task
from etude.rewards.audit import Report
from etude.rewards.audit.apart import Auditor
from etude.rewards.audit.state import Workspace
from etude.rewards.judge import RubricJudge, RubricResult
from etude.rewards.quality import Quality, QualityConfig
from etude.rewards.verdicts import Verdicts
from etude.rewards.verifier import Verdict

Part = Callable[[Task, SessionResult, Workspace, Verdict], float]
"""Of a reward, by somebody else: of a task, the session, what it left, and what the tests said. Runs in a thread."""


@dataclass(frozen=True)
class Judges:
    """Who is asked beside the tests. Belongs to the event loop it is used on; closes whom it asks at its end."""

    audited: bool = False
    auditor: Auditor = field(default_factory=Auditor)
    quality: QualityConfig = field(default_factory=QualityConfig)
    verdicts: Verdicts | None = None
    """Those on states that were verified before; None: each is verified."""
    rubric: RubricJudge | None = None
    aspects: Mapping[str, str] = field(default_factory=dict)
    """Criteria by name that every change is judged by, before its task's own."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    always: bool = False
    """Whether the judge is asked of a session whose tests failed, too: to measure, not to reward."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.auditor.close()
        if self.rubric is not None:
            await self.rubric.close()


@dataclass(frozen=True)
class Judgement:
    """None where nobody was asked."""

    verdict: Verdict | InfraFailed
    report: Report | None = None
    quality: Quality | None = None
    rubric: RubricResult | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """What parts of others said."""
    failed_parts: tuple[str, ...] = ()
    """Those that raised or said no finite number, and why; they count as 0."""

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is held against the session, a line each."""
        unaudited = (self.report.unaudited,) if self.report and self.report.unaudited else ()
        return (
            *unaudited,
            *map(str, self.report.findings if self.report else ()),
            *(self.quality.faults if self.quality else ()),
            *self.failed_parts,
        )

    @property
    def printed(self) -> str:
        """The end of what the verifier printed, or what kept it from a verdict."""
        return self.verdict.detail if isinstance(self.verdict, Verdict) else self.verdict.what

    def counts(self) -> Mapping[str, int]:
        """For a run's metrics: how often each was asked, and what it found. A judge that came to no verdict counts."""
        counts: dict[str, int] = {}
        if isinstance(self.verdict, Verdict) and self.verdict.stripped:
            counts["files_stripped"] = len(self.verdict.stripped)
        if isinstance(self.verdict, Verdict) and self.verdict.known:
            counts["verdicts_known"] = 1
        if self.report is not None:
            found = len(self.report.findings)
            counts |= {"audited": 1, "cheats_found": int(self.report.cheated), "findings": found}
            counts |= {"audit_failed": 1} if self.report.unaudited else {}
        if self.quality is not None:
            counts |= {"quality_judged": 1, "quality_faults": len(self.quality.faults)}
        if self.rubric is not None:
            met = sum(getattr(each, "met", False) for each in self.rubric.judgements)
            asked, missing = len(self.rubric.judgements), len(self.rubric.problems)
            counts |= {"criteria_judged": asked - missing, "criteria_met": met, "criteria_not_judged": missing}
        if self.parts:
            counts |= {"own_parts": len(self.parts), "own_parts_failed": len(self.failed_parts)}
        return counts
