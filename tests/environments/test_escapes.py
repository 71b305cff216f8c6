"""The escape suite: what a command, a path or an archive tries against the host. Each is refused, and afterwards the
sandbox still runs commands and whoever made it, a real server for what `attempts` lists, still makes others.
"""

import asyncio
import io
import os
import platform
import re
import sys
import tarfile
from pathlib import Path

import pytest
from attempts import BOMBS, ESCAPES, OWN_SETTINGS
from proofs import one_of_each
from refused_calls import NOT_PERMITTED
from scenarios import reaching_for_the_host

from etude import environments
from etude.environments.base import Resources, SandboxSpec
from etude.environments.leftovers import leftovers
from etude.environments.local import open_workspace
from etude.environments.namespace import NamespaceConfig

SMALL = Resources(memory_mb=96, pids=48, disk_mb=16)


async def all_is_well(backend, box):
    assert (await box.exec("echo alive", timeout_s=20)).output == b"alive\n"
    other = await backend.create(SandboxSpec(files={"a": b"1"}))
    assert (await other.exec("cat a")).output == b"1"
    await other.destroy()


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


def test_an_interpreter_below_tmp_is_not_covered_by_the_sandboxs_own_tmp(run, public):
    python = public / "built" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho the built one\n")
    python.chmod(0o755)

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert (await box.exec("python3")).output == b"the built one\n"
        assert (await box.exec(f"touch /tmp/mine && ! touch {python.parent}/mine")).exit_code == 0

    run(scenario, NamespaceConfig(python=python))


def test_a_bind_of_what_the_launcher_hides_shows_it(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert (await box.exec("ls /shown/kernel && ! touch /shown/kernel/mine")).exit_code == 0
        assert (await box.exec("ls /sys/kernel")).exit_code != 0

    run(scenario, NamespaceConfig(binds={"/shown": Path("/sys")}))


def test_files_are_not_read_through_the_links_of_proc(run):
    """Of the agent's own process they mean other places than of a command."""

    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"kept": b"1"}))
        await box.exec("ln -s kept plain; ln -s /proc/self/cwd/kept led; ln -s /proc/self/cwd away")
        assert await box.read_file("plain") == b"1"
        for path in ("led", "away/kept"):
            with pytest.raises(OSError):
                await box.read_file(path)
        with pytest.raises(OSError):
            await box.write_file("away/made", b"2")
        assert (await box.exec("ls made")).exit_code != 0

    run(scenario)


@pytest.mark.parametrize("attempt", one_of_each(0.2, ESCAPES))
def test_attempts_are_refused_and_sandbox_and_server_live(from_afar, attempt):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await box.exec(ESCAPES[attempt], timeout_s=20)
        assert result.exit_code != 0, result.output
        assert not result.timed_out
        await all_is_well(backend, box)

    from_afar(scenario)


async def succeeding(box):
    """The attempts that were not refused; the sandbox lives."""
    found = {}
    for attempt, command in ESCAPES.items():
        result = await box.exec(command, timeout_s=60)
        if result.exit_code == 0 or result.timed_out:
            found[attempt] = result.output.decode()[-300:]
    assert (await box.exec("echo alive", timeout_s=60)).output == b"alive\n"
    return found


@pytest.mark.timeout(600)
def test_every_backend_refuses_every_attempt(everywhere):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        threads_of_its_own_kernel = {"processes of the host"} if backend.capabilities.isolation == "vm" else set()
        assert (await succeeding(box)).keys() <= threads_of_its_own_kernel

    everywhere(scenario, deadline_s=580)  # emulated, each of them takes seconds


def test_the_workspace_of_the_product_refuses_every_attempt(tmp_path):
    async def scenario():
        box = await open_workspace(tmp_path)
        try:
            return await succeeding(box)
        finally:
            await box.destroy()

    assert asyncio.run(scenario()).keys() <= {"root by setuid"}  # who opened it as root has no other name inside


NO_CORE = """python3 -c '
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))'
ulimit -c 0; ulimit -n 100; grep -e core -e files /proc/self/limits"""


@pytest.mark.parametrize("place", ["from_afar", "containers"])
def test_no_core_reaches_a_program_of_the_host(request, place):
    """Which the kernel runs where its core pattern is a pipe, also for a limit of 0, but not for 1."""

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        said = (await box.exec(NO_CORE)).output.decode()
        assert said.splitlines()[0].split()[4:6] == ["1", "1"] and said.splitlines()[1].split()[3:5] == ["100", "100"]

    request.getfixturevalue(place)(scenario)


def test_what_a_sandbox_may_set_is_its_own(from_afar):
    def told():
        return {name: Path(f"/proc/sys/kernel/{name}").read_text() for name in OWN_SETTINGS}

    async def scenario(backend):
        box, other = [await backend.create(SandboxSpec()) for _ in range(2)]
        inside = f"cd /proc/sys/kernel && head -n 1 {' '.join(OWN_SETTINGS)}"
        before, beside = told(), (await other.exec(inside)).output
        for name in OWN_SETTINGS:
            await box.exec(f"echo 4321 > /proc/sys/kernel/{name}")
        assert told() == before and (await other.exec(inside)).output == beside
        await all_is_well(backend, other)

    from_afar(scenario)


def test_a_server_on_the_host_cannot_be_reached(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        async with reaching_for_the_host(box) as command:
            result = await box.exec(command)
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
        for path in ("dir", f"root{tmp_path}", f"../../..{tmp_path}"):
            for reading in (box.list_dir(f"/workspace/{path}"), box.download(f"/workspace/{path}")):
                with pytest.raises(OSError):
                    await reading
            with pytest.raises(OSError):
                await box.remove(f"/workspace/{path}/target")
        for path in ("file", "dir/new", f"../../..{tmp_path}/new"):
            try:
                await box.write_file(f"/workspace/{path}", b"written")  # may land inside; never outside
            except OSError:
                continue
        assert target.read_text() == "host" and [path.name for path in tmp_path.iterdir()] == ["target"]
        await box.remove("/workspace/dir", recursive=True)  # the link itself
        assert target.read_text() == "host"
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


def test_every_call_that_the_filter_names_is_tried():
    text = (Path(environments.__file__).parent / "guest" / "confine.c").read_text()
    named = re.search(r"REFUSED\[\] = \{(.*?)\n\};", text, re.DOTALL)[1]
    calls = re.findall(r"^ .*", named, re.MULTILINE)
    found = {name.removeprefix("SYS_").lower() for line in calls for name in re.findall(r"\w+", line)}
    assert len(found) > 50 and found - NOT_PERMITTED.keys() == set()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_the_filter_refuses_every_call_of_the_list_in_its_own_words(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.write_file("/tmp/calls.py", Path(__file__).with_name("refused_calls.py").read_bytes())
        result = await box.exec("python3 /tmp/calls.py")
        assert (result.exit_code, result.output.decode()) == (0, "")
        await all_is_well(backend, box)

    run(scenario)


def test_the_servers_secrets_are_not_inside(run, monkeypatch, tmp_path):
    monkeypatch.setenv("ETUDE_TOKEN", "token-of-the-server")
    (tmp_path / "token").write_text("token-of-the-server")
    ours = os.open(tmp_path / "token", os.O_RDONLY)
    os.set_inheritable(ours, True)  # however careless the server is

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        look = "env; cat /proc/*/environ /proc/*/cmdline /proc/*/mountinfo; ls -l /proc/*/fd"
        result = await box.exec(f"({look}) 2>/dev/null", timeout_s=20)
        assert b"token" not in result.output and b"HOME=/home/agent" in result.output
        assert (await box.exec("ls /proc/self/fd")).output.split() == [b"0", b"1", b"2", b"3"]  # 3 is the listing's
        await all_is_well(backend, box)

    try:
        run(scenario)
    finally:
        os.close(ours)


def test_the_token_and_the_port_of_a_real_server_are_out_of_reach(served, from_afar):
    path, token, port = served.config.token_path, served.token.encode(), served.config.port

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec(f"ln -s {path} link")
        for way in (str(path), f"/proc/1/root{path}", f"/workspace/../..{path}", "/workspace/link"):
            assert (await box.exec(f"cat {way}")).exit_code != 0
            with pytest.raises(OSError):
                await box.read_file(way)
        look = await box.exec("(env; cat /proc/*/environ /proc/*/cmdline /proc/*/mountinfo) 2>/dev/null")
        assert token not in look.output
        knock = f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 3)'"
        assert b"ConnectionRefusedError" in (await box.exec(knock)).output
        await all_is_well(backend, box)

    from_afar(scenario)


def test_other_sandboxes_files_are_out_of_reach(run):
    async def scenario(backend):
        one, two = await asyncio.gather(*(backend.create(SandboxSpec(files={"own": b"1"})) for _ in range(2)))
        await one.write_file("/workspace/secret", b"a secret that one sandbox holds")
        snapshot = await one.snapshot()
        for place in (backend.store.root, backend.store.root.parent, "/tmp/scratch/upper", "/tmp/merged", "/tmp/stage"):
            assert (await two.exec(f"ls {place} || cat {place}/secret")).exit_code != 0, place
        search = "grep -rls --devices=skip 'a secret that one' / --exclude-dir=usr --exclude-dir=proc --exclude-dir=dev"
        assert (await two.exec(search, timeout_s=20)).output == b""
        await backend.release(snapshot)
        await all_is_well(backend, two)

    run(scenario)


def test_a_tar_reaches_no_further_than_a_command(run, tmp_path):
    tmp_path.chmod(0o777)

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        for name, target in (("out", f"{tmp_path}/out"), ("s/out", str(tmp_path)), (f"../../../{tmp_path}/out", None)):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w") as archive:
                if target is not None:
                    link = tarfile.TarInfo(name.split("/")[0])
                    link.type, link.linkname = tarfile.SYMTYPE, target
                    archive.addfile(link)
                file = tarfile.TarInfo(name)
                file.size = 1
                archive.addfile(file, io.BytesIO(b"x"))
            try:
                await box.upload(data.getvalue(), "/workspace/in")  # "out" replaces the link, as tar does
            except PermissionError:
                continue
        assert list(tmp_path.iterdir()) == []
        await all_is_well(backend, box)

    run(scenario)


@pytest.mark.parametrize("bomb", one_of_each(1.5, BOMBS, lambda bomb: bomb.partition(" ")[0]))
def test_a_bomb_harms_nobody_else(from_afar, bomb):
    async def scenario(backend):
        box, neighbour = [await backend.create(SandboxSpec(resources=SMALL)) for _ in range(2)]
        result = await box.exec(BOMBS[bomb], timeout_s=60 if bomb == "inodes" else 1.5, max_output_bytes=2000)
        assert result.exit_code != 0
        if bomb == "inodes":
            assert result.output.count(b"No space left") == 6
        assert (await neighbour.exec("echo fine", timeout_s=20)).output == b"fine\n"
        if bomb.startswith("forks"):  # those that left their session live on, and leave no process to anybody else here
            await box.destroy()
            box = neighbour
        await all_is_well(backend, box)

    from_afar(scenario)


def test_files_of_every_kind_are_counted(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=SMALL))
        fill = b"import os, sys\nfor i in range(10**6): os.symlink('x', f'{sys.argv[1]}/{i}')\n"
        await box.write_file("/tmp/fill.py", fill)
        for place, most in {"/workspace": 16 * 256, "/home/agent": 2 * 256, "/tmp": 8 * 256}.items():
            count = f"ls -U {place} | wc -l; find {place} -type l -delete"
            result = await box.exec(f"python3 /tmp/fill.py {place} 2>/dev/null; {count}")
            assert 0 < int(result.output) <= most
        await all_is_well(backend, box)

    run(scenario)


DAEMONS = ["setsid sleep {}.5 &", "nohup sleep {}.5 >/dev/null 2>&1 &", "(setsid setsid sleep {}.5 &)"]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_outlives_its_command_but_not_its_sandbox(run, daemon):
    mark = f"67{os.getpid()}"

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert (await box.exec(daemon.format(mark))).exit_code == 0
        while not host_processes(f"sleep {mark}.5"):  # the scenario's deadline bounds this
            await asyncio.sleep(0.01)
        await box.destroy()
        assert host_processes(f"sleep {mark}.5") == []
        await all_is_well(backend, await backend.create(SandboxSpec()))

    run(scenario)


DEAF = b"""import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
time.sleep(600)
"""


def test_a_command_that_ignores_every_signal_ends_with_its_sandbox(run):
    name = f"deaf-{os.getpid()}.py"

    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={name: DEAF}))
        await box.start(f"exec python3 {name}")
        while not host_processes(f"python3 {name}"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await box.exec("kill -TERM -1; kill -HUP -1")
        assert len(host_processes(f"python3 {name}")) == 1
        await box.destroy()
        assert host_processes(f"python3 {name}") == []
        assert not [line for line in leftovers() if box.id in line]
        await all_is_well(backend, await backend.create(SandboxSpec()))

    run(scenario)


def host_processes(text):
    """Command lines that begin so, as the host sees them."""
    found = []
    for directory in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        found += [command] if command.startswith(text) else []
    return found
