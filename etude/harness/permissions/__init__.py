"""What an agent may do without asking, what it must ask for, and what it never may.

`rules` is how a permission is written, `shell` and `unwrap` take command lines apart, `paths` says where a path leads,
`judge` puts these together, and `gate` stands between a model's calls and the tools. Only the product has permissions:
in a rollout the sandbox is the limit, and what a model is trained on has no gate in it.
"""

from __future__ import annotations

from etude.harness.permissions.judge import Decision, Judge, Reason
from etude.harness.permissions.paths import Place
from etude.harness.permissions.rules import PermissionConfig, Rule, Verdict

__all__ = ["Decision", "Judge", "PermissionConfig", "Place", "Reason", "Rule", "Verdict"]
