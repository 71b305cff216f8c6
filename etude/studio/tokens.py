"""The text of each token, by the tokenizer of the run's model.

Owns `Texts`. The tokenizer is the one that the run has kept, or its finished model's, or the one of the checkpoint that
its recipe names, if that is on this machine; where there is none, tokens are ids. It may be a stranger's:
`models.tokenizer` reads it within bounds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.errors import EtudeError, MissingDependency
from etude.studio.run import Run

_MOST_KNOWN, _MOST_OPEN = 400_000, 4


class Texts:
    """Of one server's runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Known] = {}

    def of(self, run: Run, ids: Sequence[int]) -> list[str] | None:
        """Of each token; None where the run's tokenizer is not to be had."""
        with self._lock:
            known = self._open.pop(run.id, None) or _opened(run)
            if known is None:
                return None
            self._open[run.id] = known
            for oldest in list(self._open)[:-_MOST_OPEN]:
                del self._open[oldest]
            return known.texts(ids)


class _Known:
    """One tokenizer, and what it said of ids before."""

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer, self._texts = tokenizer, dict[int, str]()

    def texts(self, ids: Sequence[int]) -> list[str]:
        from etude.models.tokenizer import decode

        for each in set(ids) - self._texts.keys():
            if len(self._texts) >= _MOST_KNOWN:
                self._texts.clear()
            try:
                self._texts[each] = decode(self._tokenizer, [each])  # ty: ignore[invalid-argument-type]
            except (EtudeError, OverflowError, TypeError):  # an id that it does not have
                self._texts[each] = f"⟨{each}⟩"
        return [self._texts.get(each, f"⟨{each}⟩") for each in ids]


def _opened(run: Run) -> _Known | None:
    try:
        from etude.models.tokenizer import load_tokenizer
    except ModuleNotFoundError:
        return None
    for directory in _places(run):
        with contextlib.suppress(EtudeError, OSError, MissingDependency):
            return _Known(load_tokenizer(directory))
    return None


def _places(run: Run) -> Iterator[Path]:
    yield run.directory.path / "model"
    model = run.directory.table("recipe.json").get("model")
    named = model.get("path") if isinstance(model, dict) else None
    if isinstance(named, str) and named and "\0" not in named:
        yield Path(named)
