"""`etude index`, typed: what it prints, as JSON too, and what it says of what is wrong."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from etude.cli.main import main
from etude.search.syntax import cutter


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    root = tmp_path / "shop"
    root.mkdir()
    (root / "cart.py").write_text("class Cart:\n    def total(self):\n        return sum(self.prices)\n")
    (root / "long.txt").write_text("x" * 1_300_000)
    monkeypatch.chdir(root)
    return root


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["index", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_build_status_search_gc(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = told(capsys, "status")
    assert (before["files"], before["indexed"], before["stale"]) == (1, 0, 1)
    built = told(capsys, "build")
    assert (built["files"], built["read"], built["taken"], built["too_long"]) == (1, 1, 1, 1)
    assert built["cwd"] == str(project) and told(capsys, "build")["read"] == 0
    assert told(capsys, "status")["stale"] == 0
    [first, *_] = told(capsys, "search", "total of the prices")["hits"]
    assert (first["path"], first["first"], first["last"]) == ("cart.py", 2, 3) and "def total" in first["text"]
    report = told(capsys, "gc", "--most-mb", "0")
    assert (report["before"]["contents"], report["after"]["contents"]) == (1, 0)


def test_a_person_reads_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "build"]) == 0
    assert "1 files, 1 of them new or changed" in capsys.readouterr().out
    assert main(["index", "status"]) == 0
    assert "1 of 1 files are indexed; up to date" in capsys.readouterr().out
    assert main(["index", "search", "total", "--limit", "1"]) == 0
    assert capsys.readouterr().out.startswith("cart.py:2-3\n    def total(self):")
    assert main(["index", "gc", "--most-mb", "0"]) == 0
    assert capsys.readouterr().out.startswith("forgot 1 workspaces and 1 contents")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("build", "--dir", "none"), "none: no such directory"),
        (("search", "x", "--limit", "0"), "ask for one piece at least"),
        (("gc", "--most-mb", "-1"), "name a size"),
        (("search", " "), "the question is blank"),
        (("status", "--dir", "cart.py"), "cart.py: is no directory"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", *words]) == 42
    assert said in capsys.readouterr().err


def test_what_is_too_long_is_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But not code that a grammar cuts, nor what has no pieces by its name."""
    for name, size in (("words.txt", 300_000), ("table.csv", 300_000)):
        (project / name).write_text("zebra " * (size // 6))
    (project / "wide.py").write_text("def zebra_class():\n    return 1\n\n\n" * 9_000)
    assert told(capsys, "build")["too_long"] == told(capsys, "status")["too_long"] == 2
    hits = {hit["path"] for hit in told(capsys, "search", "zebra class")["hits"]}
    assert "wide.py" in hits and hits.isdisjoint({"words.txt", "table.csv"})
    for words in ("build", "status"):
        assert main(["index", words]) == 0
        assert "2 too long for a search by words; a grep reads them" in capsys.readouterr().out


def test_a_question_of_several_words_needs_no_quotes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "search", "total", "prices") == told(capsys, "search", "total prices")


def test_without_grammars_a_build_says_what_brings_them(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["index", "build"]) == 0 and "cut by lines" not in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "semble_grammars", None)

    def gone(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("etude.search.syntax.version", gone)
    cutter.cache_clear()
    assert main(["index", "build"]) == 0
    said = capsys.readouterr().out
    cutter.cache_clear()
    assert "files are cut by lines; pip install" in said and "search" in said and "1 files, 1 of them new" in said


def test_lines_of_windows_and_odd_names_are_shown_plainly(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "a\nb.py").write_bytes(b"def zebra():\r\n    return 1\r\n")
    assert main(["index", "search", "zebra"]) == 0
    assert capsys.readouterr().out == "a\\nb.py:1-2\ndef zebra():\n    return 1\n"


def test_a_damaged_store_is_said_and_made_anew(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "build")
    [store] = (tmp_path / "cache").rglob("*.sqlite")
    store.write_bytes(b"nonsense" * 1000)
    assert main(["index", "build", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["taken"] == 1 and err.count("\n") == 1 and "made anew" in err


def test_the_user_s_file_names_an_embedder(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = told(capsys, "build")
    assert (ours["embedded"], told(capsys, "build")["embedded"]) == (2, 0)
    file = tmp_path / "config" / "etude" / "agent.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[search]\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    assert main(["index", "search", "total"]) == 0
    said = capsys.readouterr()
    assert (
        said.out.startswith("cart.py:2-3") and said.err.count("search goes by words alone: http://127.0.0.1:9/v1") == 1
    )
    status = told(capsys, "status")
    assert status["version"] != ours["version"] and (status["stale"], status["unembedded"]) == (0, 1)
    assert told(capsys, "build")["read"] == 0, "nobody embeds them, so nobody need read them"
    file.write_text('[search]\ndirectory = "nowhere"\n')
    assert main(["index", "build"]) != 0 and "nowhere is no static model" in capsys.readouterr().err
    file.write_text('[serch]\nurl = "http://127.0.0.1:9/v1"\n')
    assert main(["index", "build"]) != 0 and "serch: unknown key (did you mean search?)" in capsys.readouterr().err
    file.write_text('[search]\nlink = "x"\n')
    assert main(["index", "build"]) != 0 and "link" in capsys.readouterr().err
