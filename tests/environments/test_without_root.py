"""The same backend for a user who is not root: user namespaces for the mounts, per-process limits."""

import os

import pytest
from nobody import as_nobody

SCENARIO = """
import asyncio, sys
from pathlib import Path
from etude.environments.base import SandboxSpec
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig

here = Path(sys.argv[1])
config = NamespaceConfig(state_dir=here / "state", limits="rlimit")

async def main():
    backend = NamespaceBackend(config)
    box = await backend.create(SandboxSpec(files={"gone": b"x", "d/old": b"1", "keep": b"k"}))
    await box.exec("rm gone; rm -r d; mkdir d; echo new > d/new; mkdir shut; echo s > shut/s; chmod 0 shut")
    fork = await backend.create(SandboxSpec(base=await box.snapshot()))
    print((await fork.exec("id -u; ls -d * d/*; cat shut/s || chmod 700 shut; cat shut/s")).output)
    assert (await box.exec("cat shut/s")).exit_code == 1  # the copy left the original as it was
    await box.exec("chmod 0 /workspace")
    (fork,) = await box.fork(1)
    assert (await fork.exec("cat /workspace/keep", cwd="/")).output == b"k"
    await backend.close()

asyncio.run(main())
assert leftovers(config) == [], leftovers(config)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
def test_snapshot_and_fork_without_root():
    expected = "1000\nd\nd/new\nkeep\nshut\ncat: shut/s: Permission denied\ns\n"
    assert as_nobody(SCENARIO) == str(expected.encode())


RIVALS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from etude.environments.trees import remove_tree

for attempt in range(40):
    tree = Path(sys.argv[1]) / f"tree-{attempt}"
    for directory in range(8):
        (shut := tree / f"{directory}" / "shut").mkdir(parents=True)
        (shut / "file").touch()
        shut.chmod(0)
        shut.parent.chmod(0)
    with ThreadPoolExecutor(4) as rivals:
        list(rivals.map(remove_tree, [tree] * 4))
    assert not tree.exists()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
def test_several_who_remove_a_tree_do_not_shut_each_other_in():
    """A copy shuts what it opened, as it was; whoever removes a tree leaves it open to the others."""
    as_nobody(RIVALS)


TASKS = """
import sys
from etude.cli.main import main
place = sys.argv[1]
for words in (["generate", "--out", f"{place}/tasks"], ["validate", f"{place}/tasks/train-r1-0", "--limits", "rlimit"]):
    sys.argv[1:] = ["tasks", *words]
    assert main() == 0
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
def test_tasks_are_validated_without_root():
    """Who may write no control groups says so; before, these commands had no word for it."""
    assert "✓" in as_nobody(TASKS)
