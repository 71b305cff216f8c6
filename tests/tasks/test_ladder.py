"""The generated ladder: the same everywhere, solvable, and with nothing held out in what trains."""

import builtins
import keyword
import random
import re
import sys

import pytest

from etude.tasks import families
from etude.tasks.compose import random_shape
from etude.tasks.drills import drill
from etude.tasks.exam import seal_of
from etude.tasks.expert import wrong_edit
from etude.tasks.grammar import BUGS, SHAPES, break_it, bug_names, draw_arguments, from_shape, skeleton
from etude.tasks.holdout import is_held_out
from etude.tasks.ladder import CHECK, LOWER, RUNGS, ladder_task
from etude.tasks.words import HELD_OUT_WORDS, TRAIN_WORDS, WORDS, training_name


def words_of(task):
    text = "\n".join(content.decode() for content in task.files.values()) + " ".join(task.files)
    return set(re.findall(r"[a-z]+", text)) & set(WORDS)


def test_the_hold_out_rule_is_what_it_was_before_the_grammar():
    assert [s.name for s in SHAPES if s.held_out] == [
        "pair",
        "affine",
        "deny",
        "pick",
        "pickmap",
        "tally",
        "edge",
        "trim",
    ]
    assert bug_names("heldout") == ["builtin"]
    assert (len(TRAIN_WORDS), len(HELD_OUT_WORDS)) == (343, 74)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_task_is_the_same_every_time(rung):
    assert ladder_task(rung, "train", 7) == ladder_task(rung, "train", 7)
    assert ladder_task(rung, "train", 7) != ladder_task(rung, "train", 8)


@pytest.mark.parametrize("rung", RUNGS)
def test_training_and_evaluation_use_nothing_held_out(rung):
    for seed in range(25):
        for split in ("train", "eval"):
            task = ladder_task(rung, split, seed)
            assert not words_of(task) & set(HELD_OUT_WORDS)
            assert not is_held_out("bug", task.provenance["bug"])
            assert not is_held_out("shape", task.provenance["shape"])


def test_heldout_tasks_use_held_out_words_and_a_held_out_shape_or_bug():
    for seed in range(25):
        task = ladder_task(3, "heldout", seed)
        assert not words_of(task) & set(TRAIN_WORDS)
        assert is_held_out("bug", task.provenance["bug"]) or is_held_out("shape", task.provenance["shape"])


def test_drills_use_nothing_held_out():
    for index in range(300):
        text = " ".join(part for _, part in drill(3, index))
        assert not set(re.findall(r"[a-z]+", text)) & set(HELD_OUT_WORDS)


@pytest.mark.parametrize("rung", RUNGS)
def test_the_solution_is_one_line_of_one_file(rung):
    for seed in range(10):
        task = ladder_task(rung, "eval", seed)
        facts = task.provenance
        broken, right = task.files[facts["path"]].decode(), task.solution[facts["path"]].decode()
        assert broken.count(facts["old"]) == 1
        assert broken.replace(facts["old"], facts["new"]) == right


def test_the_lower_rungs_are_what_they_were():
    """The easy half of what is measured: figures of different releases are of the same tasks."""
    splits = ("train", "eval", "heldout")
    tasks = [ladder_task(rung, split, seed) for rung in LOWER for split in splits for seed in range(4)]
    assert seal_of(tasks)[:16] == "92511123b96c0c45"


def test_rungs_grow_in_what_must_be_searched():
    sizes = [sum(len(c) for name, c in ladder_task(r, "eval", 0).files.items() if name != CHECK) for r in LOWER]
    assert sizes[0] < sizes[1] < sizes[4]
    assert [size.chain for size in LOWER.values()] == [0, 0, 0, 1, 2]


def test_evaluation_sets_are_fixed_and_interleaved():
    tasks = families.LADDER.evaluation("eval", 2)
    assert [task.provenance["rung"] for task in tasks] == [*RUNGS, *RUNGS]
    assert len({task.id for task in tasks}) == 16


def test_every_bug_applies_to_some_shape_and_changes_one_line():
    rng, used = random.Random(0), set()
    for shape in SHAPES * 6:
        good = from_shape(rng, shape, "name")
        for bug in BUGS:
            broken = break_it(rng, good, bug)
            if broken is not None:
                used.add(bug)
                assert broken.doc == good.doc
                assert sum(a != b for a, b in zip(good.body, broken.body, strict=True)) == 1
    assert used == set(BUGS)


def test_training_names_collide_with_nothing():
    rng = random.Random(1)
    names = [training_name(rng) for _ in range(20_000)]
    taken = {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names, *HELD_OUT_WORDS}
    assert all(name.isidentifier() for name in names)
    assert not taken & set(names)
    assert len(set(names)) > 8_000


def test_no_drill_or_session_exchanges_a_builtin_for_its_partner():
    """That is the held-out bug: it must not slip in by way of a wrong fix either."""
    pairs = [("max(", "min("), ("any(", "all("), ("sum(", "len(")]
    edits = []
    for index in range(2000):
        edits += re.findall(
            r"<parameter=old>\n(.*)\n</parameter>\n<parameter=new>\n(.*)\n", "".join(t for _, t in drill(5, index))
        )
    rng = random.Random(0)
    for seed in range(200):
        facts = ladder_task(3, "train", seed).provenance
        edits += [(facts["old"], facts["new"]), (facts["new"], wrong_edit(rng, facts["old"], facts["new"]))]
    assert len(edits) > 500
    for old, new in edits:
        for one, other in pairs:
            assert one not in old or old.replace(one, other) != new
            assert other not in old or old.replace(other, one) != new


def test_random_shapes_run_break_and_never_have_a_held_out_form():
    rng = random.Random(0)
    held_out = {skeleton(shape.code) for shape in SHAPES if shape.held_out}
    names, broken = set(), 0
    for _ in range(400):
        shape = random_shape(rng)
        assert shape.name not in held_out
        assert not shape.held_out
        names.add(shape.name)
        function = from_shape(rng, shape, "f")
        space = {}
        exec(function.render(), space)
        space["f"](*draw_arguments(rng, function.types))
        broken += break_it(rng, function, rng.choice(bug_names("train"))) is not None
    assert len(names) > 100
    assert broken > 50


def test_the_form_of_a_shape_forgets_variables_and_constants():
    shapes = {shape.name: shape for shape in SHAPES}
    assert skeleton(shapes["pair"].code) == skeleton(shapes["shift"].code) == "return · <o> ·"
    assert skeleton(shapes["pick"].code) == "return [x for x in · if x <q> ·]"
