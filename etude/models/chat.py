"""The chat renderer: messages to token ids that are only ever appended.

Owns `ChatRenderer`, the one form in which training, serving and bench put a conversation, and `open_chat`, which makes
it from a checkpoint's directory: with the checkpoint's own chat template and its own stop tokens, or with ours (Qwen's
`<|im_start|>role … <|im_end|>`) where it has none. What a model sampled is never re-tokenised: the renderer adds ids
after it, and decodes it for the parser. The text inside messages comes from `harness.prompt`; the templates' language
is `models.chat_template`'s.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer

from etude.errors import CheckpointError, InvalidRequest
from etude.models.chat_template import ChatTemplate, Message
from etude.models.generation import read_generation, read_template
from etude.models.tokenizer import END, TAGS, decode, encode, is_control, load_tokenizer

OURS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The frame of a model that brings none. `eos_token` is `<|im_end|>` where the tokenizer has it."""
_OF_TOOLS = {tag for tag in TAGS if not is_control(tag.encode())}
Render = Callable[[Sequence[Message]], str]
_SYSTEM, _ASKED, _SAID, _ANSWERED = "[system]", "[asked]", "[said]", "[answered]"


class ChatRenderer:
    """Implements `harness.sampler.Chat` for one tokenizer and one chat template."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None = None, eos_ids: Collection[int] = ()
    ) -> None:
        """Without a template, ours. `eos_ids` are what the checkpoint says a message ends with, the usual one first.

        Raises CheckpointError where nothing could end a message, or where the template is no frame of a transcript that
        only grows."""
        self.tokenizer = tokenizer
        self._template = template or ChatTemplate(OURS, {"eos_token": self._own_end(eos_ids)}, "Etude's own frame")
        added = tokenizer.get_added_tokens_decoder().items()
        framing = [token.content for at, token in added if (token.special and not token.single_word) or at in eos_ids]
        self._framing = tuple(tag for tag in framing if tag not in _OF_TOOLS)
        self._anchor = self._lost_space()
        self._takes_system = True
        self._takes_system = self._appends()
        if not self._takes_system and not self._appends():
            raise CheckpointError(
                f"{self._template.source}: this chat template writes earlier messages anew as a conversation grows, "
                "and a session is trained on just the tokens it was sampled with; give the checkpoint a "
                "chat_template.jinja that only appends"
            )
        end, self._end_text = self._end()
        self.end_id: int = self._first(eos_ids) if end is None else end
        self.stop_ids: frozenset[int] = frozenset((self.end_id, *eos_ids))

    # --- a conversation -----------------------------------------------------------------------------------------------

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation, up to and including the header after which the assistant writes.

        Raises InvalidRequest in the words of a template that refuses it."""
        return self._ids(lambda quoted: self._text(quoted), messages)

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        """Ids of what follows an assistant's message and its end: these messages, and the next header."""
        return self._ids(lambda quoted: self._after(quoted).removeprefix(self._end_text), messages)

    def interjection(self, text: str) -> list[int]:
        """Ids of words that a user adds just before the assistant writes; they stand before the header.

        Raises InvalidRequest where the template has no place for two messages of a user's in a row."""
        asked = [Message("user", _ASKED)]
        before = self._text(asked, reply=False)
        return self._ids(
            lambda quoted: self._behind(before, self._text([*asked, *quoted], reply=False)), [Message("user", text)]
        )

    def opening(self, system: str, user: str) -> list[int]:
        """A session's start, up to where the assistant writes."""
        return self.conversation([Message("system", system), Message("user", user)])

    def observation(self, content: str) -> list[int]:
        """What follows a finished assistant message: one user message with the tool results, then the next header."""
        return self.continuation([Message("user", content)])

    @property
    def reply(self) -> list[int]:
        """The header after which the assistant writes."""
        asked = [Message("user", _ASKED)]
        return self.encode(self._behind(self._text(asked, reply=False), self._text(asked)))

    # --- text ---------------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of text as it stands; tags in it become their tokens."""
        return encode(self.tokenizer, text)

    @cached_property
    def longest_token(self) -> int:
        """In characters: a text has at least as many tokens as this goes into it."""
        return max(map(len, self.tokenizer.get_vocab()))

    def quote(self, text: str) -> list[int]:
        """Ids of text that others wrote: a role's token spelt out in it stays text and can neither end nor open a
        message.
        """
        return self._ids(lambda quoted: quoted[0].content, [Message("user", text)])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The exact text of sampled ids, without the tokens that end a message."""
        kept = [token for token in token_ids if token not in self.stop_ids]
        text = decode(self.tokenizer, [*self._anchor, *kept])
        return text[len(decode(self.tokenizer, self._anchor)) :] if self._anchor else text

    # --- inside -------------------------------------------------------------------------------------------------------

    def _ids(self, render: Render, messages: Sequence[Message]) -> list[int]:
        """Render messages, and encode the text in pieces that part inside every framing token which a message spells:
        so it stays text."""
        mark = f"\ue000{secrets.token_hex(16)}"  # which no text holds: whoever wrote one could not know it
        quoted = [Message(message.role, self._parted(message.content, mark)) for message in messages]
        return [token for piece in render(quoted).split(mark) if piece for token in self.encode(piece)]

    def _parted(self, text: str, mark: str) -> str:
        for tag in self._framing:
            text = text.replace(tag, tag[0] + mark + tag[1:])
        return text

    def _text(self, messages: Sequence[Message], reply: bool = True) -> str:
        """The template's text. What it refuses is asked for once more, with other roles folded into the user's and
        neighbours of one role as one message: first without the system's at the start, then with it."""
        if self._takes_system:
            for shape in (messages, [*messages[:1], *_folded(messages[1:])]):
                try:
                    return self._template.render(shape, reply)
                except InvalidRequest:
                    continue
        return self._template.render(_folded(messages), reply)

    def _behind(self, before: str, whole: str) -> str:
        if not whole.startswith(before):
            raise InvalidRequest(f"{self._template.source}: this chat template cannot add a message just there")
        return whole[len(before) :]

    def _after(self, messages: Sequence[Message]) -> str:
        """What follows the words of an assistant's message."""
        said = [Message("user", _ASKED), Message("assistant", _SAID)]
        return self._text([*said, *messages]).partition(_SAID)[2]

    def _appends(self) -> bool:
        """Whether a conversation's text begins with that of its beginning, and one message is followed by the same text
        as another."""
        start = [Message("system", _SYSTEM), Message("user", _ASKED)]
        longer = [*start, Message("assistant", _ANSWERED), Message("user", _ASKED)]
        last = [Message("assistant", _SAID), Message("user", _SYSTEM)]
        whole = self._text([*longer, *last])
        same = all(whole.startswith(self._text(part, reply=False)) for part in (start, longer))
        return same and _SYSTEM in self._text(start) and whole.partition(_SAID)[2] == self._after(last[1:])

    def _end(self) -> tuple[int | None, str]:
        """The token that ends an assistant's message, by the template, and the text up to and including it."""
        after = self._after([Message("user", _ASKED)])
        found = [(after.index(tag), -len(tag), tag) for tag in self._framing if tag in after]
        if not found:
            return None, ""
        at, _, tag = min(found)
        return (None, "") if after[:at].strip() else (self.tokenizer.token_to_id(tag), after[:at] + tag)

    def _first(self, eos_ids: Collection[int]) -> int:
        if not eos_ids:
            raise CheckpointError(
                f"{self._template.source}: neither the template nor an eos_token_id says what ends a message; "
                "put eos_token_id into the checkpoint's generation_config.json"
            )
        return next(iter(eos_ids))

    def _own_end(self, eos_ids: Collection[int]) -> str:
        if self.tokenizer.token_to_id(END) is not None:
            return END
        ends = [self.tokenizer.id_to_token(token) for token in eos_ids]
        if known := [end for end in ends if end]:
            return known[0]
        raise CheckpointError(
            f"the checkpoint has no chat template, its tokenizer no {END} token, and no eos_token_id says what ends a "
            "message; put chat_template.jinja or generation_config.json beside its tokenizer.json"
        )

    def _lost_space(self) -> list[int]:
        """Tokens to decode before others, where the tokenizer takes a first word's space for no part of it."""
        words = self.encode("a a")
        alone = decode(self.tokenizer, words[-1:])
        whole = decode(self.tokenizer, words)
        return words[:1] if len(words) == 2 and whole == "a a" and alone == "a" and words[0] == words[1] else []


def _folded(messages: Sequence[Message]) -> list[Message]:
    """All that is not the assistant's as the user's, and neighbours of one role as one message."""
    said = groupby(messages, lambda each: each.role == "assistant")
    return [Message("assistant" if own else "user", "\n\n".join(each.content for each in run)) for own, run in said]


def open_chat(directory: Path, tokenizer: Tokenizer | None = None) -> ChatRenderer:
    """The renderer of a checkpoint: its own template and stop tokens, or ours. Raises CheckpointError."""
    tokenizer = tokenizer or load_tokenizer(directory)
    eos = read_generation(directory, tokenizer).eos_ids
    return ChatRenderer(tokenizer, read_template(directory), eos)
