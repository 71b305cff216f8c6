"""Proposes commits to take back: what one of the newest changed in the source is undone in the repository of today.

Owns `reverts`. Unlike a mined task, all that came later stays. A commit is undone piece by piece: each of its pieces
must stand in today's file exactly once, with the lines around it, or the commit is passed over. The instruction is made
of the commit's message, as mining does. Reads the history; runs nothing.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator

from etude.tasks.difficulty import level_by_size
from etude.tasks.generate.proposal import Proposal, Source
from etude.tasks.mined.history import Commit, History, Tree
from etude.tasks.mined.instruction import instruction_of
from etude.tasks.mined.split import Candidate, MineLimits, Rejected, is_source

AROUND = 3
"""Lines of context that must be the same on either side of a piece."""


def reverts(
    source: Source, history: History, commits: list[Commit], level: int | None, rng: random.Random
) -> Iterator[Proposal]:
    """Proposals of that level, or of any, from these commits, in the order that `rng` says."""
    limits = MineLimits()
    for commit in rng.sample(commits, len(commits)):
        paths = [change.path for change in history.changes(commit) if is_source(change.path)]
        if not paths or len(paths) > limits.source_files or not set(paths) <= source.modules.keys():
            continue
        broken: dict[str, bytes] = {}
        for path in paths:
            old, new = (history.file(where, path) for where in (commit.parent, commit.id))
            undone = None if old is None or new is None else _undone(source.modules[path], old, new)
            if undone is None:
                break
            broken[path] = undone.encode()
        else:
            proposal = _proposal(source, commit, broken)
            if proposal is not None and level in (None, proposal.level):
                yield proposal


def _undone(today: str, old: bytes, new: bytes) -> str | None:
    """Today's text without what made `new` of `old`; None where that cannot be told, or changes nothing."""
    try:
        before, after = old.decode().split("\n"), new.decode().split("\n")
    except UnicodeDecodeError:
        return None
    text = f"\n{today}\n"
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(AROUND):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        there, wanted = ("".join(f"\n{line}" for line in part) + "\n" for part in (after[j1:j2], before[i1:i2]))
        if text.count(there) != 1:
            return None
        text = text.replace(there, wanted)
    return text[1:-1] if text[1:-1] != today else None


def _proposal(source: Source, commit: Commit, broken: dict[str, bytes]) -> Proposal | None:
    answer = {path: source.tree.files[path] for path in broken}
    before = Tree({**source.tree.files, **broken}, source.tree.executable, source.tree.left_out)
    modules = tuple(sorted({module for path in broken for module in source.of(path)}))
    lines = sum(_changed(broken[path].decode(), answer[path].decode()) for path in broken)
    if not modules or not 1 <= lines <= MineLimits().source_lines:
        return None
    instruction = instruction_of(Candidate(commit, before, source.tree, answer, source.restored, modules, lines))
    if isinstance(instruction, Rejected):
        return None
    return Proposal(
        kind="revert",
        name=commit.id[:12],
        instruction=instruction.strip(),
        broken=broken,
        answer=answer,
        modules=modules,
        level=level_by_size(len(broken), lines),
        about={"reverted": commit.id, "committed": commit.when},
    )


def _changed(old: str, new: str) -> int:
    return sum(line[:1] in "+-" for line in list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=0))[2:])
