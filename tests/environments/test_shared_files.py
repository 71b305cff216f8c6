"""Read-only files that sandboxes share: what one does to them stops nobody else, and machines share none.

Bits pass by locks and watches between sandboxes of one kernel (SECURITY.md says so); here it is that no more than that
comes of it.
"""

import asyncio

from etude.environments.base import SandboxSpec

LOCKED = """
import fcntl, os, time
kept = []
for top in ("/bin", "/usr/bin", "/usr/lib", "/etc"):
    for name in os.listdir(top):
        try:
            kept.append(os.open(os.path.join(top, name), os.O_RDONLY | os.O_NONBLOCK))
            fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        if len(kept) > 900:
            break
print("locked", flush=True)
time.sleep(600)
"""
LOCK = """
import fcntl
try:
    fcntl.flock(open("/usr/bin/python3"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except BlockingIOError:
    print("taken")
"""


def test_locks_on_shared_files_stop_nobody_and_machines_have_none(everywhere):
    async def scenario(backend):
        one, two = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(2)))
        for box in (one, two):
            await box.write_file("/tmp/locked.py", LOCKED.encode())
            await box.write_file("/tmp/lock.py", LOCK.encode())
        holding = await one.start("python3 /tmp/locked.py")
        assert await anext(holding.output()) == b"locked\n"
        assert (await one.exec("python3 /tmp/lock.py")).output == b"taken\n"  # it does hold them
        for use in ("python3 -c 'print(6 * 7)'", "grep -c root /etc/passwd", "ls /usr/bin | wc -l"):
            assert (await two.exec(use, timeout_s=30)).exit_code == 0, use
        if backend.capabilities.isolation == "vm":
            assert (await two.exec("python3 /tmp/lock.py", timeout_s=30)).output == b"free\n"

    everywhere(scenario)
