"""The trees that speed is measured in, and what a grep is timed beside."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import grep
from searching.trees import directory, source_tree

from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.tools.agent.indexed import Indexed


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small one, since the real one has tens of thousands of files."""
    for name, text in {"lib/a.py": "a = 1\n", "lib/b.py": "b = 2\n", "site/c.py": "c = 3\n", "site/c.so": "d"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / {"stdlib": "lib", "purelib": "site"}[name]))
    return tmp_path


def files_of(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and ".git" not in path.parts
    }


def test_what_is_named_joins_the_tree_and_no_content_comes_twice(python: Path) -> None:
    more = python / "more"
    (more / "inside").mkdir(parents=True)
    (more / "inside" / "new.py").write_text("new = 4\n")
    (more / "again.py").write_text("a = 1\n")
    plain, joined = source_tree(python / "at", 99), source_tree(python / "at", 99, [more])
    assert {Path(name).name for name in files_of(plain)} == {"a.py", "b.py", "c.py"}
    assert len(files_of(joined)) == 4 and "also-0/inside/new.py" in files_of(joined)
    assert len(files_of(source_tree(python / "at", 2, [more]))) == 2
    (joined / "left.py").write_text("")
    assert source_tree(python / "at", 99, [more]) == joined and (joined / "left.py").exists(), "an earlier run's"


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert directory(str(tmp_path)) == tmp_path
    with pytest.raises(argparse.ArgumentTypeError, match="nowhere is no directory; name one"):
        directory(str(tmp_path / "nowhere"))


def test_every_way_finds_the_line_and_one_that_fails_is_not_timed(python: Path) -> None:
    async def looked() -> dict[str, str]:
        sandbox = await open_workspace(source_tree(python / "at", 99), WorkspaceConfig())
        try:
            every = await grep.ways(sandbox, Indexed())
            with pytest.raises(RuntimeError, match=r"grep .* ended with 2: grep: "):
                await every["grep"]("(")
            return {name: await way(r"\bb = \d") for name, way in every.items()}
        finally:
            await sandbox.destroy()

    answers = asyncio.run(looked())
    installed = {name: shutil.which(name) for name in ("rg", "glep")}
    others = {name for name, path in installed.items() if path and not path.startswith("/tmp")}
    assert answers.keys() == {"indexed", "whole", "grep", *others}
    for name, answer in answers.items():
        assert "b = 2" in answer and "a = 1" not in answer, name


def test_answers_that_are_cut_are_compared_uncut(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grep.find, "_MAX_OUTPUT_BYTES", 300)

    async def looked() -> tuple[str, list[bool | None]]:
        root = source_tree(python / "at", 99)
        (root / "long.py").write_text("long = 1  # and what makes a line long\n" * 40)
        sandbox = await open_workspace(root, WorkspaceConfig())
        try:
            cut = await grep.asked(sandbox, "long", Indexed())
            same = [await grep.same_uncut(sandbox, "long", Indexed(), Indexed())]
            monkeypatch.setattr(grep, "_UNCUT", 400)
            return cut, [*same, await grep.same_uncut(sandbox, "long", Indexed(), Indexed())]
        finally:
            await sandbox.destroy()

    cut, same = asyncio.run(looked())
    assert grep._CUT in cut and same == [True, None], "the first is whole, the second is cut there too"
