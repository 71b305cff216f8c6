"""Counts how often a stretch of torch hands a value to the host, or has the host wait for a device.

`Reads` looks at two levels, in backwards too. Python's own ways to read (`tolist`, `numpy`) are counted as methods;
operations are seen below autograd: those that hand a value over or whose result's shape depends on values, copies from
a device to the host, and copies to a device that the host waits for. On the host nothing is counted at both levels.
Copies are told by their devices: where all tensors are on the host, there is none to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READERS = ("tolist", "numpy", "cpu", "__array__", "__dlpack__", "__repr__", "tensor_split")
"""Methods of a tensor that hand values to the host, and that no operation shows."""
ASKING = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
"""Of operations that hand one over, or whose result has a shape that depends on values."""


class Reads(Counter[str]):
    """Counts every look at a value while it is entered, by its name. One at a time."""

    def __enter__(self) -> Reads:
        self._within = False
        for name in READERS:
            setattr(Tensor, name, self._counted(name, getattr(Tensor, name)))
        self._split, torch.tensor_split = torch.tensor_split, Tensor.tensor_split
        self._operations = _Operations(self)
        self._operations.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._operations.__exit__(*error)
        torch.tensor_split = self._split
        for name in READERS:
            method = getattr(Tensor, name).__wrapped__
            if name in _OWN:
                setattr(Tensor, name, method)
            else:
                delattr(Tensor, name)

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._within:  # one of them calls another
                return method(*args, **kwargs)
            by_values = any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values()))
            self[f"Tensor.{name}"] += name != "tensor_split" or by_values
            self._within = True
            try:
                return method(*args, **kwargs)
            finally:
                self._within = False

        return counted


_OWN = frozenset(READERS) & vars(Tensor).keys()
"""Those that are not inherited."""


class _Operations(TorchDispatchMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.seen[f"aten.{function.overloadpacket.__name__}"] += _asks(function, args, kwargs)
        return function(*args, **kwargs)


def _asks(function: Any, args: Any, kwargs: Any) -> bool:
    name = function.overloadpacket.__name__
    if name in ("_to_copy", "copy_"):
        return _is_waited_for(name, args, kwargs)
    if name.startswith(("index", "_index")):
        indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
        return any(isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices)
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False  # the host has said it
    return name == "nonzero_static" or any(tag in function.tags for tag in ASKING)


def _is_waited_for(name: str, args: Any, kwargs: Any) -> bool:
    """A copy to the host, and one from the host unless it goes on beside."""
    if name == "copy_":
        there, here, beside = args[0].device, args[1].device, kwargs.get("non_blocking", len(args) > 2 and args[2])
    else:
        here, beside = args[0].device, kwargs.get("non_blocking", False)
        there = kwargs.get("device") or here
    return here.type != there.type and (there.type == "cpu" or not beside)
