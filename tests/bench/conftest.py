"""A benchmark of ladder tasks that needs no model, and endpoints that say what a test tells them to."""

import asyncio
import sys
from pathlib import Path

import pytest

from etude.bench.config import BenchConfig
from etude.bench.run import run_bench

sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))


@pytest.fixture
def bench(tmp_path):
    """Plays a config given as keys; returns the run."""

    def play(directory="run", *, resume=False, on_done=lambda *_: None, **keys):
        config = BenchConfig.model_validate({"policy": {"kind": "solution", "skill": 0.6}, **keys})

        async def whole():
            async with asyncio.timeout(120):
                return await run_bench(config, tmp_path / directory, resume=resume, on_done=on_done)

        return asyncio.run(whole())

    return play
