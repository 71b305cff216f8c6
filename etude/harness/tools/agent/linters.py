"""The linters there may be on a machine, by language: how each is asked, and what its findings look like.

Owns `LINTERS` and `Finding`. A linter reads one file, a copy under the same name; the first of a language that the
machine has is used. None of them builds or runs the project, and none of them writes.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

_ROW = re.compile(r"^[^:\n]*:(?P<line>\d+)(?::(?P<column>\d+))?:?\s+(?P<text>\S.*)$")
_PYTHON = """
import sys
try: compile(open(sys.argv[1], "rb").read(), "file", "exec", dont_inherit=True)
except (SyntaxError, ValueError) as e: print(f"file:{getattr(e, 'lineno', None) or 1}: {getattr(e, 'msg', e)}")
"""
_JSON = """
import json, sys
try: json.load(open(sys.argv[1], encoding="utf-8-sig"))
except ValueError as e: print(f"file:{getattr(e, 'lineno', 1)}: {getattr(e, 'msg', e)}")
"""


@dataclass(frozen=True)
class Linter:
    """`command` has {file}, the copy to look at, and {name}, the file's own path, both quoted."""

    name: str
    probe: str
    """A shell condition: whether it can be asked here."""
    command: str

    def on(self, file: str, name: str) -> str:
        return self.command.replace("{file}", file).replace("{name}", shlex.quote(name))


def _has(program: str) -> str:
    return f"command -v {program} >/dev/null"


_PYTHON_LINTERS = (
    Linter(
        "ruff",
        _has("ruff"),
        "ruff check --no-cache --no-fix --quiet --output-format concise --stdin-filename {name} - < {file}",
    ),
    Linter("pyflakes", "python3 -c 'import pyflakes' 2>/dev/null", "python3 -m pyflakes {file}"),
    Linter("python", _has("python3"), f"python3 -I -c {shlex.quote(_PYTHON)} {{file}}"),
)
_ESLINT = Linter(
    "eslint",
    "[ -x node_modules/.bin/eslint ]",
    "node_modules/.bin/eslint --format unix --stdin --stdin-filename {name} < {file}",
)
LINTERS: Mapping[str, tuple[Linter, ...]] = {
    "py": _PYTHON_LINTERS,
    "pyi": _PYTHON_LINTERS,
    "js": (_ESLINT, Linter("node", _has("node"), "node --check {file} 2>&1 | sed -n '1p;/Error/p' | paste -sd' '")),
    "jsx": (_ESLINT,),
    "ts": (_ESLINT,),
    "tsx": (_ESLINT,),
    "go": (Linter("gofmt", _has("gofmt"), "gofmt -e {file} 2>&1 >/dev/null"),),
    "sh": (
        Linter("shellcheck", _has("shellcheck"), "shellcheck -f gcc {file}"),
        Linter("sh", _has("sh"), "sh -n {file} 2>&1 | sed -E 's/^[^:]*: (line )?([0-9]+): /file:\\2: /'"),
    ),
    "json": (Linter("json", _has("python3"), f"python3 -I -c {shlex.quote(_JSON)} {{file}}"),),
    "rb": (Linter("ruby", _has("ruby"), "ruby -wc {file} 2>&1 >/dev/null"),),
    "lua": (Linter("luac", _has("luac"), "luac -p {file} 2>&1 | sed -E 's/^luac: //'"),),
}


@dataclass(frozen=True)
class Finding:
    line: int
    text: str
    source: str
    """The line it is about, without its indentation: what tells a finding that has moved from a new one."""

    @property
    def identity(self) -> tuple[str, str]:
        return self.text, self.source


def findings(output: str, source: str) -> list[Finding]:
    """What a linter said of a file, by line."""
    lines = source.split("\n")
    found = []
    for row in output.split("\n"):
        if match := _ROW.match(row):
            number = int(match["line"])
            about = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            found.append(Finding(number, match["text"].strip(), about))
    return sorted(found, key=lambda finding: (finding.line, finding.text))


def language(path: str) -> str:
    return posixpath.splitext(path)[1].removeprefix(".").lower()
