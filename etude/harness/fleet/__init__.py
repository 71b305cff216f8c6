"""Several agents side by side on one repository, each in a worktree of its own.

`repository` runs git, `worktrees` makes and removes the places agents work in, `merges` tries early whether their work
fits together, and `ranking` says which of several answers to one task is best. Nothing here runs an agent: who does
gives each the directory of its worktree. The user's index, stash, branches and working tree are not touched, but for
the one result that is taken over when they ask for it.
"""

from __future__ import annotations

from etude.harness.fleet.merges import Conflict, Trial, apply_result, trial_merges
from etude.harness.fleet.ranking import Marks, Ranked, RankingConfig, best_of, measure, rank
from etude.harness.fleet.repository import Repository
from etude.harness.fleet.worktrees import FleetConfig, Result, Worktree, Worktrees

__all__ = [
    "Conflict", "FleetConfig", "Marks", "Ranked", "RankingConfig", "Repository", "Result", "Trial", "Worktree",
    "Worktrees", "apply_result", "best_of", "measure", "rank", "trial_merges",
]  # fmt: skip
