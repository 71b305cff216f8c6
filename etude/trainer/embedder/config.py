"""What an embedder of code is trained on, and how. A recipe is read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.trainer.corpus.config import CorpusConfig


class CommitLabelsConfig(Config):
    """Histories: what a commit's message asks for, and the functions that it changed, as they were before it."""

    directories: tuple[Path, ...] = ()
    """Each is one repository, with its history; a bare one too."""
    most: int = Field(1500, ge=1)
    """Commits of one repository that are learned from, the newest ones."""
    weight: float = Field(1.0, gt=0)
    """Of a pair in the loss, beside that of a docstring."""


class SessionLabelsConfig(Config):
    """Sessions of agents: what was searched for, what a patch that passed edited, and what was opened and left."""

    directories: tuple[Path, ...] = ()
    """Of runs, each with its archive; or files that `etude runs export --format jsonl` has written."""
    weight: float = Field(1.0, gt=0)
    """Of a pair in the loss, beside that of a docstring."""


class EmbedderConfig(Config):
    """A table of word vectors (`search.embedder`), from functions and what is said of them."""

    kind: Literal["embedder"]
    corpus: CorpusConfig
    """Each directory is one package; questions are told apart within a package, as in a search."""
    commits: CommitLabelsConfig = CommitLabelsConfig()
    sessions: SessionLabelsConfig = SessionLabelsConfig()
    kept_out: tuple[Path, ...] = ()
    """Bundles of git and directories: no function that is in one of them is trained on, wherever it lies and whatever
    its package is called; nor is any package of these names (`names_kept_out`)."""
    names_kept_out: tuple[str, ...] = ()
    seed: int = 0
    most_pairs_a_package: int = Field(8000, ge=1)
    """So that the largest package is not the whole."""
    words: int = Field(30_000, ge=1)
    """The most common ones have a vector."""
    width: int = Field(128, ge=8, multiple_of=4)
    epochs: int = Field(8, ge=1)
    pairs_per_step: int = Field(512, ge=2)
    lr: float = Field(0.01, gt=0)
    left_out: float = Field(0.4, ge=0, lt=1)
    """Share of words that a step does not see: a function is to be known by any of its words."""
    temperature: float = Field(0.06, gt=0)
    threads: int = Field(2, ge=1)
