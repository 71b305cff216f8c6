"""A file's bytes as text, and back: encodings, byte order marks, and kind words for what is no text.

Owns `TextFile`. What is read is written back in the encoding it was in; bytes that fit no encoding survive an edit
elsewhere in the file. Never touches a sandbox.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace

from etude.harness.tools.base import ToolError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_KINDS = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a RIFF file (WebP, WAV or AVI)"),
    (b"%PDF", "a PDF document; pdftotext may read it"),
    (b"PK\x03\x04", "a ZIP archive; unzip -l lists it"),
    (b"\x1f\x8b", "gzip data; zcat reads it"),
    (b"\xfd7zXZ", "xz data; xzcat reads it"),
    (b"\x28\xb5\x2f\xfd", "zstd data; zstdcat reads it"),
    (b"\x7fELF", "an ELF program or library"),
    (b"SQLite format 3", "an SQLite database; sqlite3 reads it"),
    (b"\xca\xfe\xba\xbe", "Java or Mach-O machine code"),
    (b"\0asm", "a WebAssembly module"),
)


@dataclass(frozen=True)
class TextFile:
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    """The byte order mark it begins with."""

    def with_text(self, text: str) -> TextFile:
        return replace(self, text=text)

    def encode(self) -> bytes:
        errors = "surrogateescape" if self.encoding == "utf-8" else "strict"
        try:
            return self.mark + self.text.encode(self.encoding, errors)
        except UnicodeEncodeError as error:
            if self.encoding == "utf-8":
                raise
            character = self.text[error.start]
            raise ToolError(f"the file is in {self.encoding}, which has no {character!r}; write it without") from None


def decode(data: bytes, path: str) -> TextFile:
    """Raises ToolError saying what the file is, where it is no text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            errors = "surrogateescape" if encoding == "utf-8" else "strict"
            try:
                return TextFile(data[len(mark) :].decode(encoding, errors), encoding, mark)
            except UnicodeDecodeError:
                break
    if b"\0" in data[:8192] or data.startswith(tuple(magic for magic, _ in _KINDS)):
        raise ToolError(f"{path} is {kind_of(data)}, {len(data)} bytes; it cannot be shown as text")
    try:
        return TextFile(data.decode())
    except UnicodeDecodeError:
        pass
    if data.decode("utf-8", "ignore").isascii():  # nothing in it is UTF-8, so it is older
        return TextFile(data.decode("latin-1"), "latin-1")
    return TextFile(data.decode("utf-8", "surrogateescape"))


def kind_of(data: bytes) -> str:
    """What a binary file is, by how it begins."""
    return next((kind for magic, kind in _KINDS if data.startswith(magic)), "a binary file")
