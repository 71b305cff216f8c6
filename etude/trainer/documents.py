"""Documents for supervised training, where they come from, and how they are mixed.

Owns `Document`, the sources (`DrillSource`, `PythonSource`, `RecordedSource`) and `Mixture`. A source gives the
document of an index, so that a resumed run goes on exactly where it stopped. Never trains; never runs a sandbox.
"""

from __future__ import annotations

import ast
import hashlib
import io
import random
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from etude import syntax
from etude.durable import write_whole
from etude.errors import CheckpointError
from etude.harness.sampler import Chat
from etude.records import Bools, Ints, Segment
from etude.tasks.drills import Script, drill
from etude.tasks.kept_out import KeptOut, kept_out


class Document(NamedTuple):
    """Token ids, and which of them a model should learn to say (the others are read)."""

    token_ids: Ints  # [T]
    sampled: Bools  # [T]
    source: str = ""
    """Which source of a mixture it was drawn from."""


class Source(Protocol):
    def document(self, index: int) -> Document:
        """The document of any index >= 0; sources that are finite go round in shuffled epochs."""
        ...


def document_of(segment: Segment) -> Document:
    return Document(segment.token_ids, segment.sampled)


def message_runs(sampled: np.ndarray) -> list[tuple[int, int]]:
    """Where each run of sampled tokens, which is one message, begins and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], sampled, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def script_document(script: Script, chat: Chat, system: str) -> Document:
    """A written drill as ids."""
    ids: list[int] = []
    sampled: list[bool] = []
    for role, text in script:
        match role:
            case "user":
                piece = chat.opening(system, text)
            case "assistant":
                piece = [*chat.encode(text), chat.end_id]
            case "observation":
                piece = chat.observation(text)
            case "text":
                piece = chat.encode(text)
        ids += piece
        sampled += [role in ("assistant", "text")] * len(piece)
    return Document(np.asarray(ids, np.int32), np.asarray(sampled, bool))


def taken_together(documents: Iterable[Document], most_tokens: int) -> list[list[Document]]:
    """In order, as many as have so many tokens at most, and one at least: what one forward reads."""
    batches: list[list[Document]] = []
    room = 0
    for document in documents:
        if not batches or len(document.token_ids) > room:
            batches.append([])
            room = most_tokens
        batches[-1].append(document)
        room -= len(document.token_ids)
    return batches


def digest(documents: Iterable[Document]) -> str:
    """The same for the same documents in the same order."""
    found = hashlib.sha256()
    for document in documents:
        found.update(len(document.token_ids).to_bytes(8))
        found.update(document.token_ids.tobytes() + document.sampled.tobytes())
    return found.hexdigest()


class DrillSource:
    """Fresh drills for ever."""

    def __init__(self, chat: Chat, system: str, seed: int) -> None:
        self.chat, self.system, self.seed = chat, system, seed

    def document(self, index: int) -> Document:
        return script_document(drill(self.seed, index), self.chat, self.system)


class ShuffledSource:
    """A finite list of documents, in a new order every epoch."""

    def __init__(self, documents: Sequence[Document], seed: int) -> None:
        if not documents:
            raise CheckpointError(
                "a document source is empty; record some documents first (etude pretrain records its own)"
            )
        self.documents, self.seed = documents, seed
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def document(self, index: int) -> Document:
        epoch, place = divmod(index, len(self.documents))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(len(self.documents))
        return self.documents[self._order[place]]


def python_definitions(seed: int, count: int) -> list[str]:
    """Top-level functions and classes of the interpreter's standard library and installed packages, drawn by seed;
    without all that real-code tasks are made of (`tasks.kept_out`), whose copies other packages carry too.
    """
    kept, files = kept_out(), python_files()
    rng = random.Random(seed)
    rng.shuffle(files)
    texts: list[str] = []
    for path in files:
        texts += _definitions(path, kept)
        if len(texts) >= count:
            break
    return texts[:count]


def python_files() -> list[Path]:
    """The files that definitions are drawn from, sorted."""
    kept, found = kept_out(), []
    stdlib, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    for root in (stdlib, packages):
        paths = (path for path in root.rglob("*.py") if "test" not in path.parts)
        found += [path for path in paths if not kept.place(path.relative_to(root), root == stdlib)]
    return sorted(found)


def python_documents(encode: Callable[[str], list[int]], texts: Iterable[str], max_tokens: int = 512) -> list[Document]:
    """Real source as documents; a long definition is cut."""
    cut = [np.asarray(encode(text)[:max_tokens], np.int32) for text in texts]
    return [Document(ids, np.ones(len(ids), bool)) for ids in cut]


def _definitions(path: Path, kept: KeptOut) -> Iterable[str]:
    try:
        text = path.read_text(encoding="utf-8")
        tree = syntax.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return  # packages ship deliberately broken sources for their own tests
    lines = text.split("\n")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno]) + "\n"
            if not kept.content(source):
                yield source


def write_documents(path: Path, documents: Sequence[Document]) -> None:
    """One .npz: all ids end to end, a bit a token for `sampled`, and each document's length."""
    buffer, ids = io.BytesIO(), np.concatenate([document.token_ids for document in documents])
    np.savez_compressed(
        buffer,
        token_ids=ids.astype(np.uint16 if ids.max() < 1 << 16 else np.uint32),
        sampled=np.packbits(np.concatenate([document.sampled for document in documents])),
        lengths=np.asarray([len(document.token_ids) for document in documents], np.int32),
    )
    write_whole(path, buffer.getvalue())


def read_documents(path: Path) -> list[Document]:
    try:
        with np.load(path) as stored:
            ids, bits, lengths = stored["token_ids"].astype(np.int32), stored["sampled"], stored["lengths"]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path}: not a readable set of documents ({error}); delete it and it is recorded anew"
        ) from None
    sampled = np.unpackbits(bits, count=len(ids)).astype(bool)
    cuts = np.cumsum(lengths)[:-1]
    return [Document(*pair) for pair in zip(np.split(ids, cuts), np.split(sampled, cuts), strict=True)]


class Mixture:
    """Draws documents from named sources by their shares, in an order that depends on the seed alone."""

    def __init__(self, sources: Mapping[str, Source], seed: int) -> None:
        self.sources, self.seed = dict(sources), seed
        self.drawn = dict.fromkeys(self.sources, 0)

    def draw(self, shares: Mapping[str, float], step: int, token_budget: int, max_document: int) -> list[Document]:
        """Documents of one step: as many as reach the budget."""
        rng = np.random.default_rng([self.seed, step])
        names = sorted(shares)
        weights = np.asarray([shares[name] for name in names], float)
        documents: list[Document] = []
        tokens = 0
        while tokens < token_budget:
            name = names[rng.choice(len(names), p=weights / weights.sum())]
            document = self.sources[name].document(self.drawn[name])
            self.drawn[name] += 1
            documents.append(Document(document.token_ids[:max_document], document.sampled[:max_document], name))
            tokens += len(documents[-1].token_ids)
        return documents
