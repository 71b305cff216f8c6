"""Text in a change that speaks to its judge.

Owns `without_advances`: the change with the lines taken out that address who judges it. A verdict that such lines carry
is none; whether they carry it is found by asking again without them. Lines are taken out of a copy, and only for that.
"""

from __future__ import annotations

import re
from dataclasses import replace

from etude.rewards.judge.outcomes import Change

_ADVANCE = re.compile(
    r"\b(ignore|disregard|forget|override)\b.{0,40}\b(previous|above|prior|earlier|instruction|rule|criteri|propert|rubric)"
    r"|\b(judge|grader|evaluator|reviewer|assessor|examiner|llm|language model|ai model|assistant|system prompt)s?\b"
    r"|[\"']?(holds|met|score|verdict|ticket|grade|rating|pass(?:ed)?)[\"']?\s*[:=]\s*[\"']?(true|1\b|10|yes|pass|full|max)"
    r"|\b(you|must|should|please)\b.{0,30}\b(answer|respond|reply|output|return|conclude|report|mark|rate|score)\b"
    r"|\b(all|every|this|the|each)\b.{0,30}\b(criteri\w+|propert\w+|requirement\w*|rubric)\b.{0,30}\b(met|hold|satisf|fulfil|"
    r"true|pass)"
    r"|</?CHANGE|<\|?im_(start|end)|\[/?INST\]|^\s*[+-]?\s*#*\s*(system|assistant|user)\s*:",
    re.IGNORECASE,
)


def without_advances(change: Change) -> Change | None:
    """The change without the lines that speak to a judge; None where there are none."""
    diffs = tuple(_without(diff) for diff in change.diffs)
    message = _without(change.message)
    if diffs == change.diffs and message == change.message:
        return None
    return replace(change, diffs=diffs, message=message)


def _without(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not _ADVANCE.search(line))
