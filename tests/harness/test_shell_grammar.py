"""Where tree-sitter-bash reads a command line otherwise than a shell: the line is mended or refused."""

from __future__ import annotations

import pytest

from etude.harness.permissions.shell import Unreadable, read_script


def test_a_lone_dash_before_a_here_document_is_the_last_word_of_its_command() -> None:
    """tree-sitter loses it."""
    for line, wanted in {
        "python3 - <<'E'\nprint(1)\nE": [("python3", "-")],
        "grep -c a - <<E | wc\na\nE": [("grep", "-c", "a", "-"), ("wc",)],
        "cd src && git commit -F - <<-E && ls\na\nE": [("cd", "src"), ("git", "commit", "-F", "-"), ("ls",)],
        'echo "$(cat - - <<E >o\nx\nE\n)"': [("echo", None), ("cat", "-", "-")],
        "a || ! b - 2<<E\nE": [("a",), ("b", "-")],
    }.items():
        words = [tuple(word.text for word in command.words) for command in read_script(line) if command.words]
        assert words == wanted, line
    for line in ("cat a > o - <<E\nE", "export - <<E\nE", "cat <<< x - <<E\nE", "cat a -<<E\nE", "cat -<<-E\nE"):
        with pytest.raises(Unreadable, match=r"what - belongs to|right before <<"):
            read_script(line)


def test_a_test_without_blanks_is_a_command_of_that_name() -> None:
    """`[["a/b" != x ]]` runs the file b in the directory `[[a`."""
    for line in ('[["a/b" != x ]]', '["a" = b ]', "[$X = a ]", "[ a != x]", "[ -docs/x ]", '[[ "a"!= x ]]'):
        with pytest.raises(Unreadable):
            read_script(line)
    for line in ("[[ a != x ]]", "[ -f x ]&&ls", '[[ -f "x" ]]; ls', "[[ ! -e x ]]"):
        assert read_script(line), line
