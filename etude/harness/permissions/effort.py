"""How much of a machine one call may make the judge look at.

Owns `Effort`. A short line can stand for everything there is, many times over: `ls -R **/?/../*`. Each look has a bound
of its own, and this is the one of all looks together: past it the call is asked about. It counts names, not seconds, so
that a verdict is the same on a busy machine.
"""

from __future__ import annotations

MOST = 300_000
"""Names of files that are looked at for one call: some seconds of work."""


class TooMuch(Exception):
    """One call stands for more than is looked at."""

    def __init__(self) -> None:
        super().__init__("it is too much, or stands for too many files, to look at all of it")


class Effort:
    """What is left of it for one call."""

    def __init__(self, names: int = MOST) -> None:
        self._left = names

    def spend(self, names: int) -> None:
        """Raises TooMuch where there is not so much left."""
        self._left -= names
        if self._left < 0:
            raise TooMuch
