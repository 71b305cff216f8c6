"""The chat renderer: messages to token ids that are only ever appended.

Owns the roles' framing (Qwen's `<|im_start|>role … <|im_end|>`). What a model sampled is never re-tokenised: the
renderer adds ids after it, and decodes it for the parser. The text inside messages comes from `harness.prompt`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from tokenizers import Tokenizer

from etude.models.tokenizer import END, END_OF_TEXT, START

_REPLY = f"{START}assistant\n"
_INSIDE_ROLE = re.compile("|".join(rf"(?<=<)(?={re.escape(tag[1:])})" for tag in (START, END, END_OF_TEXT)))


class ChatRenderer:
    """Implements `harness.sampler.Chat` for a tokenizer that has Qwen's role tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        end = tokenizer.token_to_id(END)
        if end is None:
            raise ValueError(f"the tokenizer has no {END} token, so no message could ever end")
        self.end_id: int = end
        self._reply = self.encode(_REPLY)
        self._next_user = self.encode(f"\n{START}user\n")
        self._end_of_user = [self.end_id, *self.encode("\n"), *self._reply]

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset((self.end_id,))

    def encode(self, text: str) -> list[int]:
        """Ids of text as it stands; tags in it become their tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def quote(self, text: str) -> list[int]:
        """Ids of text that others wrote: a role's token spelt out in it stays text and can neither end nor open a
        message.
        """
        return [token for piece in _INSIDE_ROLE.split(text) for token in self.encode(piece)]

    def opening(self, system: str, user: str) -> list[int]:
        """A session's start, up to where the assistant writes."""
        head = self.encode(f"{START}system\n{system}{END}\n{START}user\n")
        return [*head, *self.quote(user), *self._end_of_user]

    def message(self, role: Literal["system", "user", "assistant"], text: str) -> list[int]:
        """One whole message that others wrote, and the newline after it."""
        return [*self.encode(f"{START}{role}\n"), *self.quote(text), self.end_id, *self.encode("\n")]

    @property
    def reply(self) -> list[int]:
        """The header after which the assistant writes."""
        return list(self._reply)

    def observation(self, content: str) -> list[int]:
        """What follows a finished assistant message: one user message with the tool results, then the next header."""
        return [*self._next_user, *self.quote(content), *self._end_of_user]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The exact text of sampled ids, without the end-of-message token."""
        kept = [token for token in token_ids if token != self.end_id]
        return self.tokenizer.decode(kept, skip_special_tokens=False)
