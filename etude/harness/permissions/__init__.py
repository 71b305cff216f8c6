"""What an agent may do without asking, what it must ask for, and what it never may.

`rules` is how a permission is written, `shell` and `unwrap` take command lines apart, `words` says what a word could
be, `reading`, `changes` and `gitconfig` what a command opens and changes, `paths` where a path leads, and `unreadable`
what no rule lets be read, for the sandbox to leave out. `judge` puts these together, `gate` stands between a model's
calls and the tools, and `store` keeps what users answer.
Only the product has permissions: in a rollout the sandbox is the limit, and no gate stands in what a model is trained
on.
"""

from __future__ import annotations

from etude.harness.permissions.decision import Decision, Reason
from etude.harness.permissions.gate import Answer, Gate, Question
from etude.harness.permissions.judge import Judge
from etude.harness.permissions.paths import WorkspacePaths
from etude.harness.permissions.rules import PermissionConfig, Rule, Verdict
from etude.harness.permissions.store import load_permissions, remember
from etude.harness.permissions.unreadable import unreadable

__all__ = [
    "Answer", "Decision", "Gate", "Judge", "PermissionConfig", "Question", "Reason", "Rule", "Verdict",
    "WorkspacePaths", "load_permissions", "remember", "unreadable",
]  # fmt: skip
