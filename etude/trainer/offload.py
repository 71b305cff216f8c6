"""Momentum and moments on the host between steps, and on the device only while what they belong to is updated.

Owns `HostState`: some parameters at a time, those that an optimizer takes together, have their state brought to the
device, are stepped by the optimizer itself, and have it put back into the same memory of the host. So the values are
those of an optimizer that keeps all of it on the device, bit for bit, and the device never holds more of it than of one
parameter, or of as many matrices as Muon orthogonalises at once. It costs both ways over the bus, once a step. Nothing
here waits for the device. Knows nothing of how an optimizer computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from etude.kernels.devices import room_on_host


class HostState:
    """Of the optimizers that step on one device. `moved` counts the bytes that were put back in the last step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.moved = 0

    def step(self, optimizer: Optimizer, together: Iterable[Sequence[Tensor]]) -> None:
        """One update of all parameters that have a gradient, in the order and the lots in which they go `together`."""
        groups = optimizer.param_groups
        group_of = {id(each): group for group in groups for each in group["params"]}
        try:
            for lot in together:
                optimizer.param_groups = [group_of[id(lot[0])] | {"params": list(lot)}]
                kept = [dict(optimizer.state.get(each, {})) for each in lot]
                for parameter, state in zip(lot, kept, strict=True):
                    if state:
                        optimizer.state[parameter] = {key: self._brought(value) for key, value in state.items()}
                optimizer.step()
                for parameter, state in zip(lot, kept, strict=True):
                    optimizer.state[parameter] = self._put_back(optimizer.state[parameter], state)
        finally:
            optimizer.param_groups = groups

    def rest(self, optimizer: Optimizer) -> None:
        """What was loaded goes to the host."""
        for parameter, state in optimizer.state.items():
            optimizer.state[parameter] = self._put_back(state, {})

    def _brought(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_like(value, device=self.device).copy_(value, non_blocking=True)

    def _put_back(self, state: dict[str, object], into: dict[str, object]) -> dict[str, object]:
        found = dict(state)
        for key, value in state.items():
            if isinstance(value, Tensor):
                room = into.get(key)
                if not isinstance(room, Tensor) or room.dtype != value.dtype:
                    room = room_on_host(value)
                found[key] = room.copy_(value, non_blocking=True)
                self.moved += value.nbytes
        return found
