"""Every form of element, through every codec, chain and merge: what is published is what arrives, bit for bit."""

from __future__ import annotations

import contextlib
import random
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from proofs import often
from weight_samples import publisher_on, same

from etude.errors import WeightError
from etude.kernels import mxfp8, nvfp4
from etude.records import Version
from etude.weights import codecs, range_coder, rice
from etude.weights.codecs import Codec
from etude.weights.delta import check_bits
from etude.weights.forms import FORMS, Array, FormName, form_of, tagged
from etude.weights.inspect import verify
from etude.weights.manifest import Bits, root_of
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher
from etude.weights.store import Store
from etude.weights.subscriber import Subscriber

V = Version
CODERS = [
    (name, codec) for name, form in FORMS.items() for codec in Codec if codec.of(form) and codec is not Codec.EMPTY
]
HIGH = [0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF, 0x7FFF, 0x7F7F, 0xFF7F, 0x3F80]
ODD = {  # zeros, subnormals, infinities, NaNs with payloads, the largest, of both signs
    "bf16": HIGH,
    "fp32": [high << 16 | low for high in HIGH for low in (0, 1, 0x8000, 0xFFFF)],
    "e4m3": [0, 0x80, 1, 0x81, 7, 0x7E, 0xFE, 0x7F, 0xFF, 0x38],
    "e8m0": [0, 1, 126, 127, 128, 254, 255],
    "e2m1x2": [0x00, 0x08, 0x80, 0x88, 0x77, 0xFF, 0x7F, 0x17],
}


def plain(form: str) -> np.dtype:
    return np.dtype(f"u{FORMS[form].dtype.itemsize}")


def contents(form: str, shape: Any) -> st.SearchStrategy[Array]:
    most = (1 << 8 * plain(form).itemsize) - 1
    elements = st.one_of(st.sampled_from(ODD[form]), st.integers(0, most))
    return hnp.arrays(plain(form), shape, elements=elements)


@st.composite
def updated(draw: st.DrawFn, form: str, old: np.ndarray) -> np.ndarray:
    """None changed, all changed, some replaced, or some moved a little: of arrays of plain integers."""
    kind = draw(st.sampled_from(["none", "all", "replaced", "moved"]))
    if kind == "none":
        return old.copy()
    if kind == "all":
        return ~old
    which = draw(hnp.arrays(np.bool_, old.shape))
    by = hnp.arrays(old.dtype, old.shape, elements=st.sampled_from([1, 2, 16, np.iinfo(old.dtype).max]))
    other = draw(contents(form, old.shape)) if kind == "replaced" else old + draw(by)
    return np.where(which, other, old).astype(old.dtype)


@st.composite
def pairs(draw: st.DrawFn, form: str) -> tuple[Array, Array]:
    """(parent, new)."""
    parent = draw(contents(form, draw(st.integers(0, 200))))
    return parent.view(FORMS[form].dtype), draw(updated(form, parent)).view(FORMS[form].dtype)


def decoded(payload: bytes, parent: Array) -> Array:
    chunk = parent.copy()
    codecs.apply(memoryview(payload), chunk)
    return chunk


@pytest.mark.parametrize(("form", "codec"), CODERS)
@given(data=st.data())
@settings(max_examples=often(20, 60))
def test_round_trip(form: str, codec: Codec, data: st.DataObject) -> None:
    parent, new = data.draw(pairs(form))
    payload = codecs.encode_with(codec, new, parent)
    assert payload[0] == codec
    np.testing.assert_array_equal(decoded(payload, parent), new)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=80)
def test_the_choice(form: str, data: st.DataObject) -> None:
    parent, new = data.draw(pairs(form))
    small, fast = codecs.encode(new, parent), codecs.encode(new, parent, "fast")
    for encoded in (small, fast):
        np.testing.assert_array_equal(decoded(encoded.payload, parent), new)
        assert encoded.changed == np.count_nonzero(parent != new)
        assert (encoded.codec is Codec.EMPTY) == (encoded.changed == 0)
        assert len(encoded.payload) <= 1 + new.nbytes
    assert len(small.payload) <= len(fast.payload)


@pytest.mark.parametrize("form", ["e4m3", "e8m0", "e2m1x2"])
@pytest.mark.parametrize("codec", [Codec.RICE, Codec.RANGE, Codec.XOR_ZSTD])
def test_each_byte_changes_into_each(form: FormName, codec: Codec) -> None:
    old, new = (tagged(form, part.astype(np.uint8).ravel()) for part in np.meshgrid(range(256), range(256)))
    np.testing.assert_array_equal(decoded(codecs.encode_with(codec, new, old), old), new)


def test_symbols_by_their_definition() -> None:
    codes = np.array([0x00, 0x80, 0x7F, 0xFF, 0x9A], np.uint8)
    assert [hex(s) for s in FORMS["e4m3"].symbols(tagged("e4m3", codes))] == [
        "0x0",
        "0x8000",
        "0x7f",
        "0x807f",
        "0x801a",
    ]
    assert FORMS["e8m0"].symbols(tagged("e8m0", codes)).tolist() == codes.tolist()
    assert [hex(s) for s in FORMS["e2m1x2"].symbols(tagged("e2m1x2", codes[-1:]))] == ["0x8002", "0x8001"]
    assert set(FORMS) == set(get_args(FormName))


def test_golden_bytes_of_halves() -> None:
    """The high halves' second element rises by one: gap 1, as in `rice`; the low halves stay."""
    old = np.array([0x3F80_1234, 0x3F80_5678], np.uint32)
    new = old + np.array([0, 0x1_0000], np.uint32)
    payload = codecs.encode_with(Codec.HALVES, new, old)
    high = codecs.encode(np.array([0x3F80, 0x3F81], np.uint16), np.array([0x3F80, 0x3F80], np.uint16)).payload
    assert payload.hex() == "05" + len(high).to_bytes(4, "little").hex() + high.hex() + "00"
    assert codecs.encode(new, old).changed == 1


def test_symbols_that_no_element_has_are_refused() -> None:
    for form, before, after in (("e4m3", 0x7F, 0x80), ("e4m3", 0x807F, 0x8080), ("e8m0", 255, 256), ("e2m1x2", 7, 8)):
        old, new = np.array([before, before], np.uint16), np.array([after, before], np.uint16)
        byte = {0x807F: 0xFF, 7: 0x77}.get(before, before)
        chunk = tagged(form, np.full(1 if form == "e2m1x2" else 2, byte, np.uint8))
        _, stream = rice.encode(new, old, 1000)
        _, coded = range_coder.encode(new, old, 1000, FORMS[form].shift)
        for payload in (bytes([Codec.RICE]) + (stream or b""), bytes([Codec.RANGE]) + (coded or b"")):
            with pytest.raises(WeightError, match=f"makes values that {form} does not have"):
                codecs.apply(memoryview(payload), chunk.copy())


def test_codecs_of_other_forms_are_refused() -> None:
    with pytest.raises(WeightError, match="codec 5 halves does not code bf16"):
        codecs.apply(memoryview(b"\x05\0\0\0\0"), np.zeros(2, np.uint16))
    with pytest.raises(WeightError, match="codec 6 rice does not code fp32"):
        codecs.apply(memoryview(b"\x06" + bytes(11)), np.zeros(2, np.uint32))
    with pytest.raises(WeightError, match="does not code bf16"):  # halves of halves
        codecs.apply(memoryview(b"\x05\x05\0\0\0" + b"\x05\0\0\0\0" + b"\0"), np.zeros(2, np.uint32))
    with pytest.raises(WeightError, match="claims 4294967295 bytes for the first"):
        codecs.apply(memoryview(b"\x05\xff\xff\xff\xff\0\0"), np.zeros(2, np.uint32))


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=often(40, 150))
def test_hostile_payloads_write_nowhere_else(form: str, data: st.DataObject) -> None:
    parent, new = data.draw(pairs(form))
    payload = bytearray(codecs.encode(new, parent).payload + data.draw(st.binary(max_size=2)))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    arena = np.full(parent.nbytes + 128, 0xAB, np.uint8)
    chunk = arena[64 : 64 + parent.nbytes].view(parent.dtype)
    chunk[:] = parent
    with contextlib.suppress(WeightError):
        codecs.apply(memoryview(bytes(payload)), chunk)
    assert (arena[:64] == 0xAB).all()
    assert (arena[-64:] == 0xAB).all()


# --- whole chains -----------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[Bits]:
    """The versions of one set of tensors, of any forms and shapes."""
    sizes = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13]), max_size=2).map(tuple)
    layout = draw(st.lists(st.tuples(st.sampled_from(list(FORMS)), sizes), min_size=1, max_size=4))
    versions = [[draw(contents(form, shape)) for form, shape in layout]]
    for _ in range(draw(st.integers(1, 8))):
        versions.append(
            [draw(updated(form, old)).reshape(shape) for (form, shape), old in zip(layout, versions[-1], strict=True)]
        )
    return [
        {
            f"t{i}": np.asarray(a).view(FORMS[form].dtype)
            for i, ((form, _), a) in enumerate(zip(layout, bits, strict=True))
        }
        for bits in versions
    ]


def published(history: list[Bits], chunk_elements: int = 64, **settings: Any) -> Store:
    publisher = publisher_on(open_store("memory://"), chunk_elements=chunk_elements, **settings)
    for version, bits in enumerate(history):
        result = publisher.publish(V(version), bits)
        assert result.root == root_of(bits)
        assert result.raw_bytes == sum(array.nbytes for array in bits.values())
    return publisher.chain.store


SETTINGS = st.builds(
    dict,
    policy=st.sampled_from(["small", "fast"]),
    merge_over=st.sampled_from([(), (2,), (2, 4), (3, 5)]),
    anchor_every=st.sampled_from([1, 3, 100]),
)


@given(history=histories(), settled=SETTINGS, elements=st.sampled_from([1, 7, 64]), data=st.data())
@settings(max_examples=often(20, 60))
def test_any_updates_through_any_chain(
    history: list[Bits], settled: dict[str, Any], elements: int, data: st.DataObject
) -> None:
    store = published(history, elements, **settled)
    assert verify(store).ok
    subscriber, held, version = Subscriber(store), None, None
    for target in data.draw(st.lists(st.integers(0, len(history) - 1), min_size=1, max_size=6)):
        held, _ = subscriber.fetch(held, version, V(target))
        version = V(target)
        assert same(held, history[target])
        assert all(form_of(held[name]) is form_of(history[target][name]) for name in held)


@given(history=histories(), settled=SETTINGS, seed=st.integers(0, 1 << 32))
@settings(max_examples=often(8, 20))
def test_any_order_of_arrival(history: list[Bits], settled: dict[str, Any], seed: int) -> None:
    """A store that is copied to another one object by object, in any order: nothing but whole versions is ever read."""
    source, copy, rng = published(history, **settled), open_store("memory://"), random.Random(seed)
    objects = list(source.list("versions/").items())
    rng.shuffle(objects)
    for key, size in objects:
        copy.put(key, source.get(key, size))
        version = rng.randrange(len(history))
        base = rng.choice([None, rng.randrange(len(history))])
        held = (None, None) if base is None else (history[base], V(base))
        with contextlib.suppress(WeightError):
            assert same(Subscriber(copy).fetch(*held, V(version))[0], history[version])
    for version, bits in enumerate(history):
        assert same(Subscriber(copy).fetch(None, None, V(version))[0], bits)


def test_a_tensor_keeps_its_form() -> None:
    publisher = Publisher(open_store("memory://"))
    codes = np.arange(6, dtype=np.uint8)
    publisher.publish(V(0), {"w": tagged("e4m3", codes)})
    with pytest.raises(WeightError, match="w: e8m0 differs from e4m3 of version 0"):
        publisher.publish(V(1), {"w": tagged("e8m0", codes)})
    with pytest.raises(WeightError, match=r"w: weights are arrays of bits, .*e8m0.*, not uint8"):
        check_bits({"w": codes})
    roots = {root_of({"w": tagged(form, codes)}) for form in ("e4m3", "e8m0", "e2m1x2")}
    assert len(roots) == 3


def test_bits_of_another_byte_order_and_layout() -> None:
    values = np.arange(12, dtype=np.uint32).reshape(3, 4)
    foreign = {"a": values.astype(">u4"), "b": values.astype(">u2").T}
    native = {"a": values, "b": np.ascontiguousarray(values.astype(np.uint16).T)}
    assert root_of(foreign) == root_of(native)
    publisher = Publisher(open_store("memory://"))
    publisher.publish(V(0), foreign)
    assert same(Subscriber(publisher.chain.store).fetch(None, None, V(0))[0], native)


def served(weights: torch.Tensor) -> Bits:
    """What an engine multiplies by, as the kernels' quantisers write it, beside norms in fp32."""
    eight, four = mxfp8.quantise(weights), nvfp4.quantise(weights, nvfp4.matrix_scales(weights))
    return {
        "w.mxfp8.codes": tagged("e4m3", eight.codes.numpy()),
        "w.mxfp8.scales": tagged("e8m0", eight.scales.numpy()),
        "w.nvfp4.codes": tagged("e2m1x2", four.codes.numpy()),
        "w.nvfp4.scales": tagged("e4m3", four.scales.numpy()),
        "w.nvfp4.outer": four.outer.contiguous().view(torch.int32).numpy().view(np.uint32),
        "norm": weights[0, 0].contiguous().view(torch.int32).numpy().view(np.uint32),
    }


def test_the_forms_an_engine_serves() -> None:
    """Codes and scales of the kernels' own quantisers, over steps of training and a merge: the same matrices arrive."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, 48, 64, generator=generator) * 0.02
    history, matrices = [], []
    for step in range(6):
        if step:
            weights = weights + 2e-4 * torch.randn(weights.shape, generator=generator)
        if step == 3:  # what a diverged run would publish
            weights[0, 1, 2], weights[1, 2, 3], weights[1, 4, 5] = torch.nan, torch.inf, -torch.inf
        rounded = weights.bfloat16()
        history.append(served(rounded))
        matrices.append(mxfp8.dequantise(mxfp8.quantise(rounded)))
    store = published(history, 1000, merge_over=(5,), merge="always")
    late, result = Subscriber(store).fetch(history[0], V(0), V(5))
    assert result.path == (5,)
    assert same(late, history[5])
    codes, scales = (torch.from_numpy(late[f"w.mxfp8.{part}"].view(np.uint8)) for part in ("codes", "scales"))
    torch.testing.assert_close(
        mxfp8.dequantise(mxfp8.MXFP8(codes, scales)), matrices[5], rtol=0, atol=0, equal_nan=True
    )
    delta = Subscriber(store).chain.manifest(V(1))
    changed = {tensor.name: sum(chunk.changed for chunk in tensor.chunks) for tensor in delta.tensors}
    assert 0 < changed["w.nvfp4.codes"] < changed["w.mxfp8.codes"] < weights.numel() / 4
    sizes = {tensor.name: sum(chunk.size for chunk in tensor.chunks) for tensor in delta.tensors}
    assert 8 * sizes["w.mxfp8.codes"] < 10 * changed["w.mxfp8.codes"]
