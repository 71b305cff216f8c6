"""What search.py measures ours beside: other rankings of the same trees, each as a function from a question to hits.

Owns `before` and `bm25s`, which needs a package that nothing else of Etude needs; where that is not installed, its
function raises ImportError, and the benchmark leaves it out by name.
"""

from __future__ import annotations

from collections.abc import Callable

from searching.lexical import LexicalIndex
from searching.sets import Question

from etude.search import Hit
from etude.search.content import MAX_BYTES, is_code, read, text_of
from etude.search.words import words_of

PIECES = 50
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
