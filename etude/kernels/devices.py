"""What a device is. Nothing else in the tree asks one; `kernels.choice` does so once, for a model and its data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def is_host(device: torch.device) -> bool:
    """Whether its memory is the process's own."""
    return device.type == "cpu"


def present() -> str:
    """The device to take unasked."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def reads_block_scales(device: torch.device) -> bool:
    """Whether its tensor cores multiply block-scaled operands as they are (Blackwell's do)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 10


def put(given: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """What the host has, on a device, for whose copy the host does not wait: it lies in memory that the device reads by
    itself. On the host, the very same.
    """
    tensor = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
    if is_host(device):
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def room_on_host(like: Tensor) -> Tensor:
    """Memory of the host for as much, which a device copies from and to without a detour."""
    return torch.empty_like(like, device="cpu", pin_memory=like.device.type == "cuda" and torch.cuda.is_available())
