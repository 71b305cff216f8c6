"""An extended run under random faults: processes killed with -9 or stopped, and the store taken away.

    python benchmarks/faults.py [--faults 100] [--seed 0] [--minutes 60]

One run in lockstep, of as many steps as it takes to make the faults in: each is a process of a kind drawn by chance, in
the moment in which a sample is in a state drawn by chance. It has to end by itself. The last line is one JSON object:
`faults` (made), `lost` and `trained_twice` (samples, by the run's own accounting), `hangs` (1 if it did not end in
time), and how often each kind of fault was made.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "e2e"))
from injector import Kills, random_faults
from killing import RESTARTS, Victim
from restarted_store import Store
from small import LOCKSTEP

KINDS = ("controller", "trainer", "engine", "sessions", "rewards")
STEPS = 100_000
"""More than there is time for: the run is asked to end when the faults are made."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="longer than this is a hang")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = faulted(Path(directory), options)
    print(json.dumps(found))
    sys.exit(any(found[fault] != 0 for fault in ("lost", "trained_twice", "hangs")) or found["faults"] < options.faults)


def faulted(directory: Path, options: argparse.Namespace) -> dict[str, object]:
    out = directory / "run"
    recipe = (
        *LOCKSTEP, "rollouts.lag=1", f"rollouts.max_steps={STEPS}", "rollouts.max_minutes=10000",
        "rollouts.concurrency=8", "rollouts.attempts=100000",
        "faults.journal=true", "deadlines.scale=0.2",
        *RESTARTS,
    )  # fmt: skip
    started = time.monotonic()
    made: list[tuple[str, str]] = []
    with Store(directory / "objects") as store, Victim(out, *recipe, *store.recipe()) as run:
        kills: Kills = {kind: (lambda kind=kind: run.kill(kind)) for kind in KINDS}
        kills["sessions stopped"] = lambda: run.kill("sessions", signal.SIGSTOP)
        kills["store"] = store.restart
        hangs, summary = 0, {}

        def told(kind: str, state: str) -> None:
            made.append((kind, state))
            print(
                f"{time.monotonic() - started:6.0f} s  {len(made):3}  {kind} while a sample is {state}", file=sys.stderr
            )

        try:
            random_faults(run, kills, options.faults, options.seed, told)
            run.last_step()
            left_s = max(60.0, 60 * options.minutes - (time.monotonic() - started))
            summary = json.loads(run.end(left_s).splitlines()[-1])
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            hangs = 1
    kinds = Counter(kind for kind, _ in made)
    return {
        "faults": len(made), "lost": summary.get("lost"), "trained_twice": summary.get("trained_twice"), "hangs": hangs,
        "kinds": dict(kinds), "states": dict(Counter(state for _, state in made)), "steps": summary.get("steps"),
        "restarts": summary.get("restarts"), "seconds": time.monotonic() - started,
    }  # fmt: skip


if __name__ == "__main__":
    main()
