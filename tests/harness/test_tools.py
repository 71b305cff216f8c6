"""The six tools in a real sandbox: what they do, what they say, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tool_answers import Lossy, ToolSet

from etude.environments.base import Sandbox
from etude.errors import SandboxError
from etude.harness.schema import MalformedCall
from etude.harness.tools import TOOLS, ToolConfig, ToolResult, run_calls
from etude.harness.tools.base import cut_lines, cut_middle, relative

SET = ToolSet(TOOLS)
BY_NAME, call, answers = SET.by_name, SET.call, SET.answers
FILES = {"a.py": b"one\ntwo\nthree\n", "pkg/b.py": b"def f():\n    return 1\n", "pkg/c.txt": b"no newline"}
Run = Callable[..., Any]


def test_read_file(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        [whole, absolute, middle, tail, none] = await answers(
            sandbox,
            call("read_file", path="a.py"),
            call("read_file", path="/workspace/./a.py"),
            call("read_file", path="a.py", start="2", end="2"),
            call("read_file", path="a.py", start="3", end="99"),
            call("read_file", path="pkg/c.txt", start="0"),
        )
        assert whole == absolute == "one\ntwo\nthree\n"
        assert (middle, tail, none) == ("two\n", "three\n", "no newline")
        assert await answers(
            sandbox,
            call("read_file", path="a"),
            call("read_file", path="zzz"),
            call("read_file", path="no/zzz"),
            call("read_file", path="pgk/b"),
            call("read_file", path="pgk/zzz"),
            call("read_file", path="pkg/b.py/b.py"),
            call("read_file", path=""),
            call("read_file", path="a.py", start="4"),
            call("read_file", path="a.py", start="3", end="2"),
            call("read_file", path="x" * 300),
            call("read_file", path="a\0b"),
        ) == [
            "error: no file a; did you mean a.py?",
            "error: no file zzz",
            "error: no file no/zzz",
            "error: no file pgk/b; did you mean pkg/b.py?",
            "error: no file pgk/zzz",
            "error: pkg/b.py/b.py: not a directory",
            "error: .: is a directory",
            "error: a.py has 3 lines",
            "error: end 2 is before start 3",
            f"error: {'x' * 300}: file name too long",
            "error: a\0b: holds a nul character",
        ]

    in_sandbox(scenario, FILES)


def test_large_and_odd_files_stay_within_bounds(in_sandbox: Run) -> None:
    lines = "".join(f"line {number} é\n" for number in range(1, 1000))
    files = {"long": lines.encode(), "wide": b"x" * 5000, "binary": b"\x7fELF\0\1", "latin": b"caf\xe9\n", "empty": b""}

    async def scenario(sandbox: Sandbox) -> None:
        config = SmallFiles(max_observation_bytes=300)
        long, rest, wide, binary, latin, empty = await answers(
            sandbox,
            call("read_file", path="long"),
            call("read_file", path="long", start="995"),
            *(call("read_file", path=name) for name in ("wide", "binary", "latin", "empty")),
            config=config,
        )
        *shown, note = long.split("\n")
        assert shown == lines.split("\n")[: len(shown)] and note == f"[cut: line {len(shown) + 1} of 999 is next]"
        assert rest == "".join(f"line {number} é\n" for number in range(995, 1000))
        assert "bytes cut" in wide and len(wide) <= 300
        assert (binary, latin, empty) == ("error: binary is a binary file of 6 bytes", "caf?\n", "")
        [edited, over] = await answers(
            sandbox,
            call("edit_file", path="latin", old="caf", new="Caf"),
            call("write_file", path="big", content="x" * 20_000),
            config=config,
        )
        assert edited == "ok" and await sandbox.read_file("/workspace/latin") == b"Caf\xe9\n"
        assert over == "error: big would have 20001 bytes; the limit is 20000"

    in_sandbox(scenario, files)


def test_edit_and_write(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await answers(
            sandbox,
            call("edit_file", path="pkg/b.py", old="return 1", new="return 2"),
            call("edit_file", path="pkg/b.py", old="return 1", new="return 2"),
            call("edit_file", path="b.py", old="x", new="y"),
            call("write_file", path="new/deep/d.py", content="x = 1"),
            call("write_file", path="new/e.py", content=""),
            call("write_file", path="pkg", content="x"),
            call("write_file", path="/etc/passwd", content="x"),
            call("write_file", path="a.py", content="\ud800"),
        ) == [
            "ok",
            "error: old is not there; new already is, at line 2",
            "error: no file b.py; did you mean a.py?",
            "ok",
            "ok",
            "error: pkg: is a directory",
            "error: /etc/passwd: permission denied",
            "error: the text cannot be encoded as UTF-8",
        ]
        assert await sandbox.read_file("/workspace/pkg/b.py") == b"def f():\n    return 2\n"
        assert await sandbox.read_file("/workspace/new/deep/d.py") == b"x = 1\n"
        assert await sandbox.read_file("/workspace/new/e.py") == b""

    in_sandbox(scenario, FILES)


def test_a_write_that_did_not_arrive_whole_is_not_ok(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        lossy: Any = Lossy(sandbox)
        assert await answers(
            lossy, call("edit_file", path="a.py", old="one", new="1"), call("write_file", path="c", content="x")
        ) == [f"error: {path} does not hold what was written; another process changes it" for path in ("a.py", "c")]

    in_sandbox(scenario, FILES)


def test_list_dir(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir empty many; cd many; touch $(seq 1000 1200)")
        root, package, empty, many, absent, file = await answers(
            sandbox,
            call("list_dir"),
            *(call("list_dir", path=path) for path in ("pkg", "empty", "many", "none", "a.py")),
            config=ToolConfig(max_observation_bytes=200),
        )
        assert (root, package, empty) == ("a.py\nempty/\nmany/\npkg/", "b.py\nc.txt", "[empty]")
        *names, note = many.split("\n")
        assert (
            names == [str(number) for number in range(1000, 1000 + len(names))] and note == f"[{201 - len(names)} more]"
        )
        assert (absent, file) == ("error: none: no such file or directory", "error: a.py: not a directory")

    in_sandbox(scenario, FILES)


def test_grep(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir .git; echo def > .git/x; printf 'def\\0' > bin; seq 2000 2400 > 'pkg/a b:1:.txt'")
        assert await answers(
            sandbox,
            call("grep", pattern="^(one|def) ?"),
            call("grep", pattern="t[hw]", path="a.py"),
            call("grep", pattern="return", path="/workspace/pkg"),
            call("grep", pattern="2[0]01$", path="pkg"),
            call("grep", pattern="'; touch /workspace/pwned; '"),
            call("grep", pattern="-n"),
            call("grep", pattern="def f("),
            call("grep", pattern="x", path="none"),
        ) == [
            "a.py:1:one\npkg/b.py:1:def f():",
            "a.py:2:two\na.py:3:three",
            "pkg/b.py:2:    return 1",
            "pkg/a b:1:.txt:2:2001",
            "no matches",
            "no matches",
            "error: Unmatched ( or \\(",
            "error: none: No such file or directory",
        ]
        assert "pwned" not in [entry.name for entry in await sandbox.list_dir("/workspace")]
        [many] = await answers(sandbox, call("grep", pattern="2"), config=ToolConfig(max_observation_bytes=400))
        *shown, note = many.split("\n")
        assert len(many) <= 400 and note == f"[{401 - len(shown)} more; narrow the pattern or the path]"
        await sandbox.exec("seq 300000 > huge")
        [huge] = await answers(sandbox, call("grep", pattern="1"))
        assert huge.endswith("[many more; narrow the pattern or the path]")

    in_sandbox(scenario, FILES)


def test_commands(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        config = ToolConfig(max_observation_bytes=400, command_timeout_s=1)
        *short, long, slow = await answers(
            sandbox,
            call("run_terminal_cmd", command="pwd; cat; echo $CI$PAGER >&2"),
            call("run_terminal_cmd", command="echo bad; exit 3"),
            call("run_terminal_cmd", command="false"),
            call("run_terminal_cmd", command="true"),
            call("run_terminal_cmd", command=" "),
            call("run_terminal_cmd", command="seq 10000; exit 1"),
            call("run_terminal_cmd", command="echo begun; sleep 30"),
            config=config,
        )
        assert short == ["/workspace\n1cat", "bad\n[exit 3]", "[exit 1]", "", "error: the command is blank"]
        assert long.startswith("1\n2\n") and long.endswith("10000\n[exit 1]") and "cut" in long and len(long) <= 400
        assert slow == "begun\n[stopped after 1 s]"

    in_sandbox(scenario)


def test_calls_of_a_turn_act_as_if_one_after_another(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        results = await answers(
            sandbox,
            call("read_file", path="a.py"),
            call("edit_file", path="a.py", old="one", new="1"),
            call("edit_file", path="/workspace/pkg/../a.py", old="two", new="2"),
            call("run_terminal_cmd", command="cat a.py; ln -s a.py link"),
            MalformedCall("no tool reed", ""),
            call("edit_file", path="link", old="three", new="3"),
            call("read_file", path="a.py"),
            call("read_file", path="link"),
        )
        assert results == [
            "one\ntwo\nthree\n",
            "ok",
            "ok",
            "1\n2\nthree",
            "error: no tool reed",
            "ok",
            *["1\n2\n3\n"] * 2,
        ]

    in_sandbox(scenario, FILES)


def test_reads_run_at_the_same_time(in_sandbox: Run) -> None:
    """One read blocks on a pipe until the other, a grep, has been seen to run; in sequence it would never end."""

    async def scenario(sandbox: Sandbox) -> None:
        await sandbox.exec("mkfifo tap")
        waiting, feeding = (call("grep", pattern="x", path=name) for name in ("tap", "a.py"))
        order: list[int] = []

        def on_result(index: int, result: ToolResult) -> None:
            order.append(index)
            if index == 1:
                feeds.append(asyncio.create_task(sandbox.exec("echo x > tap")))

        feeds: list[asyncio.Task[Any]] = []
        async with asyncio.timeout(120):
            first, second = await run_calls([waiting, feeding], BY_NAME, sandbox, ToolConfig(), on_result)
        await asyncio.gather(*feeds)
        assert order == [1, 0] and (first.text, second.text) == ("tap:1:x", "no matches")

    in_sandbox(scenario, FILES)


def test_a_dead_sandbox_is_no_answer_to_the_model(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await sandbox.destroy()
        for one in (call("read_file", path="a.py"), call("run_terminal_cmd", command="true")):
            with pytest.raises(SandboxError):
                await answers(sandbox, one, one)

    in_sandbox(scenario, FILES)


def test_paths_and_cuts() -> None:
    assert [relative(path) for path in (".", "/workspace", "/workspace/a", "./a/../b", "..", "/workspaces")] == [
        ".", ".", "a", "b", "/", "/workspaces",
    ]  # fmt: skip
    for text in ("é" * 1000, "x" * 1000, "\udc80" * 1000):
        cut = cut_middle(text, 300)
        assert len(cut.encode()) <= 300 and "bytes cut" in cut
    assert cut_middle("é" * 150, 300) == "é" * 150
    assert cut_lines(["x" * 9] * 100, 200) == 14


def test_every_tool_describes_itself() -> None:
    for tool in TOOLS:
        function = tool.json_schema()
        assert list(function["parameters"]["properties"]) == [*tool.required, *tool.optional]
        assert all(field["description"] for field in function["parameters"]["properties"].values())


class SmallFiles(ToolConfig):
    max_file_bytes = 20_000
