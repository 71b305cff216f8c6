"""Several users on one machine: each removes what his own killed processes left, and nothing else stops him."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from proofs import one_of_each
from second_user import User

from etude.environments import cgroups, store
from etude.environments.doctor import diagnose
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError, MissingDependency

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
ROOT, ONE, TWO = 0, 12_345, 23_456
HIERARCHIES = ("memory", "pids", "cpu", "freezer")


@pytest.fixture
def users(public):
    """Make users by number, each with its own directories."""
    limits = "cgroup" if _can_limit() else "rlimit"
    return lambda *uids: [User(uid, public, limits if uid == ROOT else "rlimit") for uid in uids]


def _can_limit():
    try:
        cgroups.open_tree(store.new_instance()).close()
    except MissingDependency:
        return False
    return True


@pytest.mark.parametrize(("who", "beside"), one_of_each(2.5, [(ROOT, ONE), (ONE, ROOT), (ONE, TWO)]))
def test_each_removes_his_own_and_passes_over_what_is_anothers(users, who, beside):
    own, other = users(who, beside)
    living, dead = other.hold(), other.hold().kill()
    mine = own.hold().kill()
    own.passes()
    assert not (own.state / mine).exists()
    assert (other.state / dead).is_dir() and living.lives()  # these are the other's to remove
    living.end()
    other.passes()
    assert list(other.state.iterdir()) == []


def test_a_state_directory_of_anothers_is_refused_and_let_be(users):
    """Root must not follow what a user has put where root's own would be, to the processes it names."""
    (other,) = users(ONE)
    dead = other.hold().kill()
    victim = subprocess.Popen(["sleep", "600"])
    fake = other.state.parent / "fake" / dead
    fake.mkdir(parents=True)
    (fake / "cgroup.procs").write_text(f"{victim.pid}\n")
    (other.state / dead / "groups").write_text(f"{fake}\n")
    config = NamespaceConfig(state_dir=other.state)
    assert not [line for line in leftovers(config) if dead in line or str(fake) in line]
    with pytest.raises(ConfigError, match="state_dir"):
        NamespaceBackend(config)
    assert (other.state / dead).is_dir() and victim.poll() is None
    refused = next(finding for finding in diagnose(config) if finding.subject == "a real sandbox")
    assert not refused.ok and "not a directory of this user" in refused.remedy + refused.detail
    victim.kill()
    victim.wait(60)


@pytest.mark.skipif(not all(Path("/sys/fs/cgroup", each).is_dir() for each in HIERARCHIES), reason="needs version 1")
def test_a_user_with_groups_of_his_own_finds_them_again_from_elsewhere(users):
    """As a batch system gives them: what he leaves in one job's groups is removed by his next job, in another's."""
    (own,) = users(ONE)
    with ExitStack() as stack:
        jobs = [_delegated(own.uid, number, stack) for number in range(2)]
        own.limits = "cgroup"
        dead = own.hold(jobs[0]).kill()
        left = [group / "etude" / dead for group in jobs[0]]
        assert all(path.is_dir() for path in left)
        living = own.hold(jobs[0])
        own.passes(jobs[1])
        assert not any(path.exists() for path in left) and living.lives()
        living.end()


def _delegated(uid, number, stack):
    groups = tuple(Path("/sys/fs/cgroup", each, f"etude-test-{os.getpid()}-{number}") for each in HIERARCHIES)
    for group in groups:
        group.mkdir()
        stack.callback(cgroups.remove_group, group)
        for path in (group, group / "cgroup.procs"):
            os.chown(path, uid, uid)
    return groups


def test_what_of_ones_own_cannot_be_removed_stops_nobody(tmp_path):
    """A process that a sick disk holds cannot be killed: what holds it is tried again at the next start."""
    dead = "12-34-deadbeef-56-0"
    (tmp_path / dead).mkdir()
    (tmp_path / dead / "held").touch()
    subprocess.run(["mount", "--bind", str(tmp_path / dead / "held"), str(tmp_path / dead / "held")], check=True)
    try:
        asyncio.run(NamespaceBackend(NamespaceConfig(state_dir=tmp_path)).close())  # a mount point is busy
        assert (tmp_path / dead).is_dir()
    finally:
        subprocess.run(["umount", str(tmp_path / dead / "held")], check=True)
    asyncio.run(NamespaceBackend(NamespaceConfig(state_dir=tmp_path)).close())
    assert not (tmp_path / dead).exists()


def test_who_lives_in_another_time_is_alive():
    """The start of a process is told by the clock of who asks: in another time namespace it is another."""
    code = "from etude.environments import store; print(store.new_instance(), flush=True); input()"
    command = ["unshare", "--time", "--boottime", "100000", "--fork", sys.executable, "-c", code]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    instance = process.stdout.readline().strip()
    try:
        assert store.INSTANCE.fullmatch(instance) and store.owner_is_alive(instance)
    finally:
        process.communicate("\n", timeout=60)


def test_many_open_and_close_in_one_place_at_once(tmp_path):
    """The directories that all share go with the last: who opens at that moment makes them anew."""
    state = tmp_path / "state"

    def open_and_close(_):
        for _ in range(60):
            tree = cgroups.open_tree(store.new_instance()) if _can_limit() else None
            store.InstanceDirectory(state, ()).close()
            if tree is not None:
                tree.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_and_close, range(4)))
    assert not state.exists() or list(state.iterdir()) == []
