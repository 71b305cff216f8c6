"""Kills processes of a run at chosen moments of its samples' lives, which it reads from the run's journal of moves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from killing import Victim

STATES = ("queued", "starting", "running", "sealed", "rewarding", "scored", "grouped", "trained")


class Follower:
    """Where every sample of a run is, as the journal has it so far."""

    def __init__(self, out: Path) -> None:
        self.path = out / "moves.jsonl"
        self.states: dict[str, str] = {}
        self.entered: list[str] = []
        """The states that were entered since `read` was called last."""
        self.lives = 0
        self._offset = 0

    def read(self) -> None:
        self.entered = []
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in map(json.loads, whole.splitlines()):
            if "began" in line:
                self.lives += 1
                self.states, self.entered = {}, []
            else:
                self.states[line["slot"]] = line["to"]
                self.entered.append(line["to"])

    def someone_is(self, state: str) -> bool:
        """Whether a sample is in a state, or was a moment ago: some are left as soon as they are entered."""
        self.read()
        return state in self.entered or (state != "trained" and state in self.states.values())


Kills = dict[str, Callable[[], object]]
"""How one process of each kind is killed, or another fault is made."""
Told = Callable[[str, str], object]


def kill_in_each_state(run: Victim, kills: Kills, states: Sequence[str] = STATES) -> int:
    """Every fault once in every state: each as soon as a sample is in it, or enters it. Returns how many were made."""
    follower = Follower(run.out)
    for state in states:
        for kind, kill in kills.items():
            if state != "trained" or kind == next(iter(kills)):  # a step is rare: that moment is one for all
                _wait(run, follower, state)
            _kill(run, follower, {kind: kill})
    return len(kills) * len(states)


def random_faults(run: Victim, kills: Kills, count: int, seed: int, told: Told) -> list[tuple[str, str]]:
    """So many faults, each in a state drawn by chance; returns which were made. Ends when the run does. `told` is told
    of each.
    """
    chance, follower, done = random.Random(seed), Follower(run.out), []
    while len(done) < count:
        kind, state = chance.choice(sorted(kills)), chance.choice(STATES)
        _wait(run, follower, state, or_end=True)
        if run.over():
            break
        _kill(run, follower, {kind: kills[kind]})
        done.append((kind, state))
        told(kind, state)
    return done


def _wait(run: Victim, follower: Follower, state: str, or_end: bool = False) -> None:
    def reached() -> bool:
        return (or_end and run.over()) or follower.someone_is(state)

    run.wait(reached, f"a sample that is {state}", every_s=0.005)


def _kill(run: Victim, follower: Follower, kills: Kills) -> None:
    for kill in kills.values():
        kill()
    if "controller" in kills:  # where samples are now, only its next life knows
        lives = follower.lives

        def began() -> bool:
            follower.read()
            return follower.lives > lives or run.over()

        run.wait(began, "the next life of the controller")
    follower.read()  # what was entered before the fault is not waited for
