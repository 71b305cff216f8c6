"""What a path and a shell's word stand for: links on the way, variables and loops put in place, names that are listed.

Owns `names_of`, `listed_in` and `put_in`, which `named.py` reads with, and `RUNS`. Runs nothing, and everything is
bounded.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_SUBSTITUTED = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")
_GIVEN = re.compile(r"\bfor\s+(\w+)\s+in\s+([^;\n]{1,400})|\b(?!PATH=)(\w+)=[\"']?([\w./${}*-]{1,200})(?![\w:])")
_USED = re.compile(r"\$\{?(\w+)\}?")
RUNS = re.compile(r"python[\d.]*|node|ruby|perl|(ba|z|da|k|fi)?sh|lua|deno|bun|tsx|php|Rscript|run|exec")
"""Programs that run the file behind them."""
_TEXT_OF = re.compile(
    r"(?:\b(?:eval|\w*sh\s+-\w*c)\s+[\\\"']*(?:\$\(|`)|(?:\bsource|(?<![^\s;&|])\.)\s+<\()\s*(?:<|cat\s)([^()`;&|\n]{1,400})"
    r"|\bcat\s+([^()`;&|\n]{1,400})\|\s*(?:[\w/]{0,40}/)?\w?\w?sh\b"
)
"""Files whose text a shell is given to run."""
_FOUND = re.compile(
    r"\bfind\s+(?:-[LHP]\s+)*((?:[^\s;&|()!\\-][^\s;&|]*+\s+){1,20}+)(?:[^;&|\n]|[\\\"'];){0,400}?"
    rf"-(?:exec|ok)(?:dir)?\s+(?:(?:[\w/]{{0,40}}/)?(?:{RUNS.pattern})\s+(?:-\w+\s+)*)?[\"']?\{{\}}"
)
"""Directories of which `find` runs what it finds; not those of which it shows something."""
_MOST_LINKS = 40


def names_of(path: Path) -> Iterator[Path]:
    """A path, and what it is called behind each link on its way: who writes one of these decides what it is."""
    waiting, met = [Path(os.path.normpath(path))], set[Path]()
    while waiting and len(met) < _MOST_LINKS:
        each = waiting.pop()
        if each in met:
            continue
        met.add(each)
        yield each
        if link := next((at for at in (*reversed(each.parents), each) if at.is_symlink()), None):
            leads = link.parent / os.readlink(link) / each.relative_to(link)
            waiting.append(Path(os.path.normpath(leads)))
    yield Path(os.path.realpath(path))


def listed_in(seen: Iterable[tuple[str, list[str]]], listed: Sequence[str]) -> Iterator[str]:
    """Names at or in what is listed, and above it where that is several directories deep: any may be a link."""
    patterns = {"/".join(name.split("/")[:to]) for name in listed for to in range(1, name.count("/") + 2)}
    if not patterns:
        return
    within = "|".join(fnmatch.translate(name).removesuffix(r"\Z").replace(".*", "[^/]*") for name in sorted(patterns))
    found = re.compile(rf"(?:^|/)(?:{within})(?:/|$)", re.IGNORECASE)
    for here, names in seen:
        everything, tail = bool(found.search(here)), "/".join(here.split("/")[-2:])
        yield from (f"{here}/{name}".lstrip("/") for name in names if everything or found.search(f"{tail}/{name}"))


def put_in(text: str) -> str:
    """A shell's text with what its plain variables and loops stand for; a command's output is an empty prefix of what
    stands behind it, and the command itself is read after all else; so is what is run by way of `eval` and `find`."""
    text, inner = text.replace("\\\n", " "), list[str]()
    for _ in range(4):
        inner += (f". {word}" for match in _TEXT_OF.finditer(text) for word in (match[1] or match[2]).split())
        inner += (match[1] or match[2] or "" for match in _SUBSTITUTED.finditer(text))
        text = _SUBSTITUTED.sub("", text)
    whole = "\n".join((text, *inner))
    inner += (f"run-parts {place}" for match in _FOUND.finditer(whole) for place in match[1].split())
    text = "\n".join((re.sub(r"[\"']/", "/", text), *inner))
    known: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        return known.get(match[1], match[0])

    for loop, words, name, word in _GIVEN.findall(text):
        known[loop or name] = _USED.sub(value, words or word)[:400]
    return _USED.sub(value, text)
