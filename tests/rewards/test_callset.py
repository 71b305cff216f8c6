"""The sets that calls judge are made again from what is installed: the same records, to the letter."""

import ast
import asyncio
import importlib.metadata
import random
from pathlib import Path

import pytest

from etude.rewards.called import candidates, explored
from etude.rewards.callset import choose, split_of
from etude.rewards.pure import Source, functions_in, sources
from etude.rewards.validate import validate
from etude.tasks.realcalls import call_records, task_of

AGAIN = 4


def test_the_tasks_of_both_sets_are_sound(run):
    some = random.Random(3).sample(call_records(), 6)

    async def scenario(backend):
        found = await asyncio.gather(*(validate(task_of(record), backend, runs=1) for record in some))
        assert not [(each.task_id, each.problems) for each in found if not each.sound]

    run(scenario)


def test_records_are_made_again_bit_for_bit(run):
    """Where the versions are those of the records; elsewhere the records are what counts."""
    here = {source.home: source for source in sources(Path("constraints.txt"))}
    same = [each for each in call_records() if each.home in here and here[each.home].version == each.version]
    if not same:
        pytest.skip("neither Python nor any package is of the version that the records were made of")
    some = random.Random(5).sample([each for each in same if each.package != "sympy"], AGAIN)

    async def scenario(backend):
        for record in some:
            source = here[record.home]
            path = record.path.removeprefix("stdlib/")
            only = Source(source.package, source.version, source.licence, source.home, source.root, (path,))
            [found] = [each for each in functions_in(only) if each.name == record.function]
            [answer] = await explored([found], backend)
            assert record in list(candidates(found, answer, split_of(found.module)))

    run(scenario, 120.0)


def test_every_module_has_one_set():
    assert all(split_of(record.module) == record.split for record in call_records())
    assert {split_of(f"m{number}") for number in range(40)} == {"eval", "exam"}


def test_the_choice_does_not_depend_on_order():
    records = list(call_records())
    chosen = choose(records, "exam", 50)
    assert chosen == choose(records[::-1], "exam", 50)
    assert len({record.bug for record in chosen}) == 15
    assert all(record.split == "exam" for record in chosen)


UNFIT = """
import os
from elsewhere import thing

def fits(text, count=2):
    '''Repeat.

    >>> fits("ab", 3)
    '''
    pieces = [text for _ in range(count)]
    if count > 5:
        return text
    return "-".join(pieces)

def touches_the_machine(path, count):
    if count > 1:
        return os.listdir(path)
    return open(path).read()

def needs_another(text, count):
    if count > 1:
        return thing(text)
    return text

def keeps_what_order(text, count):
    letters = list({*text, "this", "that", "other", "more"})
    if count < 0:
        return []
    return letters
"""


def test_what_touches_the_machine_is_no_task(tmp_path):
    (tmp_path / "small.py").write_text(UNFIT)
    found = list(functions_in(Source("small", "1", "MIT", "small", tmp_path, ("small.py",))))
    assert [each.name for each in found] == ["fits", "keeps_what_order"]
    fits = found[0]
    assert fits.told["examples"] == [["ab", 3]]
    assert fits.files == {"small.py": fits.files["small.py"]} and "import" not in fits.files["small.py"]


def test_a_function_of_chance_is_found_out(run, tmp_path):
    (tmp_path / "small.py").write_text(UNFIT)
    fits, chance = functions_in(Source("small", "1", "MIT", "small", tmp_path, ("small.py",)))

    async def scenario(backend):
        answers = await explored([fits, chance], backend)
        records = [list(candidates(each, answer, "eval")) for each, answer in zip((fits, chance), answers, strict=True)]
        assert {record.bug for record in records[0]} >= {"swap", "opposite"} or len(records[0]) >= 2
        assert all(ast.literal_eval(arguments) for record in records[0] for arguments, _ in record.hidden)
        assert (await validate(task_of(records[0][0]), backend)).sound
        assert not [each for each in records[1][:1] if (await validate(task_of(each), backend)).sound]

    run(scenario)


def test_only_what_is_installed_at_its_pin_is_asked(tmp_path):
    (tmp_path / "pins").write_text(f"idna=={importlib.metadata.version('idna')}\nclick==0.0.1\nhypothesis==0.1\n")
    assert {each.package for each in sources(tmp_path / "pins")} == {"stdlib", "idna"}
