"""An object store in a process of its own that keeps what it has on disk, and is killed and started again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from small import ROOT

PROGRAM = ROOT / "tests" / "weights" / "durable_s3.py"


class Store:
    """One port and one directory, through however many lives. `prefix` starts it elsewhere: in another network."""

    def __init__(self, directory: Path, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> None:
        directory.mkdir()
        self.directory, self.address, self.prefix, self.port = directory, address, list(prefix), "0"
        self.lives = 0

    def __enter__(self) -> Store:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [*self.prefix, sys.executable, str(PROGRAM), str(self.directory), f"{self.address}:{self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = self.process.stdout.readline().strip()
        self.lives += 1

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self, after_s: float = 0.5) -> None:
        """Kill it, and start it again after a while, as an operator's supervisor would."""
        self.kill()
        time.sleep(after_s)
        self.start()

    def recipe(self) -> tuple[str, ...]:
        """What a run needs to know to use it."""
        options = {"region": "us-east-1", "access_key_id": "x", "secret_access_key": "x"}
        options["endpoint"] = f"http://{self.address}:{self.port}"
        table = ", ".join(f'{name} = "{value}"' for name, value in options.items())
        return ('store="s3://bucket"', f"weight_store.options={{{table}}}")
