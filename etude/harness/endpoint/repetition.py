"""Notices a model that has fallen into a loop, while its answer still comes.

Owns `RepetitionWatch`, which stands between an endpoint and whoever listens to its words, and `Repeating`, which it
raises. A loop is a passage that stands at the end of what was written many times over, letter for letter. Honest work
repeats itself too: rules of a table, rows of zeros, lines of code that are nearly the same. So much is asked for before
an answer is cut, and more where the passage has so few different characters that it may be data. What is nearly a
repetition is none. Sends nothing, and knows neither session nor dialect.
"""

from __future__ import annotations

from collections.abc import Mapping

from etude.harness.endpoint.completion import CallDelta, Delta, OnDelta, Retry, TextDelta

_LONGEST = 2000
"""Characters of the longest passage that is looked for."""
_COPIES = 20
_LEAST = 12_000
"""Characters that the copies must come to. An empty board in HTML, sixteen rows of a thousand, is still let through."""
_DATA_KINDS, _DATA_LEAST = 12, 24_000
"""A passage with fewer different characters than this could be data: zeros, a rule, an empty bitmap in base64."""
_STRIDE = 512
"""Characters from one look to the next."""
_KEPT = max(_DATA_LEAST, _COPIES * _LONGEST) + _LONGEST + _STRIDE
_SHOWN_COPIES = 2


class Repeating(Exception):
    """The answer has become a loop. Holds what came before it, and of the loop two copies: a context that is full of
    one calls for more of it."""

    def __init__(self, period: int, copies: int, text: str, reasoning: str, heard: int) -> None:
        super().__init__(f"the same {period} characters {copies} times over")
        self.text, self.reasoning, self.heard = text, reasoning, heard


class RepetitionWatch:
    """Passes on to `tell` what it is told, of one message, and raises Repeating when that has become a loop."""

    def __init__(self, tell: OnDelta) -> None:
        self._tell = tell
        self._begin()

    def _begin(self) -> None:
        self._tails = {"text": Tail(), "reasoning": Tail(), "calls": Tail()}
        self._said: Mapping[str, list[str]] = {"text": [], "reasoning": []}
        self._call: tuple[int, str] | None = None

    def __call__(self, delta: Delta) -> None:
        self._tell(delta)
        match delta:
            case TextDelta(text, kind):
                self._said[kind].append(text)
                self._watch(kind, text)
            case CallDelta(index, name, arguments):
                begun, self._call = (index, name) != self._call, (index, name)
                self._watch("calls", name + arguments if begun else arguments)
            case Retry():
                self._begin()

    def _watch(self, kind: str, text: str) -> None:
        tail = self._tails[kind]
        if not (period := tail.add(text)):
            return
        run = tail.run(period)
        said = {each: "".join(pieces) for each, pieces in self._said.items()}
        if kind in said:
            said[kind] = said[kind][: tail.length - run + _SHOWN_COPIES * period]
        heard = sum(each.length for each in self._tails.values())
        raise Repeating(period, run // period, said["text"], said["reasoning"], heard)


class Tail:
    """The end of a text that grows. `length` is that of all of it, up to where a loop was noticed."""

    def __init__(self) -> None:
        self.length = 0
        self._kept, self._new = "", ""

    def add(self, text: str) -> int:
        """More of it. Returns the period of the loop that it has become, or 0; what stands behind it is left out."""
        for at in range(0, len(text), _STRIDE):
            piece = text[at : at + _STRIDE]
            self._new += piece
            self.length += len(piece)
            if len(self._new) >= _STRIDE:
                self._kept, self._new = (self._kept + self._new)[-_KEPT:], ""
                if period := self._loop():
                    return period
        return 0

    def run(self, period: int) -> int:
        """How many characters at the end have this period."""
        text = self._kept
        at = len(text) - period
        while at > 0 and text[at - 1] == text[at - 1 + period]:
            at -= 1
        return len(text) - at

    def _loop(self) -> int:
        """The period of the end, where that is long enough to be a loop; otherwise 0. In a loop its last characters, as
        many as the longest passage has, stand one period earlier too, and nowhere between: so one search is enough."""
        if len(self._kept) < _LEAST:
            return 0
        backwards = self._kept[: -_LEAST - 1 : -1]
        period = backwards.find(backwards[:_LONGEST], 1)
        if not 0 < period <= _LONGEST:
            return 0
        passage = self._kept[-period:]
        least = _DATA_LEAST if len(set(passage)) < _DATA_KINDS else _LEAST
        end = self._kept[-max(least, _COPIES * period) :]
        return period if len(end) >= max(least, _COPIES * period) and end[period:] == end[:-period] else 0
