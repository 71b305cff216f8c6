"""The file under a session: whole lines or none, one process at a time, and damage that is named."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.errors import CheckpointError
from etude.harness.events import EventLog, read_events
from etude.harness.journal import Journal

LINES = [json.dumps({"kind": "prompt", "at": at, "user": "é" * at}).encode() for at in range(3)]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_lines_are_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "home" / "s.jsonl"
    with Journal(path) as journal:
        for line in LINES[:2]:
            journal.append(line)
        assert list(journal) == LINES[:2]
    with Journal(path) as journal:
        journal.append(LINES[2])
        asyncio.run(journal.sync())
        assert list(journal) == LINES
    assert path.stat().st_mode & 0o077 == 0, "a session is its user's alone"


@given(st.integers(0, sum(len(line) + 1 for line in LINES)))
def test_whatever_was_being_written_is_cut_off(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    whole = b"".join(line + b"\n" for line in LINES)
    path = write(tmp_path_factory.mktemp("cut") / "s.jsonl", whole[:length])
    with Journal(path) as journal:
        kept = list(journal)
        assert kept == LINES[: whole[:length].count(b"\n")]
        journal.append(LINES[0])
        assert list(journal) == [*kept, LINES[0]]


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\0\n\0\n", b'{"kind": "pro\n', b"[1]\n", b"\xff\xfe\n"])
def test_garbage_after_a_power_cut_is_cut_off(tmp_path: Path, garbage: bytes) -> None:
    path = write(tmp_path / "s.jsonl", LINES[0] + b"\n" + garbage)
    with Journal(path) as journal:
        assert list(journal) == LINES[:1]


def test_a_line_longer_than_a_block_is_found_whole(tmp_path: Path) -> None:
    long = json.dumps({"kind": "prompt", "at": 0, "user": "x" * 200_000}).encode()
    path = write(tmp_path / "s.jsonl", LINES[0] + b"\n" + long + b"\n" + long[:100_000])
    with Journal(path) as journal:
        assert list(journal) == [LINES[0], long]


def test_damage_before_the_end_is_named_and_not_repaired(tmp_path: Path) -> None:
    data = LINES[0] + b"\nnonsense\n" + LINES[1] + b"\n"
    path = write(tmp_path / "s.jsonl", data)
    with Journal(path) as journal, pytest.raises(CheckpointError, match="line 2: not an event"):
        EventLog(journal=journal)
    assert path.read_bytes() == data


def test_a_disk_that_is_full_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Journal(path) as journal:
        journal.append(LINES[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(LINES[0]) + 10, limits[1]))
        try:
            with pytest.raises(CheckpointError, match=r"s\.jsonl: cannot be written .*; make room there"):
                journal.append(LINES[1])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert path.read_bytes() == LINES[0] + b"\n"
        journal.append(LINES[2])
        assert list(journal) == [LINES[0], LINES[2]]


def test_records_are_on_disk_and_listeners_are_not_told(tmp_path: Path) -> None:
    heard = []
    with Journal(tmp_path / "s.jsonl") as journal:
        log = EventLog(heard.append, journal)
        log.add("prompt", record={"ids": [1, 2]}, user="x")
        assert log.events == tuple(heard) and heard[0].data == {"user": "x"}
        [line] = journal
        assert json.loads(line)["record"] == {"ids": [1, 2]}
    assert read_events(tmp_path / "s.jsonl")[0].data == {"user": "x"}
    with Journal(tmp_path / "s.jsonl") as journal:
        assert EventLog(journal=journal).add("end", stop="finished").at >= heard[0].at
