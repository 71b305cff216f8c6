"""A GGUF that somebody wrote to break its reader: refused in one sentence, and before it costs anything."""

import struct

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="needs the gguf extra")
transformers = pytest.importorskip("transformers", reason="the models are made by it")
from test_gguf import made, set_to  # noqa: E402

from etude.errors import CheckpointError  # noqa: E402
from etude.models.gguf import bounded  # noqa: E402
from etude.models.gguf.reading import Gguf  # noqa: E402
from etude.models.transfer import import_model  # noqa: E402


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        import_model(path, path.parent / "out")
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000 and not (path.parent / "out").exists()
    return said


def header(path, *keys):
    """A file of these keys, (name, kind of value, its bytes), and no tensors."""
    texts = [struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value for name, kind, value in keys]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + b"".join(texts) + bytes(32))
    return path


def array(kind, count, data=b""):
    return 9, struct.pack("<IQ", kind, count) + data


U8, TEXT, ARRAY = 0, 8, 9

# --- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [U8, TEXT])
def test_a_list_that_is_longer_than_any_models_is_not_looked_at(kind, tmp_path):
    path = header(tmp_path / "model.gguf", (b"x", *array(kind, bounded._ELEMENTS + 1)))
    assert "is no whole GGUF file (its lists have more than 2,097,152 entries" in refusal(path)


def test_lists_are_counted_together(tmp_path):
    half = array(U8, bounded._ELEMENTS // 2 + 1, bytes(bounded._ELEMENTS // 2 + 1))
    assert "more than 2,097,152 entries" in refusal(header(tmp_path / "model.gguf", (b"x", *half), (b"y", *half)))


def test_a_list_of_lists_is_refused(tmp_path):
    path = header(tmp_path / "model.gguf", (b"x", *array(ARRAY, 1, array(U8, 1, b"\1")[1])))
    assert "it has a list of lists" in refusal(path)


def test_a_list_of_numbers_is_read_as_one_piece_and_texts_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded, "_PARTS", 100)
    texts = b"".join(struct.pack("<Q", 2) + b"ab" for _ in range(1000))
    path = header(tmp_path / "model.gguf", (b"x", *array(U8, 1000, b"\7" * 1000)), (b"y", *array(TEXT, 1000, texts)))
    found = Gguf(path).metadata
    assert found["x"] == [7] * 1000 and found["y"] == ["ab"] * 1000


def test_a_text_that_goes_on_behind_the_end_is_refused(tmp_path):
    path = header(tmp_path / "model.gguf", (b"x", *array(TEXT, 2, struct.pack("<Q", 1 << 60))))
    assert "it ends too early" in refusal(path)


def test_more_words_than_a_model_says_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("etude.models.files.LARGE", 1000)
    path = header(tmp_path / "model.gguf", (b"x", TEXT, struct.pack("<Q", 1000) + b"a" * 1000))
    assert "says more than 1,000 bytes beside its tensors" in refusal(path)


# --- tensors ----------------------------------------------------------------------------------------------------------


def patched(path, name, shape=None, offset=None):
    """The file, with another shape or place of a tensor."""
    data = bytearray(path.read_bytes())
    at = data.index(name.encode()) + len(name)
    [count] = struct.unpack_from("<I", data, at)
    if shape is not None:
        assert len(shape) == count
        struct.pack_into(f"<{count}Q", data, at + 4, *shape[::-1])
    if offset is not None:
        struct.pack_into("<Q", data, at + 4 + 8 * count + 4, offset)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("offset", [(1 << 64) - 32, 1 << 40])
@pytest.mark.filterwarnings("error")
def test_a_tensor_that_lies_nowhere_in_the_file_is_refused(offset, tmp_path):
    _, _, path = made("qwen3", tmp_path)
    assert "is no whole GGUF file (it ends too early); download it again" in refusal(
        patched(path, "output_norm.weight", offset=offset)
    )


def test_tensors_that_lie_on_each_other_are_refused(tmp_path):
    _, _, path = made("qwen3", tmp_path)
    said = refusal(patched(patched(path, "blk.0.ffn_up.weight", offset=0), "blk.0.ffn_gate.weight", offset=32))
    assert "its tensors " in said and "lie on each other); download it again" in said


@pytest.mark.parametrize("shape", [(1 << 40, 0, 0), (1 << 32, 1 << 32, 1)])
def test_a_shape_that_no_tensor_has_is_refused(shape, tmp_path):
    stack = lambda writer: writer.add_tensor("blk.0.ffn_gate_exps.weight", np.ones((2, 2, 2), np.float32))  # noqa: E731
    _, _, path = made("qwen3", tmp_path, change=stack)
    assert "is no whole GGUF file" in refusal(patched(path, "blk.0.ffn_gate_exps.weight", shape))


@pytest.mark.parametrize(("name", "layer"), [("qwen3", 0), ("qwen3-moe", 9), ("qwen3-moe", 0)])
def test_a_stack_makes_no_more_names_than_the_model_has(name, layer, tmp_path):
    held = f"blk.{layer}.ffn_gate_exps.weight"
    stack = lambda writer: writer.add_tensor(held, np.ones((5, 2, 2), np.float32))  # noqa: E731
    _, _, path = made(name, tmp_path, change=stack, drop=[held])
    assert f"no part of the model that its metadata describes: {held}; take" in refusal(path)


def test_names_with_lines_in_them_stay_in_their_sentence(tmp_path):
    other = lambda writer: writer.add_tensor("x\n\x1b[2Jok", np.ones(2, np.float32))  # noqa: E731
    _, _, path = made("qwen3", tmp_path, change=other)
    assert "describes: x␊␛[2Jok; take the model" in refusal(path)
    _, _, path = made("qwen2", tmp_path / "key", change=lambda writer: writer.add_uint32("qwen2.e\nx", 1))
    assert "qwen2.e␊x is 1; the decoder does not know it" in refusal(path)


# --- positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1 << 62, 1 << 33, -8])
def test_factors_of_channels_are_not_made_for_heads_that_make_no_sense(channels, tmp_path):
    def change(writer):
        writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
        for key in ("attention.key_length", "attention.value_length"):
            set_to(writer, key, channels)
            writer.kv_data[0][f"qwen3.{key}"].type = gguf.GGUFValueType.INT64

    _, _, path = made("qwen3", tmp_path, change=change)
    assert "rope_freqs.weight is no scaling of Llama 3's" in refusal(path)
