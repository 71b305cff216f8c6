"""All that we want to know of a GPU, in one unattended half hour.

    python benchmarks/gpu/session.py [--model DIRECTORY] [--minutes 30] [--parts PART ...] [--out DIRECTORY]

Plays the programs of this folder and the one-gpu recipe one after the other, each in a process of its own with a
deadline: its share of what is left of the session's time, so that what one leaves is there for the next. A part that
fails, or runs past its deadline, is written down with its reason, and the session goes on. After each part it writes
session.json, and the same as a page, results.md; what a part said is in PART.log beside them.

`--model` is a checkpoint of Qwen3-0.6B for the recipe and for TRL; without one they train models/etude-tiny, which
shows that the loop runs on the GPU and no more. Where torch sees no CUDA device, or TRITON_INTERPRET=1 is set, it says
what it would do on one, and then plays the parts small: kernels in Triton's interpreter, the recipe for two steps on
the CPU. That proves programs and kernels; of speed it says nothing.

The last line is one JSON object, session.json. The exit status is 1 where a part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from page import page_of  # noqa: E402
from parts import MOST_MINUTES, PARTS, ROOT, RUN_SHARE, TINY, Given, Part  # noqa: E402

from etude.durable import write_whole  # noqa: E402
from etude.rollouts.lines import whole  # noqa: E402

GRACE_S = 30.0
"""For a part that is asked to end: a run closes its sandboxes and its Ray."""
LOOK_S = 120.0
WITHOUT_GPU = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def play(command: Sequence[str], variables: Mapping[str, str], log: Path, deadline_s: float) -> str | None:
    """One part to its end; says what went wrong, None where nothing did. Nobody of its group is left."""
    with log.open("wb") as file:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, start_new_session=True,
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask),
        )  # fmt: skip
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what came while it started ends it, too
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return f"ran past its deadline of {deadline_s:.0f} s, and was ended"
        finally:
            end(process)
    if process.returncode < 0:
        return f"was ended by {signal.Signals(-process.returncode).name}"
    if process.returncode:
        return f"ended with status {process.returncode}: {last_words(log)}"
    return None


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    process.wait()


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "it said nothing")


def figures_of(part: Part, given: Given, log: Path) -> dict[str, Any]:
    """Raises ValueError where it left none."""
    if part.read is not None:
        try:
            return part.read(given)
        except OSError as error:
            raise ValueError(f"left no figures: {error.strerror}: {error.filename}") from None
    told = whole(log.read_bytes())
    if not told:
        raise ValueError(f"ended without a JSON line: {last_words(log)}")
    return told[-1]


def record_of(part: Part, given: Given, deadline_s: float) -> dict[str, Any]:
    """Plays a part, or says why not."""
    if (reason := part.left_out(given.small)) is not None:
        return {"outcome": "left out", "reason": reason}
    command, log = part.command(given), given.out / f"{part.name}.log"
    started = time.monotonic()
    wrong = play(command, {**part.variables, **(WITHOUT_GPU if given.small else {})}, log, deadline_s)
    spent = {"seconds": round(time.monotonic() - started, 1), "deadline_s": round(deadline_s)}
    found: dict[str, Any] = {**spent, "command": shlex.join(command), "figures": {}}
    try:
        found["figures"] = figures_of(part, given, log)
    except ValueError as error:
        wrong = wrong or str(error)
    if wrong is not None:
        return {"outcome": "failed", "reason": wrong, **found}
    return {"outcome": "played small" if given.small else "measured", **found}


def session(parts: Sequence[Part], options: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """All parts in order. What is known so far is on the disk after each."""
    ends = time.monotonic() + 60 * options.minutes
    found = {**about, "parts": {}}
    for part, deadline_s in shared_out(parts, ends, about["small"]):
        given = given_to(options, about, deadline_s)
        print(f"{part.name}: {part.asks}", flush=True)
        found["parts"][part.name] = told = {"asks": part.asks, **record_of(part, given, deadline_s)}
        print(f"  {told['outcome']}" + (f": {told['reason']}" if "reason" in told else f" in {told['seconds']} s"))
        write_whole(options.out / "session.json", (json.dumps(found, indent=1) + "\n").encode())
        write_whole(options.out / "results.md", page_of(found, parts).encode())
    return found


def shared_out(parts: Sequence[Part], ends: float, small: bool) -> Iterator[tuple[Part, float]]:
    """Each with the seconds it may take, as it is its turn: by its share, of what is left."""
    for at, part in enumerate(parts):
        if part.left_out(small) is not None:
            yield part, 0.0
            continue
        shares = sum(other.share for other in parts[at:] if other.left_out(small) is None)
        yield part, max(1.0, (ends - time.monotonic()) * part.share / shares)


def given_to(options: argparse.Namespace, about: dict[str, Any], deadline_s: float) -> Given:
    minutes = min(MOST_MINUTES, RUN_SHARE * deadline_s / 60)
    return Given(options.out, about["model"], minutes, about["small"], about["machine"]["device"])


def say_plan(parts: Sequence[Part], options: argparse.Namespace, about: dict[str, Any]) -> None:
    """What would be done on a GPU, and how long each part would have at the least."""
    why = "torch sees no CUDA device" if about["machine"]["device"] is None else "TRITON_INTERPRET=1 is set"
    print(f"No GPU is used: {why}. On one this would be played:")
    for part, deadline_s in shared_out(parts, time.monotonic() + 60 * options.minutes, small=False):
        if (reason := part.left_out(False)) is not None:
            print(f"  {part.name}: left out: {reason}")
            continue
        command = part.command(given_to(options, {**about, "small": False}, deadline_s))
        print(f"  {part.name}: {shlex.join([Path(command[0]).name, *command[1:]])}")
    print("Here the parts are played small. That proves the programs and the kernels, and measures nothing.\n")


def look() -> dict[str, Any]:
    """The machine, seen by another process: a look at a GPU from this one would hold memory of it for as long as this
    lives.
    """
    command = [sys.executable, str(HERE / "timing.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, cwd=ROOT)
    if done.returncode:
        sys.exit(f"torch could not be asked for a GPU; install the training extra. It said: {done.stderr[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def commit() -> str | None:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return done.stdout.strip() or None
    return None


def parsed() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help=f"a checkpoint for the recipe and TRL (default: {TINY})")
    parser.add_argument("--minutes", type=float, default=30.0, help="of all parts together")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="a new directory (default: runs/gpu-DATE)")
    options = parser.parse_args()
    options.out = (options.out or ROOT / "runs" / f"gpu-{datetime.now(UTC):%Y-%m-%d-%H%M%S}").resolve()
    if options.model is not None and not (options.model / "config.json").exists():
        parser.error(f"--model {options.model}: no checkpoint there; name a directory with a config.json")
    if (options.out / "session.json").exists():
        parser.error(f"--out {options.out}: an earlier session is there; name a new directory")
    if options.minutes <= 0:
        parser.error("--minutes: more than 0")
    return options


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the part that is under way, as Ctrl-C does
    options.out.mkdir(parents=True, exist_ok=True)
    machine = look()
    about = {
        "machine": machine, "small": machine["device"] is None or os.environ.get("TRITON_INTERPRET") == "1",
        "model": TINY if options.model is None else str(options.model.resolve()), "minutes": options.minutes,
        "commit": commit(), "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }  # fmt: skip
    parts = [part for part in PARTS if part.name in options.parts]
    if about["small"]:
        say_plan(parts, options, about)
    try:
        found = session(parts, options, about)
    except KeyboardInterrupt:
        sys.exit(f"stopped; what was found so far is in {options.out}")
    print(f"\nthe page: {options.out / 'results.md'}")
    print(json.dumps(found))
    sys.exit(any(told["outcome"] == "failed" for told in found["parts"].values()))


if __name__ == "__main__":
    main()
