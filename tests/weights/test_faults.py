"""A full disk, and a store behind a network that fails; `test_chain_kills` has what kill -9 does."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server
from weight_samples import make_chain, same

from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.inspect import verify
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.store import Patience, StoreConfig
from etude.weights.subscriber import Subscriber

V = Version


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", mount], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_full_disk(small_disk: Path) -> None:
    chain = make_chain(4)
    store = open_store(small_disk)
    publisher = Publisher(store)
    publisher.publish(V(0), chain[0])
    publisher.publish(V(1), chain[1])
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass
    with pytest.raises(WeightError, match=r"disk/?: could not write .* the disk is full; .* free some space"):
        publisher.publish(V(2), chain[2])
    assert verify(store).ok
    assert Subscriber(store).latest() == 1
    filler.unlink()
    assert publisher.publish(V(2), chain[2]).kind == "delta"
    assert same(Subscriber(store).fetch(chain[1], V(1), V(2))[0], chain[2])


def test_s3_by_url(s3: S3Server) -> None:
    """The same protocol over a real socket, create-only manifests and deletions included."""
    chain = make_chain(6)
    publisher = Publisher(s3.store(), PublisherConfig(keep=2), anchor_every=2)
    for version, bits in enumerate(chain):
        publisher.publish(V(version), bits)
    assert len(s3.keys()) >= 4
    assert publisher.counters["deleted_versions"] == 3  # 0, 1, and 2, of which the anchor is left
    assert same(Subscriber(s3.store()).fetch(None, None, V(5))[0], chain[5])
    assert verify(s3.store()).ok
    with pytest.raises(WeightError, match="with root"):
        Publisher(s3.store()).publish(V(5), chain[4])


def test_failures_that_pass_are_retried(s3: S3Server) -> None:
    chain = make_chain(2)
    publisher = Publisher(s3.store())
    publisher.publish(V(0), chain[0])
    s3.failures = 3
    assert publisher.publish(V(1), chain[1]).kind == "delta"
    s3.failures = 3
    assert same(Subscriber(s3.store()).fetch(chain[0], V(0), V(1))[0], chain[1])
    assert s3.failures == 0


@pytest.mark.parametrize("damaged", [".pack", "manifest"])
def test_a_download_damaged_on_the_way_is_fetched_again(s3: S3Server, damaged: str) -> None:
    chain = make_chain(2)
    publisher = Publisher(s3.store())
    for version, bits in enumerate(chain):
        publisher.publish(V(version), bits)
    subscriber = Subscriber(s3.store())
    s3.corrupt = damaged
    assert same(subscriber.fetch(chain[0], V(0), V(1))[0], chain[1])
    assert subscriber.counters["refetches"] == 1


def test_a_store_that_keeps_failing(s3: S3Server) -> None:
    chain = make_chain(2)
    publisher = Publisher(s3.store(deadline_s=3.0))
    publisher.publish(V(0), chain[0])
    s3.failures = 1000
    with pytest.raises(DeadlineExceeded, match=r"for s3://bucket/run to write versions/00000001/.*503"):
        publisher.publish(V(1), chain[1])
    s3.failures = 0
    assert publisher.publish(V(1), chain[1]).kind == "delta"


def test_a_store_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "region": "test",
            "skip_signature": "true",
        }
        store = open_store("s3://bucket/run", StoreConfig(options=options), Patience(0.5, 0.3))
        with pytest.raises(DeadlineExceeded, match="for s3://bucket/run to list versions/"):
            Subscriber(store).latest()


def test_stores_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for url in (tmp_path / "file", f"file://{tmp_path}/file/below", "nonsense://there", "s3://"):
        with pytest.raises(WeightError, match="cannot be opened"):
            open_store(url)


def test_a_path_and_a_file_url_are_the_same_store(tmp_path: Path) -> None:
    directory = tmp_path / "a b"
    assert open_store(directory).put("versions/x", b"1", create=True)
    by_url = open_store(f"file://{tmp_path}/a%20b")
    assert by_url.get("versions/x", 10) == b"1"
    assert not by_url.put("versions/x", b"2", create=True)
    assert by_url.list("versions/") == {"versions/x": 1}
    by_url.delete("versions/x")
    by_url.delete("versions/x")
    assert not by_url.exists("versions/x")
