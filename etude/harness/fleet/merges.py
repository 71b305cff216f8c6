"""Finds out early whether the changes of several agents conflict, and applies one result.

Owns `trial_merges`, which merges results with each other in git's object store only, and `apply_result`, which brings
one into the user's working tree: the files that differ, and nothing of the index. Either all of it is brought or, where
the user changed the same lines meanwhile, none.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.errors import ConfigError
from etude.harness.fleet.repository import Repository
from etude.harness.fleet.worktrees import Result
from etude.host import beneath


@dataclass(frozen=True)
class TrialMerge:
    """The merge of two commits. `tree` is the merged tree, with markers in it where there are conflicts."""

    tree: str
    conflicts: tuple[str, ...]
    """The paths both changed in ways that do not go together."""


@dataclass(frozen=True)
class Conflict:
    """Two agents whose results do not merge."""

    first: str
    second: str
    paths: tuple[str, ...]


async def merge(repository: Repository, ours: str, theirs: str) -> TrialMerge:
    """Merge two commits without a working tree (git 2.38 or later)."""
    words = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours, theirs)
    tree, *paths = (await repository.git(*words, fine=(0, 1))).decode(errors="surrogateescape").split("\0")
    return TrialMerge(tree, tuple(dict.fromkeys(path for path in paths if path)))


async def trial_merges(repository: Repository, results: Sequence[Result]) -> list[Conflict]:
    """Every two results that conflict. Cheap enough to be asked after each turn: a merge of trees, file by file."""
    found = []
    for first, second in itertools.combinations([result for result in results if not result.empty], 2):
        trial = await merge(repository, first.commit, second.commit)
        if trial.conflicts:
            found.append(Conflict(first.name, second.name, trial.conflicts))
    return found


async def apply_result(repository: Repository, result: Result) -> list[str]:
    """Bring a result into the user's working tree, as changes that are not staged; returns the paths that changed.

    Raises ConfigError, and changes nothing, where it conflicts with what the user has done since.
    """
    # on top of what the agent started from, which is then what the merge compares both with
    taken = await repository.working_tree("The working tree as it is", result.start)
    now = taken.commit
    trial = await merge(repository, now, result.commit)
    if trial.conflicts:
        paths = ", ".join(trial.conflicts)
        raise ConfigError(f"the result of {result.name} conflicts with your changes to {paths}; commit or undo these")
    changed = await repository.git("diff-tree", "-r", "-z", "--name-status", "--no-renames", now, trial.tree)
    fields = changed.decode(errors="surrogateescape").split("\0")
    status = dict(zip(fields[1::2], fields[0::2], strict=False))
    removed = [path for path, letter in status.items() if letter == "D"]
    written = [path for path in status if path not in removed]
    if large := [path for path in taken.left_out if path in status]:
        raise ConfigError(
            f"the result of {result.name} changes {', '.join(large)}, too large in your tree to be merged; "
            "move it away first"
        )
    await _check_free(repository, [path for path in written if status[path] == "A"])
    await asyncio.to_thread(beneath.remove, repository.root, removed)
    with tempfile.TemporaryDirectory(prefix="etude-index-") as scratch:
        index = Path(scratch) / "index"
        await repository.git("read-tree", trial.tree, index=index)
        given = "".join(f"{path}\0" for path in written).encode(errors="surrogateescape")
        await repository.git("checkout-index", "-f", "-z", "--stdin", index=index, given=given)
    return sorted(status)


async def _check_free(repository: Repository, new: Sequence[str]) -> None:
    """A file that is ignored is in no snapshot, and must not be written over."""
    if taken := [path for path in new if beneath.blocked(repository.root, path, new=True)]:
        raise ConfigError(
            f"the result holds {', '.join(taken)}, which you have too and git ignores; move it away first"
        )
