"""Training tasks of real functions: sound, made again by the seed, and nothing of the evaluation."""

import json
import shutil

import pytest

from etude.cli.main import main
from etude.errors import Exit
from etude.rewards.mining.calls import LIMITS, CallsMade, generate_calls
from etude.rewards.mining.functions import (
    COPY,
    KEPT_CONTENT,
    KEPT_NAME,
    KEPT_PLACE,
    SHADOWS,
    functions_of,
)
from etude.rewards.pure import Found, Refused
from etude.rewards.validate import validate
from etude.tasks.harbor import read_tasks
from etude.tasks.holdout import is_held_out
from etude.tasks.kept_out import kept_out
from etude.tasks.realcalls import call_records
from etude.tasks.verifiers import calls_of

SHOP = '''
def shelf_label(text, width=12, dots=True):
    """A name that fits on a shelf."""
    words = text.split()
    label = " ".join(word.capitalize() for word in words)
    if len(label) > width:
        label = label[: width - 1]
        if dots:
            label = label + "~"
    return label


def price_steps(values, step=5):
    """Prices, each brought up to the next step."""
    steps = []
    for value in values:
        over = value % step
        if over > 0:
            value = value + step - over
        steps.append(value)
    return steps


def stock_line(name, count, least=3):
    """What a list of stock says of one thing."""
    if count <= 0:
        return f"{name}: none"
    if count < least:
        return f"{name}: {count} left, order {least - count}"
    return f"{name}: {count}"


def opens_a_file(path):
    """Touches the machine."""
    text = open(path).read()
    lines = text.split()
    return lines
'''


@pytest.fixture
def shop(tmp_path):
    """A repository: a package in a directory of sources, its tests, and a hidden directory."""
    package = tmp_path / "shop/src/shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "labels.py").write_text(SHOP)
    for other in ("shop/tests", "shop/.venv/lib"):
        (tmp_path / other).mkdir(parents=True)
        (tmp_path / other / "other.py").write_text(SHOP.replace("shelf", "other"))
    return tmp_path / "shop"


def told(directories, seed=0):
    return {each.name: each.why if isinstance(each, Refused) else "" for each in functions_of(directories, seed)}


def test_functions_are_those_of_the_package_by_the_name_they_are_imported_by(shop):
    assert {f"{each.module}.{each.name}" for each in functions_of([shop], 0) if isinstance(each, Found)} == {
        "shop.labels.shelf_label", "shop.labels.price_steps", "shop.labels.stock_line",
    }  # fmt: skip
    assert told([shop])["shop.labels.opens_a_file"] == "needs too much, or touches the machine"
    assert not any("other" in name for name in told([shop])), "tests and hidden directories are passed over"


def test_a_large_package_has_its_turn_as_a_small_one_has(tmp_path):
    """Of nine modules of one and one of another, beside an empty one of each, the other's is among the first."""
    for name, modules in (("large", 9), ("small", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        for number in range(modules):
            text = SHOP.replace("shelf", f"{name}{number}").replace("~", f"~{name}{number}")  # no copy of another
            (tmp_path / name / f"part{number}.py").write_text(text)
    for seed in range(8):
        found = [each.module for each in functions_of([tmp_path], seed) if isinstance(each, Found)]
        homes = [module.partition(".")[0] for module in dict.fromkeys(found)]
        assert sorted(homes) == [*["large"] * 9, "small"] and "small" in homes[:3]


def test_nothing_of_the_evaluation_comes(tmp_path):
    """By its place, by its content wherever it was copied to, and by its name where a copy was changed."""
    some = [record for record in call_records() if record.package != "stdlib" and len(record.files) == 2][:4]
    for number, record in enumerate(some):
        text = record.files[record.path]
        changed = text.replace(f"def {record.function}(", f"def {record.function}(unused, ")
        for path, said in (
            (record.path, text),
            (f"mine{number}/copied.py", text),
            (f"own{number}/changed.py", changed),
        ):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(said)
            (tmp_path / path).with_name("__init__.py").touch()
    for home in {record.home for record in some}:
        for directory in (tmp_path / home).rglob("*/"):
            (directory / "__init__.py").touch()
        (tmp_path / home / "__init__.py").touch()
    why = told([tmp_path])
    for number, record in enumerate(some):
        assert why[f"{record.module}.{record.function}"] == KEPT_PLACE
        assert why[f"mine{number}.copied.{record.function}"] == KEPT_CONTENT
        assert why[f"own{number}.changed.{record.function}"] in (KEPT_NAME, KEPT_CONTENT)
    assert not [name for name, against in why.items() if not against and name.rpartition(".")[2] in kept_out().names]


def test_a_copy_is_taken_once_and_a_module_that_hides_the_librarys_never(shop):
    (shop / "again.py").write_text(SHOP)
    (shop / "json.py").write_text(SHOP.replace("shelf", "json"))
    why = told([shop])
    assert sorted(against for name, against in why.items() if name.endswith("price_steps")) == ["", COPY, SHADOWS]


def test_tasks_are_sound_and_tell_what_they_hide_to_nobody(run, shop, tmp_path):
    async def scenario(backend):
        made = await generate_calls([shop], tmp_path / "out", backend, count=5)
        tasks = read_tasks([tmp_path / "out"])
        assert {task.id for task in tasks} == set(made.tasks) and len(tasks) == 5
        assert not [problem for task in tasks for problem in (await validate(task, backend, runs=1)).problems]
        return made, tasks

    made, tasks = run(scenario, 300.0)
    assert sum(made.bugs.values()) == len(tasks) and len(made.bugs) >= 3, "kinds of bugs are as even as they come"
    for task in tasks:
        facts = task.provenance
        assert task.split == "train" and task.limits == LIMITS and not is_held_out("bug", facts["bug"])
        assert task.instruction == (
            f"python3 check.py fails: there is a bug in {facts['function']} in {facts['path']}. Fix it."
        )
        broken = task.files[facts["path"]].decode()
        assert broken.replace(facts["old"], facts["new"]) == task.solution[facts["path"]].decode() != broken
        asked = [repr(list(arguments)) for *_, arguments, _ in calls_of(task.verifier)]
        shown = [each for each in asked if f"({each}, " in task.files["check.py"].decode()]
        assert 2 <= len(shown) <= 4, "a mend must pass the check, too"
        assert len(asked) - len(shown) >= 6 and shown == asked[: len(shown)]


def test_fewer_tasks_than_were_asked_for_are_told():
    made = CallsMade(7, {"not sound": 1}, ("a", "b"), {"sign": 2}, 1.0)
    assert "fewer than the 12 that were asked for" in made.lines(12)[-1]
    assert made.lines(2)[-1] == "     2 tasks, 1 s of sandboxes: sign 2"


def test_the_command_goes_on_where_it_was_stopped_and_makes_the_same(shop, tmp_path, capsys):
    def made(out, count, *more):
        given = ["tasks", "generate", str(shop), "--kind", "calls", "--count", str(count), "--json", *more]
        assert main([*given, "--out", str(out)]) == 0
        return json.loads(capsys.readouterr().out)

    whole = made(tmp_path / "whole", 100)
    assert whole["functions"] == 4 and len(whole["tasks"]) == 6, "two of each function that will do"
    assert whole["refused"] == {"needs too much, or touches the machine": 1}
    journal = (tmp_path / "whole/journal.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    (tmp_path / "killed/journal.jsonl").write_text("".join(journal[:-1]))  # its last function was written, not noted
    again = made(tmp_path / "killed", 100)
    assert {**again, "sandbox_s": 0} == {**whole, "sandbox_s": 0}
    assert {task.id: task for task in read_tasks([tmp_path / "killed"])} == {
        task.id: task for task in read_tasks([tmp_path / "whole"])
    }
    assert main(
        ["tasks", "generate", str(shop), "--kind", "calls", "--seed", "1", "--out", str(tmp_path / "whole")]
    ) == (Exit.BAD_INPUT)
    assert "another `seed`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "calls"], "of directories with Python source"),
        (["{}", "--kind", "calls", "--kind", "bug"], "by itself"),
        (["{}", "{}"], "one repository at a time"),
        (["{}", "--kind", "calls", "--level", "1"], "--level"),
        (["{}/docs", "--kind", "calls"], "no Python source"),
        (["{}/none", "--kind", "calls"], "no directory"),
    ],
)
def test_what_cannot_be_is_said(arguments, said, shop, tmp_path, capsys):
    (shop / "docs").mkdir()
    given = [each.replace("{}", str(shop)) for each in arguments]
    assert main(["tasks", "generate", *given, "--out", str(tmp_path / "out")]) == Exit.BAD_INPUT
    assert said in capsys.readouterr().err
