"""What a path and a shell's word stand for: links on the way, variables and loops put in place, names that are listed.

Owns `ways`, `listed_in` and `put_in`, which `named.py` reads with. Runs nothing, and everything is bounded.
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
_MOST_LINKS = 40


def ways(path: Path) -> Iterator[Path]:
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
    yield path.resolve()


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
    stands behind it, and the command itself is read after all else."""
    text, inner = text.replace("\\\n", " "), list[str]()
    for _ in range(4):
        inner += (match[1] or match[2] or "" for match in _SUBSTITUTED.finditer(text))
        text = _SUBSTITUTED.sub("", text)
    text = "\n".join((re.sub(r"[\"']/", "/", text), *inner))
    known: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        return known.get(match[1], match[0])

    for loop, words, name, word in _GIVEN.findall(text):
        known[loop or name] = _USED.sub(value, words or word)[:400]
    return _USED.sub(value, text)
