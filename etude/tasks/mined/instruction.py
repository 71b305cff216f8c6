"""Makes a request out of an issue's text or a commit's message: terse, as people write, and without the answer.

Owns `instruction_of` and `wanted_of`. What belongs to the making of the commit (trailers, references, review notes) is
cut off; a sentence that quotes the source patch, or names something only the source patch has, is taken out. Names that
the tests themselves use are no secret: the agent has to provide them, so it must know them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from etude.tasks.mined.issues import Issue
from etude.tasks.mined.split import Candidate, Rejected

MOST_CHARS = 600
LEAST_WORDS = 3
QUOTED_CHARS = 12
"""So many characters of a line of the patch in a row, spaces not counted, quote it if there is code among them."""
_TRAILER = re.compile(r"^([A-Z][\w-]*-(by|to|with|id|for)|cc|change-id|see also|ref(s|erences)?|bug|issue)\s*:", re.I)
_REFERENCE = re.compile(
    r"\s*\(?(\b(fix(e[sd])?|close[sd]?|resolve[sd]?|see|refs?|pr|issue)\b[\s:]*)?(#|\bgh-)\d+\)?|https?://\S+", re.I
)
_NOTHING = re.compile(
    r"(wip|fixup!?|squash!?|bump|release|version|merge|revert|typo|update|changes|misc)\b[^a-z]*", re.I
)
_SENTENCE = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z`\"'*-])|\n+")
_OF_THE_COMMIT = re.compile(r"\b(doc)?tests?\b|\btest_\w+|\bchange ?log\b|\bTODO\b|\bcommit\b|\bpatch\b", re.I)
"""A sentence about these says what was done, not what is wanted."""
_TAG = re.compile(r"^\s*(\[[^\]]*\]\s*:?|(bug|feature request|feature|request|question|proposal)\s*:)\s*", re.I)
"""What trackers put before a title."""
_SIGNS = re.compile(r"[^\w\s]")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{3,}")


def instruction_of(candidate: Candidate, issue: Issue | None = None) -> str | Rejected:
    """One paragraph or two; or why the message makes none. What the issue says comes before what the commit says."""
    secrets = PatchSecrets(candidate.before.files, candidate.answer, candidate.restored)
    asked = _of_issue(issue, secrets) if issue is not None else ""
    told = asked or _of_message(candidate.commit.message, secrets)
    if isinstance(told, Rejected):
        return told
    unsaid = [name for name in secrets.asked if not re.search(rf"\b{name}\b", told)]
    if unsaid:
        told += "\n\nTests will use " + ", ".join(f"`{name}`" for name in unsaid) + "."
    return told + "\n"


def _of_issue(issue: Issue, secrets: PatchSecrets) -> str:
    """Its title, and of its text what gives nothing away; empty where the title does, or says nothing."""
    title = _TAG.sub("", issue.title).strip()
    if len(title.split()) < LEAST_WORDS or secrets.leaked_in(title):
        return ""
    text = title if title[-1] in ".!?:" else f"{title}."
    for part in _parts(issue.body or ""):
        if len(text) + len(part) > MOST_CHARS:
            break
        if not secrets.leaked_in(part):
            text += f"\n\n{part}"
    return text


def _parts(body: str) -> Iterable[str]:
    """Paragraphs and blocks of code, without comments of the form, headings that ask and check lists."""
    body = re.sub(r"<!--.*?-->|<details>.*?</details>", "", body.replace("\r", ""), flags=re.S)
    for part in re.split(r"(^```.*?^```[ ]*$)|\n[ \t]*\n", body, flags=re.M | re.S):
        plain = (part or "").strip()
        if plain and not re.match(r"#+\s[^\n]*$|[-*] \[[ xX]\]|!\[|>\s", plain):
            words = plain if plain.startswith("```") else _unreferenced(plain)
            if words.startswith("```") or len(words.split()) >= LEAST_WORDS:
                yield words


def wanted_of(message: str) -> list[str] | Rejected:
    """The title of a message and those of its sentences that say what is wanted."""
    title, *body = [part for part in _sentences(message) if part] or [""]
    if len(title.split()) < LEAST_WORDS or _NOTHING.fullmatch(title):
        return Rejected("message says too little", title[:80])
    return [title, *(part for part in body if not _OF_THE_COMMIT.search(part))]


def _of_message(message: str, secrets: PatchSecrets) -> str | Rejected:
    wanted = wanted_of(message)
    if isinstance(wanted, Rejected):
        return wanted
    title, *body = wanted
    if told := secrets.leaked_in(title):
        return Rejected("message gives the answer away", told)
    kept = [part for part in body if not secrets.leaked_in(part)]
    text = title if title[-1] in ".!?:" else f"{title}."
    for part in kept:
        if len(text) + len(part) > MOST_CHARS:
            break
        text += f" {part}"
    return re.sub(r"(?<!\.)\.\.(?!\.)", ".", text)


class PatchSecrets:
    """What only the source patch has: its lines, and its words. `asked` are the words that the tests use."""

    def __init__(self, before: Mapping[str, bytes], answer: Mapping[str, bytes], restored: Mapping[str, bytes]) -> None:
        old = {line for path in answer for line in _lines(before.get(path, b""))}
        added = [line for data in answer.values() for line in _lines(data) if line not in old]
        self.lines = sorted({_squeezed(line) for line in added if len(_squeezed(line)) >= QUOTED_CHARS})
        self.old = _squeezed("".join(before.get(path, b"").decode("utf-8", "replace") for path in answer))
        known = _words(before.values())
        tests = _words(data for path, data in restored.items() if path.endswith(".py"))
        words = _words([_code("\n".join(added)).encode()]) - known
        defined = set(re.findall(r"\b(?:def|class)\s+(\w+)|^(\w+)\s*=", "\n".join(added), re.M))
        self.asked = sorted(words & tests & {name for pair in defined for name in pair if name})
        self.names = words - tests

    def leaked_in(self, text: str) -> str:
        """The first line or name of the patch that a text gives away; empty when it gives none."""
        flat = _squeezed(text)
        for line in self.lines:
            for start in range(len(line) - QUOTED_CHARS + 1):
                piece = line[start : start + QUOTED_CHARS]
                if piece in flat and len(_SIGNS.findall(piece)) >= 2 and piece not in self.old:
                    return line
        for name in _WORD.findall(text):
            if name in self.names and (_is_code(name) or f"{name}(" in text or f"`{name}`" in text):
                return name
        return ""


def _unreferenced(text: str) -> str:
    """Without references, and without what parted the first of them from the text: `#12: Handle None`."""
    cut = _REFERENCE.sub("", text).strip()
    return cut if cut == text.strip() else cut.lstrip(":;,. ")


def _sentences(message: str) -> Iterable[str]:
    """The title, and then sentence for sentence, without what belongs to the commit and not to the request."""
    lines = []
    for line in message.strip().splitlines():
        if _TRAILER.match(line.strip()) or line.startswith(("    ", "\t", "diff --git", "+++ ", "--- ", "@@ ")):
            continue
        line = _unreferenced(line)
        lines.append(re.sub(r"^(?:feat|fix|perf|refactor|chore|test)(?:\([\w./-]+\))?!?:\s*", "", line))
    title, _, rest = "\n".join(lines).strip().partition("\n")
    yield title
    for paragraph in re.split(r"\n\s*\n", rest):
        joined = re.sub(r"\n(?![-*•])", " ", paragraph.strip())
        yield from (part.strip() for part in _SENTENCE.split(joined))


def _is_code(word: str) -> bool:
    """Whether a word can only be a name: people write no underscores, figures or capitals inside words."""
    return not word[1:].isalpha() or not word[1:].islower()


def _code(text: str) -> str:
    """Without comments: prose in them is anybody's."""
    return re.sub(r"(^|\s)#.*", "", text)


def _lines(data: bytes) -> list[str]:
    return [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _words(texts: Iterable[bytes]) -> set[str]:
    return {word for data in texts for word in _WORD.findall(data.decode("utf-8", "replace"))}
