"""What people are shown: the figures are the store's, and damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from weight_samples import SHAPES, make_chain

from etude.errors import WeightError
from etude.records import Version
from etude.weights.inspect import format_inspect, format_log, format_verify, inspect, log, verify
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig


def publish(directory: Path, length: int) -> list[Path]:
    publisher = Publisher(open_store(directory), PublisherConfig(anchor_every=2))
    for version, bits in enumerate(make_chain(length)):
        publisher.publish(Version(version), bits)
    return sorted((directory / "versions").iterdir())


def test_log(tmp_path: Path) -> None:
    directories = publish(tmp_path, 4)
    lines = log(open_store(tmp_path))
    assert [(line.version, line.parent) for line in lines] == [(0, None), (1, 0), (2, 1), (3, 2)]
    assert [line.root for line in lines] == [root_of(bits) for bits in make_chain(4)]
    for line, directory in zip(lines, directories, strict=True):
        stored = sum(file.stat().st_size for file in directory.iterdir())
        assert line.stored_bytes + line.extra_bytes == stored
        assert line.ratio == line.raw_bytes / line.stored_bytes
    assert [bool(line.extra_bytes) for line in lines] == [False, False, True, False]
    assert 0.02 < lines[1].changed_share < 0.08
    text = format_log(lines)
    assert len(text.splitlines()) == 6
    assert "full" in text.splitlines()[1]
    assert lines[3].root[:12] in text


def test_inspect(tmp_path: Path) -> None:
    publish(tmp_path, 2)
    detail = inspect(open_store(tmp_path), Version(1))
    assert {tensor.name: tensor.shape for tensor in detail.tensors} == SHAPES
    assert sum(tensor.payload_bytes for tensor in detail.tensors) == detail.line.payload_bytes
    assert all(set(tensor.codecs) <= {"empty", "raw", "xor_zstd", "rice", "range"} for tensor in detail.tensors)
    assert "layers.0.experts  bf16  4x16x12" in format_inspect(detail)
    with pytest.raises(WeightError, match="no such object"):
        inspect(open_store(tmp_path), Version(7))


def test_verify_names_the_damage_and_what_hangs_on_it(tmp_path: Path) -> None:
    directories = publish(tmp_path, 7)  # anchors at 2, 4 and 6
    report = verify(open_store(tmp_path))
    assert report.ok
    assert (report.versions, report.anchors) == (7, 4)
    assert format_verify(report).startswith("ok: 7 versions, 4 full copies")
    [pack] = directories[1].glob("*.pack")
    pack.write_bytes(bytes([pack.read_bytes()[0] ^ 1]) + pack.read_bytes()[1:])
    report = verify(open_store(tmp_path))
    assert [problem for problem in report.problems if "versions/00000001/" in problem]
    assert len(report.problems) == 1  # version 2 has an anchor, and everything after follows from it
    assert "corrupt" in format_verify(report)
    (directories[4] / "manifest").unlink()
    assert len(verify(open_store(tmp_path)).problems) == 1  # thinned out, as retention does: the anchor is still there
    (directories[4] / "anchor").write_bytes(b"torn")
    problems = verify(open_store(tmp_path)).problems
    assert any("version 5 starts from version 4" in problem for problem in problems)


def test_verify_checks_merged_deltas(tmp_path: Path) -> None:
    publisher = Publisher(open_store(tmp_path), PublisherConfig(merge_over=(2, 4), merge="always"))
    for version, bits in enumerate(make_chain(10)):
        publisher.publish(Version(version), bits)
    report = verify(open_store(tmp_path))
    assert report.ok
    assert (report.versions, report.anchors, report.merged) == (10, 1, 4 + 2)
    assert "6 merged deltas" in format_verify(report)
    four, eight = (tmp_path / f"versions/{version:08d}" for version in (4, 8))
    (eight / "from-00000004").write_bytes((four / "from-00000000").read_bytes())
    [problem] = verify(open_store(tmp_path)).problems[:1]
    assert "moved or replayed" in problem


def test_an_empty_store_is_not_called_sound(tmp_path: Path) -> None:
    for look in (log, verify):
        with pytest.raises(WeightError, match="no version yet"):
            look(open_store(tmp_path))
