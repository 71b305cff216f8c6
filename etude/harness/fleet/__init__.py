"""Several agents side by side on one repository, each in a worktree of its own.

`repository` runs git, `worktrees` makes and removes the places agents work in, `merges` tries early whether their work
fits together, and `ranking` lets them work, measures what each leaves, and says which of several answers to one task
is best. What an agent is, nothing here knows: it is given the directory of its worktree. The user's index, stash,
branches and working tree are not touched, but for the results that are taken over when they ask for it.
"""

from __future__ import annotations

from etude.harness.fleet.merges import Conflict, TrialMerge, apply_result, trial_merges
from etude.harness.fleet.ranking import Measurements, Phase, Play, Ranked, RankingConfig, rank, side_by_side
from etude.harness.fleet.repository import Repository
from etude.harness.fleet.worktrees import FleetConfig, Result, Worktree, Worktrees

__all__ = [
    "Conflict", "FleetConfig", "Measurements", "Phase", "Play", "Ranked", "RankingConfig", "Repository", "Result",
    "TrialMerge", "Worktree", "Worktrees", "apply_result", "rank", "side_by_side", "trial_merges",
]  # fmt: skip
