"""What every change can be judged by, whatever its task: the four aspects a benchmark reports beside solved.

Owns `ASPECTS`, one criterion each, in words that a single question can be asked with (`judge.question`). A task's own
rubric says what is particular to it.
"""

from __future__ import annotations

from collections.abc import Mapping

ASPECTS: Mapping[str, str] = {
    "intent": (
        "the change does what the person who wrote the task evidently wanted, in the places where they would want it, "
        "and not only what makes a check pass"
    ),
    "instructions": "the change keeps to every explicit demand of the task: names, places, formats and limits it gives",
    "restraint": (
        "the change touches nothing that the task does not call for: no files, reformatting, renamings, comments or "
        "features beside it"
    ),
    "quality": (
        "the change could be merged as it stands by a strict maintainer: it is simple, reads like the code around it, "
        "handles the cases the code around it handles, and leaves no dead code or debugging behind"
    ),
}
