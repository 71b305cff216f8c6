"""Tasks split by time: the newest of each repository examine what the older ones teach."""

import json
import shutil
from dataclasses import replace
from datetime import date

import pytest

from etude.cli.main import main
from etude.errors import ConfigError, Exit
from etude.tasks.dated import Bounds, split_by_time
from etude.tasks.harbor import read_task, read_tasks, write_task
from etude.tasks.ladder import ladder_task

PLAIN = ladder_task(1, "train", 1)


def mined(repository, day, **facts):
    provenance = {"repository": repository, "committed": f"2024-01-{day:02}T12:00:00+00:00", **facts}
    return replace(PLAIN, id=f"{repository}-{day}", provenance=provenance)


OURS = [mined("a", day) for day in (1, 2, 3, 4)] + [mined("b", day) for day in (20, 21)]


def examined(tasks):
    return {task.id for task in tasks if task.split == "eval"}


def test_of_each_repository_the_newest_are_for_evaluation():
    assert examined(split_by_time(OURS, newest=0.25)) == {"a-4", "b-21"}
    assert examined(split_by_time(OURS[::-1], newest=0.5)) == {"a-3", "a-4", "b-21"}


def test_what_is_of_one_moment_is_on_one_side():
    twins = [replace(mined("a", 4), id="twin"), *OURS]
    assert examined(split_by_time(twins, newest=0.2)) == {"a-4", "twin", "b-21"}


def test_from_a_day_on():
    assert examined(split_by_time(OURS, since=date(2024, 1, 4))) == {"a-4", "b-20", "b-21"}


def test_a_task_without_a_date_keeps_its_split_and_limits_are_only_lowered():
    undated = [replace(PLAIN, id="held", split="heldout"), replace(PLAIN, id="made")]
    given = split_by_time([*OURS, *undated], newest=0.25, bounds=Bounds(max_turns=3, max_context_tokens=10**6))
    assert [task.split for task in given[-2:]] == ["heldout", "train"]
    assert {task.limits.max_turns for task in given} == {3}
    assert given[0].limits.max_context_tokens == PLAIN.limits.max_context_tokens


@pytest.mark.parametrize(
    ("tasks", "how", "said"),
    [
        (OURS, {}, "--newest SHARE or --since DATE"),
        (OURS, {"newest": 0.5, "since": date(2024, 1, 1)}, "not both"),
        (OURS, {"newest": 1.5}, "between 0 and 1"),
        (OURS, {"since": date(2030, 1, 1)}, "no task is left for 'eval'"),
        (OURS, {"since": date(2020, 1, 1)}, "no task is left for 'train'"),
        ([mined("a", 1, committed="soon"), *OURS], {"newest": 0.5}, "a-1: metadata.committed is 'soon'"),
    ],
)
def test_what_cannot_be_split_is_one_sentence(tasks, how, said):
    with pytest.raises(ConfigError, match=said):
        split_by_time(tasks, **how)


def test_the_command_writes_one_directory_a_split(tmp_path, capsys):
    for task in OURS:
        write_task(task, tmp_path / "all" / task.id)
    words = ["tasks", "split", str(tmp_path / "all"), "--out", str(tmp_path / "out"), "--newest", "0.25"]
    assert main([*words, "--max-turns", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"train": 4, "eval": 2, "repositories": 2}
    assert {path.name for path in (tmp_path / "out/eval").iterdir()} == {"a-4", "b-21"}
    task = read_task(tmp_path / "out/train/a-1")
    assert (task.split, task.limits.max_turns) == ("train", 4)
    assert main(words) == Exit.BAD_INPUT and "is there already" in capsys.readouterr().err


def test_an_id_does_not_say_where_a_task_is_written(tmp_path, capsys):
    """It was joined to --out as it is, and a task in a directory of a directory was not found again."""
    for at, task in enumerate([*OURS[:3], replace(OURS[3], id="acme/x")]):
        write_task(task, tmp_path / "all" / str(at))
    words = ["tasks", "split", str(tmp_path / "all"), "--out", str(tmp_path / "a" / "out"), "--newest", "0.25"]
    assert main(words) == 0 and [task.id for task in read_tasks([tmp_path / "a/out/eval"])] == ["acme/x"]
    toml = tmp_path / "all" / "3" / "task.toml"
    toml.write_text(toml.read_text().replace('id = "acme/x"', 'id = "../../../outside"'))
    shutil.rmtree(tmp_path / "a")
    assert main(words) == Exit.BAD_INPUT and "is none: an id is" in capsys.readouterr().err
    assert not [*tmp_path.rglob("outside")]
