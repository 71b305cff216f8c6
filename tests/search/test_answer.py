"""What a search says: the best pieces whole, the others as an outline, and no more than there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.search import Hit
from etude.search.answer import FORM, answer
from etude.search.content import lines_of

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


def test_a_long_line_is_clipped_and_what_does_not_fit_is_in_the_outline() -> None:
    bundle = ["var a=1;" * 20_000]
    files = {"bundle.js": bundle, "wide.js": ["let b = 2; // card" + "!" * 220] * 20, "b.py": FILE}
    said = answer("card", [Hit("bundle.js", 1, 1, 9.0), Hit("wide.js", 1, 20, 8.0), PAY], files.__getitem__, 1500)
    assert len(said.encode()) <= 1500 and f"[{160_000 - FORM.whole_chars} more characters]\n" in said
    assert "\nmore:\nwide.js\n 1-20 let b = 2; // card" in said and " 1-6 def pay(order):" in said
    wide = answer("card", [Hit("wide.js", 1, 20, 8.0)], files.__getitem__, 1500)
    assert len(wide.encode()) <= 1500 and wide.startswith("wide.js:1-20\nlet b") and " more lines]" in wide


JAVA = """class Manager {
  /**
   * Called when the host resumes.
   */
  @Override
  public void onHostResume(
      Activity activity) {
    if (activity == null) {

      stop(activity);
    }
  }
}"""
PYTHON = """class Checker:
    def process_tokens(
        self, tokens
    ) -> None:
        for token in tokens:
            # Why it is so.

            if token.kind != COMMENT:
                continue
"""


@pytest.mark.parametrize(
    ("path", "text", "first", "last", "said"),
    [
        ("M.java", JAVA, 2, 12, "public void onHostResume(Activity activity) {"),
        ("M.java", JAVA, 10, 12, "in public void onHostResume: stop(activity);"),
        ("c.py", PYTHON, 2, 4, "def process_tokens(self, tokens) -> None:"),
        ("c.py", PYTHON, 6, 9, "in process_tokens: if token.kind != COMMENT:"),
        ("a.c", "/* What\n   for. */\nstatic int *fgh(int a)\n{\n  int b;\n\n  b = a;\n}", 7, 8,
         "in static int *fgh(int a): b = a;"),
        ("README.md", "# Title\n\nwords", 1, 3, "# Title"), ("a.toml", "[tool]\nx = 1", 1, 2, "[tool]"),
    ],
)  # fmt: skip
def test_a_row_says_what_a_piece_is(path: str, text: str, first: int, last: int, said: str) -> None:
    lines_of_it = text.split("\n")
    hits = [Hit(path, first, last, 9.0)] * 3
    rows = answer("zebra", hits, lambda _: lines_of_it, 9000).split("\n")
    assert rows[-1] == f" {first}-{last} {said}"


def test_a_file_s_name_is_one_line() -> None:
    said = answer("card", [Hit("a\n1-2 b.py", 1, 3, 9.0)] * 3, lambda _: FILE)
    assert said.startswith("a\\n1-2 b.py:1-3\n# How") and "\nmore:\na\\n1-2 b.py\n" in said


def test_lines_of_windows_end_as_others_do() -> None:
    assert lines_of("a = 1\r\nb = 2\r\n") == ["a = 1", "b = 2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 11), st.integers(0, 9))), st.integers(300, 2000))
def test_no_answer_is_longer_than_its_budget(found: list[tuple[str, int, int]], budget: int) -> None:
    hits = [Hit(path, first, first + more, 1.0) for path, first, more in found]
    assert len(answer("card", hits, lines, budget)) <= budget
