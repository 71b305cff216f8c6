"""Finds secrets in one line of text: by their form, by the name they are assigned to, or because they are known.

Owns `find_secrets`. A form is one that its issuer documents, with a prefix that nothing else has. Where there is only a
name (`password = …`), the value must also look drawn rather than written: long, mixed, and of high entropy. Randomness
alone is no sign: digests, identifiers and lock files are full of it, and an agent that cannot read them cannot work.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SecretMatch:
    """Where a secret lies in its line, and what kind it is, in a word."""

    start: int
    end: int
    kind: str


_FORMS: tuple[tuple[str, str], ...] = (
    ("aws-key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    ("github-token", r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_[A-Za-z0-9_]{60,255}\b"),
    ("gitlab-token", r"\bgl(?:pat|ptt|dt|rt|cbt|oas|soat)-[A-Za-z0-9_-]{20,}"),
    (
        "model-key",
        r"\bsk-(?:ant-|proj-|or-v1-|svcacct-)?[A-Za-z0-9_-]{32,}|\bgsk_[A-Za-z0-9]{52}\b|\bxai-[A-Za-z0-9]{80}\b|"
        r"\br8_[A-Za-z0-9]{37}\b",
    ),
    ("slack-token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-\d-[A-Za-z0-9-]{20,}"),
    ("google-key", r"\bAIza[A-Za-z0-9_-]{35}|\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{28}"),
    ("package-token", r"\bnpm_[A-Za-z0-9]{36}\b|\bpypi-AgE[A-Za-z0-9_-]{50,}|\bdckr_pat_[A-Za-z0-9_-]{20,}"),
    (
        "cloud-key",
        r"\bdop_v1_[0-9a-f]{64}\b|\bdapi[0-9a-f]{32}\b|\bAccountKey=[A-Za-z0-9+/]{86}==|\bpul-[0-9a-f]{40}\b|"
        r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,}|\bpscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.-]{32,64}|"
        r"\bdp\.(?:pt|st|ct|sa)\.[A-Za-z0-9]{40,44}\b",
    ),
    (
        "service-token",
        r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b|\bsq0(?:atp|csp)-[A-Za-z0-9_-]{22,43}|\bATATT3[A-Za-z0-9_=-]{180,}|"
        r"\blin_api_[A-Za-z0-9]{40}\b|\bglsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}\b|\bNRAK-[A-Z0-9]{27}\b|"
        r"\bfigd_[A-Za-z0-9_-]{40,}|\brubygems_[0-9a-f]{48}\b",
    ),
    (
        "webhook",
        r"\bhttps://hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{20,}|"
        r"\bhttps://discord(?:app)?\.com/api/webhooks/\d{17,20}/[A-Za-z0-9_-]{60,}",
    ),
    ("hub-token", r"\bhf_[A-Za-z]{34}\b"),
    ("payment-key", r"\b[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|\bwhsec_[A-Za-z0-9+/=]{24,}"),
    ("mail-key", r"\bSG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}|\bkey-[0-9a-f]{32}\b"),
    ("telegram-token", r"\b\d{8,10}:AA[A-Za-z0-9_-]{33}\b"),
    ("vault-token", r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}"),
    ("age-key", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}"),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,}"),
    ("private-key", r"-----BEGIN[A-Z ]* PRIVATE KEY-----[^-\n]+-----END[A-Z ]* PRIVATE KEY-----"),
)
_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://(?P<user>[^\s/:@\"'<>]{0,64}):(?P<secret>[^\s/@\"'<>${}]{3,200})@")
_HEADER = re.compile(
    r"(?i:\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:bearer|basic|token)\s{1,4})(?P<secret>[A-Za-z0-9._~+/=-]{12,})"
)
_NAMED = re.compile(
    r"(?i:secret|token(?!iz)|passwd|password|passphrase|api[_-]?key|access[_-]?key|auth[_-]?key|private[_-]?key|"
    r"credential|signing[_-]?key|encryption[_-]?key)[\w.-]{0,40}[\"']?\s{0,8}(?:=>|:=|[:=])\s{0,8}[\"'`]?"
    r"(?P<secret>[A-Za-z0-9+/_=.~!@#%^&*-]{12,200})"
)
_KEY_LINE = re.compile(r"(?:^|[:\s])(?P<secret>[A-Za-z0-9+/]{64})\s*$")
"""A line of a private key, or of a certificate, that is shown without its first one."""
_WITH_FORM = re.compile("|".join(f"(?P<f{at}>{form})" for at, (_, form) in enumerate(_FORMS)))
_WRITTEN = re.compile(
    r"[a-z]+(?:[_.-][a-z0-9]+)*|[A-Z]+(?:_[A-Z0-9]+)*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[~.]{0,2}(?:/[\w.-]+){2,}|(.)\1*"
)
"""What a person writes in a secret's place: names, words, paths of attributes, rows of one character."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_STAND_IN = re.compile(r"(?i)example|placeholder|changeme|change-me|your[_-]|dummy|redacted|xxxx")
_TRIVIAL = {
    "postgres", "password", "passwd", "root", "admin", "test", "guest", "secret", "example", "user", "pass", "changeme",
}  # fmt: skip
_MIN_BITS = 3.3
"""Of entropy, a character: above that of words and names, below that of hexadecimal of this length."""


def find_secrets(line: str, known: Sequence[str] = ()) -> list[SecretMatch]:
    """The secrets of a line from left to right, none within another; of two that overlap the longer is meant."""
    found = sorted(_all(line, known), key=lambda each: (each.start, -each.end))
    apart: list[SecretMatch] = []
    for each in found:
        if not apart or each.start >= apart[-1].end:
            apart.append(each)
        elif each.end > apart[-1].end:
            apart[-1] = SecretMatch(apart[-1].start, each.end, apart[-1].kind)
    return apart


def _all(line: str, known: Sequence[str]) -> Iterator[SecretMatch]:
    for secret in known:
        at = line.find(secret)
        while at >= 0:
            yield SecretMatch(at, at + len(secret), "known")
            at = line.find(secret, at + len(secret))
    for match in _WITH_FORM.finditer(line):
        yield SecretMatch(match.start(), match.end(), _FORMS[int((match.lastgroup or "f0")[1:])][0])
    for match in _PASSWORD.finditer(line):
        if match["secret"] not in (match["user"], *_TRIVIAL):
            yield SecretMatch(match.start("secret"), match.end("secret"), "password")
    for match in _HEADER.finditer(line):
        yield SecretMatch(match.start("secret"), match.end("secret"), "authorization")
    if (match := _KEY_LINE.search(line)) and _mixed(match["secret"]) == 3:
        yield SecretMatch(match.start("secret"), match.end("secret"), "private-key")
    for match in _NAMED.finditer(line):
        if looks_drawn(match["secret"]):
            yield SecretMatch(match.start("secret"), match.end("secret"), "secret")


def looks_drawn(value: str) -> bool:
    """Whether a value seems to come from a generator of secrets, and not from a person who names one."""
    if len(value) < 12 or _WRITTEN.fullmatch(value) or _STAND_IN.search(value):
        return False
    if re.fullmatch(r"\w+", value) and len(value) >= 3.5 * len(_WORD.findall(value)):
        return False  # a name in some program, SuchAsThis2
    return _mixed(value) >= 2 and entropy(value) >= _MIN_BITS


def _mixed(value: str) -> int:
    """How many of small letters, capitals and digits are in it."""
    return sum(any(map(test, value)) for test in (str.islower, str.isupper, str.isdigit))


def entropy(value: str) -> float:
    """Bits a character, by the value's own frequencies."""
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)


def is_ordinary(value: str) -> bool:
    """Whether a value, though it is a secret's, is a word that text is full of; hiding it would hide the text."""
    return value in _TRIVIAL or (value.isalpha() and len(value) < 12) or value.isdigit()
