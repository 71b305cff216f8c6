"""A scripted expert that walks trails and summarises, on purpose not perfectly.

Owns the demonstrations that a model learns to summarise from before reinforcement learning. The expert knows its
context and nothing else: what it leaves out of a summary it has forgotten, and then the words it writes at the end are
not those that were to be written. So a model that has learnt from it knows summaries of both kinds, and that one which
forgets looks like any other until the end: only the reward tells them apart.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pydantic import Field

from etude.config import Config
from etude.harness.prompt import render_calls
from etude.records import Task
from etude.tasks.scripted import FAREWELL
from etude.tasks.trail import ANSWER, EMPTY, next_hint, read_note


class TrailExpertConfig(Config):
    """How often the expert slips."""

    forget: float = Field(0.0, ge=0, le=1)
    """Probability, at each summary, that it leaves words out: one of them, or half of the time all of them."""


@dataclass
class TrailExpert:
    """Plays one task; `next_message` and `summary` are what a `ScriptedSampler` asks for."""

    task: Task
    config: TrailExpertConfig
    seed: int

    def __post_init__(self) -> None:
        self.rng = random.Random(f"trail expert {self.task.id} {self.seed}")
        self.words: list[str] = []
        self.following: str | None = self.task.provenance["trail"][0]
        self.written = False

    def next_message(self, observations: list[str]) -> str:
        self._read(observations)
        if self.following is not None:
            return render_calls([("read_file", {"path": self.following})])
        if not self.written:
            self.written = True
            return render_calls([("edit_file", {"path": ANSWER, "old": EMPTY, "new": " ".join(self.words)})])
        return FAREWELL

    def summary(self, observations: list[str]) -> str:
        """What the next context goes on from; a slip leaves words out of it, and so out of the expert's mind."""
        self._read(observations)
        if self.words and self.rng.random() < self.config.forget:
            left_out = self.rng.randrange(len(self.words))
            self.words = [] if self.rng.random() < 0.5 else self.words[:left_out] + self.words[left_out + 1 :]
        if self.written:
            return f"{ANSWER} is written."
        return f"words: {' '.join(self.words)}\n{next_hint(self.following)}."

    def _read(self, observations: list[str]) -> None:
        for text in observations:
            if (found := read_note(text)) is not None:
                self.words.append(found[0])
                self.following = found[1]
