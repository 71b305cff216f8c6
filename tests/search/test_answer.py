"""What a search says: the best pieces whole, the others as an outline, and no more than there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.search import Hit
from etude.search.answer import FORM, answer

FILE = [
    "# How orders are paid.", "@traced", "def pay(order):", '    """Charge the card."""', "    total = order.total()",
    "    return charge(order.card, total)", "", "class Refund:", "    reason = None", "    def give(self, card):",
    "        return refund(card)",
]  # fmt: skip
BEST, PAY, REFUND = Hit("a.py", 1, 3, 9.0), Hit("b.py", 1, 6, 5.0), Hit("b.py", 8, 11, 7.0)


def lines(path: str) -> list[str]:
    return [] if path == "gone.py" else FILE


def test_the_best_are_whole_and_the_others_an_outline_by_file() -> None:
    other = Hit("a.py", 1, 2, 8.0)
    assert answer("refund a card", [BEST, other, REFUND, Hit("c.py", 8, 11, 6.0), PAY], lines) == "\n".join(
        [
            "a.py:1-3", *FILE[:3], "", "a.py:1-2", *FILE[:2], "",
            "more:", "b.py", " 1-6 def pay(order):", "  4 \"\"\"Charge the card.\"\"\"", " 8-11 class Refund:",
            "  11 return refund(card)", "c.py", " 8-11 class Refund:", "  11 return refund(card)",
        ]
    )  # fmt: skip


def test_what_is_long_is_cut_and_what_is_gone_is_named() -> None:
    long = answer("x", [Hit("a.py", 1, 90, 1.0)], lambda path: ["y" * 20] * 90)
    assert long.split("\n")[0] == "a.py:1-90" and long.endswith(f"\n[{90 - FORM.whole_lines} more lines]")
    assert answer("x", [Hit("gone.py", 1, 9, 1.0), BEST, Hit("gone.py", 1, 5, 0.5)], lines).startswith("gone.py:1-9\n")


def test_a_budget_is_spent_from_the_best_down() -> None:
    hits = [Hit(f"m{number}.py", 1, 6, float(-number)) for number in range(20)]
    short, longer = answer("card", hits, lines, 500), answer("card", hits, lines, 900)
    assert len(short) <= 500 < len(longer) <= 900 and longer.startswith("m0.py:1-6\n# How")
    assert "m2.py" in short and "m19.py" not in longer


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 11), st.integers(0, 9))), st.integers(300, 2000))
def test_no_answer_is_longer_than_its_budget(found: list[tuple[str, int, int]], budget: int) -> None:
    hits = [Hit(path, first, first + more, 1.0) for path, first, more in found]
    assert len(answer("card", hits, lines, budget)) <= budget
