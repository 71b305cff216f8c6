"""Rules of a tokenizer.json that make a text longer: those of published models are taken, and no endless ones."""

import base64
import json

import pytest

from etude.errors import CheckpointError
from etude.models.shipped import shipped_model
from etude.models.tokenizer import encode, load_tokenizer


def with_rules(directory, rules):
    """A directory with the shipped tokenizer under these rules."""
    own = json.loads((shipped_model() / "tokenizer.json").read_text())
    (directory / "tokenizer.json").write_text(json.dumps(own | rules))
    return directory


TWICE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ASKED = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [ASKED, ASKED], "pair": [ASKED], "special_tokens": {}}
MAP = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"a" * 900 + b"\0").decode()
LONGER = {
    "normalizers": {"normalizer": {"type": "Sequence", "normalizers": [TWICE] * 36}},
    "rules inside rules": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Sequence", "normalizers": [TWICE] * 5}] * 2}},
    "rules without a type": {"normalizer": {"normalizers": [{"pattern": {"String": "a"}, "content": "aa"}] * 9}},
    "an expression": {"normalizer": TWICE | {"pattern": {"Regex": ""}, "content": "a" * 300}},
    "what is put in front": {"normalizer": {"type": "Prepend", "prepend": "a" * 300}},
    "a table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": MAP}},
    "bytes of bytes": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 36}},
    "parts together": {"normalizer": {"type": "Sequence", "normalizers": [TWICE] * 5},
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 2}},
    "copies": {"post_processor": {"type": "Sequence", "processors": [TEMPLATE] * 36}},
    "decoders": {"decoder": {"type": "Sequence", "decoders": [TWICE] * 36}},
    "a blank at each letter": {"decoder": {"decoders": [{"type": "BPEDecoder", "suffix": ""}] * 36}},
}  # fmt: skip


@pytest.mark.parametrize("what", LONGER)
def test_rules_that_make_a_text_longer_and_longer_are_refused_before_they_are_used(what, tmp_path):
    """Beyond all memory the library ends the process, at times while it loads: a token's own text is normalised."""
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: its rules can make a text more than 256 times as long; "
    ):
        load_tokenizer(with_rules(tmp_path, LONGER[what]))


SPACE = "\u2581"


@pytest.mark.parametrize(
    "rules",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": SPACE}, TWICE | {"pattern": {"String": " "}, "content": SPACE}]}},
        {"normalizer": {"type": "NFKC"}, "pre_tokenizer": {
            "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}},
        {"normalizer": {"type": "NFC"}, "post_processor": {"type": "Sequence", "processors": [BYTES, TEMPLATE | {
            "single": [ASKED]}]}},
        {"decoder": {"type": "Sequence", "decoders": [
            TWICE | {"pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}},
    ],
    ids=["Llama 2", "SentencePiece", "Qwen", "decoding"],
)  # fmt: skip
def test_the_rules_of_published_models_are_taken(rules, tmp_path):
    tokenizer = load_tokenizer(with_rules(tmp_path, rules))
    assert encode(tokenizer, "def f(a):")
