"""What ordinary programs do must work in a sandbox: its hardening takes nothing from them."""

import pytest

from etude.environments.base import SandboxSpec

PROGRAMS = {
    "threads and processes": """
import concurrent.futures, multiprocessing, subprocess, threading
with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(int, "1234")) == 10
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
assert subprocess.run(["sh", "-c", "echo $0"], capture_output=True, start_new_session=True).stdout == b"sh\\n"
""",
    "servers on the sandbox's own loopback": """
import socket, threading
for address in ("127.0.0.1", "::1"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try: server = socket.create_server((address, 0), family=family)
    except OSError:
        assert family == socket.AF_INET6  # a kernel without it
        continue
    threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
    assert socket.create_connection(server.getsockname()[:2], 5).recv(5) == b"hello"
left, right = socket.socketpair()
""",
    "sockets of every kind that programs use": """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for family in (socket.AF_INET, socket.AF_UNIX): socket.socket(family, kind | socket.SOCK_NONBLOCK).close()
socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP).close()
socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP).close()
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET): socket.socketpair(socket.AF_UNIX, kind)
""",
    "asking for the machine's addresses": """
import ctypes
first = ctypes.c_void_p()
assert ctypes.CDLL(None).getifaddrs(ctypes.byref(first)) == 0 and first.value
""",
    "shared memory, pipes, locks, links": """
import fcntl, mmap, os, sqlite3, tempfile
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=4096); block.unlink()
os.mkfifo("pipe"); os.symlink("pipe", "link"); os.link("pipe", "hard"); os.memfd_create("m")
base = sqlite3.connect("file.db"); base.execute("create table t (x)"); base.commit()
with tempfile.TemporaryFile() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(4096)
    mmap.mmap(file.fileno(), 0)[0] = 1
""",
    "a debugger on a child of its own": """
import ctypes, os, signal
library, child = ctypes.CDLL(None, use_errno=True), os.fork()
if child == 0:
    assert library.ptrace(0, 0, 0, 0) == 0  # trace me
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
assert os.WIFSTOPPED(os.waitpid(child, 0)[1])
assert library.ptrace(7, child, 0, 0) == 0  # go on
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
""",
    "reading clocks and randomness": """
import os, time
assert abs(time.time() - os.stat("/proc/self").st_ctime) < 100 and time.monotonic() and os.urandom(8) != os.urandom(8)
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run(run, program):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"program.py": PROGRAMS[program].encode()}))
        result = await box.exec("python3 program.py", timeout_s=30)
        assert result.exit_code == 0, result.output.decode()

    run(scenario)


def test_the_compiler_and_git_work(run):
    async def scenario(backend):
        box = await backend.create(
            SandboxSpec(files={"a.c": b'#include <stdio.h>\nint main(void) { puts("built"); }\n'})
        )
        for tool, use in {"cc": "cc -o a a.c && ./a", "git": "git init -q . && git add a.c && git ls-files"}.items():
            result = await box.exec(f"command -v {tool} >/dev/null || exit 99; {use}", timeout_s=60)
            assert result.exit_code in (0, 99), result.output.decode()

    run(scenario)
