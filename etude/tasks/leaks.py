"""Whether files tell the answer: copies of it, archives that hold it, and metadata that names what was taken away.

Owns `Leak` and `find_leaks`. The answer is known by its own lines, those that the task's files do not have, and by what
follows what where these are short; a file that holds enough of them is a copy, whatever it is called, in a patch's, a
notebook's or a web page's way of writing too. Metadata of packages, stubs and indexes is searched for the names
that only the answer defines, too: a signature is worth a function. Looks into archives and packed files, one level
deep. Changes nothing, runs nothing.
"""

from __future__ import annotations

import ast
import bz2
import gzip
import html
import io
import itertools
import lzma
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from etude import syntax

FEW_LINES = 3
"""So many of the answer's lines make a copy of it; fewer do where the answer has no more."""
LEAST_CHARS = 12
"""Shorter lines are anybody's, but together with the line above them."""
ALIKE = 0.8
"""The share of a right file's lines that makes another file a copy of the whole."""
_AROUND = re.compile(r"""^[\s+>|"'\d:-]+|(\\n)?["',\s]*$|</?\w[^<>]*>""")
"""What patches, numbered listings, notebooks and web pages put around a line."""
ARCHIVE_MAX, MEMBERS = 64 << 20, 10_000
_METADATA = re.compile(
    r"(^|/)[^/]+\.(dist-info|egg-info)(/|$)|(^|/)(RECORD|SOURCES\.txt|PKG-INFO|METADATA|installed-files\.txt|tags|TAGS|"
    r"\.tags|objects\.inv|searchindex\.js|coverage\.xml|\.coverage)$|\.(pyi|data\.json|idx|map)$"
)
TESTS = re.compile(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.\w+$|conftest\.py$|check\.py$)")


@dataclass(frozen=True)
class Leak:
    """`why`: a copy, an archive with a copy in it, or metadata that names what only the answer has."""

    path: str
    why: Literal["copy", "archive", "metadata"]
    quote: str

    def __str__(self) -> str:
        return f"{self.path} ({self.why}): {self.quote}"


class AnswerKey:
    """What only the answer has: lines, names it defines, and paths it adds."""

    def __init__(self, given: Mapping[str, bytes], answer: Mapping[str, bytes]) -> None:
        changed = {path: data for path, data in answer.items() if given.get(path) != data}
        before = {path: given[path] for path in changed if path in given}
        self.lines = _lines(changed) - _lines(before)
        self.names = _names(changed) - _names(before)
        self.paths = {path for path in changed if path not in given}
        self.enough = min(FEW_LINES, max(len(self.lines), 1))
        self._whole = [_telling(data.decode("utf-8", "replace")) for data in changed.values()]

    def in_text(self, text: str) -> list[str]:
        """The answer's lines that a text holds, if they are enough to give it away."""
        found = sorted(self.lines & (_telling(text) | _telling(_bare(text))))
        return found if len(found) >= self.enough else []

    def similar_to(self, text: str) -> bool:
        """Whether a text is one of the answer's files as a whole, or nearly."""
        there = _telling(text)
        return any(len(whole & there) >= ALIKE * max(len(whole), len(there)) for whole in self._whole if whole)

    def named(self, text: str) -> list[str]:
        """Names and paths of the answer's that a text mentions."""
        words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]{3,}", text))
        return sorted(self.names & words) + sorted(path for path in self.paths if path in text)


def find_leaks(files: Mapping[str, bytes], given: Mapping[str, bytes], answer: Mapping[str, bytes]) -> list[Leak]:
    """Every file of `files` that tells the answer, sorted by path.

    `given` is what the agent is meant to see of the files that the answer changes, `answer` those files when they are
    right. A test may name what it tests, and may hold no line of the answer.
    """
    key = AnswerKey(given, answer)
    return [leak for path in sorted(files) for leak in _leaks(path, files[path], key)] if key.lines or key.names else []


def _leaks(path: str, data: bytes, key: AnswerKey) -> Iterator[Leak]:
    members = list(_members(path, data))
    for name, content in members:
        if lines := key.in_text(content):
            yield Leak(path, "archive", f"{name}: {lines[0]}")
            return
    text = text_of(data)
    if lines := key.in_text(text):
        yield Leak(path, "copy", lines[0])
    elif _METADATA.search(path) and not TESTS.search(path) and (names := key.named(text)):
        yield Leak(path, "metadata", ", ".join(names[:5]))


def _members(path: str, data: bytes) -> Iterator[tuple[str, str]]:
    """The texts in an archive; what is no archive, or too large to be looked into, has none."""
    if len(data) > ARCHIVE_MAX:
        return
    try:
        if data[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for info in archive.infolist()[:MEMBERS]:
                    if info.file_size <= ARCHIVE_MAX:
                        yield info.filename, archive.read(info).decode("utf-8", "replace")
        elif path.endswith((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".crate", ".gem")):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for member in itertools.islice(tar, MEMBERS):
                    if member.isreg() and (content := tar.extractfile(member)) is not None:
                        yield member.name, content.read(ARCHIVE_MAX).decode("utf-8", "replace")
        else:
            for magic, unpacked in _PACKED.items():
                if data.startswith(magic):
                    with unpacked(io.BytesIO(data)) as file:
                        yield path, text_of(file.read(ARCHIVE_MAX))
    except (
        lzma.LZMAError,
        zipfile.BadZipFile,
        tarfile.TarError,
        OSError,
        EOFError,
        zlib.error,
        RuntimeError,
        NotImplementedError,
    ):
        return  # broken, or locked: it tells nobody anything


_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


def text_of(data: bytes) -> str:
    """As an editor would show it: UTF-16 where it says so, else UTF-8."""
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if utf16 else "utf-8", "replace")


def _bare(text: str) -> str:
    return "\n".join(html.unescape(_AROUND.sub("", line)) for line in text.split("\n"))


def _lines(files: Mapping[str, bytes]) -> set[str]:
    return {line for data in files.values() for line in _telling(data.decode("utf-8", "replace"))}


def _telling(text: str) -> set[str]:
    """Its lines; those that are short with the one above."""
    lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
    pairs = zip(["", *lines], lines, strict=False)
    return {line if len(line) >= LEAST_CHARS else f"{above}\n{line}" for above, line in pairs}


def _names(files: Mapping[str, bytes]) -> set[str]:
    """What Python files define."""
    found: set[str] = set()
    for path, data in files.items():
        if not path.endswith((".py", ".pyi")):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in strings that are not ours
                tree = syntax.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and len(node.name) > 3:
                found.add(node.name)
    return found
