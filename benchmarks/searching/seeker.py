"""A scripted agent that looks for the files of a task, by a fixed policy and the agent's own tools.

Owns `Seeker`. It asks first where the names are defined that the task says, and reads there. Then it asks one thing:
with the search `codebase_search`, and without it a grep for lines that hold two words of the task. What an answer names
becomes a place to look at, worth the words that it shares with the task, rare ones more; what the search has ranked
counts for more, the better its rank. The best place is read next, a file that was read before counting less each time;
what is read names definitions, and one that shares a word with the task is looked up. Where no place is left, the next
thing is asked: without the search, definitions and files named by a word of the task; both ways, its words one by one.
It ends when its steps or tokens are spent. Both ways have one policy. The lines that a search shows count as read,
since they are; a row of a grep does not. So the way with the search may have read a file after one call, and the other
after two at the soonest. No model takes part, so a difference is the tools' and a run costs seconds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from searching.answers import places, tokens

from etude.search.answer import FORM
from etude.search.words import words_of

Ask = Callable[[str, dict[str, Any]], Awaitable[str]]
"""A tool by its name, with its arguments; what it answers, errors too."""
_ROW = re.compile(r"^(?P<path>[^:\n]+):(?P<line>\d+):(?P<text>.*)$")
_NAME = re.compile(
    r"`([A-Za-z_][\w.]*)(?:\(\))?`|\b([A-Za-z_]\w*)\(\)|\b(\w*[a-z\d]_\w+|_\w+|[A-Za-z]*[a-z][A-Z]\w*)\b"
)
_FILE = re.compile(r"\b[\w/-]+\.(?:py|pyi|pyx|c|js|ts|toml|cfg|rst|md)\b")
_CALL = re.compile(r"(?<![\w.])(?:self\.|cls\.)?([A-Za-z_]\w{3,})\(")
_CUT = re.compile(r"^\[(many|\d+) more; narrow", re.M)
_ASIDE = re.compile(r"(^|[/_.-])(tests?|testing|docs?|examples?|bench\w*|changelogs?|news|conftest)([/_.-]|$)", re.I)
_SAYS_LITTLE = frozenset(
    words_of(
        "add added allow also always avoid bug call case change check code correct correctly create default different "
        "don ensure error errors even fail fix fixed fixes function get give given handle handling have implement "
        "improve instead issue make method missing more new no not now object only option other pass properly raise "
        "remove return returned returns same set should so some support test tests than them then there they type "
        "update use used using value values will work works wrong you"
    )
)
"""What every task says: a person would grep for none of it."""


@dataclass(frozen=True)
class Policy:
    """Of both ways. Chosen on the development part of the sets."""

    steps: int = 16
    tokens: int = 8000
    names: int = 3
    of_names: int = 2
    """So many places where these are defined are read before anything else is asked."""
    words: int = 5
    """So many words of a task are grepped for."""
    definitions: int = 2
    """Of so many of them definitions are looked for by themselves."""
    follow: int = 3
    """Definitions that were seen and are looked up."""
    above: int = 6
    below: int = 30
    """Lines that are read around a line that a grep has named."""


POLICY = Policy()


@dataclass
class Place:
    """Something to look at, and what was seen of it."""

    path: str
    first: int
    last: int
    text: str
    head_start: float = 0.0


@dataclass
class Found:
    """What was read, in order, with what had been spent by then."""

    steps: int = 0
    tokens: int = 0
    read: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    """Steps, tokens, path, first line, last line."""


async def _nothing() -> None:
    """Asks nothing."""


class Seeker:
    """One task; `ask` calls a tool."""

    def __init__(self, ask: Ask, task: str, searches: bool, policy: Policy = POLICY) -> None:
        self._ask_tool, self._task, self._searches, self._policy = ask, task, searches, policy
        self.found = Found()
        self._places: list[Place] = []
        self._often: Counter[str] = Counter()
        self._followed: set[str] = set()
        self._words = list(dict.fromkeys(word for word in words_of(task) if word not in _SAYS_LITTLE))
        self._left = sorted(self._words, key=lambda word: (-len(word), self._words.index(word)))
        """Words that were not grepped for by themselves, long ones first: they are the rarer ones."""

    async def seek(self) -> Found:
        await self._ask_names()
        for _ in range(self._policy.of_names):
            await self._read_best()
        asks = self._asks()
        await next(asks, _nothing)()
        while not self._spent():
            if not await self._read_best():
                if (ask := next(asks, None)) is None:
                    break
                await ask()
        return self.found

    async def _read_best(self) -> bool:
        """Whether there was anything to read."""
        if self._spent() or (best := self._best()) is None:
            return False
        self._places.remove(best)
        await self._read(best)
        return True

    # --- what is asked ------------------------------------------------------------------------------------------------

    def _asks(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """The first at once, each later one where no place is left."""
        if self._searches:
            yield self._ask_search
        else:
            yield from self._greps()
        for word in self._left:
            yield partial(self._grep, re.escape(word))

    async def _ask_names(self) -> None:
        names = [next(filter(None, match)).rpartition(".")[2] for match in _NAME.findall(self._task)]
        for name in list(dict.fromkeys(filter(None, names)))[: self._policy.names]:
            await self._define(name)
        for path in list(dict.fromkeys(_FILE.findall(self._task)))[:1]:
            self._take_files(await self._ask("glob", {"pattern": f"**/{path}"}))

    async def _ask_search(self) -> None:
        answer = await self._ask("codebase_search", {"query": self._task})
        rows = answer.split("\n")
        for rank, (path, first, last, whole) in enumerate(places(answer)):
            if whole:
                self._note(path, first, min(last, first + FORM.whole_lines - 1))
            said = [row for row in rows if row.startswith(f" {first}-{last} ")]
            begin = first + FORM.whole_lines if whole else first
            if begin <= last:
                self._places.append(Place(path, begin, last, said[0] if said else "", 3 / (1 + rank / 4)))
        await self._follow("\n".join(rows[: rows.index("more:")] if "more:" in rows else rows))

    def _greps(self) -> Iterator[Callable[[], Awaitable[None]]]:
        words = self._left[: self._policy.words]
        if pairs := [f"{one}.*{other}|{other}.*{one}" for at, one in enumerate(words) for other in words[at + 1 :]]:
            yield partial(self._grep, "|".join(pairs))
        for word in words[: self._policy.definitions]:
            yield partial(self._grep, rf"(def|class)\s+\w*{word}")
        yield partial(self._glob, words)

    async def _glob(self, words: list[str]) -> None:
        self._take_files(await self._ask("glob", {"pattern": f"*{{{','.join(words)}}}*.py"}))

    async def _grep(self, pattern: str) -> None:
        self._take_rows(await self._ask("grep", {"pattern": pattern, "glob": "*.py", "ignore_case": True}))

    # --- what answers name --------------------------------------------------------------------------------------------

    def _take_rows(self, answer: str) -> None:
        """Rows of a grep; of one that was cut, the words in it are common."""
        common = 50 * bool(_CUT.search(answer))
        for match in filter(None, map(_ROW.match, answer.split("\n"))):
            line = int(match["line"])
            first, last = max(line - self._policy.above, 1), line + self._policy.below
            self._places.append(Place(match["path"], first, last, match["text"]))
            self._often.update(set(words_of(match["text"])))
        if common:
            self._often.update({word: common for word in self._words if word in answer.lower()})

    def _take_files(self, answer: str) -> None:
        for path in answer.split("\n"):
            if "/" in path or path.endswith(".py"):
                self._places.append(Place(path, 1, self._policy.below + self._policy.above, ""))
                self._often.update(set(words_of(path.rpartition("/")[2])))

    async def _define(self, name: str) -> None:
        """Where a name is defined."""
        self._followed.add(name)
        pattern = rf"(def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*="
        for place in self._rows_of(await self._ask("grep", {"pattern": pattern, "glob": "*.py"})):
            place.head_start = 1.0
            self._places.append(place)

    def _rows_of(self, answer: str) -> list[Place]:
        before, self._places = self._places, []
        self._take_rows(answer)
        found, self._places = self._places, before
        return found

    # --- what is read -------------------------------------------------------------------------------------------------

    def _best(self) -> Place | None:
        read = Counter(path for _, _, path, _, _ in self.found.read)
        self._places = [place for place in self._places if not self._has_read(place)]
        beside = Counter(place.path for place in self._places)
        return max(self._places, key=lambda place: self._worth(place, read, beside), default=None)

    def _worth(self, place: Place, read: Counter[str], beside: Counter[str]) -> float:
        """Of the words that a place shares with the task; more where its file has other places, less where it was read
        or is a test."""
        said = {*words_of(place.text), *words_of(place.path)}
        shared = sum(1 / math.log2(2 + self._often[word]) for word in self._words if word in said)
        worth = (shared + place.head_start) * (1 + 0.1 * math.log2(beside[place.path])) * 0.5 ** read[place.path]
        return worth * (0.3 if _ASIDE.search(place.path) else 1)

    def _has_read(self, place: Place) -> bool:
        middle = (place.first + place.last) // 2
        return any(path == place.path and a <= middle <= b for _, _, path, a, b in self.found.read)

    async def _read(self, place: Place) -> None:
        arguments = {"path": place.path, "start": place.first, "end": place.last}
        answer = await self._ask("read_file", arguments)
        self._note(place.path, place.first, place.last)
        await self._follow(answer)

    def _note(self, path: str, first: int, last: int) -> None:
        self.found.read.append((self.found.steps, self.found.tokens, path, first, last))

    async def _follow(self, text: str) -> None:
        """Look up the definition, of those that a text calls, whose name shares most with the task."""
        called = dict.fromkeys(name for name in _CALL.findall(text) if name not in self._followed)
        shares = {name: len({*words_of(name)} & {*self._words}) for name in called}
        best = max(shares, key=lambda name: shares[name], default="")
        if best and shares[best] and len(self._followed) < self._policy.follow + self._policy.names:
            await self._define(best)

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> str:
        if self._spent():
            return ""
        answer = await self._ask_tool(tool, arguments)
        self.found.steps += 1
        self.found.tokens += tokens(answer) + tokens(str(arguments))
        return answer

    def _spent(self) -> bool:
        return self.found.steps >= self._policy.steps or self.found.tokens >= self._policy.tokens
