"""What is true of virtual machines alone: memory that forks, copies that share no secrets, and emulators that end."""

import asyncio
import gzip
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from etude.config import Config, parse
from etude.environments.archive import take_out
from etude.environments.backends import BackendConfig
from etude.environments.base import Resources, SandboxSpec
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceConfig
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig
from etude.environments.qemu.machine import QemuMachine
from etude.environments.qemu.probe import probe
from etude.environments.vm.cpio import cpio
from etude.environments.vm.kernel import uncompressed_kernel
from etude.environments.vm.ram import PAGE, Ram
from etude.errors import ConfigError, MissingDependency, SandboxError
from etude.harness.prompt import render_calls, system_prompt
from etude.harness.scripted import ScriptedSampler
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import train_tokenizer
from etude.records import Limits, Task, Verifier
from etude.rewards.verifier import verify
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play_request

COUNTER = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 4000))
client = socket.create_connection(("127.0.0.1", 4000))
mine = server.accept()[0]
count = 0
open("pid", "w").write(str(os.getpid()))
while True:
    client.sendall(b"x")
    count += len(mine.recv(1))
    new = open("count.new", "w")
    new.write(str(count))
    new.close()
    os.rename("count.new", "count")
    time.sleep(0.05)
"""


async def said(box, command, **options):
    result = await box.exec(command, timeout_s=60, **options)
    assert result.exit_code == 0, result.output
    return result.output.decode().strip()


async def until_counted(box, more_than):
    while int(await said(box, "cat count 2>/dev/null || echo 0")) <= more_than:
        await asyncio.sleep(0.05)
    return int(await said(box, "cat count"))


@pytest.mark.proof(7)
def test_a_running_program_goes_on_in_every_fork_with_its_memory_and_connections(machines):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"counter.py": COUNTER.encode()}))
        await box.exec("python3 counter.py >log 2>&1 &")
        before = await until_counted(box, 10)
        one, two = await box.fork(2)
        pid = await said(box, "cat pid")
        for fork in (one, two):
            assert await said(fork, "cat pid; cat log") == pid
            assert await until_counted(fork, before) > before
        await said(one, f"kill -9 {pid}")
        stopped = await said(one, "cat count")
        assert await until_counted(two, before + 10) and await until_counted(box, before + 10)
        assert await said(one, "cat count") == stopped
        (grandchild,), (sibling,) = await two.fork(1), await two.fork(1)
        assert await until_counted(grandchild, before + 10) and await until_counted(sibling, before + 10)

    machines(scenario)


async def on_time(box):
    """Whether its clock is ours, however long it takes to ask."""
    before = time.time()
    said_s = float(await said(box, "date +%s.%N"))
    after = time.time()
    slack = max(1.5, after - before)  # a machine whose processor is kept from running loses ticks for a moment
    return before - slack < said_s < after + slack


@pytest.mark.proof(10)
def test_forks_share_neither_random_numbers_nor_names_nor_a_stopped_clock(machines):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        snapshot = await box.snapshot()
        await asyncio.sleep(2)
        forks = await asyncio.gather(*(backend.create(SandboxSpec(base=snapshot)) for _ in range(3)))
        look = (
            "cat /proc/sys/kernel/random/uuid; python3 -c 'import os; print(os.urandom(8).hex())'; cat /run/sandbox-id"
        )
        seen = [(await said(each, look)).split() for each in (box, *forks)]
        assert len({text[0] for text in seen}) == len({text[1] for text in seen}) == 4
        assert [text[2] for text in seen] == [each.id for each in (box, *forks)]
        for each in (box, *forks):
            assert await on_time(each)
        assert (await forks[0].metrics()).uptime_s < (await box.metrics()).uptime_s
        steps = await said(box, "date +%s.%N; sleep 2; date +%s.%N")
        first, last = map(float, steps.split())
        assert last - first >= 2
        await asyncio.sleep(4)
        assert await on_time(box)  # it runs at our pace
        await box.pause()
        await asyncio.sleep(2)
        await box.resume()
        assert await on_time(box)
        await backend.release(snapshot)

    machines(scenario)


@pytest.mark.proof(11)
def test_the_limits_bind_commands_and_the_agent_survives(machines):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(pids=20)))
        eat = await box.exec("python3 -c 'x = bytearray(700 << 20)'", timeout_s=60)
        assert eat.exit_code == 137
        fill = await box.exec("head -c 200M /dev/zero > fill", timeout_s=60)
        assert b"No space left" in fill.output
        bomb = await box.exec("for i in $(seq 60); do sleep 30 & done; echo", timeout_s=30)
        assert b"fork" in bomb.output.lower()
        assert (await box.metrics()).pids <= 20
        assert await box.read_file("/run/sandbox-id") == box.id.encode()

    machines(scenario)


def test_commands_are_nobody_in_their_machine_and_the_emulator_nobody_on_the_host(machines):
    refused = "unshare -U true", "mount -t tmpfs x /tmp", "mknod n c 1 3", "echo 1 > /proc/sys/kernel/panic"

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        for attempt in refused:
            assert (await box.exec(attempt)).exit_code != 0, attempt
        await box.exec("kill -9 1; kill -STOP 1")
        assert await said(box, "ls /sys/class/net; grep -h CapEff /proc/self/status") == "lo\nCapEff:\t0000000000000000"
        assert await said(box, "ls /dev") == (
            "fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero"
        )
        assert (await box.exec("ls /proc/1/fd; cat /proc/1/mem")).output.count(b"denied") == 2
        machine = next(
            path for path in Path("/proc").glob("[0-9]*") if box.id in _command(path) and "-name" in _command(path)
        )
        status = dict(line.split(":\t", 1) for line in (machine / "status").read_text().splitlines() if ":\t" in line)
        assert min(map(int, status["Uid"].split())) >= backend.config.first_uid
        assert (status["CapEff"], status["NoNewPrivs"], status["Seccomp"]) == ("0000000000000000", "1", "2")
        assert (machine / "net/dev").read_text().count(":") == 1  # lo
        assert os.stat(machine / "ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino

    machines(scenario)


def _command(process):
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.proof(5)
def test_what_no_machine_has_is_said(machines):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        frozen = await box.snapshot()
        with pytest.raises(ConfigError, match="512 MB of memory"):
            await backend.create(SandboxSpec(base=frozen, resources=Resources(memory_mb=600)))
        with pytest.raises(ConfigError, match="images add"):
            await backend.create(SandboxSpec(image="none"))
        await backend.release(frozen)

    machines(scenario)


def test_what_cannot_be_had_is_said(machine_config, monkeypatch, tmp_path):
    async def opened(config):
        backend = QemuBackend(config)
        try:
            await backend.create(SandboxSpec())
        finally:
            await backend.close()

    with pytest.raises(ConfigError, match="host's toolchain"):
        asyncio.run(opened(machine_config.model_copy(update={"image": None})))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "etude").mkdir()
    (tmp_path / "etude" / "linux-image-broken.deb").write_bytes(b"no package")
    with pytest.raises(MissingDependency, match=r"put the \.deb of a Debian cloud kernel into"):
        asyncio.run(opened(machine_config))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="apt-get install -y qemu-system-x86"):
        QemuBackend(QemuConfig(accel="tcg"))


def test_a_machine_that_cannot_boot_says_why_and_leaves_nothing(machine_config, tmp_path):
    async def scenario():
        backend = QemuBackend(machine_config.model_copy(update={"state_dir": tmp_path / "state"}))
        try:
            disk = backend._disk("machine")
            (tmp_path / "no image").write_bytes(bytes(1 << 20))
            fd = os.open(tmp_path / "no image", os.O_RDONLY)
            backend._disks[disk.image.id] = replace(disk, fd=fd)
            with pytest.raises(SandboxError, match=r"did not start with accel 'tcg'.*cannot mount /image"):
                await backend.create(SandboxSpec())
            assert not backend.live
        finally:
            await backend.close()

        return backend.instance

    instance = asyncio.run(scenario())
    assert not (tmp_path / "state").exists()
    assert not any(instance in line for line in leftovers())


class Called(QemuMachine):
    """With the line of Firecracker's machines, on which nobody can call here."""

    guest_port = 512


class CalledBackend(QemuBackend):
    def machine(self, number, disk, shape):
        name, log = self.place(number)
        return Called(name, shape, self.program, disk.fd, log, self.config.file_timeout_s)


@pytest.mark.proof(3)
def test_a_guest_whose_line_is_vsock_boots_until_it_waits_for_a_call(machine_config, tmp_path):
    async def scenario():
        backend = CalledBackend(machine_config.model_copy(update={"state_dir": tmp_path / "state"}))
        starting = asyncio.ensure_future(backend.create(SandboxSpec()))
        try:
            async with asyncio.timeout(120):
                while "waiting for a call on vsock port 512" not in "".join(
                    path.read_text(errors="replace") for path in tmp_path.rglob("*.log")
                ):
                    assert not starting.done(), starting.exception()
                    await asyncio.sleep(0.1)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await backend.close()

    asyncio.run(scenario())


OWNER = """
import asyncio, sys
from etude.environments.base import SandboxSpec
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig

async def main():
    backend = QemuBackend(QemuConfig.model_validate_json(sys.argv[1]))
    box = await backend.create(SandboxSpec())
    await box.exec("sleep 600 &")
    print(box.id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_machine_outlives_a_killed_owner(machine_config, tmp_path):
    config = machine_config.model_copy(update={"state_dir": tmp_path / "state"})
    command = [sys.executable, "-c", OWNER, config.model_dump_json()]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        name = owner.stdout.readline().strip()
        assert name and any(name in _command(path) for path in Path("/proc").glob("[0-9]*"))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        end = time.monotonic() + 60
        while any(name in _command(path) for path in Path("/proc").glob("[0-9]*")):
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        owner.kill()
        owner.wait()
    asyncio.run(QemuBackend(config).close())  # opening sweeps
    assert not any(name.partition("/")[0] in line for line in leftovers())


HOLDER = """
import mmap, os, sys, time
fd, size, writes = int(sys.argv[1]), int(sys.argv[2]), eval(sys.argv[3])
own = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE)
for at, data in writes:
    own[at : at + len(data)] = data
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_of_a_memory_is_what_its_process_saw_and_cannot_be_changed(seed):
    draw, size = random.Random(seed), 64 * PAGE
    ram, seen = Ram(size), bytearray(size)
    for _ in range(3):  # a copy of a copy of a copy
        writes = [(draw.randrange(size - 5000), draw.randbytes(draw.randrange(1, 5000))) for _ in range(5)]
        for at, data in writes:
            seen[at : at + len(data)] = data
        command = [sys.executable, "-c", HOLDER, str(ram.fd), str(size), repr(writes)]
        process = subprocess.Popen(command, pass_fds=[ram.fd], stdout=subprocess.PIPE)
        try:
            assert process.stdout.readline() == b"ready\n"
            copy = ram.copy_of(process.pid)
        finally:
            process.kill()
            process.wait()
        assert os.pread(copy.fd, size, 0) == bytes(seen)
        again = os.open(f"/proc/self/fd/{copy.fd}", os.O_RDWR)
        for change in (
            lambda fd: os.pwrite(fd, b"x", 0),
            lambda fd: os.ftruncate(fd, 0),
            lambda fd: mmap.mmap(fd, size),
        ):
            with pytest.raises(PermissionError):
                change(again)
        os.close(again)
        ram = copy


def test_an_archive_for_the_kernel_reads_back(tmp_path):
    entries = {"dir": None, "dir/file": b"abc", "other": bytes(range(256)) * 5, "empty": b""}
    (tmp_path / "cpio").write_bytes(cpio(entries))
    root = tmp_path / "out"
    root.mkdir()
    if shutil.which("cpio"):
        subprocess.run(["cpio", "-i", "--quiet", "-F", tmp_path / "cpio"], cwd=root, check=True)
    elif shutil.which("busybox"):
        subprocess.run(["busybox", "cpio", "-i", "-F", tmp_path / "cpio"], cwd=root, check=True, capture_output=True)
    else:
        pytest.skip("neither cpio nor busybox is here to read it")
    assert {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    } == entries
    assert os.access(root / "dir/file", os.X_OK)


def test_what_is_no_boot_image_is_refused():
    with pytest.raises(SandboxError, match="unknown way"):
        uncompressed_kernel(bytes(100_000))
    header = bytearray(0x250)
    payload = gzip.compress(b"no kernel")
    struct.pack_into("<II", header, 0x248, 0x50, len(payload))
    with pytest.raises(SandboxError, match="without a kernel"):
        uncompressed_kernel(bytes(header) + payload)


def test_a_config_says_how_strong_the_isolation_must_be():
    def parsed(**table):
        return parse({"environment": table}, Recipe, "recipe").environment

    class Recipe(Config):
        environment: BackendConfig = NamespaceConfig()

    assert parsed() == NamespaceConfig() and parsed(limits="rlimit") == NamespaceConfig(limits="rlimit")
    assert parsed(isolation="vm") == parsed(kind="qemu") == QemuConfig()
    for wrong in ({"kind": "namespace", "isolation": "vm"}, {"kind": "qemu", "isolation": "namespace"}, {"kind": "x"}):
        with pytest.raises(ConfigError, match="environment"):
            parsed(**wrong)


@pytest.mark.proof(5)
def test_the_doctor_boots_a_guest(machine_config, monkeypatch, tmp_path):
    *parts, booted = probe(machine_config)
    assert all(finding.ok for finding in parts) and booted.ok, str(booted)
    assert "Linux 6." in booted.detail and "fork" in booted.detail
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "etude").mkdir()
    (tmp_path / "etude" / "linux-image-broken.deb").write_bytes(b"no package")
    assert [(finding.subject, finding.ok) for finding in probe(machine_config)] == [
        ("emulator", True),
        ("guest kernel", False),
    ]


def test_nothing_but_the_workspace_of_an_agents_machine_reaches_the_verifier(machines):
    cheat = "while true; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    test = "mkdir -p /logs/verifier; cp answer /logs/verifier/reward.txt; sleep 1; ls /tmp; test ! -e /tmp/planted"
    task = Task("cheated", "", {"answer": b"0"}, Verifier({"/tests/test.sh": test.encode()}, timeout_s=120))

    async def scenario(backend):
        agent = await backend.create(SandboxSpec(files=task.files))
        await agent.start(cheat)
        await agent.exec("touch /tmp/planted; echo 0.5 > answer")
        final = await take_out(agent)
        await agent.destroy()
        verdict = await verify(task, final, backend)
        assert (verdict.reward, verdict.reason) == (0.5, "failed"), verdict

    machines(scenario)


class Killed(BaseException):
    """As a kill: nothing of ours catches it."""


def test_a_rollout_goes_on_with_what_ran_in_its_machine(machines, tmp_path, monkeypatch):
    """Here one backend has both lives of the rollout, as one server would for two workers."""
    offered = QemuBackend.capabilities.fget
    monkeypatch.setattr(QemuBackend, "capabilities", property(lambda self: replace(offered(self), lasting=True)))
    chat = ChatRenderer(train_tokenizer([system_prompt(TOOLS)], 400))
    commands = [
        "sleep 1000 & echo $! > /tmp/pid; cat /proc/sys/kernel/random/boot_id > boot",
        "kill -0 $(cat /tmp/pid) && cmp boot /proc/sys/kernel/random/boot_id && echo the same machine",
    ]
    limits = Limits(max_turns=5, max_context_tokens=20_000, max_sampled_tokens=10_000, wall_s=200)
    order = RolloutRequest("g1/0", "g1", Task("t", "Go on.", {}, Verifier({}), limits=limits), 0, kept=tmp_path)

    def attempt(backend, first, on_event):
        calls = [render_calls([("run_terminal_cmd", {"command": command})]) for command in commands[first:]]
        messages = iter([*calls, "Done."])
        sampler = ScriptedSampler(lambda _: next(messages), chat)
        return play_request(order, parse({"name": "t"}, RunConfig, "t"), backend, sampler, chat, on_event)

    def dies(order, event):
        if event.kind == "completion" and event.data["turn"] == 2:
            raise Killed

    async def scenario(backend):
        with pytest.raises(Killed):
            await attempt(backend, 0, dies)
        assert not backend.live and [path.suffix for path in sorted((tmp_path / "g1/0").glob("turn-1.*"))] == [
            ".files", ".memory"
        ]  # fmt: skip
        return await attempt(backend, 1, lambda order, event: None)

    done = machines(scenario).trajectory
    [*_, last] = [event.data["text"] for event in done.events if event.kind == "tool_result"]
    assert last == "the same machine" and done.usage["turns_taken_up"] == 1 and done.usage["memory_checkpoints"] == 1
