"""Under which licence a file is, as an SPDX expression: by its own header, the LICENSE beside or above it, or what its
package says of itself; the first of these that says anything.

Owns the phrases by which known licences are told, `Licences`, which answers for the files of one tree, and
`is_permissive`. A small table and no library: those that tell licences apart bring hundreds of megabytes of texts, and
what is not known here is left out. A text that is not known is `unknown`, silence `none`, and neither is permissive.
"""

from __future__ import annotations

import json
import posixpath
import re
import tomllib
from collections.abc import Callable, Collection, Sequence
from typing import Any

PERMISSIVE = frozenset(each.lower() for each in (
    "MIT", "MIT-0", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Zlib", "BSL-1.0", "Unlicense",
    "CC0-1.0", "PSF-2.0", "Python-2.0", "PostgreSQL", "X11", "NCSA", "WTFPL", "BlueOak-1.0.0",
    "UPL-1.0", "MulanPSL-2.0",
))  # fmt: skip
"""By their identifiers, of which no case is meant (https://spdx.org/licenses)."""
UNKNOWN, NONE = "unknown", "none"
_ALSO = {
    "mit license": "MIT", "the mit license": "MIT", "expat": "MIT", "apache 2.0": "Apache-2.0", "apache2": "Apache-2.0",
    "apache license 2.0": "Apache-2.0", "apache software license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "bsd": "BSD-3-Clause", "bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause", "bsd-3": "BSD-3-Clause", "bsd 3-clause": "BSD-3-Clause", "bsd-2": "BSD-2-Clause",
    "bsd 2-clause": "BSD-2-Clause", "isc license": "ISC", "psf": "PSF-2.0",
    "python software foundation license": "PSF-2.0", "public domain": "Unlicense",
}  # fmt: skip
"""What packages write in an identifier's place."""
_TITLES = (
    ("AGPL-3.0-only", r"gnu affero general public license"), ("LGPL-2.1-only", r"gnu lesser general public license"),
    ("GPL-3.0-only", r"gnu general public license"), ("MPL-2.0", r"mozilla public license"),
    ("EPL-2.0", r"eclipse public license"), ("Apache-2.0", r"apache license,?\s+version 2\.0"),
    ("CC0-1.0", r"cc0 1\.0 universal"), ("BSL-1.0", r"boost software license"),
    ("BUSL-1.1", r"business source license"),
)  # fmt: skip
"""How a text that is one licence begins. Of versions of the GNU licences none is permissive, so they are not told."""
_PHRASES = (
    ("MIT", r"permission is hereby granted, free of charge, to any person obtaining a copy"),
    ("ISC", r"permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"),
    ("ISC", r"permission to use, copy, modify, and distribute this software for any purpose with or without fee"),
    ("BSD", r"redistribution and use in source and binary forms, with or without modification"),
    ("Unlicense", r"this is free and unencumbered software released into the public domain"),
    ("Zlib", r"altered source versions must be plainly marked as such"),
    ("PSF-2.0", r"python software foundation license version 2"),
    ("Apache-2.0", r"licensed under the apache license,? version 2\.0"),
    ("MPL-2.0", r"subject to the terms of the mozilla public license"),
    ("GPL-3.0-only", r"gnu (?:lesser |affero |library )?general public license"),
    ("CC-BY-NC-4.0", r"creative commons attribution-noncommercial|\bcc[- ]by[- ]nc\b"),
    ("CC-BY-SA-4.0", r"creative commons attribution-share ?alike|\bcc[- ]by[- ]sa\b"),
    ("PolyForm", r"polyform (?:noncommercial|small business|shield|strict)"),
    ("SSPL-1.0", r"server side public license"), ("Commons-Clause", r"commons clause"),
    ("proprietary", r"all rights reserved\.? (?:unauthori[sz]ed|confidential)|proprietary and confidential"),
)  # fmt: skip
_OF_HEADERS = (
    ("GPL-3.0-only", r"\b[al]?gpl[- ]?v?\.? ?[23](?:\.\d)?\b"),
    ("GPL-3.0-only", r"\b(?:under|licen[sc]e:?) (?:the )?(?:gnu )?[al]?gpl\b"),
)
"""How a file says it in passing. A whole licence's text speaks of others: Python's says that it is not the GPL."""
_BSD_3 = re.compile(r"neither the names? of|may not be used to endorse")
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([\w.+() \-/]+)")
_FILE = re.compile(
    r"(?:LICEN[SC]E|COPYING|UNLICENSE)"
    r"(?P<of>-[\w.+-]+?|\.(?:[al]?gpl|lesser|lib|mit|bsd|apache|mpl|isc)[\w.+-]*?)?(?:\.(?:md|txt|rst))?",
    re.IGNORECASE,
)
_RESTRICT = {"Commons-Clause", "PolyForm", "SSPL-1.0", "CC-BY-NC-4.0"}
"""What is added to another licence, and takes back what that gives."""
_TOKEN = re.compile(r"\(|\)|[\w.+:-]+|/")
_HEAD, _TITLE = 2000, 400
Read = Callable[[str], bytes | None]


class Licences:
    """Of the files of one tree. `read` gives what lies under one of its paths."""

    def __init__(self, paths: Collection[str], read: Read) -> None:
        self._read = read
        self._beside: dict[str, list[str]] = {}
        self._wheels: dict[str, list[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            if _FILE.fullmatch(name) or name in _PACKAGES:
                self._beside.setdefault(folder, []).append(name)
            elif name == "METADATA" and folder.endswith(".dist-info"):
                self._wheels.setdefault(posixpath.dirname(folder), []).append(path)
        self._of_folder: dict[str, str] = {}

    def of(self, path: str, text: str) -> str:
        return licence_of_header(text) or self._folder(posixpath.dirname(path))

    def _folder(self, folder: str) -> str:
        if folder not in self._of_folder:
            own = self._told(folder)
            above = own or not folder
            self._of_folder[folder] = (own or NONE) if above else self._folder(posixpath.dirname(folder))
        return self._of_folder[folder]

    def _told(self, folder: str) -> str | None:
        """What lies in a folder: texts before what a package says. Of LICENSE-MIT and LICENSE-APACHE one may choose."""
        names = sorted(self._beside.get(folder, ()))
        texts = [name for name in names if _FILE.fullmatch(name)]
        if texts:
            choice = all((found := _FILE.fullmatch(name)) and found["of"] for name in texts)
            of = dict.fromkeys(licence_of_text(self._text(f"{folder}/{name}".lstrip("/"))) for name in texts)
            return (" OR " if choice else " AND ").join(f"({each})" if len(of) > 1 else each for each in of)
        told = [_PACKAGES[name](self._text(f"{folder}/{name}".lstrip("/"))) for name in names]
        if len(wheel := self._wheels.get(folder, ())) == 1:  # of several nobody knows which file is whose
            told.append(_of_wheel(self._text(wheel[0])))
        return next((normalised(each) for each in told if each), None)

    def _text(self, path: str) -> str:
        return (self._read(path) or b"").decode("utf-8", "replace")


def licence_of_header(text: str) -> str | None:
    """What a file says of itself at its beginning; None where it says nothing."""
    head = text[:_HEAD]
    if said := _SPDX.findall(head):  # of several lines each holds
        each = [normalised(found.replace("*/", "").replace("-->", "")) for found in said]
        return each[0] if len(each) == 1 else " AND ".join(f"({one})" for one in each)
    told = _phrases(head, (*_PHRASES, *_OF_HEADERS))
    return " AND ".join(told) or None


def licence_of_text(text: str) -> str:
    """Of a LICENSE file: the one that it is, all that it holds, or `unknown`."""
    flat = _flat(text)
    if found := _SPDX.search(text[:_HEAD]):
        return normalised(found[1])
    for name, title in _TITLES:
        if re.search(title, flat[:_TITLE]):
            return " AND ".join([name, *(each for each in _phrases(text) if each in _RESTRICT)])
    return " AND ".join(_phrases(text)) or UNKNOWN


def _phrases(text: str, phrases: Sequence[tuple[str, str]] = _PHRASES) -> list[str]:
    flat = _flat(text)
    found = dict.fromkeys(name for name, phrase in phrases if re.search(phrase, flat))
    of_bsd = "BSD-3-Clause" if _BSD_3.search(flat) else "BSD-2-Clause"
    return [of_bsd if name == "BSD" else name for name in found]


def _flat(text: str) -> str:
    """Without layout and the marks of comments."""
    return " ".join(re.sub(r"^[\s#/*;!>-]+", " ", text, flags=re.MULTILINE).lower().split())


def normalised(expression: str) -> str:
    """As an SPDX expression, where it is one in other words; older forms ("MIT/Apache-2.0") mean a choice."""
    plain = " ".join(expression.replace("/", " OR ").split())
    return _ALSO.get(plain.lower(), plain) or UNKNOWN


def is_permissive(expression: str) -> bool:
    """Whether one may take a file under an expression as under a permissive licence: one of a choice is, or all that
    hold together are. What is no expression is not."""
    tokens = _TOKEN.findall(expression)
    if len(tokens) > 200:
        return False
    try:
        answer, rest = _any(tokens)
    except IndexError:
        return False
    return answer and not rest


def _any(tokens: list[str]) -> tuple[bool, list[str]]:
    answer, rest = _all(tokens)
    while rest and rest[0].upper() == "OR":
        other, rest = _all(rest[1:])
        answer = answer or other
    return answer, rest


def _all(tokens: list[str]) -> tuple[bool, list[str]]:
    answer, rest = _one(tokens)
    while rest and rest[0].upper() == "AND":
        other, rest = _one(rest[1:])
        answer = answer and other
    return answer, rest


def _one(tokens: list[str]) -> tuple[bool, list[str]]:
    if tokens[0] == "(":
        answer, rest = _any(tokens[1:])
        if rest[0] != ")":
            raise IndexError
        return answer, rest[1:]
    answer, rest = tokens[0].lower() in PERMISSIVE, tokens[1:]
    return (answer, rest[2:]) if rest and rest[0].upper() == "WITH" else (answer, rest)


def _of_pyproject(text: str) -> str | None:
    project = _table(tomllib.loads, text)
    said = _in(project, "project", "license") or _in(project, "tool", "poetry", "license")
    if isinstance(said, dict):
        said = licence_of_text(said["text"]) if len(str(said.get("text", ""))) > 100 else said.get("text")
    return said if isinstance(said, str) and said else None


def _of_wheel(text: str) -> str | None:
    """What a wheel's METADATA says, in its newest form, its older one, or by its classifiers."""
    head = text.split("\n\n")[0]
    said = {}
    for key, value in re.findall(r"^(License-Expression|License):[ \t]*(\S.*)$", head, re.MULTILINE):
        said.setdefault(key, value.strip())
    if "License-Expression" in said:
        return said["License-Expression"]
    if (plain := said.get("License", "")) and is_permissive(normalised(plain)):
        return plain
    classed = re.findall(r"^Classifier: License :: OSI Approved :: (.+)$", head, re.MULTILINE)
    return " AND ".join(normalised(each) for each in classed) or plain or None


def _of_cargo(text: str) -> str | None:
    said = _in(_table(tomllib.loads, text), "package", "license")
    return said if isinstance(said, str) and said else None


def _of_npm(text: str) -> str | None:
    said = _in(_table(json.loads, text), "license")
    said = said.get("type") if isinstance(said, dict) else said
    return said if isinstance(said, str) and said else None


def _table(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except (ValueError, RecursionError):
        return {}


def _in(table: Any, *keys: str) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


_PACKAGES: dict[str, Callable[[str], str | None]] = {
    "pyproject.toml": _of_pyproject, "Cargo.toml": _of_cargo, "package.json": _of_npm, "composer.json": _of_npm,
}  # fmt: skip
