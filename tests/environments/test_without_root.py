"""The same backend for a user who is not root: user namespaces for the mounts, per-process limits."""

import os
import subprocess
from pathlib import Path

import pydantic
import pytest
from second_user import python_for

NOBODY = 65534

SCENARIO = """
import asyncio, sys
from pathlib import Path
from etude.environments.base import SandboxSpec
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig

here = Path(sys.argv[1])
config = NamespaceConfig(state_dir=here / "state", cache_dir=here / "cache", limits="rlimit")

async def main():
    backend = NamespaceBackend(config)
    box = await backend.create(SandboxSpec(files={"gone": b"x", "d/old": b"1", "keep": b"k"}))
    await box.exec("rm gone; rm -r d; mkdir d; echo new > d/new; mkdir shut; echo s > shut/s; chmod 0 shut")
    fork = await backend.create(SandboxSpec(base=await box.snapshot()))
    print((await fork.exec("id -u; ls -d * d/*; cat shut/s || chmod 700 shut; cat shut/s")).output)
    assert (await box.exec("cat shut/s")).exit_code == 1  # the copy left the original as it was
    await backend.close()

asyncio.run(main())
assert leftovers(config) == [], leftovers(config)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
def test_snapshot_and_fork_without_root(public):
    python = python_for(NOBODY)
    os.chown(public, NOBODY, NOBODY)
    source, packages = Path(__file__).parents[2], Path(pydantic.__file__).parents[1]
    done = subprocess.run(
        [python, "-B", "-c", SCENARIO, str(public)],
        env={"PYTHONPATH": f"{source}:{packages}", "PATH": os.environ["PATH"], "HOME": str(public)},
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    expected = "1000\nd\nd/new\nkeep\nshut\ncat: shut/s: Permission denied\ns\n"
    assert done.stdout.strip() == str(expected.encode())
