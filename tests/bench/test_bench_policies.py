"""A checkpoint as a benchmark's policy, the shipped recipe, and what the command refuses."""

from dataclasses import replace
from pathlib import Path

import pytest

from etude.bench.config import BenchConfig
from etude.bench.summary import summarise
from etude.bench.tasks import load_tasks
from etude.bench.text import run_summary
from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task
from etude.tasks.realcalls import called_tasks

ROOT = Path(__file__).parents[2]


@pytest.mark.proof(11)
def test_a_checkpoint_repeats_to_the_byte_however_many_play_at_once(bench, tmp_path):
    for seed in range(2):
        write_task(ladder_task(6, "eval", seed), tmp_path / "tasks" / str(seed))
    keys = {"name": "tiny", "tasks": {"directories": [tmp_path / "tasks"]}, "attempts": 2}
    keys["policy"] = {"path": ROOT / "models/etude-tiny"}
    one, many = (bench(f"by-{width}", concurrency=width, **keys) for width in (1, 4))
    keys["policy"] |= {"engines": 2, "engine": {"lookup_tokens": 4}}
    several = bench("by-engines", concurrency=4, **keys)
    same = [(run.directory / "results.jsonl").read_bytes() for run in (one, many, several)]
    assert same[0] == same[1] == same[2] and len(one.attempts) == 4
    assert all(attempt.usage["sampled_tokens"] > 0 for attempt in one.attempts)
    usages = [attempt.usage for attempt in one.attempts]
    assert usages[:2] != usages[2:], "another attempt is another draw"


def test_limits_of_a_task_beyond_the_models_context_are_the_contexts(bench, tmp_path):
    """Tasks that are made from repositories have a context of 32,768; the shipped model has 1,024."""
    task = ladder_task(1, "eval", 0)
    write_task(replace(task, limits=replace(task.limits, max_context_tokens=32_768)), tmp_path / "tasks/wide")
    run = bench(tasks={"directories": [tmp_path / "tasks"]}, policy={"path": ROOT / "models/etude-tiny"})
    assert [attempt.usage["turns"] > 0 for attempt in run.attempts] == [True]


def test_a_task_without_room_for_one_turn_is_refused_before_any_is_played(bench, tmp_path):
    short, long = ladder_task(1, "eval", 0), ladder_task(1, "eval", 1)
    for task in (short, replace(long, instruction="Mend it. " * 600)):
        write_task(task, tmp_path / "tasks" / task.id.replace("/", "-"))
    done = []
    with pytest.raises(ConfigError, match=f"^{long.id}: no room for a single turn: the prompt takes"):
        bench(
            tasks={"directories": [tmp_path / "tasks"]}, policy={"path": ROOT / "models/etude-tiny"},
            on_done=lambda played, *_: done.append(played),
        )  # fmt: skip
    assert done == [None]
    assert len(bench(tasks={"ladder": 1}).attempts) == 8, "a run that was refused keeps no directory from another"


def test_the_script_that_a_model_learns_from_plays_for_itself(bench, tmp_path):
    """With each attempt it tries other mends; the same ones whenever the same attempt is played."""
    chosen = called_tasks("eval")[-3:]
    for number, task in enumerate(chosen):
        write_task(task, tmp_path / "tasks" / str(number))
    keys = {
        "tasks": {"directories": [tmp_path / "tasks"]},
        "attempts": 4,
        "policy": {"kind": "hunter"},
        "name": "hunter",
    }
    keys["limits"] = {"max_context_tokens": 8192, "max_sampled_tokens": 4096}
    once, again = (bench(name, **keys) for name in ("once", "again"))
    assert (once.directory / "results.jsonl").read_bytes() == (again.directory / "results.jsonl").read_bytes()
    assert sum(attempt.solved for attempt in once.attempts) > 0
    assert len({attempt.usage["sampled_tokens"] for attempt in once.attempts}) > len(chosen)
    assert run_summary(summarise(once)).startswith("hunter: the script that hunts bugs\n3 tasks, 12 of 12 ")


def test_the_shipped_recipe_names_tasks_of_every_kind():
    config = load_recipe(ROOT / "recipes/bench.toml", BenchConfig)
    assert {task.split for task in load_tasks(config.tasks)} == {"eval", "heldout", "real"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "tasks: none are named"),
        (["run", "nowhere"], "nowhere: no such task directory"),
        (["run", "--endpoint", "http://127.0.0.1:1/v1"], "--endpoint needs --model"),
        (["run", "--model", "qwen3"], "at an --endpoint"),
        (["run", "--ladder", "1", "--checkpoint", "nowhere"], "policy.path: there is no directory nowhere; give one"),
        (["run", "--ladder", "1", "--solution", "2"], "policy.skill"),
        (["run", "--ladder", "1", "--solution", "1", "--resume"], "no run to resume"),
        (["compare", "nowhere", "nowhere"], "nowhere: no benchmark run"),
        (["report", "nowhere"], "nowhere: no benchmark run"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments, said, tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")] if arguments[0] == "run" else []
    assert main(["bench", *arguments, *out]) == 42
    told = capsys.readouterr().err.strip()
    assert said in told and len(told.splitlines()) == 1
