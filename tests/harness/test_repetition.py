"""A loop is noticed in what a model writes, whatever it writes it into; what only looks like one is let through."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterable
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs import often

from etude.harness.endpoint import CallDelta, Delta, Retry, TextDelta
from etude.harness.endpoint.client import silence
from etude.harness.endpoint.repetition import Repeating, RepetitionWatch, Tail


def letters(count: int, seed: int = 0) -> str:
    """So many characters without a period."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz .,\n", k=count))


def noticed(text: str, piece: int = 7) -> tuple[int, int]:
    """The period, and how much was written when it was noticed; (0, all) where it was not."""
    tail = Tail()
    for at in range(0, len(text), piece):
        if period := tail.add(text[at : at + piece]):
            return period, tail.length
    return 0, len(text)


def loops(told: Iterable[Delta]) -> Repeating:
    """What a watch raises that is told all of this."""
    watch = RepetitionWatch(silence)
    with pytest.raises(Repeating) as found:
        _ = [watch(delta) for delta in told]
    return found.value


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("period", [14, 39, 400, 1999, 2000])
def test_a_passage_of_any_length_is_noticed(period: int, piece: int) -> None:
    before, passage = letters(5000, 1), letters(period, 2)
    found, length = noticed(before + passage * (60_000 // period), piece)
    assert found == period
    assert length <= len(before) + max(12_000, 20 * period) + 1024, "soon after it is enough"


@pytest.mark.parametrize("text", ["!" * 30_000, "0, " * 10_000, "NaN " * 8000, "=" * 30_000])
def test_few_characters_over_and_over_are_one_too(text: str) -> None:
    period, length = noticed(text)
    assert period == len(text.partition(" ")[0] + " " if " " in text else "!")
    assert 24_000 <= length < 25_000


@settings(max_examples=often(10, 100), deadline=None)
@given(st.text(min_size=1, max_size=2000), st.text(max_size=3000), st.integers(1, 3000))
def test_whatever_the_passage(passage: str, before: str, piece: int) -> None:
    text = before + passage * (50_000 // len(passage) + 1)
    period, length = noticed(text, piece)
    assert 0 < period <= len(passage)
    end = text[:length][-12_000:]
    assert end[period:] == end[:-period], "it is what the end says"


LOOK_ALIKES = {
    "a rule": "=" * 200 + "\n",
    "a table": "".join(f"| row {row} | 0 | - |\n" for row in range(3000)),
    "zeros": "DATA = [" + "0, " * 4096 + "]\n",
    "rows of zeros": ("[" + "0, " * 64 + "],\n") * 64,
    "a hex dump": "".join(f"{at:08x}  {'00 ' * 16} |{'.' * 16}|\n" for at in range(0, 1 << 16, 16)),
    "code that is nearly the same": "".join(f"    assert f({n}) == {n * n}\n" for n in range(3000)),
    "an empty board": ("  <tr>" + '<td><input type="text" maxlength="1"></td>' * 16 + "</tr>\n") * 16,
    "an empty bitmap": base64.b64encode(bytes(12_000)).decode(),
    "the same line": "    nop  # wait a moment\n" * 400,
    "a loop that was left": ("I look once more. " * 600 + "Now I see it. ") * 10,
    "prose": letters(60_000),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_honest_work_is_no_loop(name: str) -> None:
    assert noticed("Here it is:\n" + LOOK_ALIKES[name] + "\nThat is all.\n") == (0, len(LOOK_ALIKES[name]) + 26)


def steps(text: str) -> int:
    """How many functions, of Python's and built in, are called while a text is watched."""
    count = 0

    def on_call(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    tail, before = Tail(), sys.getprofile()
    sys.setprofile(on_call)
    try:
        tail.add(text)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("text", [letters(1 << 14), "a" * 2060 + "b", "a" * 11_999 + "b", ("a" * 63 + "b") * 40 + "c"])
def test_the_work_grows_with_the_length_and_no_faster(text: str) -> None:
    """And what is kept does not grow at all."""
    short, long = (text * (size // len(text) + 1) for size in (1 << 17, 1 << 20))
    assert noticed(short, len(short)) == (0, len(short))
    assert steps(long[: 1 << 20]) <= 10 * steps(short[: 1 << 17])
    tail = Tail()
    tail.add(long)
    assert max(len(each) for each in vars(tail).values() if isinstance(each, str)) < 50_000


@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_what_is_kept_is_what_came_before_and_two_copies(kind: Literal["text", "reasoning"]) -> None:
    passage = "Wait, let me look again. "
    found = loops([TextDelta("I begin here:\n", kind), *[TextDelta(passage, kind)] * 2000])
    kept, other = (found.text, found.reasoning) if kind == "text" else (found.reasoning, found.text)
    assert kept == "I begin here:\n" + passage * 2 and other == ""
    assert str(found).startswith("the same 25 characters 4") and str(found).endswith(" times over")
    assert 12_000 < found.heard < 13_100


def test_a_call_made_over_and_over_and_arguments_without_end() -> None:
    calls = [CallDelta(index, "read_file", text) for index in range(2000) for text in ("", '{"path": "a.py"}')]
    found = loops([TextDelta("I look."), *calls])
    assert found.text == "I look." and str(found).startswith("the same 25 characters")
    assert str(loops([CallDelta(0, "write_file", "print('again!!')\\n")] * 2000)).startswith("the same 18 characters")


def test_an_answer_that_is_asked_for_anew_begins_anew() -> None:
    told: list[Delta] = []
    watch = RepetitionWatch(told.append)
    for _ in range(10):
        for _ in range(300):
            watch(TextDelta("Wait, let me look again. "))
        watch(Retry("it broke off", 0.0))
    assert len(told) == 3010, "all of it is passed on"
