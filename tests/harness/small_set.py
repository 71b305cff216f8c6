"""A turn after turn through the six tools of the small set, and every byte a model is given back.

`transcript` is what `small_set.json` holds; the shipped model was trained on these bytes, so a change of them is a
decision, and `python tests/harness/small_set.py > tests/harness/small_set.json` is how it is taken.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from etude.environments.base import Sandbox, SandboxSpec
from etude.environments.namespace import NamespaceBackend
from etude.harness.prompt import render_results, system_prompt
from etude.harness.protocol import calls_of, parse_message
from etude.harness.tools import TOOLS, ToolConfig, run_calls

BY_NAME = {tool.name: tool for tool in TOOLS}
FILES = {
    "a.py": b"def f(x):\n    y = x + 1\n    return y\n\n\ndef g(x):\n    y = x + 2\n    return y\n",
    "crlf.txt": b"a  \r\nb\r\nc\r\n",
    "long.txt": "".join(f"line {number} é\n" for number in range(1, 400)).encode(),
    "bin": b"\x7fELF\0\1",
    "latin.txt": b"caf\xe9\n",
    "pkg/check.py": b"import a\nassert a.f(1) == 3\n",
}


def _call(name: str, *values: tuple[str, str]) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _edit(path: str, old: str, new: str) -> str:
    return _call("edit_file", ("path", path), ("old", old), ("new", new))


def _read(path: str, *values: tuple[str, str]) -> str:
    return _call("read_file", ("path", path), *values)


def _run(command: str) -> str:
    return _call("run_terminal_cmd", ("command", command))


TURNS: tuple[tuple[str, ...], ...] = (
    (_call("list_dir"), _call("list_dir", ("path", "pkg")), _call("list_dir", ("path", "none")), _read("a.py")),
    (_read("a.py", ("start", "2"), ("end", "3")), _read("a.py", ("start", "7")), _read("a.py", ("start", "70"))),
    (_read("a.py", ("start", "3"), ("end", "2")), _read("a"), _read("pkg"), _read("bin"), _read("latin.txt")),
    (_read("long.txt"), _read("long.txt", ("start", "395"))),
    (_edit("a.py", "    return y", "    return z"), _edit("a.py", "y = x + 3", "y = 0"), _edit("a.py", "x", "x")),
    (_edit("a.py", "y = x + 1", "y = x + 2"), _edit("a.py", "y = x + 1", "y = x + 2"), _edit("a.py", " ", "y")),
    (_edit("a.py", "def f(x):  \n    y = x + 2  ", "def f(x):\n    y = x * 3"), _read("a.py", ("end", "4"))),
    (_edit("a.py", "  def f(x):\n      y", "?"), _edit("crlf.txt", "a\nb", "1\n2\n3"), _run("cat -A crlf.txt")),
    (_edit("a.py", "def g(x):\n    y = x + 9", "?"), _edit("none.py", "a", "b")),
    (_call("write_file", ("path", "new/n.py"), ("content", "x = 1")), _read("new/n.py"), _run("cat new/n.py; exit 3")),
    (_call("write_file", ("path", "pkg"), ("content", "x")), _call("write_file", ("path", "/etc/x"), ("content", "x"))),
    (_call("grep", ("pattern", "def|assert")), _call("grep", ("pattern", "y ="), ("path", "a.py"))),
    (_call("grep", ("pattern", "nowhere")), _call("grep", ("pattern", "(")), _call("grep", ("pattern", "line"))),
    (_run("cd pkg && PYTHONPATH=.. python3 check.py 2>&1 | tail -n 1"), _run("seq 3000; echo end >&2"), _run("false")),
    (_run("sleep 30"), _run(" "), _call("no_tool"), _call("read_file"), _call("read_file", ("path", "a"), ("x", "y"))),
    (_read("a.py", ("start", "one")), "<tool_call>\nnonsense\n</tool_call>", _call("grep", ("path", "a.py"))),
)


async def transcript() -> dict[str, Any]:
    """Prompt, schemas and results."""
    backend = NamespaceBackend()
    try:
        async with asyncio.timeout(120):
            results = await _play(await backend.create(SandboxSpec(files=FILES)))
    finally:
        await backend.close()
    return {"system": system_prompt(TOOLS), "schemas": [tool.json_schema() for tool in TOOLS], "results": results}


async def _play(sandbox: Sandbox) -> list[str]:
    config = ToolConfig(max_observation_bytes=1500, command_timeout_s=2)  # the quickstart's, but for the wait
    results = []
    for turn in TURNS:
        calls = calls_of(parse_message("\n".join(turn), BY_NAME))
        done = await run_calls(calls, BY_NAME, sandbox, config, lambda index, result: None)
        results.append(render_results(result.text for result in done))
    return results


if __name__ == "__main__":
    print(json.dumps(asyncio.run(transcript()), indent=1, ensure_ascii=False))
