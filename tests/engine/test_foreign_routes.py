"""Routes of other engines: every encoding says the same, and what cannot be right is refused."""

import base64
import io

import numpy as np
import pytest

from etude.engine.foreign.routes import BadRoutes, RouteShape, concatenate_routes, decode_routes

QWEN = RouteShape(layers=3, moe_layers=(0, 1, 2), experts=128, experts_per_token=2)
DEEPSEEK = RouteShape(layers=4, moe_layers=(1, 2, 3), experts=384, experts_per_token=2)


def b64(raw):
    return base64.b64encode(raw).decode()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return b64(buffer.getvalue())


def table(array, **more):
    return {"data": b64(array.tobytes()), "shape": list(array.shape), **more}


def drawn(shape, positions, dtype=np.int32):
    size = (positions, len(shape.moe_layers), shape.experts_per_token)
    return np.random.default_rng(0).integers(0, shape.experts, size).astype(dtype)


@pytest.mark.parametrize("shape", [QWEN, DEEPSEEK])
@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int32])
def test_every_encoding_says_the_same(shape, dtype):
    routes = drawn(shape, 7, dtype)
    every_layer = np.zeros((7, shape.layers, 2), "<i4")
    every_layer[:, list(shape.moe_layers)] = routes
    sent = [
        npy(routes), npy(every_layer), routes.tolist(), table(routes, dtype=str(routes.dtype), start=0), table(routes),
        b64(every_layer.tobytes()), concatenate_routes(routes[:4].tolist(), npy(routes[4:])),
    ]  # fmt: skip
    for value in sent:
        decoded = decode_routes(value, shape, 7)
        assert decoded.dtype == (np.uint8 if shape is QWEN else np.uint16)
        assert np.array_equal(decoded, routes)
        assert np.array_equal(decode_routes(value, shape, 6), routes[:6])  # of the last token: it predicts nothing


def test_a_dense_layer_of_sglang_is_no_layer_of_routes():
    every_layer = np.full((2, 4, 2), 9, "<i4")
    every_layer[:, 0] = 0
    assert (decode_routes(b64(every_layer.tobytes()), DEEPSEEK, 2) == 9).all()


GOOD = drawn(QWEN, 5)


@pytest.mark.parametrize(
    ("value", "positions", "said"),
    [
        (npy(GOOD), 8, "5 positions came for 8"),
        (npy(GOOD), 3, "5 positions came for 3"),
        (npy(GOOD + 128), 5, "a model that has 128"),
        (npy(-GOOD - 1), 5, "a model that has 128"),
        (npy(GOOD[:, :2]), 5, r"\[5, 2, 2\]"),
        (npy(GOOD.astype(float)), 5, "not integers"),
        (b64(GOOD.tobytes()[:-4]), 5, "no rows of 3 layers"),
        (b64(GOOD.tobytes()[:-1]), 5, "cut off"),
        (npy(GOOD)[:40], 5, "npy"),
        ("§§", 5, "not base64"),
        (table(GOOD, start=3), 5, "start at position 3"),
        (table(GOOD, dtype="uint8"), 5, "numbers of type uint8"),
        ({"shape": [5, 3, 2]}, 5, "without 'data'"),
        ([[[0, 1]], [[0]]], 2, "unequal lengths"),
    ],
)
def test_what_cannot_be_right_is_refused(value, positions, said):
    with pytest.raises(BadRoutes, match=said):
        decode_routes(value, QWEN, positions)
