"""Answers that must be of a given form: JSON of a schema, or calls of tools.

Owns a grammar's place in each choice: which tokens may come next, so that whatever is sampled fits, token by token, and
only ends where it is whole. The grammars are llguidance's; a schema with words it does not know is refused, not
followed in part. What a call looks like is `call_grammar`'s. Knows nothing of bodies or routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from etude.engine.server.call_grammar import LONGEST, call_grammar, free_call_grammar, json_rule
from etude.engine.server.errors import ApiError, bad
from etude.engine.server.tool_schemas import Unenforceable
from etude.engine.server.trial import survives, with_room
from etude.errors import InvalidRequest
from etude.harness.schema import ToolSchema
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import is_control, token_bytes

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_AS_SAMPLED = '%llguidance {"no_forcing": true}'
"""Else what the grammar leaves no choice about is spelt out in tokens that no model was trained on."""


class Grammars:
    """Of one model. Its vocabulary is read at the first use, which takes a moment."""

    def __init__(self, chat: ChatRenderer, vocab_size: int) -> None:
        self._chat, self._vocab_size = chat, vocab_size
        self.compiled = 0

    def of_schema(self, schema: Mapping[str, Any], where: str) -> Callable[[], Constrained]:
        """A maker of constraints, one for each choice. Raises ApiError, which blames `where`, for a bad schema."""
        return self._compiled(f"start: {json_rule(schema)}", where)

    def of_calls(self, tools: Sequence[ToolSchema], several: bool, where: str) -> Callable[[], Constrained]:
        """The same, for a message that is nothing but calls of these tools: one, or `several`."""
        return self._of_tools(tools, lambda: call_grammar(tools, several), where)

    def of_free_calls(
        self, tools: Sequence[ToolSchema], strict: Sequence[ToolSchema], several: bool, where: str
    ) -> Callable[[], Constrained]:
        """The same, for a message that need not call a tool; calls of those that are `strict` fit their schemas."""
        return self._of_tools(strict, lambda: free_call_grammar(tools, strict, several), where)

    def _of_tools(self, held: Sequence[ToolSchema], lark: Callable[[], str], where: str) -> Callable[[], Constrained]:
        """Blames the tool of `held` that no grammar can hold to its schema; all, where finding out takes too much."""
        try:
            return self._compiled(lark(), where)
        except _TooMuch:
            raise
        except (ApiError, Unenforceable):
            for tool in held:
                try:
                    self._compiled(call_grammar([tool], several=False), where)
                except (ApiError, Unenforceable) as error:
                    raise bad(where, f"{tool.name} cannot be enforced: {error}") from None
            raise

    def _compiled(self, lark: str, where: str) -> Callable[[], Constrained]:
        lark = f"{_AS_SAMPLED}\n{lark}"
        if len(lark) > LONGEST:
            raise _TooMuch(where, f"makes a grammar of {len(lark):,} characters, and {LONGEST:,} are read; simplify it")
        if not survives(lark):
            raise _TooMuch(where, "is nested too deeply, or combines too much, to be followed; simplify it")
        grammar, tokenizer = LLMatcher.grammar_from_lark(lark), self._tokenizer
        matcher = with_room(lambda: LLMatcher(tokenizer, grammar, log_level=0))
        if matcher.is_error():
            raise bad(where, f"cannot be followed: {matcher.get_error().splitlines()[0][:300]}")
        if not matcher.is_accepting() and not Constrained(matcher, self._vocab_size).allowed()[self._texts].any():
            raise bad(where, "cannot be followed: no text of this model's tokens is allowed by it; change it")
        self.compiled += 1
        return lambda: Constrained(matcher.deep_copy(), self._vocab_size)

    @cached_property
    def _texts(self) -> list[int]:
        """All tokens but those that end an answer."""
        return [at for at in range(self._vocab_size) if at not in self._chat.stop_ids]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        vocabulary = TokenizerWrapper(_Vocabulary(self._chat, self._vocab_size))
        return LLTokenizer(vocabulary, n_vocab=self._vocab_size, eos_token=sorted(self._chat.stop_ids))


class _TooMuch(ApiError):
    """No compiler is to be troubled with it, also not in parts."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(400, f"{where}: {message}", "invalid_value", where)


class Constrained:
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
            raise InvalidRequest(f"the grammar asked for cannot be followed any further, simplify it: {said[:1]}")


class _Vocabulary:
    """A tokenizer as llguidance wants it: the bytes of each token.

    Only a control token is no text. Tags and words that tokenizer.json calls special are: an answer may hold them, and
    a call is made of them.
    """

    bos_token_id = None

    def __init__(self, chat: ChatRenderer, vocab_size: int) -> None:
        self._chat = chat
        known = token_bytes(chat.tokenizer)
        self.tokens = [*known, *(b"" for _ in range(vocab_size - len(known)))]  # a checkpoint may pad its vocabulary
        padding = range(len(known), vocab_size)
        framing = (at for at, token in enumerate(known) if is_control(token) or at in chat.stop_ids)
        self.special_token_ids = [*framing, *padding]
        self.eos_token_id = min(chat.stop_ids)

    def __call__(self, text: bytes) -> list[int]:
        return self._chat.encode(text.decode(errors="replace"))
