"""The firecracker backend against Firecracker's published API, with agents that really run behind it.

No Firecracker runs here: see firecracker_stand_in.py for what stands in its place, and what only metal can show.
"""

import asyncio
import os
import shutil
import socketserver
import struct
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from firecracker_stand_in import CONTRACT, StandIn, complaints

from etude.config import Config, parse
from etude.environments.backends import BackendConfig, open_backend
from etude.environments.base import Resources, SandboxSpec
from etude.environments.doctor import survey
from etude.environments.firecracker.backend import FirecrackerBackend
from etude.environments.firecracker.config import FirecrackerConfig
from etude.environments.firecracker.machine import find_firecracker
from etude.environments.firecracker.probe import probe
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceConfig
from etude.environments.qemu.config import QemuConfig
from etude.environments.vm.machine import KVM
from etude.environments.vm.ram import PAGE, Ram
from etude.errors import ConfigError, MissingDependency, SandboxError

SIZE = Resources(memory_mb=32, disk_mb=16)
SPEC = SandboxSpec(resources=SIZE)
RAM_MB = 32 + 16 + 128
BOOT = ["PUT /machine-config", "PUT /boot-source", "PUT /drives/disk", "PUT /vsock", "PUT /actions"]
COPY = ["PATCH /vm Paused", "PUT /snapshot/create", "PATCH /vm Resumed"]
LOAD = ["PUT /snapshot/load"]


@pytest.fixture
def monitor(monkeypatch):
    """What stands for Firecracker: first on PATH, where a machine's user can reach it."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        pytest.skip(f"{KVM} cannot be opened, so no machine could be given one of its own")
    place = Path(tempfile.mkdtemp(prefix="etude-firecracker-"))
    place.chmod(0o755)
    try:
        with StandIn(place) as stand_in:
            monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
            yield stand_in
    finally:
        shutil.rmtree(place)
    assert stand_in.wrong == []


@pytest.fixture
def run(monitor, machine_images):
    """Run `scenario(backend)` within a deadline; leaves nothing."""

    def runner(scenario, deadline_s=200.0, **settings):
        async def whole():
            config = FirecrackerConfig(image="machine", images=machine_images, **settings)
            backend = open_backend(config)
            assert isinstance(backend, FirecrackerBackend)
            try:
                async with asyncio.timeout(deadline_s):
                    return await scenario(backend)
            finally:
                await backend.close()
                assert not any(backend.instance in line for line in leftovers())

        return asyncio.run(whole())

    return runner


def asked(monitor):
    return [f"{method} {path}" + (f" {body['state']}" if path == "/vm" else "") for method, path, body in monitor.log]


def body_of(monitor, path):
    return [body for _, asked, body in monitor.log if asked == path]


def test_commands_files_and_processes(monitor, run):
    async def scenario(backend):
        capabilities = backend.capabilities
        assert (capabilities.name, capabilities.isolation, capabilities.snapshot) == ("firecracker", "vm", "full")
        assert (capabilities.accel, capabilities.network, capabilities.services) == ("kvm", False, True)
        box = await backend.create(replace(SPEC, files={"a/b": b"1", "c": bytes(range(256)) * 9000}))
        assert (await box.exec("cat a/b; echo oops >&2; exit 3")).output == b"1oops\n"
        assert await box.read_file("/workspace/c") == bytes(range(256)) * 9000
        process = await box.start("for i in 1 2 3; do echo $i; sleep 0.05; done")
        assert b"".join([piece async for piece in process.output()]) == b"1\n2\n3\n"
        assert (await box.exec("sleep 60", timeout_s=0.3)).timed_out

    run(scenario)


def test_one_machine_boots_and_all_others_start_from_its_memory(monitor, run):
    async def scenario(backend):
        one = await backend.create(SPEC)
        two = await backend.create(SPEC)
        assert asked(monitor) == [*BOOT, *COPY, *LOAD, *LOAD]
        (fork,) = await two.fork(1)
        assert asked(monitor)[8:] == [*LOAD, *LOAD, *COPY, *LOAD]
        await asyncio.gather(*(box.exec("true") for box in (one, two, fork)))

    run(scenario)
    (size,), (source,), (drive,), (vsock,) = (
        body_of(monitor, path) for path in ("/machine-config", "/boot-source", "/drives/disk", "/vsock")
    )
    assert size == {"vcpu_count": 1, "mem_size_mib": RAM_MB, "smt": False}
    assert source["boot_args"].endswith(f" -- boot {16 << 20} {32 << 20} 1000 1000 /workspace 512")
    assert " rdinit=/guest " in source["boot_args"] and " reboot=k " in source["boot_args"]
    assert drive["is_read_only"] and not drive["is_root_device"]
    assert vsock["uds_path"].startswith("/proc/self/fd/")
    assert all(body["mem_backend"]["backend_type"] == "File" for body in body_of(monitor, "/snapshot/load"))
    assert set(monitor.calls) == {b"CONNECT 512\n"}


def test_each_is_told_who_it_is_with_entropy_of_its_own(monitor, run):
    async def scenario(backend):
        before = time.time_ns()
        box = await backend.create(SPEC)
        (fork,) = await box.fork(1)
        return before, box.id, fork.id

    before, name, fork = run(scenario, env={"EXTRA": "x"})
    told = [body[76:].split(b"\0") for body in monitor.resumed]
    assert [words[0].decode() for words in told][-2:] in ([name, fork], [fork, name])
    assert all({b"EXTRA=x", b"HOME=/home/agent"} <= set(words) for words in told)
    moments = [struct.unpack_from("<QI", body) for body in monitor.resumed]
    assert all(before < moment < time.time_ns() and processes == 128 for moment, processes in moments)
    assert len({body[12:76] for body in monitor.resumed}) == len(monitor.resumed) == 5


def test_a_command_goes_on_through_the_copying_of_its_machine(monitor, run):
    async def scenario(backend):
        box = await backend.create(SPEC)
        running = asyncio.ensure_future(box.exec("for i in 1 2 3 4 5 6; do echo $i | tee -a n; sleep 0.1; done"))
        await box.exec("until [ -s n ]; do sleep 0.01; done")
        given_up = asyncio.ensure_future(box.exec("sleep 61"))
        await asyncio.sleep(0.1)
        snapshots = [asyncio.ensure_future(box.snapshot()) for _ in range(2)]
        given_up.cancel()
        forks = [await backend.create(replace(SPEC, base=await snapshot)) for snapshot in snapshots]
        for fork in forks:
            assert (await fork.exec("cat n")).output.startswith(b"1\n")
        result = await running
        assert (result.exit_code, result.output) == (0, b"1\n2\n3\n4\n5\n6\n")
        with pytest.raises(asyncio.CancelledError):
            await given_up
        end = time.monotonic() + 60
        while b"sleep 61" in (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output:
            assert time.monotonic() < end  # the word to kill it was kept, and sent when the machine went on
            await asyncio.sleep(0.05)

    run(scenario)


def test_forks_of_forks_and_of_a_paused_sandbox(monitor, run):
    async def scenario(backend):
        box = await backend.create(replace(SPEC, files={"n": b"0"}))
        (child,) = await box.fork(1)
        await child.write_file("/workspace/n", b"1")
        await child.pause()
        with pytest.raises(SandboxError, match="paused"):
            await child.exec("true")
        one, two = await child.fork(2)
        assert [await each.read_file("/workspace/n") for each in (box, one, two)] == [b"0", b"1", b"1"]
        await child.resume()
        assert await child.read_file("/workspace/n") == b"1"
        (again,) = await child.fork(1)
        assert await again.read_file("/workspace/n") == b"1"

    run(scenario)


def test_an_agent_that_does_not_listen_yet_is_called_again(monitor, run):
    monitor.deaf = iter([True] * 3)
    run(lambda backend: backend.create(SPEC))
    assert len(monitor.calls) == 3 + 3


def test_a_line_that_a_started_machine_cuts_is_asked_for_again(monitor, run):
    monitor.late_cuts = 2

    async def scenario(backend):
        box = await backend.create(replace(SPEC, files={"n": b"0"}))
        (fork,) = await box.fork(1)
        assert await fork.read_file("/workspace/n") == await box.read_file("/workspace/n") == b"0"

    run(scenario)
    assert len(monitor.calls) == 1 + 4 * 3  # the boot, and each going on


def test_its_process_is_confined_and_opens_nothing_by_name(monitor, run):
    async def scenario(backend):
        box = await backend.create(SPEC)
        assert box.id in monitor.reports[-1]["argv"]
        return backend.config.first_uid

    first = run(scenario)
    for report in monitor.reports:
        assert report["kvm"] and report["status"]["NoNewPrivs"].strip() == "1"
        if os.geteuid() == 0:
            assert min(map(int, report["status"]["Uid"].split())) > first
            assert report["status"]["CapEff"].strip() == "0" * 16 and report["interfaces"] == ["lo"]
    assert len({report["status"]["Uid"] for report in monitor.reports}) == len(monitor.reports) or os.geteuid()


def test_a_machine_that_was_taken_over_leads_us_nowhere(monitor, run, tmp_path):
    with socketserver.UnixStreamServer(str(tmp_path / "ours"), socketserver.BaseRequestHandler) as other:
        other.socket.setblocking(False)
        monitor.lead_to = tmp_path / "ours"
        with pytest.raises(SandboxError, match="'api' is no socket"):
            run(lambda backend: backend.create(SPEC))
        with pytest.raises(BlockingIOError):
            other.socket.accept()


def test_what_firecracker_refuses_is_quoted(monitor, run):
    monitor.refuse = {"PUT /actions": "KVM says no"}
    with pytest.raises(SandboxError, match=r"did not start with accel 'kvm'.*refuses PUT /actions: KVM says no"):
        run(lambda backend: backend.create(SPEC))
    monitor.refuse = {"PUT /snapshot/load": "another processor"}
    with pytest.raises(SandboxError, match=r"refuses PUT /snapshot/load: another processor"):
        run(lambda backend: backend.create(SPEC))

    async def scenario(backend):
        monitor.refuse = {}
        box = await backend.create(SPEC)
        monitor.refuse = {"PUT /snapshot/create": "no room"}
        with pytest.raises(SandboxError, match="no room"):
            await box.snapshot()
        assert (await box.exec("echo here")).output == b"here\n"

    run(scenario)


def test_a_machine_that_ends_says_its_last_words(monitor, run):
    async def scenario(backend):
        box = await backend.create(SPEC)
        running = asyncio.ensure_future(box.exec("touch begun; sleep 60"))
        while "begun" not in {each.name for each in await box.list_dir("/workspace")}:
            await asyncio.sleep(0.01)
        monitor.vms[-1].end(b"panic")
        with pytest.raises(SandboxError, match="processes have ended"):
            await running
        box = await backend.create(SPEC)
        await box.pause()
        monitor.vms[-1].end(b"panic")
        with pytest.raises(SandboxError, match="has ended"):
            await box.resume()
        with pytest.raises(SandboxError, match="has ended"):
            await box.snapshot()

    run(scenario)


def test_what_cannot_be_had_is_said(monitor, run, tmp_path, monkeypatch):
    async def too_many(backend):
        await backend.create(SandboxSpec(resources=replace(SIZE, cpus=33)))

    with pytest.raises(ConfigError, match="at most 32 processors"):
        run(too_many)
    with pytest.raises(ConfigError, match="the firecracker backend lets nothing out"):
        run(lambda backend: backend.create(replace(SPEC, egress=("example.org",))))
    old = tmp_path / "firecracker"
    old.write_text("#!/bin/sh\necho Firecracker v1.7.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(MissingDependency, match=r"v1\.7, and machines need 1\.8 or newer"):
        find_firecracker()
    old.write_text("#!/bin/sh\necho something else\n")
    with pytest.raises(MissingDependency, match="does not say that it is Firecracker"):
        find_firecracker()
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(MissingDependency, match=r"no firecracker.*take a release.*/usr/local/bin"):
        FirecrackerBackend()


def test_the_doctor_says_what_is_missing_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding, *_) = survey("firecracker")["firecracker"]
    assert not finding.ok and finding.subject == "Firecracker" and "no firecracker" in finding.detail
    assert "github.com/firecracker-microvm/firecracker/releases" in finding.remedy


def test_the_doctor_is_not_satisfied_with_a_program_that_boots_nothing(monitor):
    monitor.refuse = {"PUT /actions": "no virtualization"}
    *parts, booted = probe(FirecrackerConfig())
    assert all(finding.ok for finding in parts), parts
    assert not booted.ok and "no virtualization" in booted.detail and "kvm_intel" in booted.remedy
    monitor.refuse = {}
    assert "no guest" in probe(FirecrackerConfig())[-1].detail  # agents run on our own kernel


def test_a_backend_is_chosen_by_its_name_only():
    class Recipe(Config):
        environment: BackendConfig = NamespaceConfig()

    def parsed(**table):
        return parse({"environment": table}, Recipe, "recipe").environment

    assert parsed(kind="firecracker") == parsed(kind="firecracker", isolation="vm") == FirecrackerConfig()
    assert parsed(isolation="vm") == QemuConfig()
    for wrong in ({"kind": "firecracker", "isolation": "namespace"}, {"kind": "firecracker", "accel": "tcg"}):
        with pytest.raises(ConfigError, match="environment"):
            parsed(**wrong)


def test_the_contract_knows_what_is_wrong():
    assert complaints("PUT", "/vsock", {"guest_cid": 2, "uds_path": 1}) == [
        "PUT /vsock: guest_cid: 2 is less than the minimum of 3",
        "PUT /vsock: uds_path: 1 is not of type 'string'",
    ]
    assert complaints("PUT", "/drives/a", {"drive_id": "a"}) and complaints("POST", "/vm", {"state": "Paused"})
    assert CONTRACT["of"].startswith("Firecracker API 1.") and CONTRACT["answers"]["204"] is None


def test_a_memory_that_was_written_out_is_copied_without_its_zeros():
    size = 9 << 20
    written = os.memfd_create("written")
    try:
        os.truncate(written, size)
        os.pwrite(written, bytes(2 << 20), 1 << 20)
        for at in (0, 5 * PAGE, (4 << 20) - PAGE, size - PAGE):
            os.pwrite(written, b"x", at + 17)
        copy = Ram.written(written, size)
        assert os.pread(copy.fd, size, 0) == os.pread(written, size, 0)
        assert os.fstat(copy.fd).st_blocks * 512 == 4 * PAGE
        with pytest.raises(PermissionError):
            os.pwrite(copy.fd, b"x", 0)
        with pytest.raises(SandboxError, match="not of"):
            Ram.written(written, size + PAGE)
    finally:
        os.close(written)
