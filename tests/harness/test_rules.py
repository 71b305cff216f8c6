"""AGENTS.md files: found where they lie, kept word by word, read anew."""

from __future__ import annotations

from pathlib import Path

from users_git import git

from etude.harness.rules import read_rules


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_rules_of_every_level_word_by_word(tmp_path: Path) -> None:
    workspace = tmp_path / "repo" / "service"
    put(tmp_path / "AGENTS.md", "not of this repository")
    (tmp_path / "repo").mkdir()
    git(tmp_path / "repo", "init", "-q")
    put(tmp_path / "repo" / "AGENTS.md", "Top:  two  spaces stay.\n")
    put(workspace / "AGENTS.md", "Here.")
    nested = put(workspace / "a" / "b" / "AGENTS.md", "Nested é.")
    for hidden in (".venv", "node_modules", "a/b/c/d/e"):
        put(workspace / hidden / "AGENTS.md", "not this one")
    rules = read_rules(workspace)
    assert [line for line in rules.splitlines() if line.startswith("##")] == [
        "## ../AGENTS.md", "## AGENTS.md", "## a/b/AGENTS.md",
    ]  # fmt: skip
    assert "Top:  two  spaces stay." in rules and "Nested é." in rules and "not" not in rules.split("##", 1)[1]
    nested.write_text("Changed.")
    assert "Changed." in read_rules(workspace) and "Nested" not in read_rules(workspace)


def test_none_and_too_long(tmp_path: Path) -> None:
    assert read_rules(tmp_path) == ""
    put(tmp_path / "AGENTS.md", "Short.")
    put(tmp_path / "z" / "AGENTS.md", "x" * 100_000)
    rules = read_rules(tmp_path)
    assert "Short." in rules and "xxx" not in rules and rules.endswith("work below them: z/AGENTS.md")


def test_the_other_name_is_read_too_and_nothing_twice(tmp_path: Path) -> None:
    put(tmp_path / "CLAUDE.md", "Only here.")
    put(tmp_path / "both" / "AGENTS.md", "First.")
    put(tmp_path / "both" / "CLAUDE.md", "Second.")
    put(tmp_path / "same" / "AGENTS.md", "The same.\n")
    put(tmp_path / "same" / "CLAUDE.md", "The same.")
    put(tmp_path / "included" / "AGENTS.md", "Included.")
    put(tmp_path / "included" / "CLAUDE.md", "@AGENTS.md\n")
    put(tmp_path / "linked" / "AGENTS.md", "Linked to.")
    (tmp_path / "linked" / "CLAUDE.md").symlink_to("AGENTS.md")
    rules = read_rules(tmp_path)
    assert [line for line in rules.splitlines() if line.startswith("##")] == [
        "## CLAUDE.md", "## both/AGENTS.md", "## both/CLAUDE.md", "## included/AGENTS.md", "## linked/AGENTS.md",
        "## same/AGENTS.md",
    ]  # fmt: skip
    assert "Read these too" not in rules
