"""A byte-level BPE tokenizer in which the structure of a session is cheap.

Owns training, saving and loading (the published tokenizer.json of the `tokenizers` library). Roles, tool tags and
parameter headers are single tokens, newlines included; so are given whole words. Spaces are glued to the end of the
word *before* them, so that an identifier is the same tokens after `def `, in a path and in a call. Digits stand alone.
Decoding gives back the exact bytes. Also owns `encode` and `decode`, in which a stranger's tokenizer cannot bring the
process down. Knows nothing of messages (`models.chat`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from etude.durable import write_whole
from etude.errors import CheckpointError, EtudeError, InvalidRequest
from etude.models import files
from etude.models.growth import MOST, growth_of

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_TOOLS = ("read_file", "edit_file", "write_file", "list_dir", "grep", "run_terminal_cmd")
_PARAMETERS = ("path", "old", "new", "content", "pattern", "command", "start", "end")
TAGS: tuple[str, ...] = (
    END_OF_TEXT, START, END,
    "<tool_call>\n", "</tool_call>", "</function>\n", "\n</parameter>\n", "<tool_response>\n", "\n</tool_response>",
    *(f"<function={name}>\n" for name in _TOOLS),
    *(f"<parameter={name}>\n" for name in _PARAMETERS),
)  # fmt: skip

_PIECES = r"\n[ ]*|\p{N}|[\p{L}_]+ ?|[^\s_\p{L}\p{N}]+ ?|[ ]+|\s+"

_AGAIN = "copy it anew from the model's source"


def train_tokenizer(texts: Iterable[str], vocab_size: int, words: Sequence[str] = ()) -> Tokenizer:
    """Train on texts; tags and `words` get the first ids, and merges are learnt from what stands between them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(tag, normalized=False, special=True) for tag in TAGS]
        + [AddedToken(word, normalized=False, special=False, single_word=True) for word in words],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    whole = re.compile("|".join([*map(re.escape, TAGS), *(rf"\b{word}\b" for word in words)]))
    tokenizer.train_from_iterator((piece for text in texts for piece in whole.split(text) if piece), trainer)
    return tokenizer


def load_tokenizer(directory: Path) -> Tokenizer:
    """Raises CheckpointError."""
    path, data = directory / "tokenizer.json", files.read(directory, "tokenizer.json", files.LARGE)
    if data is None:
        raise CheckpointError(
            f"{path}: no such file; copy it from the model's source, or let transformers make it of the files "
            "that are there: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    with _faults(lambda fault: CheckpointError(f"{path}: not a readable tokenizer.json ({fault}); {_AGAIN}")):
        bounded = growth_of(json.loads(data)) <= MOST
        tokenizer = Tokenizer.from_buffer(data) if bounded else None
    if tokenizer is None:
        raise CheckpointError(f"{path}: its rules can make a text more than {MOST} times as long; {_AGAIN}")
    # what a trainer left in the file: it would cut every prompt, and fill every one up, without a word
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of text as it stands; tags in it become their tokens. Other threads run meanwhile.

    Raises InvalidRequest where the tokenizer's own rules fail at the text."""
    what = f"the model's tokenizer.json cannot make tokens of a text of {len(text):,} characters"
    with _faults(lambda fault: InvalidRequest(f"{what} ({fault}); {_AGAIN}")):
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def decode(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of ids, those of special tokens included. Raises InvalidRequest as `encode` does."""
    what = f"the model's tokenizer.json cannot make text of {len(token_ids):,} tokens"
    with _faults(lambda fault: InvalidRequest(f"{what} ({fault}); {_AGAIN}")):
        return tokenizer.decode(token_ids, skip_special_tokens=False)


@contextmanager
def _faults(told: Callable[[str], EtudeError]) -> Generator[None]:
    """Whatever the library raises as an error of ours: bare Exception, or its own panic, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        raise told(" ".join(str(error).split())[:500]) from None


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / "tokenizer.json", tokenizer.to_str(pretty=True).encode())


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """What each id stands for. Raises CheckpointError for a tokenizer that is not of bytes."""
    added = tokenizer.get_added_tokens_decoder()
    bytes_of = _bytes_of_characters()

    def spelt(token: int) -> bytes:
        if token in added:
            return added[token].content.encode()
        return bytes(bytes_of[each] for each in tokenizer.id_to_token(token) or "")

    try:
        return [spelt(token) for token in range(tokenizer.get_vocab_size())]
    except KeyError as error:
        raise CheckpointError(
            f"the tokenizer is not byte-level ({error} is no byte): answers cannot be held to a grammar with it"
        ) from None


def is_control(token: bytes) -> bool:
    """Whether a token frames messages, and is never part of one."""
    return token.startswith((b"<|", "<｜".encode())) and token.endswith((b"|>", "｜>".encode()))


def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE writes a byte as the character of its number where that can be seen, and the others as those from
    256 on, in order."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{chr(byte): byte for byte in seen}, **{chr(256 + at): byte for at, byte in enumerate(hidden)}}
