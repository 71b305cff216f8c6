"""The tokenizer in a GGUF, as the tokenizer.json and the files beside it that the published model has.

Owns the two kinds that llama.cpp stores, byte-level BPE with its merges ("gpt2") and SentencePiece with its scores
("llama"), and the table of how each splits text before it merges. A split that is not known is refused: another one
would make other tokens, without a word. Renders no template (`models.chat`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)  # fmt: skip

from etude.errors import CheckpointError
from etude.models.generation import GENERATION, TEMPLATE, TOKENIZER_CONFIG
from etude.models.gguf.reading import AGAIN, Gguf

_NORMAL, _CONTROL, _OWN, _UNUSED = 1, 3, 4, 5  # of llama.cpp's token types
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3, _QWEN = _WORDS + r"\p{N}{1,3}" + _REST, _WORDS + r"\p{N}" + _REST
_SPLITS = {
    "llama-bpe": _LLAMA_3, "llama3": _LLAMA_3, "llama-v3": _LLAMA_3, "qwen2": _QWEN, "deepseek-r1-qwen": _QWEN,
}  # fmt: skip
_DIGITS = {"smollm", "starcoder", "codeshell", "refact"}
"""GPT-2's split, with every digit alone."""
_PLAIN = {"gpt-2", "gpt2"}
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_SPACE = "▁"
MOST_LETTERS = 1000
"""Of a token: what makes it is looked for at every place where it can be cut."""


def tokenizer_of(file: Gguf) -> Tokenizer:
    """Raises CheckpointError where the file has none, or one that is not known."""
    tokens = file.say("tokenizer.ggml.tokens", list)
    if not tokens:
        raise CheckpointError(
            f"{file.path}: there is no tokenizer in it (no tokenizer.ggml.tokens); take a file that has one, or the "
            "model as its maker published it"
        )
    kinds = file.say("tokenizer.ggml.token_type", list, [1] * len(tokens))
    kind = file.say("tokenizer.ggml.model", str, "")
    try:
        vocabulary = {token: at for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
        if kind == "gpt2":
            tokenizer = _byte_level(file, vocabulary)
        elif kind == "llama":
            tokenizer = _sentencepiece(file, vocabulary, tokens, kinds)
        else:
            raise CheckpointError(f"{file.path}: the tokenizer is of kind {kind[:40]!r}; gpt2 and llama are read")
        for token, at in vocabulary.items():
            if kinds[at] in (_CONTROL, _OWN):
                own = AddedToken(token, normalized=False, special=kinds[at] == _CONTROL)
                tokenizer.add_special_tokens([own]) if own.special else tokenizer.add_tokens([own])
        _begin(file, tokenizer, tokens)
    except CheckpointError:
        raise
    except Exception as error:  # the library's bare ones: a merge of tokens that there are not
        said = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{file.path}: its tokenizer makes no sense ({said}); {AGAIN}") from None
    return tokenizer


def companions_of(file: Gguf, tokenizer: Tokenizer, context: int) -> dict[str, bytes]:
    """Chat template, special tokens and what ends a message, as files beside tokenizer.json."""
    known = range(len(file.say("tokenizer.ggml.tokens", list, [])))

    def said(kind: str) -> int | None:
        at = file.say(f"tokenizer.ggml.{kind}_token_id", int)
        return at if at in known else None

    ids = {name: said(theirs) for name, theirs in _NAMED.items()}
    named = {name: tokenizer.id_to_token(at) for name, at in ids.items() if at is not None}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in named.items() if token is not None},
    }
    ends = list(dict.fromkeys(at for at in (ids["eos_token"], said("eot")) if at is not None))
    generation: dict[str, Any] = {"eos_token_id": ends} if ends else {}
    for name, key in (("bos_token", "bos_token_id"), ("pad_token", "pad_token_id")):
        generation |= {} if ids[name] is None else {key: ids[name]}
    found = {TOKENIZER_CONFIG: _json(config)} | ({GENERATION: _json(generation)} if generation else {})
    if template := file.say("tokenizer.chat_template", str, ""):
        found[TEMPLATE] = template.encode()
    return found


def _byte_level(file: Gguf, vocabulary: Mapping[str, int]) -> Tokenizer:
    merges = [tuple(each.split(" ", 1)) for each in file.say("tokenizer.ggml.merges", list, [])]
    split = file.say("tokenizer.ggml.pre", str, "")
    whole = split in _SPLITS
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), merges, ignore_merges=_SPLITS.get(split) is _LLAMA_3))
    before: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split in _DIGITS else []
    if whole:
        before = [pre_tokenizers.Split(Regex(_SPLITS[split]), "isolated")]
        if _SPLITS[split] is _QWEN:
            tokenizer.normalizer = normalizers.NFC()
    elif split not in _DIGITS | _PLAIN:
        raise CheckpointError(
            f"{file.path}: the tokenizer splits text as {split[:40]!r}, which is not known here; take the model as its "
            "maker published it"
        )
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not whole)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: Gguf, vocabulary: Mapping[str, int], tokens: list[str], kinds: list[int]) -> Tokenizer:
    scores = file.say("tokenizer.ggml.scores", list, [])
    unknown = tokens[file.say("tokenizer.ggml.unknown_token_id", int, 0)]
    words = {token: at for token, at in vocabulary.items() if kinds[at] == _NORMAL}
    if longest := [token for token in words if len(token) > MOST_LETTERS]:
        raise CheckpointError(
            f"{file.path}: a token has {len(longest[0]):,} letters, and {MOST_LETTERS:,} are more than any has; {AGAIN}"
        )
    merges = [pair for _, _, pair in sorted(_pairs(words, scores))]
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    first = file.say("tokenizer.ggml.add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if first else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if first else [])])
    return tokenizer


def _pairs(vocabulary: Mapping[str, int], scores: list[float]) -> Iterator[tuple[float, tuple[int, int], Any]]:
    """Every way in which two tokens make a third, the best score first: SentencePiece merges in this order."""
    for token, at in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                yield -scores[at], (vocabulary[left], vocabulary[right]), (left, right)


def _begin(file: Gguf, tokenizer: Tokenizer, tokens: list[str]) -> None:
    """A text begins with this token where the model's own tokenizer puts it there."""
    at = file.say("tokenizer.ggml.bos_token_id", int)
    if at is not None and file.say("tokenizer.ggml.add_bos_token", bool, False):
        token = tokens[at]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[token, "$A"], pair=[token, "$A", f"{token}:1", "$B:1"], special_tokens=[(token, at)]
        )


def _json(said: Mapping[str, Any]) -> bytes:
    return (json.dumps(said, indent=2, ensure_ascii=False) + "\n").encode()
