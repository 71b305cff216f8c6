"""The index of one workspace: kept up with its files, asked for pieces, and for files that a pattern may match.

Owns `Index`. Whoever has the files tells it their stamps; it says which it must be given, and takes those in, a batch a
transaction. It knows no disk, no sandbox and no agent, and its answers depend on the files alone: an index in memory
and one whose contents were there before say the same. A store that is damaged is begun anew, and one sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeVar

import numpy as np

from etude.search.answer import ANSWER_VERSION
from etude.search.base import Hit, Vectors
from etude.search.content import (
    MOST_BYTES,
    WORDS_VERSION,
    Content,
    is_code,
    key_of,
    lines_of,
    most_bytes,
    read,
    text_of,
)  # fmt: skip
from etude.search.corpus import Corpus
from etude.search.database import Damaged
from etude.search.embedder import Embedder, EmbedderFailed, shipped
from etude.search.narrowing import Contents, Narrowing
from etude.search.patterns import All, Any, Literal, Need, required
from etude.search.postings import GRAM, Numbers, Tags
from etude.search.ranking import RANKING_VERSION, WEIGHTS, Weights, rank
from etude.search.sealed import Entry, Sealed
from etude.search.store import Facts, Known, Store
from etude.search.syntax import cutter

MOST_STORED = 2 << 30
"""A store that is larger makes room."""
_BATCH_FILES, _BATCH_BYTES = 1000, 16_000_000
_MOST_GRAMS = 12
_SETTLED_S = 2.0
_A_FILE_BYTES = 1500
"""To search one more file takes as long as to read so much of the grams."""
_GRAMS_AT_HAND = 64 << 20
_NONE = np.empty(0, np.int64)
_Answer = TypeVar("_Answer")


def index_version(embedder: Embedder | None = None) -> str:
    """What decides the answers of a search beside the files: sessions and results name it. By default, with the
    embedder that comes with Etude."""
    parts = f"words-{WORDS_VERSION} ranking-{RANKING_VERSION} answer-{ANSWER_VERSION} {cutter() or 'lines'}"
    return f"{parts} {(embedder or shipped()).identity}"


def way_of_taking_in() -> str:
    """What a stamp ends with: another Etude, or other grammars, take a file in otherwise."""
    return f" {WORDS_VERSION} {cutter()}"


def settled(age_s: float) -> bool:
    """Whether a file was changed so long ago that a further change would be seen by its times. One that was not has an
    empty stamp, which is never known."""
    return age_s >= _SETTLED_S


class Index:
    """Of the workspace at `place`; `said` is told what there is to say."""

    def __init__(
        self, store: Store, place: str, said: Callable[[str], None] = lambda _: None, embedder: Embedder | None = None,
        shared: Sealed | None = None,
    ) -> None:  # fmt: skip
        self.store, self.place, self._said, self._shared = store, place, said, shared
        self._embedder: Embedder | None = embedder or shipped()
        self._embedded: set[int] = set()
        self._tree: dict[str, Known] = {}
        self._facts: dict[int, Facts] = {}
        self._corpus: Corpus | None = None
        self._moved: set[str] = set()
        self._forgotten: int | None = None
        self._revision = 0
        self._question: tuple[str, Vectors | None] = "", None
        self._grams: dict[bytes, tuple[Numbers, Tags]] = {}
        self._grams_at, self._grams_bytes = 0, 0
        self.taken = 0
        """How many contents this object has taken in: those that were not known."""
        self.embedded = 0
        """How many pieces it made vectors of."""
        self.fetched = 0
        """How many contents it took from what is shared, and did not cut or embed."""
        self.renewed = 0
        """How often the store had to be begun anew: then the files are to be given again, and the question asked."""
        self.loads = 0
        """How often what this object knew of the files gave way to what the store has: something was forgotten."""

    # --- files ------------------------------------------------------------------------------------------------------

    def stale(self, stamps: Mapping[str, str]) -> list[str]:
        """Those files that must be read: their content is not known for sure, or has no vectors yet. An embedder that
        does not answer is found out before that, and not by reading what nobody embeds."""
        changed, unembedded = self.behind(stamps)
        if unembedded and self._asked_embedder(lambda embedder: embedder.question("search")) is None:
            unembedded = []
        wanted = {*changed, *unembedded}
        return [path for path in stamps if path in wanted]

    def behind(self, stamps: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Those files whose content is not known for sure, and of the others those whose content has no vectors."""
        self._mended(self._load)
        changed = [path for path, stamp in stamps.items() if not self._is(path, stamp)]
        if self._embedder is None:
            return changed, []
        known = {path: self._tree[path].content for path in stamps.keys() - set(changed)}
        return changed, [path for path in stamps if path in known and known[path] not in self._embedded]

    def update(
        self, stamps: Mapping[str, str], files: Iterable[tuple[str, bytes | None]], commit: str = "", whole: bool = True
    ) -> None:
        """Make it the index of the files with these stamps. `files` are the stale ones with their bytes, None for what
        cannot be read, each after its stamp was taken. Where that is not the `whole`, what it does not name stays."""
        try:
            self._load()
            self._update(stamps, files, commit, [path for path in self._tree if path not in stamps] if whole else [])
        except Damaged as error:
            self._renew(error)

    def _update(
        self, stamps: Mapping[str, str], files: Iterable[tuple[str, bytes | None]], commit: str, gone: list[str]
    ) -> None:
        waiting: dict[str, bytes] = {}
        size = 0
        for path, data in files:
            if data is None or len(data) > (MOST_BYTES if self.store.grams else most_bytes(path)):
                gone += [path] if path in self._tree else []
                continue
            waiting[path] = data
            size += len(data)
            if len(waiting) >= _BATCH_FILES or size > _BATCH_BYTES:
                self._take(stamps, waiting, gone, commit)
                waiting, gone, size = {}, [], 0
        if waiting or gone or commit:
            self._take(stamps, waiting, gone, commit)
        if self.store.path is not None and self.store.size() > MOST_STORED:
            self.store.collect(MOST_STORED * 3 // 4, self.place)

    def vectors_of(self, paths: Sequence[str]) -> dict[str, Vectors]:
        """Of the pieces of these files, in order; of those that have vectors."""
        self._mended(self._load)
        name = self._embedder.identity if self._embedder else ""
        ids = {path: self._tree[path].content for path in paths if path in self._tree}
        found = self.store.vectors(name, sorted(set(ids.values())))
        return {path: found[number] for path, number in ids.items() if number in found}

    def paths(self) -> Collection[str]:
        """The files that are indexed."""
        self._mended(self._load)
        return self._tree.keys()

    # --- questions --------------------------------------------------------------------------------------------------

    def search(self, question: str, limit: int, under: str = "", weights: Weights = WEIGHTS) -> list[Hit]:
        """The pieces a question is about, best first, of all files or of those below a directory."""
        if self._question[0] != question:  # it may be asked once more, when files were taken in
            self._question = question, self._asked_embedder(lambda embedder: embedder.question(question))
        asked = self._question[1]

        def search() -> list[Hit]:
            self._load()
            corpus = self._brought_up()
            near = None
            if asked is not None and (embedder := self._embedder) is not None:
                corpus.embed(asked.shape[1], lambda contents: self.store.vectors(embedder.identity, contents))
                near = corpus.near(asked, weights.near_from)
            return rank(corpus, question, self.store.find, limit, under, weights, near)

        return self._mended(search)

    def having(self, pattern: str, ignore_case: bool) -> Contents | None:
        """The contents that hold what a pattern needs, of whatever workspace; None where any may."""
        need = required(pattern, ignore_case)

        def having() -> Contents | None:
            self._load()
            return self._having(need)

        return self._mended(having) if self.store.grams else None

    def narrowing(self, stamps: Mapping[str, str], others: Sequence[str] = ()) -> Narrowing:
        """What is known of a listing. It holds for as long as `revision` stays."""
        facts = self._mended(self._all_facts)
        return Narrowing(stamps, others, self._tree, facts)

    @property
    def revision(self) -> int:
        """A number that changes with what is known of the files. Ask it after a question, which looks at the store."""
        return self._revision

    # --- inside -------------------------------------------------------------------------------------------------------

    def _is(self, path: str, stamp: str) -> bool:
        """Whether a file's content is known for sure."""
        known = self._tree.get(path)
        return known is not None and bool(stamp) and known.stamp == stamp

    def _take(self, stamps: Mapping[str, str], waiting: Mapping[str, bytes], gone: list[str], commit: str) -> None:
        keys = {path: key_of(path, data) for path, data in waiting.items()}
        known = self.store.known(list(set(keys.values())))
        name = self._embedder.identity if self._embedder else ""
        whole = self.store.embedded_keys(name, list(known)) if name else known
        wanted = {key: path for path, key in keys.items() if key not in whole}
        given = self._given(wanted, waiting)
        batch: dict[bytes, Content] = {}
        for key, path in wanted.items():
            if key not in known:
                pieces = given[key].pieces if key in given else None
                batch[key] = read(path, waiting[path], grams=self.store.grams, pieces=pieces)
        files = {path: (stamps[path], key) for path, key in keys.items()}
        lacking = {key: path for key, path in wanted.items() if key not in given}
        vectors = {key: entry.vectors for key, entry in given.items()} | self._vectors_of(lacking, batch, waiting)
        taken = self.store.take(self.place, batch, files, gone, commit, vectors, name)
        self._tree.update(taken)
        if self._embedder is not None:
            self._embedded.update(known.content for known in taken.values())
        for path in gone:
            self._tree.pop(path, None)
        self._moved.update(taken, gone)
        self.taken += len(batch)
        self._revision += 1

    def _given(self, wanted: Mapping[bytes, str], data: Mapping[str, bytes]) -> dict[bytes, Entry]:
        """What is shared of contents that are at hand."""
        if self._shared is None:
            return {}
        found = {key: entry for key, path in wanted.items() if (entry := self._shared.of(key, data[path])) is not None}
        self.fetched += len(found)
        return found

    def _load(self) -> None:
        """The tree as the store has it, where this object does not know better."""
        forgotten = self.store.forgotten()
        if forgotten != self._forgotten:
            self._forgotten, self._corpus, self._facts = forgotten, None, {}
            self._revision += 1
            self.loads += 1
            self._tree = self.store.tree(self.place)
            there = self._all_facts()
            self._tree = {path: known for path, known in self._tree.items() if known.content in there}
            if self._embedder is not None:
                self._embedded = self.store.embedded(self._embedder.identity, sorted(there))

    def _all_facts(self) -> dict[int, Facts]:
        return self._facts_of(self._tree.values())

    def _facts_of(self, files: Iterable[Known]) -> dict[int, Facts]:
        """Of these files' contents, and of others."""
        if lacking := {known.content for known in files} - self._facts.keys():
            self._facts.update(self.store.facts(sorted(lacking)))
        return self._facts

    def _brought_up(self) -> Corpus:
        """The corpus, with what has come and gone since it was last asked."""
        if self._corpus is None or self._corpus.worn:
            self._corpus, self._moved = Corpus(), set(self._tree)
        if self._moved:
            moved = {path: known for path in self._moved if (known := self._tree.get(path)) is not None}
            facts = self._facts_of(moved.values())
            there = {path: facts[known.content] for path, known in moved.items()}
            # those that are known for greps alone would count as files that lack a word
            code = {path: each for path, each in there.items() if is_code(path) and not each.long}
            self._corpus.drop(self._moved - code.keys())
            self._corpus.put(code)
            self._moved = set()
        return self._corpus

    def _vectors_of(
        self, wanted: Mapping[bytes, str], batch: Mapping[bytes, Content], data: Mapping[str, bytes]
    ) -> dict[bytes, Vectors]:
        """Of contents, each with a path that it has."""
        files = []
        for key, path in wanted.items():
            content = batch[key] if key in batch else read(path, data[path], grams=False)
            files.append((content.pieces, lines_of(text_of(data[path]) or "") if content.pieces else []))
        made = self._asked_embedder(lambda embedder: embedder.files(files))
        if made is None:
            return {}
        self.embedded += sum(map(len, made))
        return dict(zip(wanted, made, strict=True))

    def _asked_embedder(self, ask: Callable[[Embedder], _Answer]) -> _Answer | None:
        """An embedder that fails is not asked again: from then on words alone decide."""
        if self._embedder is None:
            return None
        try:
            return ask(self._embedder)
        except EmbedderFailed as error:
            self._said(f"search goes by words alone: {error}")
            self._embedder = None
            return None

    def _having(self, need: Need) -> Contents | None:
        """The contents that have what is needed; None where any may."""
        match need:
            case Literal():
                return self._holding(need.data)
            case All():
                found = [each for each in map(self._having, need.parts) if each is not None]
                return reduce(_in_both, found) if found else None
            case Any():
                either = [self._having(part) for part in need.parts]
                known = [each for each in either if each is not None]
                return np.unique(np.concatenate(known)) if len(known) == len(either) else None

    def _holding(self, literal: bytes) -> Contents | None:
        grams = list(dict.fromkeys(literal[at : at + 3] for at in range(len(literal) - 2)))
        if not grams:
            return None
        sizes = self.store.sizes([GRAM + gram[:2] for gram in grams])
        if len(sizes) < len({gram[:2] for gram in grams}):
            return _NONE
        grams.sort(key=lambda gram: sizes[GRAM + gram[:2]])
        found: Contents | None = None
        for gram in grams[:_MOST_GRAMS]:
            if found is not None and len(found) * _A_FILE_BYTES < sizes[GRAM + gram[:2]]:
                break
            numbers, tags = self._grams_of(GRAM + gram[:2])
            having = np.sort(numbers[tags == gram[2]], kind="stable").astype(np.int64)  # a few runs that are in order
            found = having if found is None else _in_both(found, having)
        return found

    def _grams_of(self, term: bytes) -> tuple[Numbers, Tags]:
        """Where the grams of two bytes stand. The same few hundred are in most names: those read last stay at hand."""
        if self._grams_at != self._revision:
            self._grams.clear()
            self._grams_at, self._grams_bytes = self._revision, 0
        if (found := self._grams.pop(term, None)) is None:
            found = self.store.find(term)
            self._grams_bytes += found[0].nbytes + found[1].nbytes
        self._grams[term] = found
        while self._grams_bytes > _GRAMS_AT_HAND and len(self._grams) > 1:
            numbers, tags = self._grams.pop(next(iter(self._grams)))
            self._grams_bytes -= numbers.nbytes + tags.nbytes
        return found

    def _mended(self, do: Callable[[], _Answer]) -> _Answer:
        """What is asked of the store, as of one moment; once more where it had to be begun anew."""
        try:
            with self.store.reading():
                return do()
        except Damaged as error:
            self._renew(error)
            with self.store.reading():
                return do()

    def _renew(self, error: Damaged) -> None:
        self.store.renew()
        self.renewed += 1
        self.loads += 1
        self._forgotten, self._tree, self._facts, self._corpus = None, {}, {}, None
        self._said(f"{self.store.path}: the index was damaged ({error}) and is made anew")


def _in_both(one: Contents, other: Contents) -> Contents:
    few, many = sorted((one, other), key=len)
    return few[many[np.minimum(np.searchsorted(many, few), len(many) - 1)] == few] if len(many) else few
