"""A GGUF against the model it was made of, against transformers' own reader, and what is refused in one sentence."""

import json
import re
import sys

import pytest
import torch
from proofs import one_of_each
from test_families import GROUPED, MODELS, publish, tensors

gguf = pytest.importorskip("gguf", reason="needs the gguf extra")
from gguf_files import CONTROL, TEXT, TYPES, add_bytes, finish, quantised, write_gguf  # noqa: E402

from etude.errors import CheckpointError, ConfigError, MissingDependency  # noqa: E402
from etude.models.checkpoint import shape_of  # noqa: E402
from etude.models.config import BandsConfig  # noqa: E402
from etude.models.gguf.reading import Gguf  # noqa: E402
from etude.models.tokenizer import decode, encode, load_tokenizer  # noqa: E402
from etude.models.transfer import import_model  # noqa: E402

transformers = pytest.importorskip("transformers", reason="parity needs the dev extra")
READ = ("llama", "qwen2", "qwen3", "qwen3-moe")
QUANTISED = [kind for kind in TYPES if kind.name in {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}]

DEQUANTISED = sorted(gguf.quants._type_traits, key=lambda kind: kind.name != "Q4_K")


def made(name, directory, **settings):
    """A random model of transformers' in directory/theirs, the file beside it, and its tensors."""
    theirs = publish(name, directory / "theirs")
    stored = tensors(directory / "theirs")
    return theirs, stored, write_gguf(directory / "model.gguf", theirs, stored, **settings)


@pytest.mark.parametrize("name", READ)
def test_every_tensor_and_the_shape_come_out_as_they_were_published(name, tmp_path):
    _, stored, path = made(name, tmp_path)
    written = import_model(path, tmp_path / "out")
    found = tensors(tmp_path / "out")
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[each], stored[each].bfloat16()) for each in found)
    assert shape_of(tmp_path / "out") == shape_of(tmp_path / "theirs")
    assert written.architecture == f"{MODELS[name][0]}ForCausalLM" and written.remarks == ()


@pytest.mark.parametrize("name", READ)
@torch.no_grad()
def test_the_copy_computes_what_transformers_computes_with_the_same_file(name, tmp_path):
    """Their reader is another one: names, orientation and the order of rows are nobody's belief."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    theirs, _, path = made(name, tmp_path)
    import_model(path, tmp_path / "out")
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)["tensors"]
    theirs.load_state_dict({key: each.float().bfloat16().float() for key, each in read.items()}, strict=False)
    own = type(theirs).from_pretrained(tmp_path / "out", dtype=torch.float32)
    ids = torch.arange(100)[None]
    torch.testing.assert_close(own(ids).logits, theirs(ids).logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", one_of_each(0.5, QUANTISED), ids=lambda kind: kind.name)
def test_every_type_that_the_library_quantises_is_read(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "wide", ("Llama", {**GROUPED, "hidden_size": 64, "intermediate_size": 64}))
    _, stored, path = made("wide", tmp_path, kind=kind)
    import_model(path, tmp_path / "out")
    found = tensors(tmp_path / "out")
    turned = re.compile(r"\.[qk]_proj\.")  # quantised after their rows were turned: blocks lie along a row, so alike
    assert all(torch.equal(found[name], quantised(stored[name], kind)) for name in found)
    assert any(turned.search(name) for name in found)


@pytest.mark.parametrize(
    "kind",
    one_of_each(0.3, sorted(gguf.quants._type_traits, key=lambda kind: kind.name != "Q4_K")),
    ids=lambda k: k.name,
)
def test_every_type_that_the_library_dequantises_is_read(kind, tmp_path):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = torch.randint(0, 64, (3, 2 * 256 // block * size), generator=torch.Generator().manual_seed(0)).byte().numpy()
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("some", data, raw_dtype=kind)
    finish(writer)
    found, expected = Gguf(tmp_path / "model.gguf").tensor("some"), gguf.quants.dequantize(data, kind)
    assert found.shape == (3, 512) and len(found.unique()) > 1
    torch.testing.assert_close(found, torch.from_numpy(expected.copy()), atol=0, rtol=0)


def test_llama_3s_positions_are_told_from_what_they_make_of_channels(tmp_path):
    """llama.cpp stores a factor a channel, and not what it came from."""
    config = transformers.LlamaConfig(
        **{**GROUPED, "rope_theta": 5e5, "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}}
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs")
    plain = 1.0 / 5e5 ** (torch.arange(0, 8, 2) / 8)
    factors = plain / model.model.rotary_emb.inv_freq

    def bands(writer, factors=factors):
        writer.add_tensor("rope_freqs.weight", factors.float().numpy())

    path = write_gguf(tmp_path / "model.gguf", model, tensors(tmp_path / "theirs"), change=bands)
    import_model(path, tmp_path / "out")
    wanted = BandsConfig(factor=32.0, original_context=8192, slow=1.0, fast=4.0)
    assert shape_of(tmp_path / "out").bands == wanted and factors.max() == 32
    other = lambda writer: bands(writer, factors * 1.1)  # noqa: E731
    write_gguf(path, model, tensors(tmp_path / "theirs"), change=other)
    with pytest.raises(CheckpointError, match="no scaling of Llama 3's"):
        import_model(path, tmp_path / "other")


# --- tokenizers -------------------------------------------------------------------------------------------------------

SAMPLES = (TEXT, "the model's  tokens\r\n\t and I'LL go", "日本 — café 😀", "<|im_start|>user\nthe<|im_end|>", "")


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "gpt-2", "smollm"])
def test_bytes_become_the_tokens_that_transformers_reads_from_the_same_file(pre, tmp_path):
    _, _, path = made("qwen2", tmp_path, tokenizer=lambda writer, size: add_bytes(writer, size, pre))
    import_model(path, tmp_path / "out")
    ours = load_tokenizer(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    plain = [re.sub(r"\d", "n", text) for text in SAMPLES] if pre == "smollm" else SAMPLES  # it splits digits; they not
    for text in plain:
        assert encode(ours, text) == theirs(text, add_special_tokens=False).input_ids
    for text in SAMPLES:
        known = "".join(letter for letter in text if letter in TEXT)  # the vocabulary has no byte beside
        assert decode(ours, encode(ours, known)) == known
    assert [ours.token_to_id(token) for token in CONTROL] == [0, 1, 2]
    assert not [token for token in ours.get_vocab() if token.startswith("[PAD")]


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_a_word_that_is_a_token_is_taken_whole_where_llama_3_splits(pre, whole, tmp_path):
    """Its tokenizer.json says ignore_merges: a word in the vocabulary needs no merges."""
    tokens = lambda writer, size: add_bytes(writer, size, pre, ["xfx"])  # noqa: E731
    _, _, path = made("llama" if whole else "qwen2", tmp_path, tokenizer=tokens)
    import_model(path, tmp_path / "out")
    ours = load_tokenizer(tmp_path / "out")
    assert (encode(ours, "xfx") == [ours.token_to_id("xfx")]) == whole


def add_pieces(writer, size):
    """SentencePiece's: bytes, letters, and pieces whose scores say in which order they are merged."""
    bytes_ = [f"<0x{at:02X}>" for at in range(90)]
    letters = ["▁", *"thesokndml"]
    pieces = ["th", "▁th", "▁the", "to", "▁to", "ke", "ken", "▁token", "he", "mo", "en"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *pieces, *letters]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, *(f"[PAD{at}]" for at in range(len(tokens), size))])
    writer.add_token_types([2, 3, 3] + [6] * 90 + [1] * (len(tokens) - 93) + [5] * (size - len(tokens)))
    writer.add_token_scores([0.0] * 93 + [-float(at) for at in range(len(pieces))] + [-1e3] * (size - 93 - len(pieces)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)


def test_pieces_become_the_tokens_that_transformers_reads_from_the_same_file(tmp_path):
    _, _, path = made("llama", tmp_path, tokenizer=add_pieces)
    import_model(path, tmp_path / "out")
    ours = load_tokenizer(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in ("the tokens to the model", "them\ntokens", "the  them</s>"):
        ids = encode(ours, text)
        assert ids == theirs(text, add_special_tokens=False).input_ids and len(ids) > 2
    assert decode(ours, encode(ours, "the tokens\n")) == "the tokens\n"
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again("the").input_ids == [1, *again("the", add_special_tokens=False).input_ids]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_token_longer_than_any_is_refused_before_all_its_cuts_are_looked_at(tmp_path):
    def long(writer, size):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", *(f"[PAD{at}]" for at in range(size - 2)), "a" * 4_000_000])
        writer.add_token_types([2] + [5] * (size - 2) + [1])
        writer.add_token_scores([0.0] * size)
        writer.add_unk_token_id(0)

    _, _, path = made("llama", tmp_path, tokenizer=long)
    with pytest.raises(CheckpointError, match="a token has 4,000,000 letters"):
        import_model(path, tmp_path / "out")


def wrong_key(writer):
    writer.add_sliding_window(4096)


def part(writer):
    writer.add_uint16("split.count", 3)


def nameless(writer, size):
    pass


def strange_split(writer, size):
    add_bytes(writer, size, "wild")


def strange_kind(writer, size):
    writer.add_tokenizer_model("wordpiece")
    writer.add_token_list(["a"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"change": wrong_key}, r"qwen3\.attention\.sliding_window is 4096"),
        ({"change": part}, "one of 3 parts; join them first"),
        ({"tokenizer": nameless}, "there is no tokenizer in it"),
        ({"tokenizer": strange_split}, "splits text as 'wild'"),
        ({"tokenizer": strange_kind}, "of kind 'wordpiece'; gpt2 and llama are read"),
        ({"drop": ("blk.1.attn_q.weight",)}, r"model\.layers\.1\.self_attn\.q_proj\.weight is missing"),
        ({"drop": ("token_embd.weight",)}, "no language model"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_what_is_not_understood_is_named(settings, message, tmp_path):
    _, _, path = made("qwen3", tmp_path, **settings)
    with pytest.raises(CheckpointError, match=message) as caught:
        import_model(path, tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.gguf", "theirs"]


def test_an_architecture_that_is_not_read_is_named_beside_those_that_are(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.add_tensor("token_embd.weight", torch.zeros(4, 4).numpy())
    finish(writer)
    with pytest.raises(CheckpointError, match="'mamba'; those that are read from a GGUF are llama, qwen2, qwen3"):
        import_model(tmp_path / "model.gguf", tmp_path / "out")


def test_a_type_that_the_library_does_not_dequantise_is_named(tmp_path):
    _, _, path = made("qwen3", tmp_path, change=lambda writer: None)
    data = path.read_bytes()
    at = data.index(b"output_norm.weight") + len("output_norm.weight")
    kind = at + 4 + 8  # behind the number of dimensions and the one size
    assert data[kind : kind + 4] == bytes(4)
    path.write_bytes(data[:kind] + TYPES.I32.value.to_bytes(4, "little") + data[kind + 4 :])
    with pytest.raises(CheckpointError, match=r"output_norm\.weight is of type I32, which the gguf library"):
        import_model(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def uneven(writer, size):
    add_bytes(writer, size)
    writer.kv_data[0]["tokenizer.ggml.token_type"].value.append(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"change": lambda writer: writer.add_string("split.count", "3")}, "split.count is '3', which makes no sense"),
        ({"change": lambda writer: set_to(writer, "attention.head_count", 0)}, "num_attention_heads is 0; it must be"),
        ({"tokenizer": uneven}, "its tokenizer makes no sense .*argument 2 is longer"),
    ],
    ids=["parts", "heads", "kinds"],
)
def test_what_makes_no_sense_is_one_sentence(settings, message, tmp_path):
    _, _, path = made("qwen3", tmp_path, **settings)
    with pytest.raises(CheckpointError, match=message) as caught:
        import_model(path, tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1


def set_to(writer, key, value):
    writer.kv_data[0][f"qwen3.{key}"].value = value


def test_numbers_of_tokens_that_there_are_not_are_passed_over(tmp_path):
    _, _, path = made(
        "qwen3", tmp_path, change=lambda writer: writer.add_uint64("tokenizer.ggml.eot_token_id", 1 << 40)
    )
    assert import_model(path, tmp_path / "out").remarks == ()
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [2]


def test_an_array_that_goes_on_behind_the_end_of_its_file_is_not_waited_for(tmp_path):
    kind, counts = (3).to_bytes(4, "little"), (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    key = (1).to_bytes(8, "little") + b"a"
    array = (9).to_bytes(4, "little") + (0).to_bytes(4, "little") + (1 << 20).to_bytes(8, "little")
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + kind + counts + key + array)
    with pytest.raises(CheckpointError, match="is no whole GGUF file \\(it ends too early\\)"):
        import_model(tmp_path / "model.gguf", tmp_path / "out")


@pytest.mark.parametrize("length", [0, 3, 200, 20_000])
def test_a_file_that_is_cut_off_is_told(length, tmp_path):
    _, _, path = made("qwen3", tmp_path)
    assert path.stat().st_size > 20_000
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="is no whole GGUF file"):
        import_model(path, tmp_path / "out")


def test_without_the_library_its_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependency, match=r"^gguf is not installed: pip install .*\[gguf\]"):
        import_model(tmp_path / "model.gguf", tmp_path / "out")


def test_a_file_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.gguf: no such file"):
        import_model(tmp_path / "no.gguf", tmp_path / "out")
