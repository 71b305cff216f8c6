"""grep, glob, codebase_search, read_lints and todo_write of the agent, on a real sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.harness.schema import ToolCall, check_call
from etude.harness.tools import AGENT_TOOLS, ToolConfig, run_calls
from etude.harness.tools.agent.linters import findings
from etude.harness.tools.agent.listing import expression
from etude.harness.tools.agent.todo import Todo, parse_todos

BY_NAME = {tool.name: tool for tool in AGENT_TOOLS}
FILES = {
    "a.py": b"import os\nimport json\n\n\ndef load(path):\n    return json.loads(open(path).read())\n",
    "pkg/b.py": b"class ParserError(Exception):\n    pass\n\n\ndef parse(text):\n    return text.split()\n",
    "pkg/c d.txt": b"Parse me\n",
    "web/app.ts": b"export function parse() {}\n",
    "node_modules/x/parse.js": b"parse\n",
    ".gitignore": b"node_modules\n",
}
Run = Callable[..., Any]


async def answer(sandbox: Sandbox, name: str, config: ToolConfig | None = None, **values: str) -> str:
    call = check_call(BY_NAME, name, list(values.items()), "")
    assert isinstance(call, ToolCall), call
    [result] = await run_calls([call], BY_NAME, sandbox, config or ToolConfig(), lambda index, result: None)
    return result.text


async def repository(sandbox: Sandbox) -> None:
    done = await sandbox.exec(
        "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm base", max_output_bytes=2000
    )
    assert done.exit_code == 0, done.output


def test_grep_searches_what_git_keeps(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await repository(sandbox)
        await sandbox.exec(
            "printf 'parse\\0' > bin; echo 'parse new' > pkg/new.py; rm -rf web; mkdir -- -d; echo x > -d/n"
        )
        assert await answer(sandbox, "grep", pattern=r"\bparse\b") == (
            "pkg/b.py:5:def parse(text):\npkg/new.py:1:parse new"
        )
        assert (
            await answer(sandbox, "grep", pattern="parse", ignore_case="true", glob="*.txt") == "pkg/c d.txt:1:Parse me"
        )
        assert await answer(sandbox, "grep", pattern="parse", path="node_modules") == "node_modules/x/parse.js:1:parse"
        assert await answer(sandbox, "grep", pattern="x", path="-d") == "-d/n:1:x"
        assert await answer(sandbox, "grep", pattern="'; touch pwned; '") == "no matches"
        assert await answer(sandbox, "grep", pattern="x", path="none") == "error: no such file or directory: none"
        assert (await answer(sandbox, "grep", pattern="a(b")).startswith("error: ")
        assert await answer(sandbox, "grep", pattern="loads", context="1") == (
            "a.py-5-def load(path):\na.py:6:    return json.loads(open(path).read())"
        )
        assert "pwned" not in [entry.name for entry in await sandbox.list_dir("/workspace")]

    in_sandbox(scenario, FILES)


@pytest.mark.parametrize("tool", ["grep", "glob", "codebase_search", "read_lints"])
def test_no_search_runs_what_the_repositorys_config_names(in_sandbox: Run, tool: str) -> None:
    """It would not be asked about. The user's own git, which is, does run it, or this shows nothing."""

    async def scenario(sandbox: Sandbox) -> None:
        await repository(sandbox)
        await sandbox.exec(
            "printf '#!/bin/sh\\ntouch /workspace/ran\\ncat\\n' > evil; chmod +x evil; mkdir -p hooks; "
            "cp evil hooks/post-index-change; git config core.fsmonitor ./evil; git config core.hooksPath ./hooks; "
            "git config filter.x=y.clean ./evil; git config filter.x=y.required true; git config diff.external ./evil; "
            "echo '*.py filter=x=y' > .git/info/attributes; touch a.py"
        )
        values = {"grep": {"pattern": "x"}, "glob": {"pattern": "*"}, "codebase_search": {"query": "x"}}.get(tool, {})
        assert not (await answer(sandbox, tool, **values)).startswith("error")
        names = [entry.name for entry in await sandbox.list_dir("/workspace")]
        assert "evil" in names and "ran" not in names
        await sandbox.exec("git status")
        assert "ran" in [entry.name for entry in await sandbox.list_dir("/workspace")]

    in_sandbox(scenario, FILES)


def test_grep_without_git_searches_all_files(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        found = await answer(sandbox, "grep", pattern="parse")
        assert found.split("\n") == [
            "node_modules/x/parse.js:1:parse", "pkg/b.py:5:def parse(text):", "web/app.ts:1:export function parse() {}",
        ]  # fmt: skip
        await sandbox.exec("seq 2000 2400 > many")
        short = await answer(sandbox, "grep", ToolConfig(max_observation_bytes=400), pattern="^2")
        *shown, note = short.split("\n")
        assert len(short) <= 400 and note == f"[{401 - len(shown)} more; narrow the pattern or the path]"
        apart = await answer(sandbox, "grep", pattern="^20(00|10)$", context="1", path="many")
        assert apart.split("\n") == ["many:1:2000", "many-2-2001", "--", "many-10-2009", "many:11:2010", "many-12-2011"]

    in_sandbox(scenario, FILES)


def test_glob(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await repository(sandbox)
        for pattern, found in [
            ("*.py", "a.py\npkg/b.py"),
            ("pkg/*", "pkg/b.py\npkg/c d.txt"),
            ("**/*.{ts,txt}", "pkg/c d.txt\nweb/app.ts"),
            ("/workspace/web/**", "web/app.ts"),
            ("[ab].py", "a.py\npkg/b.py"),
            ("[!a].py", "pkg/b.py"),
            ("*.rs", "no files"),
        ]:
            assert await answer(sandbox, "glob", pattern=pattern) == found
        assert await answer(sandbox, "glob", pattern="*", path="web") == "web/app.ts"
        assert await answer(sandbox, "glob", pattern=" ") == "error: the pattern is blank"

    in_sandbox(scenario, FILES)


def test_a_glob_is_an_expression() -> None:
    assert expression("*.py") == r"^(.*/)?[^/]*\.py$"
    assert expression("src/**/a?.c") == r"^src/(.*/)?a[^/]\.c$"
    assert expression("b/*", "src") == "^src/b/[^/]*$" and expression("src/b/*", "src") == "^src/b/[^/]*$"
    assert expression("a+(b)|{c,d*}.x") == r"^(.*/)?a\+\(b\)\|(c|d[^/]*)\.x$"


def test_codebase_search_keeps_up_with_the_files(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await repository(sandbox)
        found = await answer(sandbox, "codebase_search", query="which error is raised when parsing fails?")
        assert found.startswith("pkg/b.py:1-2\nclass ParserError(Exception):") and "node_modules" not in found
        assert await answer(sandbox, "codebase_search", query="quaternion rotation") == (
            "nothing found; try other words, or grep for a name"
        )
        await sandbox.write_file("/workspace/geo/turn.py", b"def rotate(quaternion):\n    return quaternion\n")
        assert (await answer(sandbox, "codebase_search", query="quaternion rotation")).startswith("geo/turn.py:1-2\n")
        await sandbox.exec("rm -r geo")
        assert (await answer(sandbox, "codebase_search", query="quaternion")).startswith("nothing found")
        assert (await answer(sandbox, "codebase_search", query="parse", path="web")).startswith("web/app.ts:1-1")
        assert await answer(sandbox, "codebase_search", query="  ") == "error: the query is blank"
        for path in ("nowhere", "../other", "web/none.ts"):
            for tool, asked in (("codebase_search", {"query": "parse"}), ("grep", {"pattern": "parse"})):
                said = await answer(sandbox, tool, path=path, **asked)
                assert said == f"error: no such file or directory: {path}"
        assert (await answer(sandbox, "codebase_search", query="zebra", path="web")).startswith("nothing found")
        await sandbox.write_file("/workspace/web/words.txt", b"zebra\n" * 50_000)
        note = "\n[1 files here are too long for this search; grep reads them]"
        assert (await answer(sandbox, "codebase_search", query="parse")).endswith(note)
        assert (await answer(sandbox, "codebase_search", query="zebra", path="web")).endswith(note)
        assert "too long" not in await answer(sandbox, "codebase_search", query="parse", path="pkg")

    in_sandbox(scenario, FILES)


def test_lints_are_those_of_the_change(in_sandbox: Run) -> None:
    """With whichever Python linter the sandbox has: an old fault stays silent, though its line has moved."""

    async def scenario(sandbox: Sandbox) -> None:
        old = b"import sys\n\n\ndef f(:\n    pass\n"
        await sandbox.write_file("/workspace/old.py", old)
        await repository(sandbox)
        await sandbox.write_file("/workspace/old.py", b"# a comment\n" + old)
        assert (await answer(sandbox, "read_lints")).startswith("nothing new in 1 file (")
        await sandbox.write_file("/workspace/pkg/b.py", b"def parse(text:\n    return text\n")
        await sandbox.write_file("/workspace/data.json", b'{"a": 1,}\n')
        rows = (await answer(sandbox, "read_lints")).split("\n")
        assert {row.split(":")[0] for row in rows} == {"pkg/b.py", "data.json"}
        assert all(int(row.split(":")[1]) >= 1 for row in rows)
        only = await answer(sandbox, "read_lints", path="pkg")
        assert only.split("\n") == [row for row in rows if row.startswith("pkg/")]
        everything = await answer(sandbox, "read_lints", ToolConfig(lint_base="no-such-revision"), path="old.py")
        assert everything.startswith("old.py:5: ")

    in_sandbox(scenario, FILES)


def test_lints_without_git_or_linter(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert "name a path" in await answer(sandbox, "read_lints")
        assert await answer(sandbox, "read_lints", path="pkg/c d.txt") == "no linter here for pkg/c d.txt"
        assert (await answer(sandbox, "read_lints", path="pkg/b.py")).startswith("nothing new in 1 file (")
        await repository(sandbox)
        assert await answer(sandbox, "read_lints") == "no file has changed"

    in_sandbox(scenario, FILES)


def test_findings_are_read_from_what_linters_print() -> None:
    said = "a.py:3:1: F401 `os` imported\nwarning: x\n/tmp/z/copy.go:2:5: expected '('\nfile:9: beyond\n"
    assert [(each.line, each.text, each.source) for each in findings(said, "one\ntwo\n  three\n")] == [
        (2, "expected '('", "two"),
        (3, "F401 `os` imported", "three"),
        (9, "beyond", ""),
    ]


def test_todos(in_sandbox: Run) -> None:
    items = [{"content": "read  it", "status": "completed"}, {"content": "fix it", "status": "in_progress"}, "test it"]

    async def scenario(sandbox: Sandbox) -> None:
        written = await answer(sandbox, "todo_write", todos=json.dumps(items))
        assert written == "[x] read it\n[>] fix it\n[ ] test it"
        assert parse_todos(written) == [
            Todo("read it", "completed"), Todo("fix it", "in_progress"), Todo("test it", "pending"),
        ]  # fmt: skip
        assert await answer(sandbox, "todo_write", todos="[]") == "[nothing to do]"
        assert "item 1 has no content" in await answer(sandbox, "todo_write", todos="[{}]")
        assert "item 1 has status 'done'" in await answer(
            sandbox, "todo_write", todos='[{"content": "a", "status": "done"}]'
        )

    in_sandbox(scenario)
