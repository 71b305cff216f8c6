"""Turns a verdict and what the session did into an Outcome with named parts.

    reward = tests + rubric - effort - malformed - unfinished - lints - style - todos - talk

    tests       1 if the verifier's reward is 1, else 0
    effort      min(cap, scale * C(x)) on solved rollouts, else 0, with C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)) and
                x the rollout's tokens, calls and turns, weighted (`rewards.effort`)
    malformed   min(malformed_cap, malformed_penalty * malformed tool calls)
    unfinished  unfinished_penalty if a limit cut the session, else 0
    rubric      rubric_weight * the share of the task's criteria that the judge says are met, on solved rollouts; 0
                where one of them was not judged
    parts of others
                weight * what it says, of every rollout that is scored (`rewards.parts`)
    lints, style, todos, talk
                min(cap, penalty * what was found), on solved rollouts (`rewards.quality`)

A session that the auditor says cheated is `Cheated` instead, where the config punishes it. Whatever the tests said, its
reward is `RewardConfig.floor`, the lowest that an honest rollout can get: else it would pay to cheat rather than fail.
In quarantine it has no reward at all, and leaves its group.
One that left what cannot be audited is scored, and not as solved: an agent must not be paid for ending its own audit.
Parts are stored with their sign, so that they sum to the reward. A cut session keeps its verdict (`Truncated`); only a
failure of our own machinery is never scored. Runs nothing and waits for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from etude.config import Config
from etude.harness.session import SessionResult
from etude.plugins import find, named
from etude.records import Cheated, InfraFailed, Outcome, Scored, Task, Truncated
from etude.rewards.effort import EffortConfig, concave_cost, effort_in, effort_of
from etude.rewards.judge import JudgeConfig, RubricJudge
from etude.rewards.judgement import Judgement, Judges
from etude.rewards.quality import Quality, QualityConfig
from etude.rewards.verdicts import Verdicts


class RewardConfig(Config):
    """The weights of the parts."""

    effort: EffortConfig = EffortConfig()
    malformed_penalty: float = Field(0.02, ge=0)
    """For each tool call that is not in the right form."""
    malformed_cap: float = Field(0.1, gt=0)
    """Small and bounded: malformed calls stay in the data as negatives, but a solved rollout stays worth most."""
    unfinished_penalty: float = Field(0.0, ge=0)
    """For a session that a limit of its task cut."""
    punish_touched: bool = False
    """Whether changing a protected file (a visible test) makes the rollout `Cheated`."""
    audit: Literal["off", "watch", "punish", "quarantine"] = "off"
    """Whether sessions are audited, and what becomes of one that cheated: it is only counted, gets the lowest reward,
    or teaches nothing and leaves its group before the baseline; the run's `quarantine` keeps it to be looked at."""
    keep: int = Field(4096, ge=0)
    """Verdicts that a reward worker keeps for states that come again; a state is verified twice before its verdict is
    used again. 0: each is verified."""
    quality: QualityConfig = QualityConfig()
    judge: JudgeConfig | None = None
    """The model that judges a solved rollout by its task's rubric; None: nobody does."""
    rubric_weight: float = Field(0.0, ge=0)
    """What meeting the whole rubric is worth beside the tests. With a judge and a weight of 0 it is only logged."""
    parts: dict[Annotated[str, named("rewards")], float] = {}
    """Weights of parts of others, by their name in the group `etude.rewards` or as package.module:function."""

    def idle(self) -> dict[str, str]:
        return {} if self.malformed_penalty else {"malformed_cap": "with malformed_penalty = 0"}

    @model_validator(mode="after")
    def _checked(self) -> RewardConfig:
        if self.rubric_weight and self.judge is None:
            raise ValueError("rubric_weight: nobody judges; name a model in rewards.judge")
        return self

    @property
    def floor(self) -> float:
        """The lowest reward of an honest rollout, without parts of others: these have no bound."""
        quality, effort = self.quality, self.effort
        counted = (quality.lint_penalty, quality.todo_penalty, quality.talk_penalty)
        of_quality = quality.cap * sum(map(bool, counted)) + min(quality.cap, quality.style_penalty)
        of_effort = effort.cap if effort.enabled and effort.scale else 0.0
        malformed = self.malformed_cap if self.malformed_penalty else 0.0
        return min(0.0, 1.0 - of_effort - of_quality) - malformed - self.unfinished_penalty

    def judges(self) -> Judges:
        """Who is asked of each session. Call it on the event loop that judges; close the judge at its end."""
        rubric = None if self.judge is None else RubricJudge(self.judge)
        parts = {name: find("rewards", name) for name in self.parts}
        verdicts = Verdicts(self.keep) if self.keep else None
        return Judges(self.audit != "off", quality=self.quality, verdicts=verdicts, rubric=rubric, parts=parts)


def score(
    task: Task,
    session: SessionResult,
    judgement: Judgement,
    config: RewardConfig,
) -> Outcome:
    """The outcome of a session that ended, from what it did and what was said of it.

    The auditor's report must be there where `config.audit` punishes.
    """
    verdict, report = judgement.verdict, judgement.report
    if isinstance(verdict, InfraFailed):
        return verdict
    if config.punish_touched and verdict.touched:
        touched = ", ".join(verdict.touched)
        return Cheated(f"changed what {task.id} protects: {touched}", _of_cheat(judgement, config))
    if acts := config.audit in ("punish", "quarantine"):
        if report is None:
            raise ValueError(f'rewards.audit is "{config.audit}", and the session was not audited')
        if report.cheated:
            return Cheated(report.evidence, _of_cheat(judgement, config))
    unaudited = acts and report is not None and bool(report.unaudited)
    passed = verdict.reward >= 1.0 and not unaudited
    beside = replace(judgement, quality=None, rubric=None, parts={}) if unaudited else judgement
    parts = _parts(session, passed, config) | _beside_tests(beside, config)
    reward = sum(parts.values())
    if session.stop == "finished" or session.stop == "repetition":  # who goes round in circles was not cut off
        return Scored(reward, parts)
    return Truncated(session.stop, reward, parts)


def _parts(session: SessionResult, passed: bool, config: RewardConfig) -> dict[str, float]:
    effort, usage = config.effort, session.usage
    x = effort_of(effort_in(session)) if passed and effort.enabled else 0.0
    cost = min(effort.cap, effort.scale * concave_cost(x, effort.k, effort.q)) if passed and effort.enabled else 0.0
    return {
        "tests": float(passed),
        "effort": -cost,
        "malformed": -min(config.malformed_cap, config.malformed_penalty * usage["malformed_calls"]),
        "unfinished": -(config.unfinished_penalty if session.stop != "finished" else 0.0),
    }


def _of_cheat(judgement: Judgement, config: RewardConfig) -> float | None:
    """What parts of others take off an honest session they take off this one too; they add nothing to it."""
    if config.audit == "quarantine":
        return None
    return config.floor + min(0.0, sum(_of_others(judgement, config).values()))


def _of_others(judgement: Judgement, config: RewardConfig) -> dict[str, float]:
    return {name: config.parts[name] * value for name, value in judgement.parts.items()}


def _beside_tests(judgement: Judgement, config: RewardConfig) -> dict[str, float]:
    """The parts that only a config with judges has."""
    parts = _of_others(judgement, config)
    if config.judge is not None:
        met = judgement.rubric.score if judgement.rubric is not None else None
        parts["rubric"] = config.rubric_weight * (met or 0.0)
    if config.quality.looked_at:
        parts |= _of_quality(judgement.quality or Quality(), config.quality)
    return parts


def _of_quality(quality: Quality, config: QualityConfig) -> dict[str, float]:
    costs = {
        "lints": config.lint_penalty * len(quality.lints or ()),
        "style": config.style_penalty * (quality.style.share if quality.style else 0.0),
        "todos": config.todo_penalty * len(quality.unfinished or ()),
        "talk": config.talk_penalty * len(quality.talk or ()),
    }
    return {name: -min(config.cap, cost) for name, cost in costs.items()}
