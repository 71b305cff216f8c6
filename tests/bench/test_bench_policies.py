"""A checkpoint as a benchmark's policy, the shipped recipe, and what the command refuses."""

from pathlib import Path

import pytest

from etude.bench.config import BenchConfig
from etude.bench.tasks import load_tasks
from etude.cli.main import main
from etude.config import load_recipe
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task

ROOT = Path(__file__).parents[2]


@pytest.mark.proof(11)
def test_a_checkpoint_repeats_to_the_byte_however_many_play_at_once(bench, tmp_path):
    for seed in range(2):
        write_task(ladder_task(6, "eval", seed), tmp_path / "tasks" / str(seed))
    keys = {"name": "tiny", "tasks": {"directories": [tmp_path / "tasks"]}, "attempts": 2}
    keys["policy"] = {"path": ROOT / "models/etude-tiny"}
    one, many = (bench(f"by-{width}", concurrency=width, **keys) for width in (1, 4))
    same = [(run.directory / "results.jsonl").read_bytes() for run in (one, many)]
    assert same[0] == same[1] and len(one.attempts) == 4
    assert all(attempt.usage["sampled_tokens"] > 0 for attempt in one.attempts)
    usages = [attempt.usage for attempt in one.attempts]
    assert usages[:2] != usages[2:], "another attempt is another draw"


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
