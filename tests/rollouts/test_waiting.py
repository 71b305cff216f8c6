"""Waits with deadlines: what they say, and that they let go."""

import asyncio

import pytest

from etude.errors import DeadlineExceeded
from etude.rollouts.ray_process import within


def test_a_deadline_names_what_it_waited_for():
    with pytest.raises(DeadlineExceeded, match="the moon"):
        asyncio.run(within(asyncio.sleep(10), 0.01, "the moon to rise"))


def test_a_wait_that_is_cancelled_just_as_its_result_comes_is_cancelled():
    async def both_at_once():
        result = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(within(result, 10, "a result"))
        await asyncio.sleep(0)
        result.set_result(1)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(both_at_once())
