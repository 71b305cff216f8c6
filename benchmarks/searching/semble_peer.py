"""semble (MinishLab) as a peer: its own files, chunks, index and ranking, as its command line uses them.

Owns `semble`. Its model is on a hub, which not every machine reaches. So it gets the best static model that comes in a
package, wordllama's, with its tokens weighed as model2vec weighs those of its own models; or one as model2vec writes it
that --semble-model names, which is semble's own (potion-code-16M-v2) where the hub was reached once. What semble keeps
on the disk, and that includes the count of what it saves, goes into a folder that is gone at the end.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from searching.peers import PIECES, TEN, Searcher, indexable, needed
from searching.sets import Question

from etude.search import Hit

_INSTALL = "pip install semble && pip install --no-deps wordllama"
_SIF = 1e-4


def semble(model: Path | None, **mode: Any) -> Searcher:
    """As its command line asks it. `mode` has other arguments of its search: `rerank=False` leaves out the order in
    which a file's second chunk counts for less, `alpha=0.0` the vectors."""
    trees = trees_of(model)

    def asked(question: Question, pieces: int) -> list[Hit]:
        found = trees.of(question).search(question.text, top_k=pieces, **mode)
        return [Hit(each.chunk.file_path, each.chunk.start_line, each.chunk.end_line, each.score) for each in found]

    return Searcher(
        lambda question: asked(question, PIECES),
        lambda question: asked(question, TEN),  # it ranks more candidates for 50, so its ten are others
        lambda: f"its model: {model or 'wordllama'}",
    )


@functools.cache
def trees_of(model: Path | None) -> Trees:
    """All modes ask the same trees."""
    needed("semble.index", _INSTALL)
    return Trees(model)


class Trees:
    """A tree is a directory on the disk, in which what has changed since the question before is written."""

    def __init__(self, model: Path | None) -> None:
        self._place = tempfile.TemporaryDirectory()
        os.environ["SEMBLE_CACHE_LOCATION"] = f"{self._place.name}/cache"
        self._named = str(model or _of_wordllama(Path(self._place.name) / "wordllama"))
        self._trees: dict[str, _Tree] = {}

    def of(self, question: Question) -> Any:
        """The index of a question's tree."""
        repository = Path(question.repository).name
        root = Path(self._place.name) / repository
        tree = self._trees.setdefault(repository, _Tree(root))
        if tree.becomes(indexable(question)):
            tree.index = self.indexed(root)
        return tree.index

    def indexed(self, root: Path) -> Any:
        """With its index saved, as its command line does."""
        from semble.cache import save_index_to_cache
        from semble.index import SembleIndex

        index = SembleIndex.from_path(root, model_path=self._named)
        save_index_to_cache(index, str(root))
        return index


class _Tree:
    """What lies below a directory."""

    def __init__(self, root: Path) -> None:
        self._root, self._files = root, {}
        self.index = None

    def becomes(self, files: dict[str, bytes]) -> bool:
        """Whether anything had to be written or removed."""
        gone = self._files.keys() - files.keys()
        new = {path: data for path, data in files.items() if self._files.get(path) != data}
        for path in gone:
            (self._root / path).unlink()
        for path, data in new.items():
            target = self._root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        self._files = dict(files)
        return bool(gone or new)


def _of_wordllama(at: Path) -> Path:
    """The table that wordllama's package brings, as model2vec reads one: a vector a token, and a text has their mean.
    The package itself is not imported, so what else it asks for is not needed."""
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"No module named 'wordllama': `{_INSTALL}` installs what it needs")
    from model2vec import StaticModel
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    package = Path(found.submodule_search_locations[0])
    vectors = load_file(package / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].astype(np.float32)
    tokenizer = Tokenizer.from_file(str(package / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    StaticModel(vectors * _weights(len(vectors)), tokenizer, normalize=True).save_pretrained(str(at))
    return at


def _weights(tokens: int) -> np.ndarray:
    """Frequent tokens count for less, by the rank that a tokenizer's order tells (Zipf's law): smooth inverse
    frequency with model2vec's own coefficient."""
    often = 1 / np.arange(2, tokens + 2)
    return (_SIF / (_SIF + often / often.sum())).astype(np.float32)[:, None]
