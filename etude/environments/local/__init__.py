"""The user's own directory as a sandbox: what the product's agent works in, on the machine of whoever uses it.

`open_workspace` gives it behind the seam of `environments.base`, so the harness's tools run there as they do in a
rollout. Unlike a backend's sandboxes it is not made for a task and not thrown away: its files are the user's.
"""

from __future__ import annotations

from etude.environments.local.config import WorkspaceConfig
from etude.environments.local.outside import absent
from etude.environments.local.view import command_environment
from etude.environments.local.workspace import ConfinedWorkspace, open_workspace

__all__ = ["ConfinedWorkspace", "WorkspaceConfig", "absent", "command_environment", "open_workspace"]
