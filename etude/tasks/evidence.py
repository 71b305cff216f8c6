"""What the checks of a generated task have printed, and which mends it leaves open.

Owns `Evidence`. Whoever mends by trying knows what every run printed: that a call returned this, and that this was
wrong, or too low, or too high. A form of the function that returns something refuted already need not be tried. Knows
nothing of the solution. Runs generated functions only, in this process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from etude import syntax

_FAILED = re.compile(r"^FAIL \w+\((.*)\) = (.*?)(?:, too (low|high))?$", re.MULTILINE)


class Evidence:
    """Grows with every check that was run."""

    def __init__(self) -> None:
        self._wrong: dict[str, list[str]] = {}
        """By the arguments of a call, as printed: what it must not return."""
        self._between: dict[str, tuple[float, float]] = {}
        """What it must be more than, and less than."""

    def hear(self, printed: str) -> None:
        """A check said this."""
        for arguments, got, too in _FAILED.findall(printed):
            self._wrong.setdefault(arguments, []).append(got)
            if too:
                low, high = self._between.get(arguments, (-math.inf, math.inf))
                value = float(got)
                self._between[arguments] = (max(low, value), high) if too == "low" else (low, min(high, value))

    def allows(self, function: Callable[..., Any]) -> bool:
        """Whether nothing that was printed refutes the function."""
        return not any(self._refutes(arguments, function) for arguments in self._wrong)

    def _refutes(self, arguments: str, function: Callable[..., Any]) -> bool:
        try:
            value = function(*syntax.literal(f"[{arguments}]"))
        except (TypeError, IndexError):
            return True
        if repr(value) in self._wrong[arguments]:
            return True
        low, high = self._between.get(arguments, (-math.inf, math.inf))
        return arguments in self._between and not low < value < high
