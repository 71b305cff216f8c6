"""Patterns of paths: they match what their regular expression does, and in time that their length bounds."""

from __future__ import annotations

import random
import re

from etude.harness.permissions.globs import Glob


def expression(pattern: str) -> re.Pattern[str]:
    """The same pattern as it would be written for `re`, which is slow for some."""
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("/**", at) and at + 3 == len(pattern):
            out, at = out + "(?:/.*)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(pattern[at]) or re.escape(pattern[at])
            at += 1
    return re.compile(out, re.DOTALL)


def test_it_matches_as_its_regular_expression_does() -> None:
    chance = random.Random(5)
    matched = 0
    for _ in range(4_000):
        pattern = "".join(chance.choices(("a", "b", "/", "*", "**", "?", "**/", "/**"), k=chance.randint(1, 7)))
        glob, wanted = Glob(pattern), expression(pattern)
        for _ in range(12):
            text = "".join(chance.choices("aab/\n", k=chance.randint(0, 8)))
            assert glob.matches(text) == (wanted.fullmatch(text) is not None), (pattern, text)
            matched += glob.matches(text)
            at = chance.randint(0, len(text))
            left = any(expression(each).fullmatch(text[at:]) for each in glob.left_after(text[:at]))
            assert left or not glob.matches(text), (pattern, text, at)
    assert matched > 4_000


def test_no_pattern_takes_long() -> None:
    """By a regular expression each of these would take longer than anybody lives."""
    for pattern in ("*a" * 40 + "b", "**a" * 40 + "b", "**/a*" * 40 + "b", "**/**/*a" * 30 + "b", "a?*" * 300 + "b"):
        glob = Glob(pattern)
        assert not glob.matches("a" * 4_000) and not glob.matches("a/" * 2_000)
    assert Glob("*a" * 40).matches("a" * 4_000) and Glob("**/*a" * 40).matches("a/" * 2_000 + "a" * 40)
