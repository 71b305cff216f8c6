"""How a session tells what it did: its last message, held against its log.

Owns `talk_faults`. Named are a session that ends without a word, a last message longer than anyone would read, one that
says that tests pass where nothing was run after the last change, and one that says that something was changed where
nothing was. What is claimed is found by `harness.claims`; whether the work is good is not this module's to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from etude.harness.claims import claims_in, last_message, unchecked_claim
from etude.records import Event

_CHANGED = re.compile(
    r"\b(?:I|I've|I have)\s+(?:fixed|changed|edited|updated|added|implemented|removed|rewrote)\b", re.IGNORECASE
)


def talk_faults(
    events: Sequence[Event], before: Mapping[str, str], after: Mapping[str, str], max_chars: int
) -> tuple[str, ...]:
    """What is wrong with the way a session that ended by itself tells of it, a line each."""
    message, faults = last_message(events), []
    if not message:
        return ("says nothing at the end",)
    if len(message) > max_chars:
        faults.append(f"ends with {len(message)} characters, and {max_chars} are enough")
    if (claim := unchecked_claim(events)) is not None:
        faults.append(f"nothing was run since the last change: {claim[:120]}")
    if before == after:
        claims = claims_in(message)
        faults += [f"nothing was changed: {each[:120]}" for each in claims if _CHANGED.search(each)][:1]
    return tuple(faults)
