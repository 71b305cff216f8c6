"""What was judged of a call, and why: `Reason`, one piece of it, and `Decision`, all of them. Judges nothing itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from etude.harness.permissions.rules import STRICTNESS, Verdict

_TOLD = 20


@dataclass(frozen=True)
class Reason:
    """What one piece of a call was judged, and by what."""

    verdict: Verdict
    piece: str
    """The command, path or variable, as it stands in the call."""
    by: str
    """The rule as it is written, or the words for why there is none."""
    remember: str = ""
    """The narrowest rule that would allow this and its like from now on; empty where none should."""

    @property
    def asked_by_rule(self) -> bool:
        """Whether a rule that somebody wrote asks, so that no rule that allows would answer it."""
        own = not (self.by.startswith("rule ask run(") and self.by.endswith(", which is built in"))
        return own and self.verdict == "ask" and self.by.startswith("rule ask ") and not self.remember

    def __str__(self) -> str:
        return f"{self.piece}: {self.by}"


@dataclass(frozen=True)
class Decision:
    """The verdict on a call, and every reason, the strictest first."""

    verdict: Verdict
    reasons: tuple[Reason, ...]

    @property
    def remember(self) -> tuple[str, ...]:
        """The rules that together would allow it; empty where even they would not."""
        asked = [reason for reason in self.reasons if reason.verdict != "allow"]
        rules = tuple(dict.fromkeys(reason.remember for reason in asked))
        return rules if all(rules) else ()

    def explain(self) -> str:
        """The pieces that made it so strict, a line each; of very many the first, and how many more there are."""
        told = list(dict.fromkeys(str(reason) for reason in self.reasons if reason.verdict == self.verdict))
        return "\n".join(told[:_TOLD] + [f"and {len(told) - _TOLD} more"] * (len(told) > _TOLD))


def decide(reasons: Iterable[Reason]) -> Decision:
    """The strictest verdict; without any reason a call is allowed."""
    ordered = sorted(reasons, key=lambda reason: -STRICTNESS[reason.verdict])
    return Decision(ordered[0].verdict if ordered else "allow", tuple(ordered))
