"""`.dockerignore`: which files of a build's context steps cannot see.

Owns the matching: later lines win, `!` takes back, a directory that matches takes everything below it along.
"""

from __future__ import annotations

import posixpath
import re

from etude.errors import ConfigError


class Ignore:
    """The patterns of one file. Paths are relative to the context."""

    def __init__(self, text: str = "") -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for line in text.splitlines():
            pattern = line.strip()
            if not pattern or pattern.startswith("#"):
                continue
            back = pattern.startswith("!")
            pattern = posixpath.normpath(pattern.removeprefix("!").strip()).lstrip("/")
            if pattern not in ("", "."):
                self._rules.append((back, glob_pattern(pattern)))
        self.takes_back = any(back for back, _ in self._rules)
        """Whether something below an ignored directory may be seen after all."""

    def ignores(self, path: str) -> bool:
        parts = path.split("/")
        places = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        ignored = False
        for back, rule in self._rules:
            if ignored == back and any(rule.fullmatch(place) for place in places):
                ignored = not back
        return ignored


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """Of Go's filepath.Match, and `**` for any number of directories."""
    done, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**", at):
            at += 2
            if pattern.startswith("/", at):
                done, at = done + "(?:.*/)?", at + 1
            else:
                done += ".*"
            continue
        character = pattern[at]
        at += 1
        if character == "*":
            done += "[^/]*"
        elif character == "?":
            done += "[^/]"
        elif character == "[" and "]" in pattern[at + 1 :]:
            end = pattern.index("]", at + 1)
            inner = pattern[at:end].replace("\\", "\\\\").replace("[", "\\[")
            done, at = f"{done}[{inner}]", end + 1
        elif character == "\\" and at < len(pattern):
            done, at = done + re.escape(pattern[at]), at + 1
        else:
            done += re.escape(character)
    try:
        return re.compile(done, re.S)
    except re.error:
        raise ConfigError(f"{pattern!r} is no pattern for paths") from None
