"""Every message of docs/troubleshooting.md is one that the code says, letter for letter."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from page_commands import ROOT

from etude.cli.main import main

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
QUOTED = re.findall(r"^\| `(.+?)` \| ", PAGE, re.M)


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, with … where a value goes in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("{}", "…").replace("{elsewhere}", "…")


@cache
def said() -> str:
    files = sorted((ROOT / "etude").rglob("*.py"))
    return "\n".join(re.sub("…+", "…", text) for file in files for text in texts(ast.parse(file.read_text())))


@pytest.mark.parametrize("message", QUOTED)
def test_the_code_says_it(message):
    assert len(message.strip("…: ")) >= 8
    assert message in said()


def test_all_rows_are_looked_at():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(QUOTED) == len(set(QUOTED)) >= 40


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "recipes/base.toml"], "…: this is a file for `etude …`"),
        (["config", "recipes/quickstart.toml", "--set", "groups.sise=4"], "unknown key"),
        (["config", "recipes/quickstart.toml", "--set", "rollouts.sample_deadline_s=4"], "key {key} is gone: {said}"),
        (["config", "recipes/quickstart.toml", "--set", "harness.tool.lint_base=a"],
         "{key} has no effect {why}; leave it out"),
        (["bench", "run", "docs", "--solution", "1", "--out", "out"],
         "…: neither a task directory nor one of such; there is no task.toml in it"),
        (["play", "--model", "docs"], "…: no config.json there; a model directory holds it and model.safetensors"),
    ],
)  # fmt: skip
def test_a_user_reads_it(words, message, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(ROOT)
    assert message in QUOTED
    assert main([str(tmp_path / word) if word == "out" else word for word in words]) == 42
    pattern = re.sub(r"\\\{\w+\\\}|…", ".*", re.escape(message))
    assert re.search(pattern, capfd.readouterr().err)
