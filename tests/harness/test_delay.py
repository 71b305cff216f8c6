"""Tools that wait before they work."""

import asyncio

import numpy as np
import pytest

from etude.config import parse
from etude.errors import ConfigError
from etude.harness.config import HarnessConfig
from etude.harness.tools.base import Tool
from etude.harness.tools.delay import Delay, delayed


def test_draws_have_the_median_and_the_tail_that_were_asked_for():
    config = Delay(median_s=0.1, p99_s=3.0)
    drawn = [config.at(call) for call in range(1, 20_001)]
    assert np.quantile(drawn, [0.5, 0.99]) == pytest.approx([0.1, 3.0], rel=0.01)
    halves = np.mean(drawn[:200]), np.mean(drawn[200:400])
    assert halves[0] == pytest.approx(halves[1], rel=0.25)  # independent draws would differ by more than that


def test_a_delayed_tool_answers_the_same_later():
    async def answer(sandbox, settings, arguments):
        return f"read {arguments['path']}"

    tool = Tool("read_file", "reads", (), reads_only=True, run=answer)
    slow = delayed(tool, Delay(median_s=0.02, p99_s=0.02))

    async def timed():
        started = asyncio.get_running_loop().time()
        said = await slow.run(None, None, {"path": "a"})
        return said, asyncio.get_running_loop().time() - started

    said, seconds = asyncio.run(timed())
    assert said == "read a"
    assert seconds >= 0.019
    assert slow.name == "read_file"


def test_a_config_delays_every_tool_and_refuses_a_tail_below_the_median():
    plain = HarnessConfig()
    slow = HarnessConfig(delay=(0.1, 3))
    assert list(slow.chosen()) == list(plain.chosen())
    assert all(slow.chosen()[name].run is not tool.run for name, tool in plain.chosen().items())
    with pytest.raises(ConfigError, match="less than the median"):
        parse({"delay": [1, 0.5]}, HarnessConfig, "recipe")
