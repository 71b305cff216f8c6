"""The object store of a run goes away for a while, with its process or with the network: the run waits, and goes on."""

import json
import os
import subprocess
import time

import pytest
from killing import RESTARTS, Victim
from restarted_store import Store
from small import left, lines, steps

pytestmark = pytest.mark.timeout(420)
CUT_S = 20.0
PACE = ("rollouts.max_steps=6", "rollouts.max_minutes=20", "groups.max_staleness=2", *RESTARTS)


class Networks:
    """Two networks in which there is nobody else, with one wire between them: a pair of veth devices."""

    def __init__(self):
        self.ends = ("10.91.0.1", "10.91.0.2")
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "1000"]) for _ in self.ends]

    def __enter__(self):
        for holder in self.holders:
            deadline = time.monotonic() + 60
            while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                assert time.monotonic() < deadline, "a network of its own for a process"
                time.sleep(0.01)
        self._in(0, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", str(self.holders[1].pid))
        for side, address in enumerate(self.ends):
            self._in(side, "address", "add", f"{address}/30", "dev", "wire")
            for device in ("lo", "wire"):
                self._in(side, "link", "set", device, "up")
        return self

    def __exit__(self, *error):
        for holder in self.holders:
            holder.kill()
            holder.wait()

    def prefix(self, side):
        """What a command line begins with that is to run there."""
        return ["nsenter", f"--net=/proc/{self.holders[side].pid}/ns/net"]

    def _in(self, side, *words):
        subprocess.run([*self.prefix(side), "ip", *words], check=True)

    def cut(self, seconds):
        self._in(0, "link", "set", "wire", "down")
        time.sleep(seconds)
        self._in(0, "link", "set", "wire", "up")


@pytest.fixture
def networks():
    if os.getuid() != 0:
        pytest.skip("only root can lay wires between networks")
    with Networks() as networks:
        yield networks


def went_on(run, out):
    """What a run says that had all its steps, none of them twice, and published and served every version."""
    summary = json.loads(run.end().splitlines()[-1])
    assert [(line["step"], line["version"]) for line in steps(out)] == [(step, step) for step in range(1, 7)]
    assert all(line["max_age"] <= 2 for line in steps(out))
    assert summary["counters"]["deltas_published"] == 6
    assert left() == []
    return summary


@pytest.mark.proof(31)
def test_a_network_that_is_cut_for_20_s_between_the_run_and_its_store(tmp_path, networks):
    out = tmp_path / "run"
    with (
        Store(tmp_path / "objects", networks.ends[1], networks.prefix(1)) as store,
        Victim(out, *PACE, *store.recipe(), prefix=networks.prefix(0)) as run,
    ):
        run.wait(lambda: len(steps(out)) >= 2, "two steps")
        networks.cut(CUT_S)
        went_on(run, out)
    assert lines(out, "delivery")[-1]["version"] == 6
