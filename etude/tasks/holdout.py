"""What is held out for evaluation, decided by a hash of its name and by nothing else.

Owns one rule, written before the grammar of shapes, bug templates and identifier words existed, so that nobody
could choose what is easy. Training data (mid-training sessions, drills, fine-tuning, reinforcement learning) may use
only names for which `is_held_out` is false; the held-out evaluation uses the others, and is reported apart.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

HELD_OUT_SHARE = 0.2


@lru_cache(4096)
def is_held_out(kind: str, name: str) -> bool:
    """True for about a fifth of the names of a kind (`"shape"`, `"bug"` or `"word"`), the same on every machine."""
    digest = hashlib.sha256(f"etude hold-out v1 {kind} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < HELD_OUT_SHARE
