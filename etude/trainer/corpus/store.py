"""A corpus on the disk: what became of every file, in a form to read, and the kept texts as documents of tokens.

Owns `build_corpus`, `open_corpus` and `Manifest`. A corpus is a directory:

    manifest.json    counts: found, kept by split, dropped by reason, by language and licence; the commit of every
                     repository. Written last: without it there is no corpus, and the next run makes it anew
    files.jsonl      a line a file: repository, path, bytes, language, licence, and its fate
    train.npz        documents to train on (`trainer.documents`)
    held_out.npz     documents to measure on

A document is a file, or a piece of one that is longer than the context. Secrets are in none of these files: a file that
holds one is dropped, and what it holds is not told.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.durable import write_whole
from etude.errors import CheckpointError, ConfigError
from etude.made_by import require_same
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import END_OF_TEXT
from etude.trainer.corpus.config import CorpusConfig
from etude.trainer.corpus.filtering import KEPT, Fate, Filters
from etude.trainer.corpus.finding import Repository, Split, find_repositories
from etude.trainer.documents import Document, read_documents, write_documents

MANIFEST, FILES = "manifest.json", "files.jsonl"
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>")
"""What published tokenizers end a text with."""


@dataclass
class Kept:
    """What there is of one split."""

    files: int = 0
    bytes: int = 0
    documents: int = 0
    tokens: int = 0
    by_language: Counter[str] = field(default_factory=Counter)
    by_licence: Counter[str] = field(default_factory=Counter)

    def take(self, fate: Fate, documents: Sequence[Document]) -> None:
        self.files += 1
        self.bytes += len(fate.text.encode())
        self.documents += len(documents)
        self.tokens += sum(len(each.token_ids) for each in documents)
        self.by_language[fate.language] += 1
        self.by_licence[fate.licence] += 1


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says. `asked` is what the corpus was made by: another question is another corpus."""

    asked: dict[str, Any]
    found: int
    train: dict[str, Any]
    held_out: dict[str, Any]
    dropped: dict[str, int]
    repositories: list[dict[str, Any]]


@dataclass(frozen=True)
class Corpus:
    """One that is on the disk."""

    directory: Path
    manifest: Manifest

    def documents(self, split: Split) -> list[Document]:
        path = self.directory / f"{split}.npz"
        return read_documents(path) if path.exists() else []


class Tokens:
    """Texts as documents of a checkpoint's tokens."""

    def __init__(self, chat: ChatRenderer, context: int) -> None:
        self.chat, self.context = chat, context
        opening = chat.tokenizer.encode("", add_special_tokens=True).ids
        self._opening = opening[:1] if len(opening) == 1 else []
        """What the tokenizer itself puts before a text."""
        known = (chat.tokenizer.token_to_id(end) for end in _ENDS)
        end = next((token for token in known if token is not None), None)
        self._end = [] if end is None else [end]

    def documents(self, text: str) -> list[Document]:
        """Pieces as long as the context. A special token that is spelt in a text stays text."""
        ids = np.asarray([*self._opening, *self.chat.quote(text), *self._end], np.int32)
        pieces = [ids[at : at + self.context] for at in range(0, len(ids), self.context)]
        return [Document(piece, np.ones(len(piece), bool)) for piece in pieces if len(piece) > 1]

    def asked(self) -> dict[str, Any]:
        """What documents depend on beside their text."""
        said = self.chat.tokenizer.to_str().encode()
        return {"tokenizer": hashlib.sha256(said).hexdigest()[:16], "context": self.context}


def build_corpus(
    config: CorpusConfig, tokens: Tokens, directory: Path, told: Callable[[int], None] = lambda _: None
) -> Corpus:
    """Make it, or open the one that is there. `told` is called with how many files were looked at. Raises ConfigError
    where nothing is left to train on, or another corpus lies there."""
    if (directory / MANIFEST).exists():
        return _same(open_corpus(directory), _asked(config, tokens))
    repositories = find_repositories(config)
    kept = {split: Kept() for split in KEPT}
    documents: dict[str, list[Document]] = {split: [] for split in KEPT}
    dropped, lines = Counter[str](), []
    for fate in Filters(config).fates(repositories):
        lines.append(_line(fate))
        told(len(lines))
        if fate.fate in kept:
            made = tokens.documents(fate.text)
            kept[fate.fate].take(fate, made)
            documents[fate.fate] += made
        else:
            dropped[fate.fate] += 1
    if not documents["train"]:
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common()) or "no files"
        raise ConfigError(
            f"corpus: of {len(lines)} files below {', '.join(map(str, config.directories))} none is left to train on "
            f"({why}); docs/midtraining.md says what each reason means and what to do"
        )
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / FILES, "".join(lines).encode())
    for split, made in documents.items():
        if made:
            write_documents(directory / f"{split}.npz", made)
    told_of = [_of(repository) for repository in repositories]
    counts = {split: vars(each) for split, each in kept.items()}
    manifest = Manifest(_asked(config, tokens), len(lines), dropped=dict(dropped), repositories=told_of, **counts)
    write_whole(directory / MANIFEST, f"{json.dumps(vars(manifest), indent=2)}\n".encode(), listed=True)
    return Corpus(directory, manifest)


def open_corpus(directory: Path) -> Corpus:
    path = directory / MANIFEST
    try:
        return Corpus(directory, Manifest(**json.loads(path.read_text("utf-8"))))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: no manifest of a corpus ({error}); delete it and it is made anew") from None


def _same(corpus: Corpus, asked: dict[str, Any]) -> Corpus:
    require_same(corpus.directory, corpus.manifest.asked, asked)
    return corpus


def _asked(config: CorpusConfig, tokens: Tokens) -> dict[str, Any]:
    return {**config.model_dump(mode="json"), **tokens.asked()}


def _line(fate: Fate) -> str:
    said = {
        "repository": fate.repository.name, "path": fate.file.path, "bytes": fate.file.bytes,
        "language": fate.language or None, "licence": fate.licence or None, "split": fate.split, "fate": fate.fate,
    }  # fmt: skip
    return f"{json.dumps(said)}\n"


def _of(repository: Repository) -> dict[str, Any]:
    counts = {split: len(files) for split, files in repository.files.items()}
    return {"name": repository.name, "path": str(repository.root), "commit": repository.commit or None, **counts}
