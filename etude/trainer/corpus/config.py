"""What a corpus is made of, and what of it is set apart. A recipe is read without torch."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from etude.config import Config
from etude.trainer.corpus.languages import LANGUAGES


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := sorted(set(names) - LANGUAGES):
        raise ValueError(
            f"{unknown[0]!r} is no language that files are told by; there are {', '.join(sorted(LANGUAGES))}"
        )
    return names


class HeldOutConfig(Config):
    """What is set apart before anything else is looked at, to measure on."""

    repositories: tuple[str, ...] = ()
    """By the name of their directory, whole."""
    after: date | None = None
    """Of every other repository: the files that its history has only since this day. What is trained on is then the
    repository as it was on the day before."""


class CorpusConfig(Config):
    """One source of text: files found below directories."""

    directories: Annotated[tuple[Path, ...], Field(min_length=1)]
    """Repositories below them are read as their last commit has them; of directories that are in none, all files."""
    languages: Annotated[tuple[str, ...], AfterValidator(_known)] = ()
    """Which are kept; none: all that are known."""
    licences: Literal["permissive", "any"] = "permissive"
    """`any` is for what is yours: it keeps files under other licences, and those that say nothing."""
    held_out: HeldOutConfig = HeldOutConfig()
