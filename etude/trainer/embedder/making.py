"""From a recipe to the table that a search reads, with what it was made of.

Owns `make_embedder`. Each step leaves its product in the work directory and is skipped where that is already there:

    recipe.json      what was asked for: another recipe is another run
    pairs.npz        what is learned from and, apart from it, measured on
    corpus.json      what became of the files, the licence of every package that was read, and pairs of other sources
    log.jsonl        a line an epoch
    table.npz        the table (`search.embedder`)
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import structlog

from etude.durable import write_whole
from etude.errors import ConfigError
from etude.made_by import claim
from etude.search.embedder import FULL, Table
from etude.trainer.corpus.filtering import Fate
from etude.trainer.embedder.commits import pairs_of_commits
from etude.trainer.embedder.config import EmbedderConfig
from etude.trainer.embedder.pairs import Apart, Pair, Source, pairs_of
from etude.trainer.embedder.sessions import pairs_of_sessions
from etude.trainer.embedder.training import Trained, train

log = structlog.get_logger()
Further = Callable[[EmbedderConfig, Apart], Iterator[Pair]]
_PARTS = ("question", "words", "defined", "left", "left_defined")
_HELD_OUT = 20
"""One package of so many is measured on, by turns of their names."""
_TOLD_EVERY = 1000


def make_embedder(config: EmbedderConfig, directory: Path) -> dict[str, Any]:
    """Every step in turn."""
    directory.mkdir(parents=True, exist_ok=True)
    claim(config, directory)
    if not (directory / "pairs.npz").exists():
        _read_corpus(config, directory)
    pairs = read_pairs(directory / "pairs.npz")
    packages = sorted({pair.package for pair in pairs if pair.source == "docstrings"})
    if len(packages) < 2:
        raise ConfigError(f"corpus: {packages[0]} is the only package; one is measured on, so name another")
    apart = frozenset(packages[min(_HELD_OUT // 2, len(packages) - 1) :: _HELD_OUT])
    held_out = [pair for pair in pairs if pair.package in apart]
    told = train(config, [pair for pair in pairs if pair.package not in apart], held_out, _told)
    write_whole(directory / "log.jsonl", "".join(f"{json.dumps(line)}\n" for line in told.log).encode())
    data = table_of(told)
    write_whole(directory / "table.npz", data)
    made = Table(data)
    size = {"words": len(told.words), "width": made.width, "bytes": len(data), "identity": made.identity}
    read = {"pairs": len(pairs), "packages": len(packages), "held_out_packages": sorted(apart)} | {
        source: sum(pair.source == source for pair in pairs) for source in get_args(Source)
    }
    return read | size | {"held_out": told.log[-1]["held_out"]}


def _read_corpus(config: EmbedderConfig, directory: Path) -> None:
    fates: Counter[str] = Counter()
    licences: dict[str, Counter[str]] = {}

    def told(fate: Fate) -> None:
        fates[fate.fate] += 1
        if fate.fate == "train":
            licences.setdefault(fate.repository.name, Counter())[fate.licence] += 1
        if fates.total() % _TOLD_EVERY == 0:
            log.info("reading files", looked_at=fates.total())

    out = Apart.of(config)
    pairs = list(pairs_of(config, told, out))
    if len(pairs) < config.pairs_per_step:
        raise ConfigError(
            f"corpus: {len(pairs)} documented functions are left of {fates.total()} files ({dict(fates)}); a step "
            f"needs {config.pairs_per_step}: name more directories, or a smaller pairs_per_step"
        )
    of = Counter(pair.package for pair in pairs)
    more = {"commits": _further(pairs_of_commits, config.commits.directories, config, out),
            "sessions": _further(pairs_of_sessions, config.sessions.directories, config, out)}  # fmt: skip
    packages = {name: {"pairs": of[name], "files": dict(each)} for name, each in sorted(licences.items())}
    pairs += [pair for found in more.values() for pair in found]
    report = {"files": dict(fates), "pairs": len(pairs), "packages": packages} | {
        source: dict(Counter(pair.package for pair in found)) for source, found in more.items()
    }
    write_whole(directory / "corpus.json", f"{json.dumps(report, indent=1)}\n".encode())
    write_pairs(directory / "pairs.npz", pairs)


def _further(make: Further, places: Sequence[Path], config: EmbedderConfig, apart: Apart) -> list[Pair]:
    """Pairs of another source; what is named and gives none is an error."""
    pairs = list(make(config, apart))
    if places and not pairs:
        raise ConfigError(f"{', '.join(map(str, places))}: nothing to learn from was found there")
    return pairs


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """All words once, and of each bag their numbers, how often each is there, and where the bag ends."""
    row: dict[str, int] = {}
    stored: dict[str, Any] = {}
    for part in _PARTS:
        bags = [getattr(pair, part) for pair in pairs]
        stored[f"{part}_rows"] = np.array([row.setdefault(w, len(row)) for bag in bags for w in bag], np.int32)
        stored[f"{part}_times"] = np.array([times for bag in bags for times in bag.values()], np.int32)
        stored[f"{part}_ends"] = np.cumsum([len(bag) for bag in bags])
    packages = sorted({pair.package for pair in pairs})
    stored["package"] = np.array([packages.index(pair.package) for pair in pairs], np.int32)
    stored["source"] = np.array([get_args(Source).index(pair.source) for pair in pairs], np.int8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, words=_joined(list(row)), packages=_joined(packages), **stored)
    write_whole(path, buffer.getvalue())


def read_pairs(path: Path) -> list[Pair]:
    with np.load(path) as stored:
        words, packages = _split(stored["words"]), _split(stored["packages"])
        bags: dict[str, list[Counter[str]]] = {}
        for part in _PARTS:
            rows, times, cuts = stored[f"{part}_rows"], stored[f"{part}_times"], stored[f"{part}_ends"][:-1]
            each = zip(np.split(rows, cuts), np.split(times, cuts), strict=True)
            bags[part] = [Counter({words[r]: int(t) for r, t in zip(*bag, strict=True)}) for bag in each]
        names = [packages[at] for at in stored["package"]]
        sources: list[Source] = [get_args(Source)[at] for at in stored["source"]]
    of = [bags[part] for part in _PARTS]
    return [Pair(name, *row[:3], source=source, left=row[3], left_defined=row[4])
            for name, source, *row in zip(names, sources, *of, strict=True)]  # fmt: skip


def table_of(trained: Trained) -> bytes:
    """As `search.embedder` reads it: eight bits a number, and a scale a word."""
    vectors = trained.table.vectors.detach().numpy()
    most = np.abs(vectors).max(axis=1)
    scales = (np.where(most == 0, 1, most) / FULL).astype(np.float16)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        words=_joined(trained.words),
        vectors=np.rint(vectors / scales[:, None].astype(np.float32)).clip(-FULL, FULL).astype(np.int8),
        scales=scales,
        turn=trained.table.turn.detach().numpy().astype(np.float16),
        defined=np.float32(trained.table.defined.item()),
    )
    return buffer.getvalue()


def _joined(words: Sequence[str]) -> np.ndarray:
    return np.frombuffer("\n".join(words).encode("utf-8", "replace"), np.uint8)


def _split(data: np.ndarray) -> list[str]:
    return bytes(data).decode().split("\n")


def _told(line: dict[str, Any]) -> None:
    log.info("epoch", **line)
