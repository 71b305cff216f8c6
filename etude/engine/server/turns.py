"""The token ids of conversations, by what was said in them.

Owns a bounded memory: after an answer, the ids of the whole conversation are kept under its messages, so that the same
conversation, sent back as text with more after it, goes on from the ids that were sampled and not from a tokenisation
of their text. That makes the log-probabilities those of what the model really said, and hits the prefix cache. Least
recently used conversations go first. Knows nothing of roles or rendering (`prompts`).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Turns:
    """`hits` counts the conversations that were taken up again."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens, self._lock = max_tokens, threading.Lock()
        self._ids: OrderedDict[bytes, npt.NDArray[np.int32]] = OrderedDict()
        self.tokens = 0
        self.hits = 0

    def keep(self, messages: Sequence[str], ids: Sequence[int]) -> None:
        """`messages` are the whole conversation, each as one string; `ids` the same, up to the end of the last one."""
        key, kept = _chain(messages)[-1], np.asarray(ids, np.int32)
        with self._lock:
            if (before := self._ids.pop(key, None)) is not None:
                self.tokens -= len(before)
            self._ids[key] = kept
            self.tokens += len(kept)
            while self.tokens > self._max_tokens:
                _, gone = self._ids.popitem(last=False)
                self.tokens -= len(gone)

    def longest(self, messages: Sequence[str]) -> tuple[int, list[int]]:
        """How many of the first messages are a conversation that is kept, and its ids; 0 and none if none is."""
        keys = _chain(messages)
        with self._lock:
            for count in range(len(keys), 0, -1):
                ids = self._ids.get(keys[count - 1])
                if ids is not None:
                    self._ids.move_to_end(keys[count - 1])
                    self.hits += 1
                    return count, ids.tolist()
        return 0, []


def _chain(messages: Sequence[str]) -> list[bytes]:
    """A key for every beginning of a conversation."""
    keys, state = [], hashlib.blake2b(digest_size=16)
    for message in messages:
        data = message.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "big") + data)
        keys.append(state.copy().digest())
    return keys
