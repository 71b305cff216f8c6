"""read_file, edit_file and write_file of the agent, on a real sandbox: any encoding, any size, every byte kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tool_answers import Lossy, ToolSet

from etude.environments.base import Sandbox
from etude.harness.tools import AGENT_TOOLS, ToolConfig
from etude.harness.tools.agent.text import decode

SET = ToolSet(AGENT_TOOLS)
BY_NAME, call, answers = SET.by_name, SET.call, SET.answers
FILES = {"a.py": b"one\ntwo\nthree\n", "pkg/b.py": b"def f():\n    return 1\n"}
Run = Callable[..., Any]


def test_reading_ranges(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await answers(
            sandbox,
            call("read_file", path="a.py"),
            call("read_file", path="/workspace/a.py", start="2", end="2"),
            call("read_file", path="a.py", start="3", end="99"),
            call("read_file", path="a.py", start="4"),
            call("read_file", path="a.py", start="3", end="2"),
            call("read_file", path="empty"),
            call("read_file", path="b.py"),
            call("read_file", path="pkg"),
        ) == [
            "one\ntwo\nthree",
            "two\n[lines 2-2 of 3; start=3 goes on]",
            "three",
            "error: a.py has 3 lines",
            "error: end 2 is before start 3",
            "[empty file]",
            "error: no file b.py; did you mean a.py?",
            "error: pkg: is a directory",
        ]

    in_sandbox(scenario, {**FILES, "empty": b""})


def test_large_files_are_read_a_stretch_at_a_time(in_sandbox: Run) -> None:
    large = "".join(f"line {number} é\n" for number in range(1, 20_001)).encode()

    async def scenario(sandbox: Sandbox) -> None:
        config = SmallFiles(max_observation_bytes=400)
        head, middle, end, past, binary = await answers(
            sandbox,
            call("read_file", path="large"),
            call("read_file", path="large", start="12345", end="12346"),
            call("read_file", path="large", start="20000"),
            call("read_file", path="large", start="20001"),
            call("read_file", path="zip"),
            config=config,
        )
        *shown, note = head.split("\n")
        assert shown == [f"line {number} é" for number in range(1, len(shown) + 1)] and len(shown) > 15
        assert note == f"[lines 1-{len(shown)} of 20000; start={len(shown) + 1} goes on]"
        assert middle == "line 12345 é\nline 12346 é\n[lines 12345-12346 of 20000; start=12347 goes on]"
        assert end == "line 20000 é"
        assert past == f"error: large has 20000 lines, {len(large)} bytes"
        assert binary.startswith("error: zip is a ZIP archive")

    in_sandbox(scenario, {"large": large, "zip": b"PK\x03\x04" + bytes(5000)})


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [
        ("utf-8", b""),
        ("utf-8", b"\xef\xbb\xbf"),
        ("utf-16-le", b"\xff\xfe"),
        ("utf-16-be", b"\xfe\xff"),
        ("latin-1", b""),
    ],
)
def test_an_edit_keeps_encoding_mark_and_line_ends(encoding: str, mark: bytes, in_sandbox: Run) -> None:
    before, after = (mark + f"café\r\n{word}\r\n".encode(encoding) for word in ("über", "größer"))

    async def scenario(sandbox: Sandbox) -> None:
        read, edited = await answers(
            sandbox, call("read_file", path="x"), call("edit_file", path="x", old="café\nüber", new="café\ngrößer")
        )
        assert read == "café\nüber" and edited == "ok, line 2 (whitespace at line ends ignored)"
        assert await sandbox.read_file("/workspace/x") == after

    in_sandbox(scenario, {"x": before})


def test_what_an_encoding_lacks_is_refused_and_broken_bytes_survive(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        refused, edited = await answers(
            sandbox,
            call("edit_file", path="latin", old="é", new="→"),
            call("edit_file", path="mixed", old="é", new="e"),
        )
        assert refused == "error: the file is in latin-1, which has no '→'; write it without"
        assert edited == "ok, line 1"
        assert await sandbox.read_file("/workspace/mixed") == b"e\xff\n"

    in_sandbox(scenario, {"latin": b"caf\xe9\n", "mixed": "é".encode() + b"\xff\n"})


def test_binaries_are_named() -> None:
    for data, kind in [
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"abc\0def", "a binary file"),
    ]:
        with pytest.raises(Exception, match=kind):
            decode(data, "x")
    assert decode(b"plain", "x").encode() == b"plain"


def test_edits(in_sandbox: Run) -> None:
    hunks = (
        "<<<<<<< SEARCH\none\n=======\n1\n>>>>>>> REPLACE\n"
        "<<<<<<< SEARCH\nthree\n=======\n3\nfour\n>>>>>>> REPLACE"
    )  # fmt: skip

    async def scenario(sandbox: Sandbox) -> None:
        assert await answers(
            sandbox,
            call("edit_file", path="a.py", hunks=hunks),
            call("edit_file", path="a.py", hunks=hunks),
            call("edit_file", path="a.py", old="1", new="2", hunks=hunks),
            call("edit_file", path="a.py", old="1"),
            call("edit_file", path="a.py", hunks="nonsense"),
            call("edit_file", path="pkg/b.py", old="  return 1", new="  x = 1\n  return x"),
            call("edit_file", path="pkg/b.py", old="x", new="y", all="true"),
            call("edit_file", path="none.py", old="x", new="y"),
        ) == [
            "ok, line 1\nok, lines 3-4",
            "error: hunk 1 of 2: old is not there (new is, at line 1), nor anything like it\n"
            "hunk 2 of 2: old is not there (new is, at line 3), nor anything like it\nnothing was changed",
            "error: give old and new, or hunks; not both",
            "error: give old and new, or hunks",
            "error: line 1 of hunks stands outside a hunk; write each as a line <<<<<<< SEARCH, the old text, a line "
            "=======, the new text, a line >>>>>>> REPLACE",
            "ok, lines 2-3 (indentation and spacing ignored)",
            "ok, lines 2-3 (in 2 places)",
            "error: no file none.py",
        ]
        assert await sandbox.read_file("/workspace/a.py") == b"1\ntwo\n3\nfour\n"
        assert await sandbox.read_file("/workspace/pkg/b.py") == b"def f():\n    y = 1\n    return y\n"
        [strict] = await answers(
            sandbox,
            call("edit_file", path="pkg/b.py", old="return y ", new="return z"),
            config=ToolConfig(edit_tolerance="exact"),
        )
        assert strict.startswith("error: old is not there") and "return y" in strict

    in_sandbox(scenario, FILES)


def test_a_write_that_did_not_arrive_whole_is_not_ok(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        lossy: Any = Lossy(sandbox)
        assert await answers(
            lossy, call("edit_file", path="a.py", old="one", new="1"), call("write_file", path="c", content="x")
        ) == [f"error: {path} does not hold what was written; another process changes it" for path in ("a.py", "c")]

    in_sandbox(scenario, FILES)


def test_writing(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await answers(
            sandbox,
            call("write_file", path="new/deep/d.py", content="x = 1"),
            call("write_file", path="a.py", content="x\ny\n"),
            call("write_file", path="big", content="x" * 2_000_000),
        ) == ["ok, 1 line", "ok, 2 lines", "error: big would have 2000001 bytes; the limit is 2000000"]
        assert await sandbox.read_file("/workspace/new/deep/d.py") == b"x = 1\n"

    in_sandbox(scenario, FILES)


class SmallFiles(ToolConfig):
    max_file_bytes = 1000
