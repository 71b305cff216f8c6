"""Run a command on a machine that is busy, and beside another user's sandboxes, some alive and some left by the dead.

    .venv/bin/python tools/busy.py [--load 20] [--others 2] -- make test

What passes alone and fails here depends on time, or touches what is not its own. Needs root for other users. What only
computes has a session of its own, as another user's job has: a kernel that shares its time by session
(`kernel.sched_autogroup_enabled`) leaves the command half of it, any other one part in twenty or so.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "environments"))
from second_user import User

USERS = (0, 12_345)
BUSY = """
import os, sys
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
while True:
    pass
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--load", type=int, default=20, help="so many processes that do nothing but compute")
    parser.add_argument("--others", type=int, default=2, help="so many sandboxes alive, and as many left by the dead")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a `timeout` around it leaves no load behind
    with tempfile.TemporaryDirectory(prefix="etude-busy-") as home, ExitStack() as stack:
        Path(home).chmod(0o755)
        for user in [User(uid, Path(home), "rlimit" if uid else "cgroup") for uid in USERS] if options.others else ():
            stack.callback(user.passes)  # which removes what its dead have left
            for _ in range(options.others):
                user.hold().kill()
                stack.callback(user.hold().kill)  # swept by `passes`, as the others'
        loops = subprocess.Popen([sys.executable, "-c", BUSY, str(options.load)], start_new_session=True)
        stack.callback(loops.wait)
        stack.callback(os.killpg, loops.pid, signal.SIGKILL)
        return subprocess.run(options.command).returncode


if __name__ == "__main__":
    sys.exit(main())
