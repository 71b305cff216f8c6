"""How a session tells what it did: its last message, held against its log.

Owns `talk_faults`. Named are a session that ends without a word, a last message longer than anyone would read, one that
says that tests pass where nothing was run after the last change, and one that says that something was changed where
nothing was. A claim is looked for in words; whether the work is good is not this module's to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from etude.harness.protocol import Text, parse_message
from etude.records import Event

_TESTED = re.compile(
    r"\b(?:tests?|checks?|suite|specs?)\b[^.!?\n]{0,40}\b(?:pass|passes|passed|passing|succeed(?:s|ed)?|green)\b"
    r"|\b(?:ran|run|verified|confirmed|tested)\b[^.!?\n]{0,40}\b(?:tests?|checks?|suite|works?|fix)\b",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"\b(?:not|n't|never|cannot|could not|unable|without|should|would|please|to run|can run)\b", re.IGNORECASE
)
_CHANGED = re.compile(
    r"\b(?:I|I've|I have)\s+(?:fixed|changed|edited|updated|added|implemented|removed|rewrote)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_WRITES = {"edit_file", "write_file", "run_terminal_cmd"}


def last_message(events: Sequence[Event]) -> str:
    """The words of the last message, if it held no call; else nothing."""
    said = [event.data for event in events if event.kind == "completion"]
    if not said or any(event.kind == "tool_call" and event.data["turn"] == said[-1]["turn"] for event in events):
        return ""
    return "".join(item.text for item in parse_message(str(said[-1]["text"]), {}) if isinstance(item, Text)).strip()


def talk_faults(
    events: Sequence[Event], before: Mapping[str, str], after: Mapping[str, str], max_chars: int
) -> tuple[str, ...]:
    """What is wrong with the way a session that ended by itself tells of it, a line each."""
    message, faults = last_message(events), []
    if not message:
        return ("says nothing at the end",)
    if len(message) > max_chars:
        faults.append(f"ends with {len(message)} characters, and {max_chars} are enough")
    claims = [each for each in _SENTENCE.split(message) if not _NOT.search(each)]
    if not _ran_since_changed(events):
        faults += [f"nothing was run since the last change: {each[:120]}" for each in claims if _TESTED.search(each)][
            :1
        ]
    if before == after:
        faults += [f"nothing was changed: {each[:120]}" for each in claims if _CHANGED.search(each)][:1]
    return tuple(faults)


def _ran_since_changed(events: Sequence[Event]) -> bool:
    """Whether a command was run and nothing edited after it. A command may change files too, and shows what they do."""
    names = [event.data["name"] for event in events if event.kind == "tool_call" and event.data["name"] in _WRITES]
    return bool(names) and names[-1] == "run_terminal_cmd"
