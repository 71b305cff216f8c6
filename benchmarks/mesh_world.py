"""Real ranks for tests and benchmarks: processes that are started once, and meet as many as are wanted.

`World.run` calls a function of a module on the first of them, all at once, and returns what each of them says.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0


class World:
    """Up to `size` ranks, whose functions are those of a module."""

    def __init__(self, size: int, module: str) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="etude-mesh-")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([module])  # torch is imported once for all
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the server of forks looks for it
        self.lines: list[Connection] = []
        self.processes: list[Any] = []
        self.numbers = itertools.count()
        for rank in range(size):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=_rank, args=(rank, theirs, module), daemon=True))
            self.processes[-1].start()
            self.lines.append(ours)
        os.environ.pop("PYTHONPATH") if known is None else os.environ.update(PYTHONPATH=known)

    def run(self, ranks: int, case: str, *given: Any) -> list[Any]:
        """What the ranks return, in their order."""
        meeting = str(Path(self.scratch.name) / f"meeting-{next(self.numbers)}")
        for line in self.lines[:ranks]:
            line.send((ranks, meeting, case, given))
        said = []
        for line in self.lines[:ranks]:
            if not line.poll(DEADLINE_S):
                said.append((None, f"no word of {case} in {DEADLINE_S:.0f} s"))
                continue
            try:
                said.append(line.recv())
            except EOFError:
                said.append((None, "has ended"))
        failed = "\n".join(f"rank {rank}: {fault}" for rank, (_, fault) in enumerate(said) if fault)
        assert not failed, failed
        return [result for result, _ in said]

    def close(self) -> None:
        for line in self.lines:
            line.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.scratch.cleanup()


def _rank(rank: int, line: Connection, module: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.pop("ETUDE_KERNELS", None)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    cases = importlib.import_module(module)
    while True:
        try:
            ranks, meeting, case, given = line.recv()
        except EOFError:
            return
        limit = timedelta(seconds=DEADLINE_S)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=limit)
        try:
            line.send((getattr(cases, case)(*given), None))
        except Exception:
            line.send((None, traceback.format_exc()))
        finally:
            dist.destroy_process_group()
