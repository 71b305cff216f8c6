"""What a container needs beside what its commands were promised: where they may write, and room for the agent.

Everything else of a container is read-only; these places are in memory, and gone with it.
"""

from __future__ import annotations

from etude.environments.base import WORKSPACE, Resources
from etude.environments.toolchain import HOME

INSTANCE_LABEL = "etude.instance"
"""On everything an engine or a cluster keeps for us: which process it was made for (see `store.new_instance`)."""
MIB = 1 << 20
AGENT_MB = 96
"""The agent is inside the limits, where an archive passes through it; commands must not be short of what it holds."""
_SHARE = {WORKSPACE: 1, "/tmp": 2, HOME: 8, "/tests": 8, "/logs": 8, "/dev/shm": 8}
"""Where a command may write: that part of the workspace's size."""


def sizes(resources: Resources) -> dict[str, int]:
    """Where commands may write, and how many bytes."""
    return {place: resources.disk_mb * MIB // share for place, share in _SHARE.items()}
