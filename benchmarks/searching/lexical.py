"""What `codebase_search` ranked by until the store came: BM25 over stretches of lines. The baseline of search.py."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from etude.search.base import Hit
from etude.search.pieces import is_definition, pieces_of
from etude.search.words import words_of

_K1, _B = 1.2, 0.75
_PATH_WEIGHT = 2
"""A word of a file's path counts as if it stood in each of its pieces so many times."""
_DEFINED_WEIGHT = 3
_TESTS = ("test", "spec", "mock", "fixture")
_TESTS_FACTOR = 0.7
"""What tests call is rarely what somebody asks for, unless they ask for tests."""


@dataclass(frozen=True)
class _Piece:
    path: str
    first: int
    end: int
    words: Counter[str]
    length: int


class LexicalIndex:
    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._pieces: dict[int, _Piece] = {}
        self._of: dict[str, list[int]] = {}
        self._where: defaultdict[str, set[int]] = defaultdict(set)
        self._length = 0
        self._next = 0

    @property
    def taken(self) -> int:
        """How many pieces were put."""
        return self._next

    def put(self, path: str, text: str) -> None:
        self.drop(path)
        lines = text.removesuffix("\n").split("\n")
        self._lines[path], self._of[path] = lines, []
        path_words = Counter(dict.fromkeys(words_of(path), _PATH_WEIGHT))
        for first, end in pieces_of(lines):
            words = path_words + _weighed(lines[first:end])
            piece = _Piece(path, first, end, words, words.total())
            self._pieces[self._next] = piece
            self._of[path].append(self._next)
            self._length += piece.length
            for word in words:
                self._where[word].add(self._next)
            self._next += 1

    def drop(self, path: str) -> None:
        self._lines.pop(path, None)
        for number in self._of.pop(path, ()):
            piece = self._pieces.pop(number)
            self._length -= piece.length
            for word in piece.words:
                self._where[word].discard(number)
                if not self._where[word]:
                    del self._where[word]

    def search(self, question: str, limit: int, under: str = "") -> list[Hit]:
        asked = Counter(words_of(question))
        scores: defaultdict[int, float] = defaultdict(float)
        for word, times in asked.items():
            there = self._where.get(word, set())
            rarity = math.log(1 + (len(self._pieces) - len(there) + 0.5) / (len(there) + 0.5))
            for number in there:
                scores[number] += times * rarity * self._saturated(self._pieces[number], word)
        below = f"{under.rstrip('/')}/" if under else ""
        tests = any(word.startswith(_TESTS) for word in asked)
        best: list[tuple[float, _Piece]] = []
        for number, score in scores.items():
            piece = self._pieces[number]
            if f"{piece.path}/".startswith(below):
                best.append((score if tests or not _of_tests(piece.path) else score * _TESTS_FACTOR, piece))
        best.sort(key=lambda item: (-item[0], item[1].path, item[1].first))
        return [self._hit(piece, score) for score, piece in best[:limit]]

    def _saturated(self, piece: _Piece, word: str) -> float:
        """Ten times a word is not ten times as good, and less in a long piece than in a short one."""
        times, mean = piece.words[word], self._length / len(self._pieces)
        return times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * piece.length / mean))

    def _hit(self, piece: _Piece, score: float) -> Hit:
        return Hit(piece.path, piece.first + 1, piece.end, score)


def _weighed(lines: list[str]) -> Counter[str]:
    """The words of a piece; those of a line that defines something count more."""
    words: Counter[str] = Counter()
    for line in lines:
        weight = _DEFINED_WEIGHT if is_definition(line) else 1
        for word in words_of(line):
            words[word] += weight
    return words


def _of_tests(path: str) -> bool:
    return any(part.startswith(_TESTS) for part in re.split(r"[/._-]", path.lower()))
