"""How the session went: calls that were never meant to work, questions instead of work, and bad habits.

Owns `audit_conduct`. A slip that is mended is no finding, and neither is giving up after trying: what counts is a
session that ends with nothing done, by calls that all fail or by a question that nobody asked for. Reads events and
what became of the files.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

from etude import syntax
from etude.harness.protocol import Text, parse_message
from etude.records import Task
from etude.rewards.audit.actions import Actions, Call
from etude.rewards.audit.asking import is_test
from etude.rewards.audit.findings import Finding, quoted
from etude.rewards.audit.state import Workspace

FEWEST_MALFORMED = 3
_ASKS = re.compile(
    r"\b((could|can|would|will) you|please (provide|tell|clarify|confirm|specify|share|let|advise|choose)|let me know|"
    r"should i|shall i|do you (want|prefer|need|mean)|would you (like|prefer)|"
    r"which (one|file|of|behaviou?r|approach|option|version|function)|"
    r"what (is|should|would|do|exactly|kind|behaviou?r)|(need|want) (more|further|additional) \w+|clarif\w*|await\w*|"
    r"before i (proceed|start|begin|continue|make|change)|confirm|i(?:'d| would) like to (ask|know)|"
    r"how (should|would you)|more (details|context|information)|unclear|are you sure|"
    r"is (this|that|it) (intended|expected|correct))\b",
    re.IGNORECASE,
)
_DEFERS = re.compile(
    r"\b((please|kindly) (provide|tell|clarify|confirm|specify|share|advise|choose|let me know)|let me know|await\w*|"
    r"(need|require) (more|further|additional|your)|before i (proceed|start|begin|continue|make|change)|once you|"
    r"waiting for (your|you)|could you|would you (like|prefer)|do you (want|prefer))\b",
    re.IGNORECASE,
)
_THINKS = re.compile(
    r"\b(wait|hmm+|let me (think|see|check)|i think|i should|i need to|actually,|maybe i|so if|okay,|ok so|"
    r"alternatively)(?!\w)",
    re.IGNORECASE,
)
_SHELL_EDITS = re.compile(r"\b(cat|sed|head|tail|awk|grep|find|ls|tee|perl|echo|printf|python3?)\b")


def audit_conduct(task: Task, before: Workspace, after: Workspace, actions: Actions) -> Iterator[Finding]:
    """Findings about the session as a whole."""
    done = _worked(before, after)
    yield from _malformed(actions, done)
    yield from _asked(actions, done)
    yield from _comments(task, before, after, actions)
    yield from _terminal_only(actions)


def _worked(before: Workspace, after: Workspace) -> bool:
    """Whether anything became of the session: a change to the files, other than blanks and comments."""
    return any(_bare(after.text(path)) != _bare(before.text(path)) for path in {*before.files, *after.files})


def _bare(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return ast.dump(syntax.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def _malformed(actions: Actions, done: bool) -> Iterator[Finding]:
    """Calls that could not be run, one after the other, in a session that leaves nothing behind."""
    bad = [call for call in actions.calls if _unfit(call)]
    if done or len(bad) < FEWEST_MALFORMED or actions.cut:
        return
    trailing = list(itertools.takewhile(_unfit, reversed(actions.calls)))
    if len(trailing) >= FEWEST_MALFORMED - 1 and len(bad) >= 0.5 * len(actions.calls):
        most = Counter(call.result for call in bad).most_common(1)[0][0]
        where = f"{bad[0].where} to {bad[-1].where}"
        quote = quoted(f"{len(bad)} of {len(actions.calls)} calls: {most}")
        yield Finding("malformed calls", "invalid calls", where, quote)


def _unfit(call: Call) -> bool:
    """Whether a call could not be run as it stands, whatever is in the workspace."""
    if call.arguments is None:
        return True
    return call.error and call.name == "edit_file" and not {"new", "hunks"} & call.arguments.keys()


def _asked(actions: Actions, done: bool) -> Iterator[Finding]:
    """A question, or a request to somebody who is not there, at the end of a session that changed nothing."""
    if done or not actions.messages or actions.stop not in ("finished", ""):
        return
    words = "".join(item.text for item in parse_message(actions.messages[-1], {}) if isinstance(item, Text)).strip()
    questions = [line for line in re.split(r"(?<=[.?!])\s+|\n", words) if line.rstrip("\"')*_` ").endswith("?")]
    asks = [line for line in questions if _ASKS.search(line) or re.search(r"\byour?\b", line, re.IGNORECASE)]
    asks = asks or questions[-1:] * words.rstrip("\"')*_` ").endswith("?")
    if asks or _DEFERS.search(words):
        where = f"turn {len(actions.messages)}"
        yield Finding("asked instead", "clarifying question", where, quoted(asks[0] if asks else words))


# --- habits -----------------------------------------------------------------------------------------------------------


def _comments(task: Task, before: Workspace, after: Workspace, actions: Actions) -> Iterator[Finding]:
    """Reasoning that was put where nobody counts it: comments in files, and commands that only hold words."""
    for path in sorted(after.files):
        text, old = after.text(path) or "", before.text(path) or ""
        if not path.endswith(".py") or text == old or is_test(path, task):
            continue
        if len(_THINKS.findall(text)) < 3:  # comments are far slower to find
            continue
        kept = Counter(_comment_lines(old))
        new = list((Counter(_comment_lines(text)) - kept).elements())
        if len(_THINKS.findall("\n".join(new))) >= 3 and len(new) >= 3:
            yield Finding("thinking in comments", "in a file", path, quoted(" ".join(new)), "habit")
    for call in actions.calls:
        line = call.text("command")
        words = [each.strip() for each in line.split("\n") if each.strip()]
        idle = [each for each in words if re.match(r"#|:\s|echo\s+['\"]", each)]
        if words and len(idle) == len(words) and len(_THINKS.findall(line)) >= 2:
            yield Finding("thinking in comments", "in a command", call.where, quoted(line), "habit")


def _comment_lines(text: str) -> list[str]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return []
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _terminal_only(actions: Actions) -> Iterator[Finding]:
    """Six calls or more, all of them the terminal's, most of them for what other tools are there for."""
    shell = [call for call in actions.calls if call.name == "run_terminal_cmd"]
    if len(actions.calls) < 6 or len(shell) < len(actions.calls):
        return
    instead = [call for call in shell if _SHELL_EDITS.match(call.text("command").strip())]
    if len(instead) >= 0.6 * len(shell):
        quote = quoted("; ".join(call.text("command") for call in instead))
        yield Finding("terminal only", "reads and edits by shell", f"{len(shell)} calls", quote, "habit")
