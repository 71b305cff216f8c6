"""What a device is. Nothing else in the tree asks one; `kernels.choice` does so once, for a model and its data."""

from __future__ import annotations

import torch


def is_host(device: torch.device) -> bool:
    """Whether its memory is the process's own."""
    return device.type == "cpu"


def present() -> str:
    """The device to take unasked."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def reads_block_scales(device: torch.device) -> bool:
    """Whether its tensor cores multiply block-scaled operands as they are (Blackwell's do)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 10


def room_on_host(like: torch.Tensor) -> torch.Tensor:
    """Memory of the host for as much, which a device copies from and to without a detour."""
    return torch.empty_like(like, device="cpu", pin_memory=like.device.type == "cuda" and torch.cuda.is_available())
