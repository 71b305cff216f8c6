"""NDCG@10 on published queries: counted as semble counts it, read with clear errors, and told beside peers."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from math import log2
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import search
from searching.published import ndcg, published
from searching.sets import Question, Span

from etude.search import Hit

WHOLE = 1, sys.maxsize
SECOND = 1 / log2(3)


def of(*places: Span) -> Question:
    return Question("shop", {}, "a question", frozenset(path for path, *_ in places), places)


def hits(*paths: str) -> list[Hit]:
    """Pieces of ten lines, one after the other in their file."""
    return [
        Hit(path, 1 + 10 * paths[:at].count(path), 10 + 10 * paths[:at].count(path), 0.0)
        for at, path in enumerate(paths)
    ]


@pytest.mark.parametrize(
    ("places", "found", "pieces", "files"),
    [
        ([("a", *WHOLE)], "a b c", 1.0, 1.0),
        ([("a", *WHOLE)], "b c a", 0.5, 0.5),
        ([("a", *WHOLE)], "b c d e f g h i j k a", 0.0, 0.0),  # the eleventh
        ([("a", *WHOLE)], "b b b b b b b b b b a", 0.0, SECOND),  # the eleventh piece is the second file
        ([("a", *WHOLE)], "", 0.0, 0.0),
        ([("a", *WHOLE), ("b", *WHOLE)], "b a", 1.0, 1.0),
        ([("a", *WHOLE), ("b", *WHOLE)], "a a b", (1 + 0.5) / (1 + SECOND), 1.0),
        ([("a", *WHOLE), ("b", *WHOLE)], "a a a a", 1 / (1 + SECOND), 1 / (1 + SECOND)),
        ([("a", 11, 14)], "a a b", SECOND, 1.0),  # the first piece of the file ends at line 10
        ([("a", 10, 14)], "a a b", 1.0, 1.0),
        ([("a", 30, 40)], "a a b", 0.0, 0.0),
        ([("a", 1, 3), ("a", 5, 6)], "a b", 1 / (1 + SECOND), 1 / (1 + SECOND)),  # one piece gains once
        ([(name, *WHOLE) for name in "abcdefghijkl"], "a b c d e f g h i j k l", 1.0, 1.0),  # ten have room
    ],
)
def test_a_place_gains_by_the_rank_of_its_first_piece(
    places: list[Span], found: str, pieces: float, files: float
) -> None:
    question, best = of(*places), hits(*found.split())
    assert ndcg(question, best) == pytest.approx(pieces)
    assert ndcg(question, best, files=True) == pytest.approx(files)


def test_ours_is_ahead_by_the_mean_of_the_repositories() -> None:
    small, large = ([1.0, 1.0], [0.5, 0.5]), ([0.0] * 9, [0.0] * 9)
    assert search.ahead(small, large) == (0.25, 0.25, 0.25), "each counts the same, however many questions it has"
    mean, low, high = search.ahead(([1.0, 0.0, 0.5, 1.0], [0.0, 0.5, 0.5, 0.5]), large)
    assert low < mean == 0.125 < high


QUERIES = [
    {"query": "the discount on a price", "relevant": ["shop/prices.py"], "secondary": ["shop/cart.py"]},
    {
        "query": "rounded",
        "relevant": [{"path": "shop/prices.py", "start_line": 5, "end_line": 6}],
        "category": "symbol",
    },
]
PRICES = """
def discount(price, share):
    return price * (1 - share)

def rounded(price):
    return int(price)
"""
CART = """
from shop.prices import discount

def total(prices, coupon):
    return sum(discount(each, coupon) for each in prices)
"""
OTHERS = {f"other{at}.py": f"def thing{at}(x):\n    return [x + {at}]\n" for at in range(9)}
SOURCES = {"prices.py": PRICES, "cart.py": CART, **OTHERS}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "shop.json").write_text(json.dumps(QUERIES))
    (tmp_path / "sources" / "shop" / "shop").mkdir(parents=True)
    for name, text in SOURCES.items():
        (tmp_path / "sources" / "shop" / "shop" / name).write_text(text)
    return tmp_path


def test_the_line_has_ours_and_each_peer_s(directory: Path, monkeypatch, capsys) -> None:
    words = ["--only", "published", "--published", str(directory), "--peers", "words,before"]
    monkeypatch.setattr(sys, "argv", ["search.py", *words])
    search.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    told = line["published"]
    assert told.keys() == {"ours", "words", "before"}
    assert line["pub_ndcg"] == told["ours"]["ndcg"]["mean"] == told["ours"]["ndcg"]["shop"] > 0.9
    for name in ("words", "before"):
        figures = told[name]
        for key in ("ndcg", "ndcg_files"):
            mean, low, high = figures["ours_ahead"][key]["mean"]
            assert low <= mean <= high and abs(told["ours"][key]["mean"] - figures[key]["mean"] - mean) < 1e-3
    assert line["locate_mrr"] is None


def test_without_the_queries_the_figure_is_null(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["search.py", "--only", "published"])
    search.main()
    line = json.loads(capsys.readouterr().out)
    assert line["pub_ndcg"] is None and line["published"] is None


def test_what_is_read_is_the_places_of_the_annotations(directory: Path) -> None:
    [first, second] = published(str(directory))["shop"]
    assert first.functions == (("shop/prices.py", *WHOLE), ("shop/cart.py", *WHOLE))
    assert second.functions == (("shop/prices.py", 5, 6),) and second.text == "rounded"
    assert first.tree.keys() == {f"shop/{name}" for name in SOURCES}


def test_what_is_missing_is_told_in_one_sentence(directory: Path, monkeypatch, capsys) -> None:
    annotated, prices = directory / "annotations" / "shop.json", directory / "sources/shop/shop/prices.py"
    prices.write_text(PRICES[:60])
    with pytest.raises(ArgumentTypeError, match=r"sources/shop lacks shop/prices.py:5-6; put the revision there that"):
        published(str(directory))
    prices.unlink()
    with pytest.raises(ArgumentTypeError, match=r"sources/shop lacks shop/prices.py as .*shop.json names it; put"):
        published(str(directory))
    for wrong in (
        "[",
        '[{"query": "a"}]',
        '[{"query": "a", "relevant": []}]',
        '["a"]',
        "3",
        '[{"query": "a", "relevant": [{"start_line": 3}]}]',
    ):
        annotated.write_text(wrong)
        with pytest.raises(ArgumentTypeError, match=r"shop.json is no list of annotated queries as semble's"):
            published(str(directory))
    annotated.unlink()
    monkeypatch.setattr(sys, "argv", ["search.py", "--published", str(directory)])
    with pytest.raises(SystemExit, match="2"):
        search.main()
    assert "annotations has no NAME.json; put semble's there" in capsys.readouterr().err
