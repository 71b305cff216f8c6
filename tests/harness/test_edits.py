"""Edits as models write them: made where they are meant, in the file's own writing, or refused with what would do."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from etude.harness.edits import Edit, EditRefused, Replacement, parse_hunks, replace, replace_each
from etude.harness.edits.indentation import Indentation

FILE = "def f(x):\n    y = x + 1\n    return y\n\n\ndef g(x):\n    y = x + 2\n    return y\n"
LINES = st.lists(st.sampled_from(["a", "b", " a", "    b", "\ta", "a ", "", "\t", "a\r", "(", "é"]), max_size=9)
TEXT = LINES.map("\n".join)


def made(text: str, old: str, new: str) -> str:
    return replace(text, Edit(old, new)).text


def refusal(text: str, old: str, new: str, **options: object) -> str:
    with pytest.raises(EditRefused) as caught:
        replace(text, Edit(old, new), **options)  # ty: ignore[invalid-argument-type]
    return str(caught.value)


@given(TEXT, TEXT, TEXT)
def test_whatever_is_asked_the_answer_is_an_edit_or_a_refusal(text: str, old: str, new: str) -> None:
    try:
        done = replace(text, Edit(old, new))
    except EditRefused as refused:
        assert str(refused)  # noqa: PT017  (either outcome is right, and each is checked)
    else:
        assert done.text != text
        assert 1 <= done.first <= max(done.last, 1)


@given(LINES, st.lists(st.sampled_from("pqrs"), min_size=1, max_size=4), LINES)
def test_a_unique_stretch_is_replaced_and_nothing_else(head: list[str], old: list[str], tail: list[str]) -> None:
    text = "\n".join([*head, *old, *tail])
    assume("\r" not in text and text.count("\n".join(old)) == 1)
    assert made(text, "\n".join(old), "new") == "\n".join([*head, "new", *tail])


# --- tolerance ------------------------------------------------------------------------------------------------------


def test_whitespace_at_line_ends_is_kept_where_nothing_changes() -> None:
    text = "if a:  \n    b\t\n    c\n"
    assert made(text, "if a:\n    b\n    c", "if a:\n    b\n    d") == "if a:  \n    b\t\n    d\n"
    assert made("x = 1 \ny = 2\n", "x = 1 \ny = 2", "x = 1\ny = 3") == "x = 1\ny = 3\n"  # exactly as it is there


def test_line_endings_are_the_files() -> None:
    assert made("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz") == "x\r\ny\r\nz\r\nc\r\n"
    assert made("a\r\nb\r\n", "b", "x\ny") == "a\r\nx\r\ny\r\n"
    assert made("a\r\nb\r\nc", "b\nc", "b\nd\ne") == "a\r\nb\r\nd\r\ne"
    assert made("a\r\nb\r\n", "\nb", "\nx\nb") == "a\r\nx\r\nb\r\n"
    assert made("a\nb\n", "a\r\nb\r\n", "a\r\nc\r\n") == "a\nc\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = x + 2\nreturn y", "if x:\n    y = 3\nreturn y"),  # from the left margin
        ("        y = x + 2\n        return y", "        if x:\n            y = 3\n        return y"),  # too deep
        ("\ty = x + 2\n\treturn y", "\tif x:\n\t\ty = 3\n\treturn y"),
        ("  y = x + 2\n  return y", "  if x:\n    y = 3\n  return y"),
    ],
)
def test_indentation_is_carried_over_to_what_is_new(old: str, new: str) -> None:
    assert made(FILE, old, new) == FILE.replace("    y = x + 2\n", "    if x:\n        y = 3\n")


def test_spaces_become_tabs_in_a_file_of_tabs() -> None:
    text = "func f() {\n\tif a {\n\t\tb()\n\t}\n}\n"
    old, new = "    if a {\n        b()\n    }", "    if a {\n        for {\n            c()\n        }\n    }"
    assert made(text, old, new) == "func f() {\n\tif a {\n\t\tfor {\n\t\t\tc()\n\t\t}\n\t}\n}\n"
    assert made(text, "b()", "if b {\n\tc()\n}") == text.replace("b()", "if b {\n\t\t\tc()\n\t\t}")


def test_a_first_line_without_its_indentation_is_a_habit() -> None:
    assert made(FILE, "y = x + 1\n    return y", "z = x\n    return z") == FILE.replace(
        "y = x + 1\n    return y", "z = x\n    return z", 1
    )
    assert made(FILE, "y = x + 1", "if x:\n    y = x + 1") == FILE.replace(
        "    y = x + 1", "    if x:\n        y = x + 1"
    )


def test_indentation_that_cannot_be_told_is_not_guessed() -> None:
    text = "class A:\n    def f():\n        a\n\n    def g():\n        b\n"
    assert "how new would be indented" in refusal(text, "  def f():\n   a", "  def f():\n   if a:\n      c")
    # was the line to move, or was only the old one written wrongly?
    assert "how new would be indented" in refusal(FILE, "  y = x + 2\n  return y", "    y = x + 2\n    return z")


def test_a_line_that_stays_shows_how_the_rest_was_written() -> None:
    text = "def f():\n    if a:\n        if b:\n            c()\n    d()\n"
    old = "      if a:\n          if b:\n              c()\n      d()"
    assert made(text, old, "      if a:\n          c()\n      d()") == "def f():\n    if a:\n        c()\n    d()\n"


def test_an_edit_made_before_is_not_made_at_a_place_that_only_resembles() -> None:
    text = "def f():\n    total = count(first)\n    if last:\n        close(first)\n\n\nclose(last)\n"
    assert "made before" in refusal(
        text, "    close(last)", "    total = count(first)\n    if last:\n        close(first)"
    )


def test_lines_around_a_change_may_be_stale() -> None:
    text = "import os\nimport sys\n\nLIMIT = 30\n\ndef run(limit: int) -> None:\n    go(limit)\n    stop()\n"
    done = replace(
        text,
        Edit(
            "LIMIT = 20\n\ndef run(limit):\n    go(limit)\n    stop()",
            "LIMIT = 20\n\ndef run(limit):\n    go(limit)\n    halt()",
        ),
    )
    assert done == Replacement(
        text.replace("stop", "halt"), 8, 8, ("lines around it are not as you gave them: line 4, 6",)
    )
    assert "LIMIT = 30" in refusal(
        text, "import sys\n\nLIMIT = 20", "import sys\n\nLIMIT = 40"
    )  # that line has changed


def test_where_something_was_put_in_since_nobody_can_say_on_which_side() -> None:
    text = "alpha = 1\nnewcomer = 5\nbeta = 2\ngamma = 3\n"
    assert "where it changes" in refusal(
        text, "alpha = 1\nbeta = 2\ngamma = 3", "alpha = 1\nadded = 0\nbeta = 2\ngamma = 3"
    )


def test_a_blank_line_is_removed_only_between_lines_that_are_there() -> None:
    """The file has lost one of two blank lines already: the other is not the one that was to go."""
    assert "where it changes" in refusal("}\n\nrun(1)\n", "},\n\n\nrun(1)", "},\n\nrun(2)")


def test_two_ways_to_see_one_place_are_one_place() -> None:
    text = "a(0)\nstart(1)\n\n# one\ncall(2)\n\n# two\nend(3)\n"
    old = "start(0)\n\n# one\ncall(2)\n# two\nend(3)"
    assert made(text, old, old.replace("call(2)", "call(9)")) == text.replace("call(2)", "call(9)")


def test_how_much_is_tolerated_is_the_callers_choice() -> None:
    assert "only in spacing" in refusal(FILE, "y = x + 1 \n", "y = 0\n", tolerance="exact")
    assert replace(FILE, Edit("    y = x + 1 \n", "    y = 0\n"), "line_ends").text == FILE.replace("x + 1", "0")
    assert "only in spacing" in refusal(FILE, "  y = x + 1\n  return y", "  y", tolerance="line_ends")
    stale = Edit("def f(a):\n    y = x + 1\n    return y", "def f(a):\n    y = 9\n    return y")
    assert replace(FILE, stale).text == FILE.replace("x + 1", "9")
    with pytest.raises(EditRefused):
        replace(FILE, stale, "spacing")


# --- what goes, and what is there already ---------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["    y = x + 1", "    y = x + 1\n", "y = x + 1", "y = x + 1\n", "  y = x + 1  \n"])
def test_lines_that_are_removed_leave_nothing_behind(old: str) -> None:
    assert made(FILE, old, "") == FILE.replace("    y = x + 1\n", "")


def test_a_part_of_a_line_that_is_removed_leaves_the_rest() -> None:
    assert made("a = f(b, c)\n", ", c", "") == "a = f(b)\n"
    assert made("a\n  b c\n", "b ", "") == "a\n  c\n"
    assert made("only", "only", "") == ""


def test_an_edit_made_before_is_recognised() -> None:
    once = made(FILE, "y = x + 1", "y = x + 1\n    z = y * 3")
    assert "made before" in refusal(once, "y = x + 1", "y = x + 1\n    z = y * 3")
    assert "made before" in refusal(once, "def f(x):\n  y = x + 1", "def f(x):\n  y = x + 1\n  z = y * 3")
    changed = made(FILE, "def g(x):\n    y = x + 2", "def g(x):\n    total = x + 3")
    assert "(new is, at line 6)" in refusal(changed, "def g(x):\n    y = x + 2", "def g(x):\n    total = x + 3")
    telling = "def g(x):\n    total = x + 3\n    return y"
    assert "new already is, at line 6" in refusal(changed, "def g(x):\n    y = x + 2\n    return y", telling)


# --- refusals -------------------------------------------------------------------------------------------------------


def test_an_ambiguous_edit_is_told_every_place() -> None:
    assert refusal(FILE, "    return y", "    return -y") == (
        "old is in 2 places; give lines around it that are in one only:\n"
        "line 3, after: y = x + 1\nline 8, after: y = x + 2"
    )
    assert "\nand at lines " + ", ".join(map(str, range(51, 81))) in refusal("x\n" * 80, "x", "y")
    assert "2 places" in refusal(FILE, "  return y", "  return z")  # by indentation, they are as near
    assert "almost, in 2 places" in refusal(
        "a\nkeep(1)\nold()\n\nb\nkeep(1)\nold()\n", "c\nkeep(1)\nold()", "c\nkeep(1)\nnew()"
    )


def test_a_place_that_would_be_wrong_still_makes_the_text_ambiguous() -> None:
    text = "run `go --fast` now\n\n    go --fast\n"
    assert "2 places" in refusal(text, "go --fast", "go --fast\ngo --slow")
    assert made("if a:\n    b()\n        b()\n", "    b()", "    c()") == "if a:\n    c()\n        b()\n"


def test_every_place_at_once() -> None:
    done = replace(FILE, Edit("return y", "return z", every=True))
    assert done == Replacement(FILE.replace("return y", "return z"), 3, 8, ("in 2 places",))


def test_a_miss_shows_the_nearest_place_and_what_differs() -> None:
    assert refusal(FILE, "def g(x):\n    y = x + 3\n    return y", "pass") == (
        "old is not there as it was given, where it changes; nearest is lines 6-8 (- as you gave it, + as it is):\n"
        "    6   def g(x):\n"
        "      -     y = x + 3\n"
        "    7 +     y = x + 2\n"
        "    8       return y"
    )
    assert "    2 +     y = x + 1" in refusal(FILE, "yy = x + 1", "z")
    assert refusal(FILE, "completely different", "z") == "old is not there, nor anything like it"
    assert (
        len(refusal("\n".join(f"line {n}" for n in range(500)), "\n".join(f"line {n}." for n in range(500)), "")) < 9000
    )


def test_pointless_edits_are_refused() -> None:
    assert refusal(FILE, "y", "y") == "old and new are the same"
    assert refusal(FILE, " \n", "y").startswith("old is blank")
    assert "change nothing" in refusal("a\nb\n", "a \nb", "a\nb")


# --- several at once ------------------------------------------------------------------------------------------------


def block(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_hunks_are_read_as_they_stand() -> None:
    assert parse_hunks(block("  a", "b\n\n  c") + "\n" + block("x", "").replace("=\n\n", "=\n")) == [
        Edit("  a", "b\n\n  c"),
        Edit("x", ""),
    ]
    for wrong, told in [
        ("a\n", "line 1 of hunks stands outside a hunk"),
        ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE", "line 3 of hunks is a marker out of order"),
        ("<<<<<<< SEARCH\na\n=======\nb", "not closed"),
        ("\n", "empty"),
    ]:
        with pytest.raises(ValueError, match=told):
            parse_hunks(wrong)


def test_several_edits_are_made_one_after_another_or_not_at_all() -> None:
    edits = [Edit("x + 1", "x + 5"), Edit("x + 5", "x + 6")]
    assert replace_each(FILE, edits)[-1].text == FILE.replace("x + 1", "x + 6")
    with pytest.raises(EditRefused) as caught:
        replace_each(FILE, [edits[0], Edit("nowhere to be found", ""), Edit("return y", "z")])
    told = str(caught.value)
    assert told.startswith("hunk 2 of 3: old is not there") and "\nhunk 3 of 3: old is in 2 places" in told
    assert told.endswith("nothing was changed")


@given(st.integers(0, 6), st.integers(0, 6), st.sampled_from(["\t", "  ", "    "]), st.integers(0, 3))
def test_a_shift_is_learnt_from_one_line(written: int, deeper: int, unit: str, step: int) -> None:
    """However deep the model began, what is one level deeper than its first line is so in the file."""
    here, there = unit * written, unit * (written + deeper)
    rule = Indentation([(here, there)], [f"{here}a", f"{here}{unit * step}b"], [f"{unit}a", f"{unit * 2}b"])
    assert rule.translate(f"{here}{unit * step}b") == f"{there}{unit * step}b"
