"""Real ranks for tests and benchmarks: processes that are started once, and meet as many as are wanted.

`World.run` calls a function of a module on the first of them, all at once, and returns what each of them says. It waits
for what happens, however busy the machine is: an answer, a rank's end, or that no rank of them does anything any more.
"""

from __future__ import annotations

import gc
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

import psutil

from etude.deadlines import scaled

STILL_S = 120.0
"""Ranks that have used no processor between two looks so far apart wait for each other, and for nothing else."""
MEETING_S = 3600.0
"""Gloo's own limit, of every exchange: longer than any that goes on, as a rank that ends is noticed at once."""


class World:
    """Up to `size` ranks, whose functions are those of a module."""

    def __init__(self, size: int, module: str) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="etude-mesh-")
        self.module, self.context = module, multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([module])  # torch is imported once for all
        self.numbers = itertools.count()
        self.ranks = [self._started(rank) for rank in range(size)]

    def _started(self, rank: int) -> tuple[Any, Connection]:
        """A rank's process, and the line to it."""
        ours, theirs = self.context.Pipe()
        process: Any = self.context.Process(target=_rank, args=(rank, theirs, self.module), daemon=True)
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the server of forks looks for the module
        process.start()
        os.environ.pop("PYTHONPATH") if known is None else os.environ.update(PYTHONPATH=known)
        theirs.close()
        return process, ours

    def run(self, ranks: int, case: str, *given: Any) -> list[Any]:
        """What the ranks return, in their order. One that has ended or is stuck is started anew for the next case."""
        meeting = str(Path(self.scratch.name) / f"meeting-{next(self.numbers)}")
        for _, line in self.ranks[:ranks]:
            line.send((ranks, meeting, case, given))
        said = []
        for rank, (process, line) in enumerate(self.ranks[:ranks]):
            try:
                if self._speaks(line, ranks):
                    said.append(line.recv())
                    continue
                said.append((None, f"no word of {case}, and no rank has done anything for {scaled(STILL_S):.0f} s"))
                process.kill()
            except EOFError:
                said.append((None, "has ended"))
            process.join()
            line.close()
            self.ranks[rank] = self._started(rank)
        failed = "\n".join(f"rank {rank}: {fault}" for rank, (_, fault) in enumerate(said) if fault)
        assert not failed, failed
        return [result for result, _ in said]

    def _speaks(self, line: Connection, ranks: int) -> bool:
        """Whether a rank has something to say, or has ended, while any of them still works."""
        spent = -1.0
        while not line.poll(scaled(STILL_S)):
            before, spent = spent, sum(map(_cpu_seconds, (process.pid for process, _ in self.ranks[:ranks])))
            if spent == before:
                return False
        return True

    def close(self) -> None:
        for process, line in self.ranks:
            line.close()
            process.kill()
            process.join()
        self.scratch.cleanup()


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return times.user + times.system


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
        limit = timedelta(seconds=scaled(MEETING_S))
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=limit)
        try:
            line.send((getattr(cases, case)(*given), None))
        except Exception:
            line.send((None, traceback.format_exc()))
        finally:
            dist.destroy_process_group()
            _forget_meshes()


def _forget_meshes() -> None:
    """A mesh holds its process groups, each of which is some threads of gloo, and torch's caches hold meshes."""
    from torch.distributed.device_mesh import DeviceMesh

    gc.collect()
    for each in gc.get_objects():
        if type(each) is DeviceMesh:
            each._pg_registry.clear()
