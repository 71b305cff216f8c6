"""Trains the table of an embedder: questions and the code that answers them come close.

Owns `train` and `Trained`. A step shows questions with their pieces; every other piece of the step is a wrong answer,
and so is what was opened for a question and left. Steps are mostly of one package and source, since a search is too.
The words that question and piece share are scored beside the vectors (BM25, as the ranking has it), so vectors learn
what words do not tell. Contrastive, with in-batch negatives (CPC, arXiv 1807.03748). Seeded; knows no files.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from etude.trainer.embedder.config import EmbedderConfig
from etude.trainer.embedder.pairs import Pair, Source

_K1, _B = 1.2, 0.75
_PART = 128
"""So many pairs of one package stand together in a step."""
_WORDS_WEIGHT = 0.3


@dataclass(frozen=True)
class Bag:
    """Words by their numbers, and how often each is there."""

    rows: NDArray[np.int32]
    times: NDArray[np.int32]


@dataclass(frozen=True)
class Example:
    """A pair in numbers."""

    package: tuple[str, Source]
    question: Bag
    words: Bag
    defined: Bag
    left: Bag
    """Empty: nothing was left for this question."""
    left_defined: Bag
    weight: float


class Table(nn.Module):
    """What is trained: a vector a word, how questions are turned, how much a definition counts, and how much shared
    words do."""

    def __init__(self, rarity: NDArray[np.float32], width: int) -> None:
        """`rarity` is how long each word's vector is at first."""
        super().__init__()
        self.left_out = 0.0
        self.vectors = nn.Parameter(torch.randn(len(rarity), width) / width**0.5 * torch.from_numpy(rarity)[:, None])
        self.turn = nn.Parameter(torch.eye(width))
        self.defined = nn.Parameter(torch.tensor(1.0))
        self.shared = nn.Parameter(torch.tensor(_WORDS_WEIGHT))

    def questions(self, bags: Sequence[Bag]) -> Tensor:
        return functional.normalize(self._sum(bags) @ self.turn, dim=1)

    def pieces(self, words: Sequence[Bag], defined: Sequence[Bag]) -> Tensor:
        return functional.normalize(self._sum(words) + self.defined * self._sum(defined), dim=1)

    def _sum(self, bags: Sequence[Bag]) -> Tensor:
        rows = torch.from_numpy(np.concatenate([bag.rows for bag in bags]).astype(np.int64))
        times = torch.from_numpy(np.log1p(np.concatenate([bag.times for bag in bags])).astype(np.float32))
        if self.left_out:
            times = times * (torch.rand(len(times)) >= self.left_out)
        offsets = torch.tensor([0, *np.cumsum([len(bag.rows) for bag in bags])[:-1]])
        return functional.embedding_bag(rows, self.vectors, offsets, mode="sum", per_sample_weights=times)


@dataclass(frozen=True)
class Trained:
    """A table, its words in the order of its rows, and the log: a line an epoch."""

    table: Table
    words: tuple[str, ...]
    log: tuple[dict[str, Any], ...]


def train(
    config: EmbedderConfig, pairs: Sequence[Pair], held_out: Sequence[Pair], told: Callable[[dict[str, Any]], None]
) -> Trained:
    """`told` hears of every epoch; what is held out is measured after each."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    words = vocabulary(pairs, config.words)
    row = {word: at for at, word in enumerate(words)}
    weights = {"docstrings": 1.0, "commits": config.commits.weight, "sessions": config.sessions.weight}
    examples, apart = ([_example(pair, row, weights[pair.source]) for pair in some] for some in (pairs, held_out))
    table = Table(_rarity(examples, len(words)), config.width)
    optimizer = torch.optim.Adam(table.parameters(), lr=config.lr)
    steps = config.epochs * max(1, len(examples) // config.pairs_per_step)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50, 1.02 - step / steps))
    log = []
    for epoch in range(config.epochs):
        begun, losses, table.left_out = time.process_time(), [], config.left_out
        for batch in batches(examples, config.pairs_per_step, config.seed + epoch):
            loss = loss_of(table, batch, config.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        table.left_out = 0.0
        log.append({"epoch": epoch + 1, "pairs": len(examples), "loss": round(float(np.mean(losses)), 4),
                    "held_out": measure(table, apart, config), "shared": round(table.shared.item(), 3),
                    "cpu_s": round(time.process_time() - begun, 1)})  # fmt: skip
        told(log[-1])
    return Trained(table, words, tuple(log))


def _rarity(examples: Sequence[Example], words: int) -> NDArray[np.float32]:
    """Of each word, by how many pieces have it."""
    having = np.bincount(np.concatenate([each.words.rows for each in examples]), minlength=words)
    return np.log(1 + len(examples) / (having + 1)).astype(np.float32) / 4


def vocabulary(pairs: Iterable[Pair], most: int) -> tuple[str, ...]:
    """The words that most pairs have, wherever; in a question a word counts as much as in five pieces."""
    counted: Counter[str] = Counter()
    for pair in pairs:
        counted.update([*pair.words, *pair.left])
        for word in pair.question:
            counted[word] += 5
    ordered = sorted(counted, key=lambda word: (-counted[word], word))
    return tuple(word for word in ordered[:most] if counted[word] > 1)


def batches(examples: Sequence[Example], size: int, seed: int) -> list[list[Example]]:
    """All of them, in a new order for each seed, a few packages a step."""
    rng = random.Random(seed)
    by_package: dict[tuple[str, Source], list[Example]] = {}
    for example in examples:
        by_package.setdefault(example.package, []).append(example)
    parts = []
    for own in by_package.values():
        rng.shuffle(own)
        parts += [own[at : at + _PART] for at in range(0, len(own), _PART)]
    rng.shuffle(parts)
    flat = [example for part in parts for example in part]
    return [flat[at : at + size] for at in range(0, len(flat) - size + 1, size)] or [flat]


def loss_of(table: Table, batch: Sequence[Example], temperature: float) -> Tensor:
    """Of each question, which piece is its own, what was left among them; of each piece, which question."""
    left = [each for each in batch if len(each.left.rows)]
    pieces = [*((each.words, each.defined) for each in batch), *((each.left, each.left_defined) for each in left)]
    near = table.questions([each.question for each in batch]) @ table.pieces(*map(list, zip(*pieces, strict=True))).T
    shared = shared_words([each.question for each in batch], [words for words, _ in pieces])
    scores = (near / temperature + table.shared * shared).masked_fill(_no_answers(batch, left), -1e4)
    right, whole = torch.arange(len(batch)), torch.tensor([each.weight for each in batch])
    back = scores[:, : len(batch)].T
    losses = sum(functional.cross_entropy(each, right, reduction="none") for each in (scores, back))
    return (losses * whole).sum() / (2 * whole.sum())


def _no_answers(batch: Sequence[Example], left: Sequence[Example]) -> Tensor:
    """What is neither right nor wrong: the same piece again, what is right for the same question, and what was left and
    was right for it another time."""
    asked, pieces = (np.array([hash(bag.rows.tobytes()) for bag in bags]) for bags in
                     ([each.question for each in batch], [each.words for each in batch]))  # fmt: skip
    again = asked[:, None] == asked
    same = again | (pieces[:, None] == pieces)
    np.fill_diagonal(same, False)
    opened = np.array([hash(each.left.rows.tobytes()) for each in left], np.int64)
    right = again.astype(np.float32) @ (pieces[:, None] == opened).astype(np.float32) > 0
    return torch.from_numpy(np.concatenate([same, right], axis=1))


@torch.no_grad()
def measure(table: Table, examples: Sequence[Example], config: EmbedderConfig) -> dict[str, float]:
    """How often the right piece is first among a step's: by words alone, by vectors alone, by both."""
    found: dict[str, list[float]] = {"words": [], "vectors": [], "both": []}
    for batch in batches(examples, config.pairs_per_step, 0):
        questions, words, defined = (
            [getattr(each, part) for each in batch] for part in ("question", "words", "defined")
        )
        shared, near = shared_words(questions, words), table.questions(questions) @ table.pieces(words, defined).T
        both = near / config.temperature + table.shared * shared
        for name, scores in (("words", shared), ("vectors", near), ("both", both)):
            found[name].append(float((scores.argmax(1) == torch.arange(len(batch))).float().mean()))
    return {name: round(float(np.mean(each)), 4) for name, each in found.items()}


def shared_words(questions: Sequence[Bag], pieces: Sequence[Bag]) -> Tensor:
    """BM25 of every question with every piece, as if they were all that there is."""
    rows = np.unique(np.concatenate([each.rows for each in questions]))
    asked = np.zeros((len(questions), len(rows)), np.float32)
    there = np.zeros((len(pieces), len(rows)), np.float32)
    length = np.array([each.times.sum() for each in pieces], np.float32)
    around = _K1 * (1 - _B + _B * length / length.mean())
    for at, each in enumerate(questions):
        asked[at, np.searchsorted(rows, each.rows)] = each.times
    for at, each in enumerate(pieces):
        known = np.isin(each.rows, rows, assume_unique=True)
        times = each.times[known]
        there[at, np.searchsorted(rows, each.rows[known])] = times * (_K1 + 1) / (times + around[at])
    having = (there > 0).sum(0)
    rarity = np.log(1 + (len(pieces) - having + 0.5) / (having + 0.5))
    return torch.from_numpy((asked * rarity) @ there.T)


def _example(pair: Pair, row: Mapping[str, int], weight: float) -> Example:
    bags = (pair.question, pair.words, pair.defined, pair.left, pair.left_defined)
    return Example((pair.package, pair.source), *(_bag(bag, row) for bag in bags), weight)


def _bag(words: Mapping[str, int], row: Mapping[str, int]) -> Bag:
    known = sorted((row[word], times) for word, times in words.items() if word in row)
    rows, times = np.array(known, np.int32).reshape(-1, 2).T
    return Bag(rows, times)
