"""Replaces secrets by marks, and marks by secrets, in text that comes whole or in pieces.

Owns `Redactor`, which knows the marks of one session, and `Stream`. Text is taken by lines, so that how it was cut into
pieces cannot matter: a secret is found whole or its line is not out yet. Only a private key spans lines; inside one,
every line is a secret. What was found once is known, and found wherever it stands from then on. A mark is derived from
its secret by a keyed digest: it is the same after a resume, and nobody without the key can try guesses on it.
"""

from __future__ import annotations

import bisect
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Iterable

from etude.harness.secrets.detect import find_secrets

MARK = re.compile(r"\[secret ([a-z-]+) ([0-9a-f]{10})\]")
_BEGIN = re.compile(r"-----BEGIN[A-Z ]* PRIVATE KEY-----")
_END = re.compile(r"-----END[A-Z ]* PRIVATE KEY-----")
_KEY_BODY = re.compile(r"[\s\"'+>|#]*(?P<body>(?:[A-Za-z0-9+/=]{4})+|(?:Proc-Type|DEK-Info): .*)?(?:\\n)?[\s\"',;+\\]*")
_MAX_LINE = 1 << 16
"""Longer lines are taken in parts of this length: nobody waits for the end of a megabyte."""
_MAX_KNOWN = 1000


def unmarked(text: str, known: Iterable[str] = ()) -> str:
    """A text for elsewhere: where a secret was, its kind stands alone, on which nobody can try guesses."""
    return MARK.sub(r"[secret \1]", Redactor(known).redact(text))


class UnknownMark(ValueError):
    """A mark whose secret this session has not seen."""


class Redactor:
    """The secrets of one session. `known` are values to be found wherever they stand; `key` makes marks repeatable."""

    def __init__(self, known: Iterable[str] = (), key: bytes | None = None) -> None:
        # lines, since text is taken by lines; the longest first, since one may hold another
        lines = {line.strip() for value in known for line in value.splitlines()}
        self._known = sorted((line for line in lines if len(line) >= 8), key=len, reverse=True)
        self._key = key or secrets.token_bytes(16)
        self._secrets: dict[str, str] = {}
        self._marks: dict[str, str] = {}
        """Both by the digest in the mark: after a resume a secret may be found first by something else."""
        self.counts: Counter[str] = Counter()
        """How many were replaced, by kind."""

    def redact(self, text: str) -> str:
        """A whole text."""
        stream = Stream(self)
        return stream.feed(text) + stream.finish()

    def restore(self, text: str) -> str:
        """The text with its marks replaced by their secrets. Raises UnknownMark, so that none is written to a file."""

        def secret(found: re.Match[str]) -> str:
            if found[2] not in self._secrets:
                raise UnknownMark(f"{found[0]} stands for a secret that was not read in this session; read it again")
            return self._secrets[found[2]]

        return MARK.sub(secret, text)

    def line(self, line: str) -> str:
        """One line outside a private key."""
        out, at = [], 0
        for found in find_secrets(line, self._known):
            out += [line[at : found.start], self.mark(line[found.start : found.end], found.kind)]
            at = found.end
        return "".join([*out, line[at:]]) if out else line

    def mark(self, secret: str, kind: str) -> str:
        """What stands for a secret: by whatever it was found, the same each time."""
        self.counts[kind] += 1
        digest = hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:10]
        if digest not in self._secrets:
            self._secrets[digest] = secret
            self._marks[digest] = f"[secret {kind} {digest}]"
            self._know(secret)
        return self._marks[digest]

    def _know(self, secret: str) -> None:
        if 12 <= len(secret) <= 4096 and len(self._known) < _MAX_KNOWN and secret not in self._known:
            bisect.insort(self._known, secret, key=lambda known: -len(known))


class Stream:
    """Text as it comes. What `feed` gives out so far, with `finish` after it, is the whole text redacted."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest: list[str] = []
        self._held = 0
        self._in_key = False

    def feed(self, piece: str) -> str:
        """Take a piece; gives out the lines that are complete. A carriage return ends a line too, for progress bars."""
        out = []
        for part in re.split(r"(?<=[\r\n])", piece):
            while self._held + len(part) >= _MAX_LINE:
                cut = _MAX_LINE - self._held
                out.append(self._take(part[:cut]))
                part = part[cut:]
            self._rest.append(part)
            self._held += len(part)
            if part[-1:] in ("\r", "\n"):
                out.append(self._take(""))
        return "".join(out)

    def finish(self) -> str:
        """The last line, which has no end."""
        return self._take("")

    def _take(self, more: str) -> str:
        line = "".join([*self._rest, more])
        self._rest, self._held = [], 0
        begins, ends = _BEGIN.search(line), _END.search(line)
        if self._in_key and ends:
            self._in_key = False
            found = _KEY_BODY.fullmatch(line[: ends.start()])
            return self._hidden(line, found["body"] if found else None)
        if self._in_key and (found := _KEY_BODY.fullmatch(line)):
            return self._hidden(line, found["body"])
        self._in_key = False  # a source file that speaks of keys, and holds none
        if begins and not _END.search(line, begins.end()):
            self._in_key = True
            return self._redactor.line(line[: begins.end()]) + line[begins.end() :]
        return self._redactor.line(line)

    def _hidden(self, line: str, body: str | None) -> str:
        """A line of a private key; what is around its body stays, so that it can be put in again."""
        return line.replace(body, self._redactor.mark(body, "private-key")) if body else line
