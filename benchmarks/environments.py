"""What a sandbox costs to make, to use, to copy and to keep; beside gVisor and a bare `unshare` in the same run.

    python benchmarks/environments.py [--alive 100 500 1000] [--repeats 200] [--forks 100] [--vm auto|kvm|tcg|none]

Latencies are wall time as a caller sees it, one call after the other. A creation ends when the sandbox's agent answers,
an execution (`sh -c :`, not the first in its sandbox) when its result is there. `create_ms_*_N` and `exec_ms_*_N` are
measured while N other sandboxes are alive and idle; `*_alone`, `exec_ms_p50`, the snapshot (of 200 changed files) and
the forks, all asked for at once, while none is. `http_*` are asked of an environment server in another process over the
loopback, `read_ms_p50` (a file of nine bytes) in process. `idle_mib` is what the host has in use more with the most
sandboxes than with none, the kernel's own memory included and page cache left out, by sandbox.

The two peers do the same work, and less: `unshare` has the namespaces and a shell at the end of a pipe, without files
of its own, limits, filter or agent, so it is the floor; gVisor (runsc, ptrace platform, Debian's build) has no agent
either, and each of its executions starts its command-line program. Virtual machines are measured where the doctor can
boot one: `vm_boot_ms` from nothing to the first sandbox, `vm_fork_ms_p50` for one fork of it, memory included. They
start on an empty image. `leaks` counts what is left on this machine afterwards. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sandbox_peers import Gvisor, Peer, Unshare

from etude.environments.backends import BackendConfig, open_backend
from etude.environments.base import Backend, Resources, Sandbox, SandboxSpec
from etude.environments.doctor import diagnose
from etude.environments.images.store import Described, ImageStore
from etude.environments.leftovers import leftovers
from etude.environments.lives import NodeConfig
from etude.environments.remote import RemoteConfig
from etude.environments.roots import ImagesConfig
from etude.environments.server.app import ServerConfig, serve
from etude.environments.store import new_instance
from etude.errors import EtudeError

CHANGES = "mkdir changed && for i in $(seq 200); do echo $i >changed/$i; done"
SPEC = SandboxSpec(files={"a.py": b"print(1)\n"}, resources=Resources(memory_mb=256))
GVISOR_REPEATS = 10
VM_REPEATS = 20
SERVER_DEADLINE_S = 60.0


def percentile(seconds: list[float], q: float) -> float:
    """In milliseconds, by nearest rank: a time that was really measured."""
    return round(1e3 * sorted(seconds)[math.ceil(q / 100 * len(seconds)) - 1], 3)


def used_mib() -> float:
    """What the host cannot give away: programs, files in memory, and all of the kernel's own."""
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {name.rstrip(":"): int(value) for name, value, *_ in fields}
    return (kib["MemTotal"] - kib["MemFree"] - kib["Buffers"] - kib["Cached"] + kib["Shmem"]) / 1024


async def timed(call: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    began = time.perf_counter()
    result = await call()
    return time.perf_counter() - began, result


async def used_once(backend: Backend, created: list[float], run: list[float]) -> None:
    """A sandbox from its start to its end: what its creation and its second execution took goes to the lists."""
    took_s, box = await timed(lambda: backend.create(SPEC))
    created.append(took_s)
    await box.exec(":")
    run.append((await timed(lambda: box.exec(":")))[0])
    await box.destroy()


# --- peers ----------------------------------------------------------------------------------------------------------


async def beside(peer: Peer, backend: Backend, repeats: int) -> tuple[list[float], ...]:
    """Creations and executions of ours and of a peer by turns, so that both meet the same machine."""
    ours_made, ours_run, made, run = [], [], [], []
    for _ in range(repeats):
        await used_once(backend, ours_made, ours_run)
        began = time.perf_counter()
        peers = peer.create()
        made.append(time.perf_counter() - began)
        try:
            peer.exec(peers)
            began = time.perf_counter()
            peer.exec(peers)
            run.append(time.perf_counter() - began)
        finally:
            peer.destroy(peers)
    return ours_made, ours_run, made, run


async def compare(name: str, peer: Peer, backend: Backend, repeats: int) -> dict[str, float]:
    """How many times as long a peer takes; below 1, ours is the slower."""
    ours_made, ours_run, made, run = (percentile(times, 50) for times in await beside(peer, backend, repeats))
    print(f"  {name:8} create {made:8.2f} ms, exec {run:7.2f} ms; ours beside it {ours_made:.2f} and {ours_run:.2f} ms")
    return {
        f"{name}_create_ms_p50": made,
        f"{name}_exec_ms_p50": run,
        f"{name}_create_ratio": round(made / ours_made, 3),
        f"{name}_exec_ratio": round(run / ours_run, 3),
    }


async def peers(backend: Backend, repeats: int) -> dict[str, float | None]:
    figures: dict[str, float | None] = dict(await compare("unshare", Unshare(), backend, repeats))
    none = dict.fromkeys(f"gvisor_{key}" for key in ("create_ms_p50", "exec_ms_p50", "create_ratio", "exec_ratio"))
    if shutil.which("runsc") is None:
        print("  gvisor   not measured: runsc is not installed (apt-get install -y runsc)")
        return figures | none
    with tempfile.TemporaryDirectory(prefix="etude-runsc-") as made:
        try:
            return figures | await compare("gvisor", Gvisor(Path(made)), backend, min(repeats, GVISOR_REPEATS))
        except (EtudeError, subprocess.TimeoutExpired) as error:
            print(f"  gvisor   not measured: {error}")
            return figures | none


# --- namespaces -----------------------------------------------------------------------------------------------------


async def copies(backend: Backend, forks: int, repeats: int) -> dict[str, float]:
    """A snapshot, and many forks at once, of a sandbox that has changed 200 files."""
    box = await backend.create(SPEC)
    await box.exec(CHANGES)
    taken = []
    for _ in range(repeats):
        took_s, snapshot = await timed(box.snapshot)
        taken.append(took_s)
        await backend.release(snapshot)
    took_s, made = await timed(lambda: box.fork(forks))
    said = await asyncio.gather(*(fork.exec("cat changed/200") for fork in made))
    if {result.output for result in said} != {b"200\n"}:
        raise AssertionError(f"a fork has not the files it was made from: {said}")
    await asyncio.gather(*(one.destroy() for one in (box, *made)))
    figures = {"snapshot_ms_p50": percentile(taken, 50), f"fork{forks}_ms": round(1e3 * took_s, 1)}
    print(f"  snapshot {figures['snapshot_ms_p50']:.2f} ms; {forks} forks {figures[f'fork{forks}_ms']:.0f} ms")
    return figures


async def latencies(backend: Backend, repeats: int) -> tuple[list[float], list[float]]:
    """Of creations and executions, with whatever is alive."""
    created, run = [], []
    for _ in range(repeats):
        await used_once(backend, created, run)
    return created, run


async def crowd(backend: Backend, alive: list[int], repeats: int) -> dict[str, float]:
    """Latencies and memory while more and more sandboxes are alive."""
    figures: dict[str, float] = {}
    boxes: list[Sandbox] = []
    used_before = used_mib()
    for count in alive:
        new = count - len(boxes)
        took_s, made = await timed(lambda new=new: asyncio.gather(*(backend.create(SPEC) for _ in range(new))))
        boxes += made
        figures["idle_mib"] = round((used_mib() - used_before) / count, 3)
        created, run = await latencies(backend, repeats)
        for name, times in (("create", created), ("exec", run)):
            figures |= {f"{name}_ms_p{q}_{count}": percentile(times, q) for q in (50, 99)}
        print(
            f"  {count:5} alive: create {percentile(created, 50):6.2f} ms (p99 {percentile(created, 99):.2f}), exec "
            f"{percentile(run, 50):.2f} ms; {figures['idle_mib']:.2f} MiB each; {new} more took {took_s:.1f} s"
        )
    return figures


async def namespaces(options: argparse.Namespace) -> dict[str, Any]:
    backend = open_backend()
    try:
        await latencies(backend, 3)  # the first ones read programs from disk
        created, run = await latencies(backend, options.repeats)
        alone = {"create_ms_p50_alone": percentile(created, 50), "exec_ms_p50": percentile(run, 50)}
        print(
            f"namespace, none alive: create {alone['create_ms_p50_alone']:.2f} ms, exec {alone['exec_ms_p50']:.2f} ms"
        )
        alone |= await over_http(backend, options.repeats)
        alone |= await copies(backend, options.forks, options.repeats)
        beside_peers = await peers(backend, options.repeats)
        return alone | await crowd(backend, sorted(options.alive), options.repeats) | beside_peers
    finally:
        await backend.close()


# --- over HTTP ------------------------------------------------------------------------------------------------------


def serve_apart(config: ServerConfig, told: Connection) -> None:
    """In a process of its own."""
    asyncio.run(serve(config, told.send))


async def reads_and_runs(backend: Backend, repeats: int) -> tuple[float, float]:
    """The median milliseconds of a small file and of an execution."""
    box = await backend.create(SPEC)
    try:
        await box.exec(":")
        read = [(await timed(lambda: box.read_file("/workspace/a.py")))[0] for _ in range(repeats)]
        run = [(await timed(lambda: box.exec(":")))[0] for _ in range(repeats)]
    finally:
        await box.destroy()
    return percentile(read, 50), percentile(run, 50)


async def over_http(backend: Backend, repeats: int) -> dict[str, float]:
    """What an environment server on this machine adds, asked by one client over one connection."""
    apart = multiprocessing.get_context("spawn")
    told, tell = apart.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="etude-benchmark-") as place:
        config = ServerConfig(port=0, node=NodeConfig(state_dir=Path(place)))
        server = apart.Process(target=serve_apart, args=(config, tell))
        server.start()
        try:
            if not await asyncio.to_thread(told.poll, SERVER_DEADLINE_S):
                raise TimeoutError(f"the environment server did not say in {SERVER_DEADLINE_S} s that it is ready")
            remote = open_backend(RemoteConfig(url=told.recv(), token_file=config.token_path))
            try:
                read, run = await reads_and_runs(remote, repeats)
            finally:
                await remote.close()
        finally:
            server.terminate()
            server.join(SERVER_DEADLINE_S)
    here, _ = await reads_and_runs(backend, repeats)
    print(f"over HTTP: read {read:.2f} ms (in process {here:.2f}), exec {run:.2f} ms")
    return {"read_ms_p50": here, "http_read_ms_p50": read, "http_exec_ms_p50": run}


# --- virtual machines -----------------------------------------------------------------------------------------------


def machine_config(wanted: str) -> Any:
    """The config of the machines this host can boot; raises EtudeError saying why it has none."""
    if wanted == "none":
        raise EtudeError("left out (--vm none)")
    why = ""
    for accel in ("kvm", "tcg") if wanted == "auto" else (wanted,):
        try:
            config = TypeAdapter(BackendConfig).validate_python({"kind": "qemu", "accel": accel})
        except ValidationError:
            raise EtudeError("this version has no qemu backend that takes `accel`") from None
        lacking = [finding for finding in diagnose(config) if not finding.ok]
        if not lacking:
            return config
        why += f"{accel}: {lacking[0].subject}: {lacking[0].detail}. "
    raise EtudeError(why.strip())


async def machines(config: Any, repeats: int) -> dict[str, float]:
    """The first machine, others like it, and forks of it one at a time."""
    backend = open_backend(config)
    try:
        boot_s, box = await timed(lambda: backend.create(SPEC))
        created, forked = [], []
        for _ in range(repeats):
            took_s, other = await timed(lambda: backend.create(SPEC))
            created.append(took_s)
            await other.destroy()
            took_s, (other,) = await timed(lambda: box.fork(1))
            forked.append(took_s)
            await other.destroy()
    finally:
        await backend.close()
    return {
        "vm_boot_ms": round(1e3 * boot_s, 1),
        "vm_create_ms_p50": percentile(created, 50),
        "vm_fork_ms_p50": percentile(forked, 50),
    }


def vm_figures(wanted: str, repeats: int) -> dict[str, Any]:
    figures: dict[str, Any] = dict.fromkeys(("vm_accel", "vm_boot_ms", "vm_create_ms_p50", "vm_fork_ms_p50"))
    try:
        config = machine_config(wanted)
    except EtudeError as error:
        print(f"virtual machines: not measured: {error}")
        return figures
    with tempfile.TemporaryDirectory(prefix="etude-machines-") as made:
        nothing = Path(made, "nothing")
        nothing.mkdir()
        images = ImagesConfig(dir=Path(made, "images"))
        ImageStore(images).add_directory(nothing, Described(), name="nothing")
        config = config.model_copy(update={"image": "nothing", "images": images})
        figures |= {"vm_accel": config.accel, **asyncio.run(machines(config, min(repeats, VM_REPEATS)))}
    print(
        f"virtual machines ({config.accel}): boot {figures['vm_boot_ms']:.0f} ms, create "
        f"{figures['vm_create_ms_p50']:.0f} ms, fork {figures['vm_fork_ms_p50']:.0f} ms"
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--alive", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--forks", type=int, default=100)
    parser.add_argument("--vm", choices=["auto", "kvm", "tcg", "none"], default="auto")
    options = parser.parse_args()
    figures = asyncio.run(namespaces(options)) | vm_figures(options.vm, options.repeats)
    ours = new_instance().rpartition("-")[0]  # what every name of this process begins with
    left = [line for line in leftovers() if ours in line]
    print("left behind:", *(left or ["nothing"]), sep="\n  ")
    print(json.dumps({"alive": sorted(options.alive), **figures, "leaks": len(left)}))


if __name__ == "__main__":
    main()
