"""A GGUF file: what it says of a model, and its tensors as numbers.

Owns the file, opened by the library `gguf` (the extra of that name), and every way in which it can be broken. Tensors
are given in torch's orientation, one at a time, dequantised by the library. Knows no architecture
(`models.gguf.layouts`) and writes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import CheckpointError, ConfigError, MissingDependency
from etude.extras import install_command
from etude.models import files

AGAIN = "download it again"


class Gguf:
    """One file. `metadata` is all that it says beside its tensors, as plain Python values."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for what is no whole GGUF, MissingDependency where the library is not there."""
        self.path = path
        if not files.is_file(path):  # a pipe would have the library wait
            raise ConfigError(f"{path}: no such file; give a .gguf file, or a directory that holds config.json")
        try:
            from gguf import dequantize
        except ImportError:
            raise MissingDependency(f"gguf is not installed: {install_command('gguf')}") from None
        from etude.models.gguf.bounded import Bounded

        self._dequantize = dequantize
        with self._readable("is no whole GGUF file"):
            reader = Bounded(path)
            self.metadata: Mapping[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            self.shapes = {name: tuple(map(int, each.shape[::-1])) for name, each in self._tensors.items()}
        if (parts := self.say("split.count", int, 1)) > 1:
            raise CheckpointError(f"{path}: one of {parts} parts; join them first: llama-gguf-split --merge")

    def say(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """What the file says under a key. Raises CheckpointError where that is of another kind."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{self.path}: {key} is {str(value)[:80]!r}, which makes no sense; {AGAIN}")
        return value

    def tensor(self, name: str, at: int | None = None) -> Tensor:
        """fp32 values; of a stack of matrices the one at `at`."""
        held = self._tensors[name]
        data = held.data if at is None else held.data[at]
        with self._readable(f"{name} cannot be read"):
            try:
                values = self._dequantize(data, held.tensor_type)
            except NotImplementedError:
                kind = held.tensor_type.name
                raise CheckpointError(
                    f"{self.path}: {name} is of type {kind}, which the gguf library does not turn into numbers; take a "
                    "file in Q8_0, a K-quant, F16 or BF16"
                ) from None
            return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))

    @contextmanager
    def _readable(self, fault: str) -> Generator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # whatever a library makes of a file that is cut off or was never one
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise CheckpointError(f"{self.path}: {fault} ({said}); {AGAIN}") from None
