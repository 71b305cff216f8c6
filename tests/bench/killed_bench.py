"""A benchmark that kills its own process after so many attempts: `killed_bench.py DIRECTORY ATTEMPTS`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from etude.bench.config import BenchConfig
from etude.bench.run import run_bench

CONFIG = {
    "name": "killed",
    "tasks": {"ladder": 2},
    "attempts": 2,
    "concurrency": 6,
    "policy": {"kind": "solution", "skill": 0.5},
}


def main() -> None:
    directory, most = Path(sys.argv[1]), int(sys.argv[2])
    begun = None

    def on_done(played, done, planned):
        nonlocal begun
        begun = done if begun is None else begun
        if done - begun >= most:
            os.kill(os.getpid(), signal.SIGKILL)

    resume = (directory / "results.jsonl").exists()
    asyncio.run(run_bench(BenchConfig.model_validate(CONFIG), directory, resume=resume, on_done=on_done))


if __name__ == "__main__":
    main()
