"""Event logs survive the disk, and a death in the middle of a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.errors import CheckpointError
from etude.harness.events import EventLog, read_events, write_events
from etude.records import Event

EVENTS = [
    Event("prompt", 0.5, {"user": "é\n\udc80\u2028"}),
    Event("end", 1.25, {"stop": "finished", "usage": {"turns": 2}}),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "s.jsonl"
    write_events(path, EVENTS[:1])
    write_events(path, EVENTS[1:])
    assert read_events(path) == EVENTS


def test_a_torn_last_line_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_events(path, EVENTS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert read_events(path) == EVENTS[:1]
    for broken in (b"[1]\n", b"{}\n", b"nonsense\n"):
        path.write_bytes(whole + broken)
        with pytest.raises(CheckpointError, match="line 3"):
            read_events(path)


@given(st.lists(st.text()))
def test_a_log_only_grows_and_tells_its_listener(texts: list[str]) -> None:
    heard: list[Event] = []
    log = EventLog(heard.append)
    for text in texts:
        log.add("tool_result", text=text)
    assert [event.data["text"] for event in log.events] == texts and tuple(heard) == log.events
    assert [event.at for event in heard] == sorted(event.at for event in heard)
