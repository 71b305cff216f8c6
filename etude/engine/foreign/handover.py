"""Weights on their way to a foreign engine: checkpoints in a directory that its server sees.

Owns that directory: one checkpoint a version, named by version and root hash and whole once it has its name, so that
several engines share what one has written and a run that was rewound never finds another run's weights. Talks to: the
checkpoint layouts of `models`.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from etude.models.checkpoint import save_checkpoint
from etude.models.decoder import Decoder
from etude.records import Version
from etude.weights.manifest import root_of

_VERSIONS_KEPT = 2


class Handover:
    """Writes from a decoder that already holds the weights."""

    def __init__(self, directory: Path, decoder: Decoder) -> None:
        self._directory, self._decoder = directory.absolute(), decoder

    def write(self, bits: Mapping[str, np.ndarray], version: Version) -> Path:
        """The checkpoint of `bits`, which the decoder holds; written unless it is there."""
        target = self._directory / f"version-{version}-{root_of(bits)[:16]}"
        if target.is_dir():
            return target
        partial = self._directory / f".{target.name}-{uuid.uuid4().hex[:8]}"
        try:
            save_checkpoint(self._decoder, partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        try:
            partial.rename(target)
        except OSError:  # another engine of this run was faster
            shutil.rmtree(partial)
            if not target.is_dir():
                raise
        return target

    def keep_only(self, newest: Path) -> None:
        """Remove all but the newest few: an engine that lags behind may still read the one before."""
        whole = sorted(self._directory.glob("version-*"), key=lambda path: path.stat().st_mtime)
        for old in whole[:-_VERSIONS_KEPT]:
            if old != newest:
                shutil.rmtree(old, ignore_errors=True)
