"""Whoever is cancelled while a process starts goes on, and leaves none."""

import asyncio
import sys

import psutil
import pytest

from etude.host.processes import start_process

PIPE = asyncio.subprocess.PIPE
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.parametrize("how", [{"stdin": PIPE, "stdout": PIPE}, {"start_new_session": True}])
def test_at_any_moment(how):
    """Before it runs, while its pipes are connected, and when it is just there."""

    async def scenario():
        for moment in range(12):
            starting = asyncio.ensure_future(start_process(*SLEEPER, **how))
            for _ in range(moment):
                await asyncio.sleep(0)
            starting.cancel()
            assert (await asyncio.wait({starting}, timeout=30))[0], moment
            if not starting.cancelled():
                starting.result().kill()
                await starting.result().communicate()

    before = set(psutil.Process().children())
    asyncio.run(scenario())
    assert set(psutil.Process().children()) <= before  # not even one to be waited for


def test_what_cannot_be_started():
    with pytest.raises(FileNotFoundError):
        asyncio.run(start_process("/no/such/program"))
