"""The table of an embedder, trained: what it is shown, what it is not, and that a search reads what was trained."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedder_samples import DONE, SAID, config, package

from etude.config import load_recipe
from etude.errors import ConfigError
from etude.search.content import Piece
from etude.search.embedder import Table, shipped
from etude.trainer.embedder.config import EmbedderConfig
from etude.trainer.embedder.making import make_embedder, read_pairs, table_of
from etude.trainer.embedder.pairs import pairs_of
from etude.trainer.embedder.training import Bag, train

ROOT = Path(__file__).parents[2]
EVALUATED = {"boltons", "toolz", "cachetools", "more_itertools", "sqlparse", "aiohttp", "fastapi"}


def test_pairs_are_docstrings_and_what_a_search_would_find(tmp_path: Path) -> None:
    pairs = list(pairs_of(config(package(tmp_path, "one", 20))))
    assert len(pairs) == 20 and {pair.package for pair in pairs} == {"one"}
    pair = pairs[0]
    said = next(
        word
        for word in pair.question
        if word.startswith(("remov", "send", "count", "open", "draw", "sort", "join", "split"))
    )
    assert said and pair.words["whatev"] == 0 and pair.words["box"] > 0, "the docstring is not in the piece"
    assert sum(pair.defined.values()) >= 2


def test_what_is_kept_out_is_not_learned_under_any_name(tmp_path: Path) -> None:
    secret = package(tmp_path / "sealed", "sealed", 12)
    vendor = package(tmp_path, "other", 12)
    shutil.copy(secret / "sealed" / "core.py", vendor / "other" / "_vendored.py")
    assert len(list(pairs_of(config(vendor)))) == 24
    kept = list(pairs_of(config(vendor, kept_out=[secret])))
    assert len(kept) == 12
    package(vendor, "cachetools", 5)
    assert len(list(pairs_of(config(vendor, kept_out=[secret], names_kept_out=["cachetools"])))) == 12
    with pytest.raises(ConfigError, match=r"kept_out: .*nowhere is not there"):
        list(pairs_of(config(vendor, kept_out=[tmp_path / "nowhere"])))


def test_a_bundle_keeps_its_functions_out(tmp_path: Path) -> None:
    clone = tmp_path / "toolz"
    subprocess.run(["git", "clone", "-q", ROOT / "benchmarks/mined/cachetools.bundle", clone], check=True, timeout=120)
    copied = max(clone.rglob("keys.py"), key=lambda path: path.stat().st_size)
    vendor = package(tmp_path, "other", 4)
    shutil.copy(copied, vendor / "other" / "borrowed.py")
    assert len(list(pairs_of(config(vendor)))) > 4
    assert len(list(pairs_of(config(vendor, kept_out=[ROOT / "benchmarks/mined/cachetools.bundle"])))) == 4


def test_the_evaluation_s_repositories_are_kept_out_of_what_ships() -> None:
    recipe = load_recipe(ROOT / "recipes" / "embedder.toml", EmbedderConfig)
    assert set(recipe.names_kept_out) >= EVALUATED
    assert {path.name for path in recipe.kept_out} == {
        path.name for path in (ROOT / "benchmarks/mined").glob("*.bundle")
    }
    assert not EVALUATED & {path.name.replace("-", "_") for path in recipe.corpus.directories}
    read = json.loads((ROOT / "models" / "etude-embedder" / "corpus.json").read_text())
    assert read["packages"].keys() == {path.name for path in recipe.corpus.directories}
    asked = json.loads((ROOT / "models" / "etude-embedder" / "recipe.json").read_text())
    assert EmbedderConfig.model_validate(asked) == recipe


def test_a_table_learns_what_words_do_not_tell(tmp_path: Path) -> None:
    made = config(package(tmp_path, "one", 600), package(tmp_path, "two", 200))
    pairs = list(pairs_of(made))
    one, two = ([pair for pair in pairs if pair.package == name] for name in ("one", "two"))
    log: list[dict[str, Any]] = []
    trained = train(made, one, two, log.append)
    assert log == list(trained.log) and len(log) == 6
    after = trained.log[-1]["held_out"]
    assert after["both"] > after["words"] + 0.1
    table = Table(table_of(trained))
    near = {
        said: max(DONE, key=lambda done: float(table.question(said)[0] @ table.pieces([piece(done)])[0].astype(int)))
        for said in SAID
    }
    right = sum(near[said] == done for said, done in zip(SAID, DONE, strict=True))
    assert right >= 6, near


def piece(word: str) -> Piece:
    from etude.search.words import words_of

    return Piece(0, 1, Counter(words_of(word)), Counter())


def test_a_search_computes_what_was_trained(tmp_path: Path) -> None:
    pairs = list(pairs_of(config(package(tmp_path, "one", 200))))
    trained = train(config(tmp_path, epochs=1), pairs, pairs, lambda _: None)
    table, row = Table(table_of(trained)), {word: at for at, word in enumerate(trained.words)}

    def bag(words: Counter[str]) -> Bag:
        known = [(row[word], times) for word, times in words.items() if word in row]
        return Bag(*np.array(known, np.int32).reshape(-1, 2).T)

    some = pairs[:20]
    with torch.no_grad():
        exact = trained.table.pieces([bag(each.words) for each in some], [bag(each.defined) for each in some]).numpy()
    ours = table.pieces([Piece(0, 1, each.words, each.defined) for each in some]) / 127
    assert np.abs(exact - ours).max() < 0.02


def test_a_run_goes_on_with_its_pairs_and_belongs_to_one_recipe(tmp_path: Path) -> None:
    asked = config(package(tmp_path, "one", 80), package(tmp_path, "two", 80), epochs=1)
    first = make_embedder(asked, tmp_path / "out")
    assert first["pairs"] == 160 and len(read_pairs(tmp_path / "out" / "pairs.npz")) == 160
    shutil.rmtree(tmp_path / "one")
    assert make_embedder(asked, tmp_path / "out")["identity"] == first["identity"]
    report = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert report["packages"]["two"] == {"pairs": 80, "files": {"MIT": 1}}
    with pytest.raises(ConfigError, match="another `seed`"):
        make_embedder(asked.model_copy(update={"seed": 1}), tmp_path / "out")
    with pytest.raises(ConfigError, match="documented functions are left"):
        make_embedder(config(tmp_path / "two", pairs_per_step=512), tmp_path / "few")


def test_the_one_that_ships_is_small_and_knows_code() -> None:
    table = shipped()
    assert (ROOT / "models" / "etude-embedder" / "table.npz").stat().st_size < 8 << 20
    asked = table.question("delete a directory and all files in it")[0].astype(int)
    near, far = (
        float(asked @ table.pieces([piece(word)])[0].astype(int)) for word in ("remove rmtree", "cosine sinus")
    )
    assert near > far
