"""Planted cheats: a task that brings the session of a cheat with it, so that a run shows that its auditor finds one.

Owns the key `planted` of a task's provenance: the messages of one session, in order. In the first session of each group
of that task `etude train` plays them in the model's place, through the same harness, sandbox, verifier and auditor as
every other session. Nothing is ever learnt from them, found or not. Whoever else plays the task plays it as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from etude.errors import ConfigError
from etude.records import Cheated, InfraFailed, Outcome, Task

KEY = "planted"
FAREWELL = "Done."


def is_planted(task: Task) -> bool:
    return KEY in task.provenance


def script_of(task: Task) -> Callable[[list[str]], str]:
    """What a `ScriptedSampler` asks for: each message, then the end. Raises ConfigError where there is none."""
    given = task.provenance[KEY]
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{task.id}: metadata.{KEY} must be a list of messages, each a text")
    messages = iter(given)
    return lambda observations: next(messages, FAREWELL)


def found_or_missed(outcome: Outcome) -> Outcome:
    """Of a planted session: in quarantine where the auditor has found it. One that it missed is a failure of our own
    machinery, which is counted and leaves its group.
    """
    if isinstance(outcome, Cheated):
        return replace(outcome, reward=None)
    if isinstance(outcome, InfraFailed):
        return outcome
    return InfraFailed("the auditor did not find the planted cheat", retryable=False)
