"""Nothing is left: after close, after a killed controller, after the next start."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from own_leftovers import left
from proofs import often

from etude.environments import cgroups, store, trees
from etude.environments.base import SandboxSpec
from etude.environments.doctor import diagnose
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.trees import remove_tree
from etude.errors import MissingDependency, SandboxError

CONTROLLER = """
import asyncio, sys
from pathlib import Path
from etude.environments.base import SandboxSpec
from etude.environments.namespace import NamespaceBackend, NamespaceConfig

async def main():
    backend = NamespaceBackend(NamespaceConfig(state_dir=Path(sys.argv[1]), limits=sys.argv[2]))
    boxes = await asyncio.gather(*(backend.create(SandboxSpec(files={"a": b"1"})) for _ in range(3)))
    for box in boxes:
        await box.exec("(setsid sleep 600 &) ; sleep 600 & echo x > b")
    await boxes[0].snapshot()
    if sys.argv[3:] == ["paused"]:
        await asyncio.gather(*(box.pause() for box in boxes))
    print(backend.store.instance, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def _controller(state_dir: Path, limits: str, *further: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", CONTROLLER, str(state_dir), limits, *further]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("limits", ["cgroup", "rlimit"])
def test_a_killed_controller_leaves_no_process_and_the_next_start_sweeps(tmp_path, limits):
    config = NamespaceConfig(state_dir=tmp_path, limits=limits)
    process, instance = _controller(tmp_path, limits)
    while_alive = NamespaceBackend(config)  # must not touch what a living process owns
    asyncio.run(while_alive.close())
    whose = (os.getpid(), process.pid)
    assert (tmp_path / instance).is_dir() and left(config, whose) == []
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while processes := [line for line in left(config, whose) if line.startswith("process")]:
        assert time.monotonic() < end, processes
        time.sleep(0.02)
    found = left(config, whose)
    assert any(line.startswith("directory") for line in found)
    if limits == "rlimit":  # groups may have been swept by now: whoever opens a backend removes those of the dead
        assert not any(line.startswith("cgroup") for line in found)
    after = NamespaceBackend(config)
    assert not (tmp_path / instance).exists() and instance not in cgroups.instances()
    asyncio.run(after.close())
    assert left(config, whose) == []


@pytest.mark.parametrize("limits", ["cgroup", "rlimit"])
def test_what_stood_still_when_its_controller_was_killed_is_swept(tmp_path, limits):
    config = NamespaceConfig(state_dir=tmp_path, limits=limits)
    process, instance = _controller(tmp_path, limits, "paused")
    process.kill()
    process.wait()
    asyncio.run(NamespaceBackend(config).close())
    end = time.monotonic() + 60
    while left := leftovers(config):
        assert time.monotonic() < end, left
        time.sleep(0.02)
    assert instance not in cgroups.instances()


def test_a_paused_sandbox_whose_agent_is_killed_is_removed_at_once(run, monkeypatch):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec("(setsid sleep 600 &)")
        await box.pause()
        found = subprocess.run(["pgrep", "-f", f"serve .* {box.id}$"], capture_output=True, text=True, timeout=120)
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        await box.destroy()
        assert found.stdout and not [line for line in leftovers() if f"{box.id}:" in line]

    monkeypatch.setattr(NamespaceConfig, "stop_timeout_s", 900)
    run(scenario)  # who waits for what is dead waits longer than this test may


def test_close_leaves_nothing_whatever_was_running(tmp_path):
    config = NamespaceConfig(state_dir=tmp_path / "state")

    async def scenario():
        backend = NamespaceBackend(config)
        boxes = await asyncio.gather(*(backend.create(SandboxSpec(files={"a": b"1"})) for _ in range(5)))
        await asyncio.gather(
            *(box.exec("(setsid sleep 600 &); trap '' TERM; mkdir -p d/e; chmod 0 d") for box in boxes)
        )
        snapshot = await boxes[0].snapshot()
        await backend.create(SandboxSpec(base=snapshot))
        hanging = asyncio.ensure_future(boxes[1].exec("sleep 600"))
        starting = asyncio.ensure_future(backend.create(SandboxSpec()))
        await asyncio.sleep(0)
        found = left(config)
        assert {line.split()[0] for line in found} == {"process", "cgroup", "directory"}
        for box in boxes:
            assert any(line.startswith("process") and f"{box.id}:" in line for line in found)
        await backend.close()
        for task in (hanging, starting):
            with pytest.raises(SandboxError):
                await task

    asyncio.run(scenario())
    assert left(config) == [] and not (tmp_path / "state").exists()


def test_a_sandbox_whose_guest_is_killed_says_so_and_others_live(run):
    async def scenario(backend):
        one, two = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(2)))
        found = subprocess.run(["pgrep", "-f", f"serve .* {one.id}$"], capture_output=True, text=True, timeout=120)
        running = asyncio.ensure_future(one.exec("sleep 600"))
        await asyncio.sleep(0.05)
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(SandboxError, match="ended"):
            await running
        with pytest.raises(SandboxError, match="ended"):
            await one.read_file("/workspace/a")
        assert (await two.exec("echo alive")).output == b"alive\n"
        await one.destroy()

    run(scenario)


def test_snapshots_and_layers_are_removed_when_unused(run):
    async def scenario(backend):
        snapshots, layers = backend.store.root / "s", backend.store.root / "l"
        for number in range(6):
            box = await backend.create(SandboxSpec(files={"a": b"%d" % number}))
            await box.write_file("/workspace/b", b"x")
            first = await box.snapshot()
            fork = await backend.create(SandboxSpec(base=first))
            await fork.write_file("/workspace/c", b"x")
            second = await fork.snapshot()
            await backend.release(first)
            await box.destroy()
            await fork.destroy()
            late = await backend.create(SandboxSpec(base=second))  # stands on the released one
            assert (await late.exec("cat a b c")).output == b"%dxx" % number
            await late.destroy()
            await backend.release(second)
            assert not list(snapshots.iterdir())
        assert len(list(layers.iterdir())) <= 3

    run(scenario, cached_layers=2)


def test_only_instances_are_swept(tmp_path):
    for name in ("photos", "1-2-deadbeef", "12-34-deadbeef-56-0", "12-34-deadbeef-56-x"):
        (tmp_path / name).mkdir()
    assert [name for name in store.sweep(tmp_path) if "deadbeef" in name] == ["12-34-deadbeef-56-0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-2-deadbeef", "12-34-deadbeef-56-x", "photos"]
    ours = store.new_instance()
    assert store.owner_is_alive(ours) and store.owner_is_this_process(ours)
    pid, start, boot, namespace, count = ours.split("-")
    assert not store.owner_is_alive(f"{pid}-{int(start) + 1}-{boot}-{namespace}-{count}")  # the number was used again
    assert store.owner_is_alive(f"{pid}-1-{boot}-1-{count}")  # another container's: cannot be told


def test_a_real_group_is_killed_and_removed():
    """On the unified hierarchy where there is one, else on version 1: joining, freezing, killing are the kernel's."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
    for root in [root for root in roots if os.access(root, os.W_OK)]:
        group = root / f"etude-test-{os.getpid()}"
        try:
            (group / "child").mkdir(parents=True)
            process = subprocess.Popen(["sleep", "600"])
            (group / "child" / "cgroup.procs").write_text(str(process.pid))
            for switch, word in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
                if (group / "child" / switch).exists():
                    (group / "child" / switch).write_text(word)
        except OSError:
            continue  # cpuset takes no process before it is set up
        reaper = asyncio.run(_reap_while_removing(process, group))
        assert reaper == -signal.SIGKILL and not group.exists()


async def _reap_while_removing(process: subprocess.Popen[bytes], group: Path) -> int:
    removing = asyncio.get_running_loop().run_in_executor(None, cgroups.remove_group, group)
    code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
    await removing
    return code


def test_a_cancelled_snapshot_is_cancelled_and_leaves_no_copy(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec("mkdir d && cd d && for i in $(seq 3000); do echo $i > $i; done")
        for wait_s in (0.01, 0.02, 0.03, 0.04, 0.06, 0.08):
            taking = asyncio.ensure_future(box.snapshot())
            await asyncio.sleep(wait_s)
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await backend.release(await taking)
            assert list((backend.store.root / "s").iterdir()) == []
        assert (await box.exec("ls d | wc -l")).output == b"3000\n"

    run(scenario)


def test_a_doctor_that_waits_too_long_says_for_what(monkeypatch, tmp_path):
    monkeypatch.setattr("etude.environments.namespace_probe._BOOT_DEADLINE_S", 1e-6)
    last = diagnose(NamespaceConfig(state_dir=tmp_path))[-1]
    assert not last.ok and "a sandbox to start" in last.detail
    assert left(NamespaceConfig(state_dir=tmp_path)) == []


def test_a_doctor_tells_of_what_is_left_and_does_not_touch_it(tmp_path):
    left = tmp_path / "12-34-deadbeef-56-0"
    left.mkdir()
    told = {finding.subject: finding for finding in diagnose(NamespaceConfig(state_dir=tmp_path))}
    assert all(finding.ok for finding in told.values()) and left.is_dir()
    assert "of killed processes" in told["left over"].detail and "nothing" not in told["left over"].detail
    asyncio.run(NamespaceBackend(NamespaceConfig(state_dir=tmp_path)).close())
    assert not left.exists()


def test_doctor_starts_a_real_sandbox_and_names_what_is_missing(monkeypatch, tmp_path):
    findings = diagnose(NamespaceConfig(state_dir=tmp_path))
    assert all(finding.ok for finding in findings), "\n".join(map(str, findings))
    assert "left nothing behind" in str(findings[-1])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing is built yet
    findings = diagnose(NamespaceConfig(state_dir=tmp_path))
    missing = {finding.subject: finding.remedy for finding in findings if not finding.ok}
    assert "apt-get install -y gcc libc6-dev" in missing["guest program"]
    assert "apt-get install -y bubblewrap" in missing["bubblewrap"]
    assert "a real sandbox" in missing
    with pytest.raises(MissingDependency, match="apt-get"):
        NamespaceBackend(NamespaceConfig(state_dir=tmp_path))


def test_groups_that_lie_elsewhere_are_found_by_what_their_instance_noted(tmp_path):
    name = "12-34-deadbeef-56-0"
    roots = [path for path in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")) if os.access(path, os.W_OK)]
    group = roots[0] / f"etude-elsewhere-{os.getpid()}" / name
    try:
        (group / "1").mkdir(parents=True)
        (tmp_path / name).mkdir()
        (tmp_path / name / "groups").write_text(f"{group}\n/etc\n")
        assert f"cgroup {group}" in leftovers(NamespaceConfig(state_dir=tmp_path))
        assert name in store.sweep(tmp_path)
        assert not group.exists() and Path("/etc").is_dir()
    finally:
        cgroups.remove_group(group.parent)


def test_several_sweeps_of_the_same_tree_all_end_well(tmp_path):
    """Whoever opens a backend sweeps what dead processes left; two that open at once meet in the same directories."""
    for attempt in range(often(3, 20)):
        tree = tmp_path / f"tree-{attempt}"
        for directory in range(30):
            (tree / f"{directory}").mkdir(parents=True)
            for file in range(30):
                (tree / f"{directory}" / f"{file}").touch()
        with ThreadPoolExecutor(8) as rivals:
            list(rivals.map(remove_tree, [tree] * 8))
        assert not tree.exists()


def write(tree):
    (tree / "a" / "b" / "new").touch()


def move(tree):
    (tree / "a" / "b").rename(tree / "moved")


def make_a_file_of_a_directory(tree):
    (tree / "a").rename(tree / "moved")
    (tree / "a").touch()


def make_a_directory_of_a_file(tree):
    (tree / "file").unlink()
    (tree / "file" / "below").mkdir(parents=True)


RIVALS = {write: "rmdir", move: "open:..", make_a_file_of_a_directory: "open:a", make_a_directory_of_a_file: "unlink"}
"""What somebody else does, and before which call of ours he does it: the worst moment."""


def rivalled(monkeypatch, tree, rival, times):
    """Have him do it so many times."""
    call, _, what = RIVALS[rival].partition(":")
    ours, left = getattr(os, call), times

    def late(path, *arguments, **options):
        nonlocal left
        if left and tree.exists() and (not what or path == what):
            left -= 1
            rival(tree)
        return ours(path, *arguments, **options)

    monkeypatch.setattr(trees.os, call, late)
    return lambda: left == 0


@pytest.mark.parametrize("rival", RIVALS)
def test_what_somebody_does_to_a_tree_meanwhile_is_no_reason_to_leave_it(tmp_path, monkeypatch, rival):
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "file").touch()
    happened = rivalled(monkeypatch, tree, rival, times=1)
    remove_tree(tree)
    assert happened() and not tree.exists()


def test_who_writes_there_for_ever_is_told_of(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(trees, "_RIVAL_S", 0.1)
    rivalled(monkeypatch, tree, write, times=10**9)
    with pytest.raises(OSError, match=r"cannot be removed in .* still writing there .*not empty") as raised:
        remove_tree(tree)
    assert raised.value.errno == errno.ENOTEMPTY
