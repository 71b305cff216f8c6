"""What a killed installation left is removed; one that another process is at is let be, however old it looks."""

import os
import subprocess
import sys
from pathlib import Path

from etude.tasks.mined.environment import Environments

INSTALLING = """
import os, sys
from etude.host.lock import share
share(os.open(sys.argv[1], os.O_RDONLY))
print("installing", flush=True)
sys.stdin.readline()
"""


def test_only_what_nobody_installs_is_removed(tmp_path):
    mine, torn = tmp_path / ".installing-mine", tmp_path / ".installing-torn"
    for each in (mine, torn):
        each.mkdir()
        os.utime(each, (0, 0))  # as old as a clock can make it that is set
    command = [sys.executable, "-c", INSTALLING, str(mine)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert other.stdout.readline() == b"installing\n"
    Environments(tmp_path)
    assert mine.is_dir() and not torn.exists()
    other.kill()
    other.communicate(timeout=60)
    Environments(tmp_path)
    assert not mine.exists()
