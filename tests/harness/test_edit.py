"""An edit replaces exactly what was asked, once, or says what would have matched."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from etude.harness.tools.base import ToolError
from etude.harness.tools.edit import replace_once

FILE = "def f(x):\n    y = x + 1\n    return y\n\n\ndef g(x):\n    y = x + 2\n    return y\n"
lines = st.lists(st.sampled_from(["a", "b", " a", "a ", "", "\t", "a\r", "(", "\\", "é"]), max_size=8).map("\n".join)


def miss(text: str, old: str, new: str) -> str:
    with pytest.raises(ToolError) as caught:
        replace_once(text, old, new)
    return str(caught.value)


@given(st.text(), st.text(), st.text(), st.text())
def test_a_unique_stretch_is_replaced_and_nothing_else(head: str, old: str, tail: str, new: str) -> None:
    text = head + old + tail
    assume(old.strip() and old != new and "\r" not in text and len(set(_starts(text, old))) == 1)
    assert replace_once(text, old, new) == (head + new + tail, "")


@given(lines, lines, lines)
def test_whatever_is_asked_the_answer_is_an_edit_or_a_tool_error(text: str, old: str, new: str) -> None:
    try:
        edited, _ = replace_once(text, old, new)
    except ToolError as error:
        assert str(error)  # noqa: PT017  (either outcome is right, and each is checked)
    else:
        assert len(_starts(text, old)) <= 1
        assert "".join(new.split()) in "".join(edited.split())


def _starts(text: str, part: str) -> list[int]:
    return [at for at in range(len(text)) if text.startswith(part, at)]


def test_a_line_may_be_given_without_its_indentation_and_keeps_it() -> None:
    assert replace_once(FILE, "y = x + 1", "y = x - 1")[0] == FILE.replace("+ 1", "- 1")


def test_an_ambiguous_match_names_its_lines() -> None:
    assert miss(FILE, "return y", "return -y") == "old is at lines 3, 8; include lines around it"
    assert miss("aaa", "aa", "b") == "old is at lines 1, 1; include lines around it"
    assert miss("x\n" * 30, "x", "y").endswith("7, 8, …; include lines around it")


def test_whitespace_at_line_ends_may_differ_but_not_indentation() -> None:
    text = "if a:  \n    b\t\nelse:\n    c\n"
    assert replace_once(text, "if a:\n    b\nelse:", "if z:\n    b\nelse:") == (
        "if z:\n    b\nelse:\n    c\n",
        "whitespace at line ends ignored",
    )
    assert replace_once("a\nb\n", "a  \r\nb ", "c")[0] == "c\n"
    assert "nearest is line 2" in miss(text, "if a:\n  b\n", "x")


def test_line_endings_of_the_file_are_kept() -> None:
    assert replace_once("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz")[0] == "x\r\ny\r\nz\r\nc\r\n"
    assert replace_once("a\r\nb\r\n", "b", "x\ny")[0] == "a\r\nx\r\ny\r\n"


def test_an_edit_made_before_is_recognised() -> None:
    assert miss(FILE, "y = x * 1", "y = x + 1") == "old is not there; new already is, at line 2"
    assert miss(FILE, "print()", "x") == "old is not there"  # `x` occurs inside lines, which says nothing
    assert "already" not in miss(FILE, "q = 1", "")


def test_a_miss_names_the_line_where_the_text_departs() -> None:
    assert miss(FILE, "y = x + 1.5", "y = x") == "old is not there; nearest is line 2:     y = x + 1"
    assert miss(FILE, "def g(x):\n    y = x + 3", "") == "old is not there; nearest is line 7:     y = x + 2"
    assert miss(FILE, "completely different", "") == "old is not there"


def test_pointless_edits_are_refused() -> None:
    assert miss(FILE, "y", "y") == "old and new are the same"
    assert miss(FILE, " \n", "y").startswith("old is blank")
    assert miss("", "a", "b") == "old is not there"
