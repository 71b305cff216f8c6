"""Limits hold, and hitting one is the command's trouble, not the sandbox's."""

import asyncio
import os

import pytest

from etude.environments import cgroups
from etude.environments.base import Resources, SandboxSpec
from etude.environments.namespace import NamespaceConfig
from etude.errors import MissingDependency, SandboxError

MIB = 1 << 20


@pytest.mark.parametrize(
    "bomb",
    [
        "python3 -c 'b = bytearray(300 << 20)'",
        "python3 -c 'import os\nfor i in range(4): os.fork()\nb = bytearray(40 << 20)\nimport time; time.sleep(5)'",
        "head -c 300M /dev/zero > /workspace/big",
        "head -c 300M /dev/zero > /dev/shm/big",
    ],
)
def test_memory(run, bomb):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(memory_mb=96, disk_mb=32)))
        result = await box.exec(bomb, timeout_s=30)
        assert result.exit_code != 0 or "fork" in bomb
        assert (await box.exec("echo alive")).output == b"alive\n"

    run(scenario)


def test_disk(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b""}, resources=Resources(disk_mb=16)))
        sizes = {"/workspace": 16, "/tmp": 8, "/tests": 2, "/logs": 2, "/home/agent": 2, "/dev/shm": 2}
        for place, size_mb in sizes.items():
            result = await box.exec(f"head -c 20M /dev/zero > {place}/big; stat -c %s {place}/big")
            assert b"No space left" in result.output, place
            assert int(result.output.split()[-1]) <= size_mb * MIB
        assert b"Read-only" in (await box.exec("touch /dev/x")).output
        with pytest.raises(OSError, match="No space left"):
            await box.write_file("/workspace/more", b"x" * MIB)
        await box.exec("rm /workspace/big; python3 -c 'for i in range(9999): open(str(i), \"w\").close()'")
        assert int((await box.exec("ls /workspace | wc -l")).output) < 16 * 256  # the number of files is bounded too
        await box.exec("find . -type f -delete")
        await box.write_file("/workspace/more", b"x" * MIB)

    run(scenario)


def test_processes(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(pids=24)))
        result = await box.exec("for i in $(seq 60); do sleep 3 & done; wait", timeout_s=20)
        assert b"Cannot fork" in result.output
        assert (await box.exec("echo alive")).output == b"alive\n"

    run(scenario)


def test_cpu(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(cpus=0.2)))
        program = "import time\nend = time.time() + 1.5\nwhile time.time() < end: pass\nprint(time.process_time())"
        result = await box.exec(f"python3 -c '{program}'", timeout_s=30)
        assert float(result.output) < 0.6

    run(scenario)


def test_rlimit_is_the_configs_choice(run):
    async def scenario(backend):
        assert backend.groups is None
        box = await backend.create(SandboxSpec(resources=Resources(memory_mb=200, pids=10)))
        assert b"MemoryError" in (await box.exec("python3 -c 'bytearray(300 << 20)'")).output
        assert b"fork" in (await box.exec("for i in $(seq 30); do sleep 1 & done; wait")).output
        other = await backend.create(SandboxSpec(resources=Resources(pids=10)))  # counted apart
        results = await asyncio.gather(*(other.exec("sleep 0.1; echo ok") for _ in range(3)))
        assert [result.output for result in results] == [b"ok\n"] * 3

    run(scenario, NamespaceConfig(limits="rlimit"))


def test_memory_is_told_where_there_is_no_group_to_ask(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        hold = b"import time\nkept = b'x' * (50 << 20)\nopen('up', 'w').close()\ntime.sleep(60)\n"
        await box.write_file("/tmp/hold.py", hold)
        await box.start("exec python3 /tmp/hold.py")
        await box.exec("until [ -e up ]; do sleep 0.01; done")
        seen = await box.metrics()
        assert seen.pids == 1 and 45 * MIB < seen.memory_bytes < 100 * MIB

    run(scenario, NamespaceConfig(limits="rlimit"))


def test_unwritable_groups_are_an_error_with_advice(monkeypatch, tmp_path):
    """Version 1 and 2 alike, on directories that look like hierarchies but take no limits."""
    own = dict.fromkeys(("memory", "pids", "cpu"), tmp_path / "no" / "such")
    (tmp_path / "no").write_text("a file")
    for version in (1, 2):
        monkeypatch.setattr(cgroups, "find", lambda version=version: cgroups.Mounted(version, own))
        with pytest.raises(MissingDependency, match='limits = "rlimit"'):
            cgroups.open_tree("1-1-00000000-1-1")


def test_version_2_writes_its_own_files(tmp_path):
    """The text of the interface files; joining, killing and removing are tested on a real hierarchy elsewhere."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    tree = cgroups._V2(tmp_path, "instance")
    group = tmp_path / "etude" / "instance" / "7"
    group.mkdir()
    (group / "memory.swap.max").touch()
    joins = tree.add("7", Resources(memory_mb=100, pids=9, cpus=1.5))
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written == {
        "memory.max": str(100 * MIB),
        "memory.swap.max": "0",
        "pids.max": "9",
        "cpu.max": "150000 100000",
    }
    assert joins == [group / "cgroup.procs"]
    assert (tmp_path / "etude" / "instance" / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_a_command_that_cannot_be_limited_does_not_run_and_does_not_seem_to_have_run(run):
    """Some kernels let no process with a real-time priority into a cgroup; its children inherit the priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pytest.skip("only root may ask for a real-time priority")

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        answers = await asyncio.gather(box.exec("echo here"), return_exceptions=True)
        if isinstance(answers[0], SandboxError):
            assert "limits" in str(answers[0])
        else:
            assert answers[0].output == b"here\n"  # this kernel lets it

    try:
        run(scenario)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
