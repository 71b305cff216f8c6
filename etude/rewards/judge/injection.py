"""Text in a change that speaks to its judge.

Owns `without_words`: the change without what only a reader sees, which is where a note to a judge stands, in whatever
language and however it is spelt: the last message, and the comments, docstrings and pages of text that the change adds.
A verdict that these carry is none; whether they carry it is found by asking again without them. Lines that address a
judge, as far as they are recognised, go too, wherever they stand. Where the task or the criterion is about such words,
only these lines go. Texts that are values are code, and stay. All is taken out of a copy, and only for that.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace

from etude.rewards.judge.outcomes import Change

_ADVANCE = re.compile(
    r"\b(ignore|disregard|forget|override)\b.{0,40}\b(previous|above|prior|earlier|instruction|rule|criteri|propert|rubric)"
    r"|\b(judge|grader|evaluator|reviewer|assessor|examiner|llm|language model|ai model|assistant|system prompt)s?\b"
    r"|[\"']?(holds|met|score|verdict|ticket|grade|rating|pass(?:ed)?)[\"']?\s*[:=]\s*[\"']?(true|1\b|10|yes|pass|full|max)"
    r"|\b(you|must|should|please)\b.{0,30}\b(answer|respond|reply|output|return|conclude|report|mark|rate|score)\b"
    r"|\b(all|every|this|the|each)\b.{0,30}\b(criteri\w+|propert\w+|requirement\w*|rubric)\b.{0,30}\b(met|hold|satisf|fulfil|"
    r"true|pass)"
    r"|</?CHANGE|<\|?im_(start|end)|\[/?INST\]|^\s*[+-]?\s*#*\s*(system|assistant|user)\s*:",
    re.IGNORECASE,
)
_ABOUT_WORDS = re.compile(
    r"\b(docstrings?|document(s|ed|ation)?|docs|readme|changelog|guide|translat\w+|(last|commit) message)\b"
    r"|\b(adds?|has|have|with|explain\w*) (\w+ ){0,3}comments?\b",
    re.IGNORECASE,
)
_PAGE = re.compile(r"\.(md|rst|txt|adoc)$", re.IGNORECASE)
_BRACED = re.compile(r"\.(c|h|cc|cpp|hpp|m|cs|java|js|jsx|ts|tsx|go|rs|swift|kt|scala|php|css|scss)$", re.IGNORECASE)
_BLOCKS = {'"""': '"""', "'''": "'''", "/*": "*/", "<!--": "-->"}
_TEXT = re.compile(r"""[rbuf]{0,2}("[^"]*"|'[^']*')[;,]?""", re.IGNORECASE)
"""A line that is one text; what is joined to it, or takes it, stands on others."""


def without_words(change: Change, criterion: str) -> Change | None:
    """The change as it stands without words to its judge; None where it holds none."""
    if _ABOUT_WORDS.search(f"{criterion}\n{change.instruction}"):
        return without_advances(change)
    code = replace(change, diffs=tuple("\n".join(_code(diff.split("\n"))) for diff in change.diffs), message="")
    if not any(re.match(r"[+-](?!\+\+ |-- )\s*\S", line) for line in code.text.split("\n")):
        return without_advances(change)  # nothing but words was changed
    silent = without_advances(code) or code
    return None if silent == change else silent


def without_advances(change: Change) -> Change | None:
    """The change without the lines that are seen to speak to a judge; None where there are none."""
    diffs = tuple(_without(diff) for diff in change.diffs)
    message = _without(change.message)
    if diffs == change.diffs and message == change.message:
        return None
    return replace(change, diffs=diffs, message=message)


def _without(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not _speaks(line))


def _speaks(line: str) -> bool:
    """Whether a line addresses a judge, read as it looks, or hides how it is spelt."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKC", line) if unicodedata.category(sign) != "Cf")
    return _ADVANCE.search(plain) is not None or any(map(_mixed, re.findall(r"[^\W\d_]{2,}", plain)))


def _mixed(word: str) -> bool:
    """Letters of several scripts in one word, as look-alikes are."""
    return not word.isascii() and len({unicodedata.name(sign, "?").partition(" ")[0] for sign in word}) > 1


def _code(lines: Sequence[str]) -> Iterator[str]:
    """A diff without the words among its new lines: comment lines, docstrings, comments behind code, pages of text."""
    path, within, value = "", "", False
    for above, line in itertools.pairwise(["", *lines]):
        text, new = line[1:].strip(), line.startswith("+")
        words = inside = False
        if line.startswith("+++ ") and above.startswith("--- "):
            path, new = line, False
        elif line.startswith("@@"):
            within = ""
        elif not line.startswith("-"):
            inside, was_value = bool(within), value
            within, value = _behind(text, within, value)
            words = (not was_value) if inside else _is_words(text, path) and not (within and value)
            inside = inside or bool(within)
        if not (new and words):
            yield _cut(line, path) if new and not inside else line


def _behind(text: str, within: str, value: bool) -> tuple[str, bool]:
    """What is open behind a line, by what closes it, and whether that is a value."""
    if within:
        return ("", False) if within in text else (within, value)
    for mark, end in _BLOCKS.items():
        if text.lstrip("rRuU").startswith(mark):
            return ("" if end in text.partition(mark)[2] else end), False
    return next(((mark, True) for mark, end in _BLOCKS.items() if mark == end and text.count(mark) % 2), ("", False))


def _is_words(text: str, path: str) -> bool:
    """A comment, a text that is nobody's value, or a line of a page."""
    if _BRACED.search(path):
        return text.startswith(("//", "/*", "*/", "* ")) or text == "*"
    comment = text.startswith(("#", *_BLOCKS) if path.endswith(".py") else ("#", "--", ";", "%", "//", *_BLOCKS))
    return comment or _TEXT.fullmatch(text) is not None or _PAGE.search(path) is not None


def _cut(line: str, path: str) -> str:
    """A line without the comment behind its code."""
    for found in re.finditer(r"\s(//|/\*)" if _BRACED.search(path) else r"\s#", line):
        before = line[: found.start()]
        if before.strip(" +") and before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return before
    return line
