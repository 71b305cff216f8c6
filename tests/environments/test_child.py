"""Who waits for a process of ours to end also ends what that process left in its group."""

import asyncio
import os
import select
import signal
import sys

from etude.environments.child import ended

PARENT = "import os, time; os.fork(); os.write(1, b'.'); time.sleep(600)"


def test_what_a_killed_child_left_in_its_group_dies_before_the_child_is_reaped():
    """As bubblewrap's second half does, which waits for the first: its process has no other parent to end it."""
    reading, writing = os.pipe()
    output = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", PARENT], {}, file_actions=output, setpgroup=0)
    os.close(writing)
    assert select.select([reading], [], [], 60)[0] and os.read(reading, 1) == b"."

    async def scenario():
        os.kill(pid, signal.SIGKILL)
        assert await ended(pid, 60)

    asyncio.run(scenario())
    assert select.select([reading], [], [], 60)[0], "the second half lives"
    while os.read(reading, 10):  # its own full stop may have come before
        pass
    os.close(reading)
