"""The upper rungs: nothing tells the mend, the check tells it from every other, and trying finds it."""

import contextlib
import io
import random
import re

import pytest

from etude.tasks.evidence import Evidence
from etude.tasks.generated import changed_line, define
from etude.tasks.grammar import SHAPES, bug_names, from_shape, mends
from etude.tasks.holdout import is_held_out
from etude.tasks.hunt import HUNTS, MENDS, UNTOLD, hunt_task
from etude.tasks.ladder import CHECK, ladder_task

SEEDS = range(12)
FAILED = re.compile(r"^FAIL \w+\((.*)\) = (-?\d+), too (low|high)$", re.MULTILINE)


def printed(task, old="", new=""):
    """What the check says of the files, with one line of them changed."""
    path = task.provenance["path"]
    files = {name: data.decode() for name, data in task.files.items()}
    assert not old or files[path].count(old) == 1
    files[path] = files[path].replace(old, new) if old else files[path]
    spaces = {name: {"__name__": name.removesuffix(".py")} for name in files}

    def load(name, *_):
        return type("module", (), {key: staticmethod(value) for key, value in spaces[f"{name}.py"].items()})

    ordered = sorted(files, key=lambda name: (name == CHECK, "import" in files[name]))
    said = io.StringIO()
    builtins = {**__builtins__} if isinstance(__builtins__, dict) else vars(__builtins__).copy()
    imports = builtins["__import__"]
    builtins["__import__"] = lambda name, *rest: load(name) if f"{name}.py" in files else imports(name, *rest)
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        for name in ordered:
            spaces[name]["__builtins__"] = builtins
            exec(files[name], spaces[name])
    return said.getvalue()


@pytest.mark.parametrize("rung", HUNTS)
def test_no_comment_tells_what_is_right(rung):
    for seed in SEEDS:
        task = ladder_task(rung, "train", seed)
        facts = task.provenance
        lines = task.files[facts["path"]].decode().split("\n")
        start = next(place for place, line in enumerate(lines) if line.startswith(f"def {facts['function']}("))
        assert lines[start + 1] == f"    # {UNTOLD}"
        assert facts["new"] not in task.files[CHECK].decode()


@pytest.mark.parametrize("rung", HUNTS)
@pytest.mark.parametrize("split", ["train", "eval", "heldout"])
def test_the_check_tells_the_right_mend_from_every_other(rung, split):
    for seed in SEEDS:
        task = hunt_task(rung, split, seed)
        facts = task.provenance
        ways = [tuple(way) for way in facts["mends"]]
        passing = [way for way in ways if printed(task, *way) == "passed\n"]
        assert printed(task).endswith("failed\n")
        assert printed(task, facts["old"], facts["new"]) == "passed\n"
        assert len(passing) <= len(ways) / 3, "it would be right whatever is tried"
        assert MENDS[rung][0] <= len(ways) <= MENDS[rung][1]
        if not is_held_out("bug", facts["bug"]):
            assert (facts["old"], facts["new"]) in ways, "what is right is one of the plausible mends"


def test_what_the_check_says_of_size_is_true():
    said = 0
    for seed in range(30):
        task = hunt_task(6, "train", seed)
        facts = task.provenance
        source = task.solution[facts["path"]].decode()
        start = source.index(f"def {facts['function']}(")
        right = define(source[start:].split("\n\n")[0] + "\n", facts["function"])
        for arguments, got, size in re.findall(
            r"^FAIL \w+\((.*)\) = (-?\d+), too (low|high)$", printed(task), re.MULTILINE
        ):
            assert (int(got) < right(*eval(f"[{arguments}]"))) == (size == "low")
            said += 1
    assert said > 30


def test_training_sees_nothing_held_out():
    for seed in range(40):
        facts = hunt_task(6 + seed % 3, "train", seed).provenance
        assert not is_held_out("shape", facts["shape"])
        assert not is_held_out("bug", facts["bug"])
        for old, new in facts["mends"]:
            assert not any(old.replace(a, b) == new for a, b in (("max(", "min("), ("min(", "max("), ("sum(", "len(")))
    heldout = [hunt_task(7, "heldout", seed).provenance for seed in range(25)]
    assert all(is_held_out("shape", facts["shape"]) or is_held_out("bug", facts["bug"]) for facts in heldout)
    assert {is_held_out("bug", facts["bug"]) for facts in heldout} == {True, False}


def test_every_mend_is_one_bug_the_other_way_round():
    for shape in SHAPES:
        function = from_shape(random.Random(shape.name), shape, "name")
        for bug, form in mends(function):
            assert bug in bug_names("train")
            changed_line(function, form)  # of one line
            assert function.render() in {back.render() for _, back in mends(form)}


def test_evidence_refutes_what_was_printed_and_never_what_is_right():
    """Whatever is tried in whatever order, what is right stays allowed, and what was tried does not."""
    for seed in SEEDS:
        task = hunt_task(7, "train", seed)
        facts, evidence = task.provenance, Evidence()
        source = task.files[facts["path"]].decode()

        def form(old, new, source=source, name=facts["function"]):
            text = source.replace(old, new)
            return define(text[text.index(f"def {name}(") :].split("\n\n")[0] + "\n", name)

        right = form(facts["old"], facts["new"])
        evidence.hear(printed(task))
        for way in facts["mends"]:
            said = printed(task, *way)
            evidence.hear(said)
            assert evidence.allows(right)
            assert evidence.allows(form(*way)) == (said == "passed\n")


def test_evidence_of_a_check_that_says_nothing_of_size():
    evidence = Evidence()
    evidence.hear("FAIL f([1, 2], 3) = 4\nfailed\n")
    assert not evidence.allows(lambda xs, n: 4)
    assert evidence.allows(lambda xs, n: 5)
    assert not evidence.allows(lambda xs, n: xs[7])
