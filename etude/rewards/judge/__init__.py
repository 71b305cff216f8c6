"""The rubric judge: a model that says of one thing at a time whether a change meets it.

    criterion + change ──► one question ──► any OpenAI-compatible endpoint ──► Judged, or NotJudged by name
                 control question (surely false) ──┘

Owns `RubricJudge` and what it is measured by (`calibration`). It runs in the trainer's process: the judged session has
no way to it but the text it left behind, and that is quoted, never obeyed. What goes wrong has a name and is neither a
pass nor a fail; what has no verdict pays nothing and costs nothing.
"""

from __future__ import annotations

from etude.rewards.judge.config import JudgeConfig
from etude.rewards.judge.outcomes import Change, Judged, Judgement, NotJudged, RubricResult
from etude.rewards.judge.rubric import RubricJudge

__all__ = ["Change", "JudgeConfig", "Judged", "Judgement", "NotJudged", "RubricJudge", "RubricResult"]
