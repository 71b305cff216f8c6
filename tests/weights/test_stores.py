"""Large objects in blocks, and remote stores that are slow, dead, torn or asked by another protocol."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from s3_server import S3Server

from etude.errors import DeadlineExceeded, WeightError
from etude.weights.blocks import Wanted, read_spans
from etude.weights.opening import open_store
from etude.weights.store import Patience, Store, StoreConfig

KEY = "versions/00000001/large.pack"


def read(store: Store, size: int, spans: list[tuple[int, int]]) -> list[memoryview]:
    [found] = read_spans(store, [Wanted(KEY, size, spans)])
    return found


def content(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("block", [1 << 10, 3000, 1 << 20])
def test_spans_are_what_they_say(tmp_path: Path, block: int) -> None:
    data = content(20_000)
    store = open_store(tmp_path, StoreConfig(block_bytes=block))
    store.put(KEY, data)
    rng = np.random.default_rng(block)
    for count in (0, 1, 2, 5, 40):
        edges = np.sort(rng.integers(0, len(data) + 1, (count, 2)), axis=1)
        spans = [(int(start), int(stop)) for start, stop in edges] + [(0, 0), (len(data), len(data))]
        found = read(store, len(data), spans)
        assert [bytes(view) for view in found] == [data[start:stop] for start, stop in spans]


def test_only_the_blocks_of_the_spans_are_read_and_only_failures_again(s3: S3Server) -> None:
    data = content(64 << 10)
    store = s3.store(block_bytes=4 << 10)
    store.put(KEY, data)
    before = s3.reads(KEY)
    spans = [(0, 10), (9000, 9001), (12_000, 30_000)]  # blocks 0, 2, and 2 to 7
    assert [bytes(view) for view in read(store, len(data), spans)] == [data[a:b] for a, b in spans]
    assert s3.reads(KEY) - before == 7
    s3.failures = 2
    assert bytes(read(store, len(data), [(0, len(data))])[0]) == data
    failed = sum(method == "GET" and path.endswith(KEY) for method, path in s3.failed)  # not the look at its size
    assert s3.reads(KEY) - before == 7 + 16 + failed
    assert failed


def test_a_large_object_is_written_in_parts(s3: S3Server) -> None:
    data = content((11 << 20) + 5)
    store = s3.store(deadline_s=60, request_timeout_s=30, block_bytes=5 << 20)
    store.put(KEY, data)
    assert sum(method == "PUT" and path.endswith(KEY) for method, path in s3.requests) == 3
    assert store.list("versions/") == {KEY: len(data)}
    assert bytes(read(store, len(data), [(5 << 20, len(data))])[0]) == data[5 << 20 :]


def test_a_body_that_ends_early_is_read_again(s3: S3Server) -> None:
    data = content(9000)
    store = s3.store(block_bytes=4 << 10)
    store.put(KEY, data)
    s3.torn = KEY
    assert bytes(read(store, len(data), [(0, len(data))])[0]) == data
    assert s3.torn == ""
    assert s3.reads(KEY) == 4


def test_an_object_of_another_size(s3: S3Server, tmp_path: Path) -> None:
    for store in (s3.store(block_bytes=1 << 10), open_store(tmp_path, StoreConfig(block_bytes=1 << 10))):
        store.put(KEY, content(3000))
        with pytest.raises(WeightError, match="cut off: 3000 of 9000 bytes"):
            read(store, 9000, [(5000, 6000)])
        with pytest.raises(WeightError, match="has 3000 bytes, and at most 2000 were expected"):
            read(store, 2000, [(0, 10)])


def test_a_store_that_is_too_slow_is_named_and_is_used_again_when_it_is_not(s3: S3Server) -> None:
    data = content(5000)
    store = s3.store(deadline_s=1.5, request_timeout_s=0.5)
    store.put(KEY, data)
    s3.silent_s = 3.0
    with pytest.raises(DeadlineExceeded, match=rf"for s3://bucket/run to read {KEY}, bytes 0:5000"):
        read(store, len(data), [(0, len(data))])
    s3.silent_s = 0.0
    patient = s3.store(deadline_s=30)
    assert bytes(read(patient, len(data), [(0, len(data))])[0]) == data


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_every_kind_of_store_by_its_url(silent: str) -> None:
    """What is asked goes where the options say, and an endpoint that does not answer is named."""
    azure = {"account_name": "etude", "access_key": base64.b64encode(b"key").decode(), "endpoint": silent}
    for url, options in [
        ("s3://bucket/run", {"endpoint": silent, "region": "r", "skip_signature": "true"}),
        ("gs://bucket/run", {"base_url": silent, "skip_signature": "true"}),
        ("az://container/run", azure),
    ]:
        store = open_store(url, StoreConfig(options=options), Patience(0.2, 0.1))
        with pytest.raises(DeadlineExceeded, match=f"for {url} to list versions/"):
            store.list("versions/")
        with pytest.raises(DeadlineExceeded, match=f"for {url} to write {KEY}"):
            store.put(KEY, b"x", create=True)
