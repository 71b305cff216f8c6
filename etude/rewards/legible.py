"""What reaches a verifier can be read: no compiled code, no start-up files, no source in a surprising encoding.

Owns `legible`, which every final state goes through before it is laid down, whatever runs its tests. What an
interpreter would load beside the source goes: bytecode, extension modules and other machine code, archives that hold
code, `.pth` files, `sitecustomize`, and the directories that tools fill by themselves. What the task gave and nobody
changed stays, but for bytecode, which nobody needs. A source file in an encoding that hides what it says is refused.
What these can no longer do, the auditor need not find. Talks to nobody.
"""

from __future__ import annotations

import codecs
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from etude.environments.archive import Archive
from etude.environments.base import WORKSPACE
from etude.rewards.audit.state import NO_WORK
from etude.rewards.contents import archive_of, contents_of

State = Archive | Mapping[str, bytes]
_COMPILED = re.compile(r"\.(py[cod]|so(\.[\d.]+)?|dll|dylib|node|wasm|pth|egg|whl|egg-link|pyz|pyzw)$")
_STARTUP = re.compile(r"^(site|user)customize(\.py)?$")
_CODE = re.compile(r"\.(py[wico]?|pyd|so)$")
_MACHINE = (b"\x7fELF", b"MZ\x90\x00", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\x00asm")
_BYTECODE = re.compile(rb"^.[\x0c-\x0f]\r\n", re.DOTALL)
"""The magic numbers of CPython's 3.x."""
_ZIP_NAME, _ZIP_MOST = 46, 100_000
"""Where in an entry of a zip's directory its name is, whose length is at 28; and so many entries are read."""
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_TWO_LINES = re.compile(rb"(?:%b)?([^\r\n]*)(?:\r\n|\r|\n)?([^\r\n]*)" % codecs.BOM_UTF8)
_PLAIN_CODECS = {"utf-8", "utf-8-sig", "ascii", "iso8859-1", "iso8859-15", "cp1252"}
"""Those in which ASCII is ASCII, so that code means to Python what it says to a reader."""


@dataclass(frozen=True)
class Legible:
    """A state as it may be judged; `stripped` are paths, `refused` says why it may not, and is empty where it may."""

    state: State
    stripped: tuple[str, ...]
    refused: str = ""


def legible(given: Mapping[str, bytes], state: State) -> Legible:
    """`given` are the files the task came with. An archive is written anew: what is laid down is what was read here.
    Raises what `contents_of` does."""
    sieve = _Sieve(given)
    if isinstance(state, Archive):
        kept = {
            path: entry
            for path, entry in contents_of(state).items()
            if not sieve.goes(posixpath.relpath(path, WORKSPACE), entry.data)
        }
        changed: State = archive_of(state.places, kept)
    else:
        changed = {path: data for path, data in state.items() if not sieve.goes(path, data)}
    return Legible(changed, tuple(sieve.stripped), sieve.refused)


@dataclass
class _Sieve:
    given: Mapping[str, bytes]
    stripped: list[str] = field(default_factory=list)
    refused: str = ""

    def goes(self, path: str, data: bytes | None) -> bool:
        """Whether a path is left away; `data` is None for a directory."""
        name, parts = posixpath.basename(path), set(path.split("/"))
        bytecode = "__pycache__" in parts or name.endswith((".pyc", ".pyo"))
        if not bytecode and data is not None and self.given.get(path) == data:
            return False
        goes = bytecode or any(map(_STARTUP.fullmatch, parts)) or (data is not None and self._hides(path, data))
        goes |= bool((NO_WORK - {".git"}) & parts) or (".git" in parts and _CODE.search(name) is not None)
        if goes and data is not None:
            self.stripped.append(path)
        return goes and not (data is None and self._holds_given(path))

    def _holds_given(self, directory: str) -> bool:
        return any(path.startswith(f"{directory}/") for path in self.given)

    def _hides(self, path: str, data: bytes) -> bool:
        if _COMPILED.search(path) or data.startswith(_MACHINE) or _BYTECODE.match(data[:4]) or _holds_code(data):
            return True
        if path.endswith((".py", ".pyw")) and not self.refused:
            self.refused = _strange(path, data, self.given.get(path, b""))
        return False


def _holds_code(data: bytes) -> bool:
    """Whether it is an archive that code could be imported from, which has a directory at its end: by the ends of the
    names in it, or because it has more of them than anybody reads."""
    if b"PK\x05\x06" not in data[-(1 << 16) - 22 :]:
        return False
    for number, found in enumerate(re.finditer(rb"PK\x01\x02", data)):
        at = found.start()
        end = at + _ZIP_NAME + int.from_bytes(data[at + 28 : at + 30], "little")
        if number >= _ZIP_MOST or _CODE.search(data[max(at + _ZIP_NAME, end - 5) : end].decode("latin-1")):
            return True
    return False


def _strange(path: str, data: bytes, given: bytes) -> str:
    """Why nobody can say what a source file says; empty for one that can be read, or was so when the task gave it."""
    codec, was = _codec(data), _codec(given)
    if codec not in _PLAIN_CODECS and codec != was:
        return f"{path} says it is written in {codec}: write it in UTF-8"
    if b"\0" in data and b"\0" not in given:
        return f"{path} holds a NUL, and is no text"
    return ""


def _codec(data: bytes) -> str:
    lines = _TWO_LINES.match(data)  # and no copy of the rest, which may be long
    for line in lines.groups() if lines else ():
        if found := _COOKIE.match(line):
            try:
                return codecs.lookup(found[1].decode("ascii", "replace")).name
            except (LookupError, ValueError):
                return found[1].decode("ascii", "replace")
    return "utf-8"
