"""Turns a verdict and what the session did into an Outcome with named parts.

    reward = tests - effort - malformed - unfinished

    tests       1 if the verifier's reward is 1, else 0
    effort      min(cap, scale * C(x)) on solved rollouts, else 0 (`rewards.effort`)
    malformed   min(malformed_cap, malformed_penalty * malformed tool calls)
    unfinished  unfinished_penalty if a limit cut the session, else 0

A session that the auditor says cheated is `Cheated` instead, where the config punishes it: 0, whatever the tests said.
Parts are stored with their sign, so that they sum to the reward. A cut session keeps its verdict (`Truncated`); only a
failure of our own machinery is never scored. Runs nothing and waits for nothing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.harness.session import SessionResult
from etude.records import Cheated, InfraFailed, Outcome, Scored, Task, Truncated
from etude.rewards.audit import Report
from etude.rewards.effort import EffortConfig, concave_cost, effort_in, effort_of
from etude.rewards.verifier import Verdict


class RewardConfig(Config):
    """The weights of the parts."""

    effort: EffortConfig = EffortConfig()
    malformed_penalty: float = Field(0.02, ge=0)
    malformed_cap: float = Field(0.1, ge=0)
    """Small and bounded: malformed calls stay in the data as negatives, but a solved rollout stays worth most."""
    unfinished_penalty: float = Field(0.0, ge=0)
    punish_touched: bool = False
    """Whether changing a protected file (a visible test) makes the rollout `Cheated`."""
    audit: Literal["off", "watch", "punish"] = "off"
    """Whether sessions are audited, and whether one that cheated is `Cheated` or only counted."""


def score(
    task: Task,
    session: SessionResult,
    verdict: Verdict | InfraFailed,
    config: RewardConfig,
    report: Report | None = None,
) -> Outcome:
    """The outcome of a session that ended, from what it did and the verdict on its final state.

    `report` is the auditor's, and must be there where `config.audit` punishes.
    """
    if isinstance(verdict, InfraFailed):
        return verdict
    if config.punish_touched and verdict.touched:
        return Cheated(f"changed what {task.id} protects: {', '.join(verdict.touched)}")
    if config.audit == "punish":
        if report is None:
            raise ValueError('rewards.audit is "punish", and the session was not audited')
        if report.cheated:
            return Cheated(report.evidence)
    parts = _parts(session, verdict.reward >= 1.0, config)
    reward = sum(parts.values())
    return Scored(reward, parts) if session.stop == "finished" else Truncated(session.stop, reward, parts)


def _parts(session: SessionResult, passed: bool, config: RewardConfig) -> dict[str, float]:
    effort, usage = config.effort, session.usage
    x = effort_of(effort_in(session), effort) if passed and effort.enabled else 0.0
    cost = min(effort.cap, effort.scale * concave_cost(x, effort.k, effort.q)) if passed and effort.enabled else 0.0
    return {
        "tests": float(passed),
        "effort": -cost,
        "malformed": -min(config.malformed_cap, config.malformed_penalty * usage["malformed_calls"]),
        "unfinished": -(config.unfinished_penalty if session.stop != "finished" else 0.0),
    }
