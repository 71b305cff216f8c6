"""What a command, or a path given to the file operations, tries to reach outside its sandbox. Each must fail."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from etude.environments.base import SandboxSpec
from etude.environments.namespace import NamespaceConfig

TOP = {"bin", "dev", "etc", "guest", "home", "lib", "lib32", "lib64", "libx32", "logs", "opt", "proc", "sbin", "tests"}
TOP |= {"tmp", "usr", "var", "workspace"}


def test_no_host_files(run, tmp_path):
    (tmp_path / "secret").write_text("host secret")

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert {entry.name for entry in await box.list_dir("/")} <= TOP  # with the system's interpreter
        for place in ["/etc/shadow", "/root", "/home/*/.ssh", "/sys", "/boot", "/var/lib", "/run", str(tmp_path)]:
            assert (await box.exec(f"cat {place} || ls {place}")).exit_code != 0, place
        assert (await box.exec("grep -rs 'host secret' /tmp /var /home /opt")).exit_code == 1
        assert b"agent:x:1000" in await box.read_file("/etc/passwd")

    run(scenario, NamespaceConfig(python=Path("/usr/bin/python3")))


def test_the_interpreter_is_there_wherever_it_lives(run):
    python = Path(sys.base_prefix).resolve() / "bin" / "python3"

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await box.exec("python3 -c 'import sys, json, sqlite3; print(sys.base_prefix)'")
        assert result.output.decode().strip() == str(python.parent.parent)

    run(scenario, NamespaceConfig(python=python))


ESCAPES = {
    "no capability": "grep -q 'CapEff:.*[1-9a-f]' /proc/self/status",
    "privileges can be gained": "grep -q 'NoNewPrivs:.*0' /proc/self/status",
    "mount": "mount -t tmpfs none /workspace",
    "device": "mknod /workspace/d c 1 1 || mknod /tmp/d b 254 0",
    "user namespace": "unshare -U true",
    "mount namespace": "unshare -m true",
    "other namespaces": "nsenter -t 1 -m true",
    "chroot": "chroot /workspace /bin/sh",
    "write to the toolchain": "touch /usr/x || touch /etc/x || touch /x || touch /guest/guest",
    "kernel settings": "echo 1 > /proc/sys/kernel/core_pattern || echo 1 > /proc/sys/vm/drop_caches",
    "sysrq": "echo h > /proc/sysrq-trigger",
    "kill the agent": "kill -9 1; kill -STOP 1; kill -TERM 1; sleep 0.1; false",
    "the agent's descriptors": "ls /proc/1/fd/ || cat /proc/1/environ || ls /proc/1/root/",
    "the agent's memory": 'python3 -c \'open("/proc/1/mem", "rb")\'',
    "trace the agent": "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
    "host name": "hostname owned",
    "clock": "date -s 2001-01-01",
    "raw socket": "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "packet socket": "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)'",
    "internet": "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 3)'",
    "metadata": "python3 -c 'import socket; socket.create_connection((\"169.254.169.254\", 80), 3)'",
    "names": "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'",
    "interfaces": "grep -v -e lo: -e Inter- -e face /proc/net/dev",
    "be less killable": "echo -1000 > /proc/self/oom_score_adj",
    "root by setuid": "for su in /usr/bin/passwd /usr/bin/su /usr/bin/newgrp; do cp $su s; chmod u+s s; ./s; done; "
    "python3 -c 'import os; os.setuid(0)'",
}


@pytest.mark.parametrize("attempt", ESCAPES)
def test_attempts_are_refused_and_the_sandbox_lives(run, attempt):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await box.exec(ESCAPES[attempt], timeout_s=20)
        assert result.exit_code != 0, result.output
        assert not result.timed_out
        assert (await box.exec("echo alive")).output == b"alive\n"

    run(scenario)


def test_a_server_on_the_host_cannot_be_reached(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
            name = f"\0etude-test-{os.getpid()}"
            abstract.bind(name)
            abstract.listen()
            program = (
                "import socket, sys\n"
                "for family, address in ((2, ('127.0.0.1', int(sys.argv[1]))), (1, '\\0' + sys.argv[2])):\n"
                "    try: socket.socket(family).connect(address)\n"
                "    except ConnectionRefusedError: print('refused')\n"
            )
            await box.write_file("/tmp/try.py", program.encode())
            result = await box.exec(f"python3 /tmp/try.py {tcp.getsockname()[1]} {name[1:]}")
        assert result.output == b"refused\nrefused\n"

    run(scenario)


def test_sandboxes_do_not_see_each_other(run):
    async def scenario(backend):
        one, two = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(2)))
        await one.exec(
            "echo x > /tmp/mark; echo x > /home/agent/mark; (exec -a marked-process sleep 60) & ipcmk -M 4096"
        )
        await one.exec("bash -c '(exec -a marked-process sleep 60) & sleep 0.05'")
        assert (await one.exec("pgrep -f marked-proces[s]")).exit_code == 0
        assert (await two.exec("ls /tmp /home/agent /dev/shm")).output == b"/dev/shm:\n\n/home/agent:\n\n/tmp:\n"
        assert (await two.exec("pgrep -f marked-proces[s]")).exit_code == 1
        assert int((await two.exec("ls -d /proc/[0-9]* | wc -l")).output) <= 5  # process 1, and this pipeline
        assert b"0x" not in (await two.exec("ipcs -m")).output

    run(scenario)


def test_symlinks_and_dots_lead_nowhere_outside(run, tmp_path):
    target = tmp_path / "target"
    target.write_text("host")
    tmp_path.chmod(0o777)
    target.chmod(0o666)

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec(f"ln -s {target} file; ln -s {tmp_path} dir; ln -s /proc/1/root root; ln -s /etc/shadow shadow")
        for path in ("file", "dir/target", f"root{target}", "shadow", f"../../../../..{target}", "../../etc/shadow"):
            with pytest.raises(OSError):
                await box.read_file(f"/workspace/{path}")
        for path in ("file", "dir/new", f"../../..{tmp_path}/new"):
            try:
                await box.write_file(f"/workspace/{path}", b"written")  # may land inside; never outside
            except OSError:
                continue
        assert target.read_text() == "host" and [path.name for path in tmp_path.iterdir()] == ["target"]
        assert b"root:x:0:0:root:/root:/bin/sh\nagent" in await box.read_file("/workspace/../etc/passwd")

    run(scenario)


def test_snapshot_never_follows_a_symlink_to_the_host(run, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "secret").write_text("host secret")
    config = NamespaceConfig(state_dir=tmp_path / "state")

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        swap = f"mkdir -p a/inner; while true; do mv a b; ln -s {tmp_path} a; rm a; mv b a; done"
        await box.exec(f"ln -s {tmp_path} link; ({swap}) >/dev/null 2>&1 &")
        for _ in range(20):
            snapshot = await box.snapshot()
            found = list((backend.store.root / "s").rglob("secret"))
            await backend.release(snapshot)
            assert not found

    run(scenario, config)
