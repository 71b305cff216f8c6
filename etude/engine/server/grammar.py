"""Answers that must be JSON of a given shape.

Owns the grammar of a schema and its state in each choice: which tokens may come next, so that whatever is sampled fits,
token by token, and only ends where it is whole. The grammars are llguidance's; a schema with words it does not know is
refused, not followed in part. Knows nothing of bodies or routes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from etude.engine.server.errors import bad
from etude.errors import InvalidRequest
from etude.models.chat import ChatRenderer

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_WHITESPACE = r"[ \n\t\r]{0,16}"
"""Between the parts of JSON. Bounded, because a model that is forced into JSON may else write spaces for ever."""


class Grammars:
    """Of one model. Its vocabulary is read at the first use, which takes a moment."""

    def __init__(self, chat: ChatRenderer, vocab_size: int) -> None:
        self._chat, self._vocab_size = chat, vocab_size
        self._tokenizer: LLTokenizer | None = None
        self.compiled = 0

    def of_schema(self, schema: Mapping[str, Any], where: str) -> Callable[[], Json]:
        """A maker of constraints, one for each choice. Raises ApiError, which blames `where`, for a bad schema."""
        if self._tokenizer is None:
            described, ends = self._chat.tokenizer.to_str(), sorted(self._chat.stop_ids)
            self._tokenizer = LLTokenizer(described, n_vocab=self._vocab_size, eos_token=ends)
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_pattern": _WHITESPACE})
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise bad(where, f"cannot be followed: {matcher.get_error().splitlines()[0][:300]}")
        self.compiled += 1
        return lambda: Json(matcher.deep_copy(), self._vocab_size)


class Json:
    """One choice's place in its grammar (`engine.running.Constraint`)."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def allowed(self) -> torch.Tensor:
        """Which tokens may come next, bool [V]."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return torch.from_numpy(np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_))

    def take(self, token: int) -> None:
        """Raises InvalidRequest where the grammar has become too much for its limits."""
        if not self._matcher.consume_token(token):
            said = self._matcher.get_error().splitlines()
            raise InvalidRequest(f"the JSON schema cannot be followed any further, simplify it: {said[:1]}")
