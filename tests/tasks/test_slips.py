"""Calls that fail: of the kinds that a small model makes, and never one that would do something."""

import random

import pytest

from etude.tasks.check import CHECK
from etude.tasks.scripted import edit, read
from etude.tasks.slips import UNKNOWN, Slips

PATH = "boltons/strutils.py"
TEXT = """\
def args2sh(args, sep=" "):
    quoted = [quote(arg) for arg in args]
    return sep.join(quoted)
"""
GREP = ("grep", {"pattern": r"def args2sh\b"})
EDIT = edit(PATH, "    return sep.join(quoted)", "    return args.join(quoted)")
LINE = "    quoted = [quote(arg) for arg in args]"


def forms(call, seeds=300):
    found = []
    for seed in range(seeds):
        slips = Slips(random.Random(seed), PATH, "args2sh")
        slips.text = TEXT
        name, given = slips.wrong_form(call)
        assert name == call[0] and given != call[1]
        found.append(given)
    return found


def is_shortened(wrong, right):
    """Whether it is the right one without a letter or two."""
    left = iter(right)
    return 1 <= len(right) - len(wrong) <= 2 and all(letter in left for letter in wrong)


@pytest.mark.parametrize("call", [GREP, read(PATH, 7), EDIT], ids=["grep", "read", "edit"])
def test_a_path_loses_letters_or_is_a_command_or_a_pattern_and_is_never_the_files(call):
    paths = {given["path"] for given in forms(call) if given.get("path", PATH) != PATH}
    others = {f"python3 {CHECK}", r"def args2sh\b"}
    assert others < paths and "bolton/strutils.py" in paths
    assert all(is_shortened(path, PATH) for path in paths - others) and len(paths) > 5


def test_a_name_loses_letters_or_is_that_of_the_path():
    names = {given["pattern"] for given in forms(GREP) if "pattern" in given} - {GREP[1]["pattern"]}
    assert r"def args2s\b" in names and r"def bolton\b" in names
    assert all(name.startswith("def ") and name.endswith(r"\b") for name in names)


def test_what_is_to_be_replaced_is_not_there_or_there_too_often():
    for call in (EDIT, edit(PATH, LINE, LINE.replace("args", "quoted"))):
        old = call[1]["old"]
        wrong = {given["old"] for given in forms(call) if given.get("old", old) != old}
        absent = {each for each in wrong if each not in TEXT}
        assert len(absent) > 3 and all(is_shortened(each, old) for each in absent)
        assert all(TEXT.count(each) >= 3 for each in wrong - absent)
    assert "args" in wrong


def test_an_edit_changes_nothing_more_often_than_it_slips_in_another_way():
    unchanged = [given for given in forms(EDIT) if given.get("new") == given.get("old")]
    assert 100 < len(unchanged) < 200 and all(given == {**EDIT[1], "new": EDIT[1]["old"]} for given in unchanged)


@pytest.mark.parametrize("call", [GREP, read(PATH, 7), EDIT], ids=["grep", "read", "edit"])
def test_a_parameter_is_too_many_or_misnamed_and_of_an_edit_the_last_is_left_out(call):
    right = set(call[1])
    malformed = {frozenset(given) for given in forms(call, 1500) if set(given) not in (right, right | {"path"})}
    last = list(call[1])[-1]
    expected = {frozenset(right | {name}) for name in UNKNOWN} | {
        frozenset(right - {last} | {name}) for name in UNKNOWN
    }
    assert malformed == expected | ({frozenset(right - {"new"})} if call is EDIT else set())


def test_the_same_seed_slips_the_same_way():
    assert forms(EDIT, 20) == forms(EDIT, 20)
    unchanged, lost = {**EDIT[1], "new": EDIT[1]["old"]}, {**EDIT[1], "old": "    return sep.joi(quoted)"}
    assert forms(EDIT, 3) == [unchanged, unchanged, lost]
