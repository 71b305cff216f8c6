"""A run whose sessions are played on other machines, one of which has its plug pulled; and what all must share."""

import json
import subprocess
import time

import pytest
from machines import ROOT, Machines
from restarted_store import Store
from small import command, steps
from test_bare_cluster import Cluster

from etude.archive.reader import ArchiveReader
from etude.engine.served import export_served
from etude.models.checkpoint import load_checkpoint
from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.manifest import root_of
from etude.weights.opening import open_store

pytestmark = pytest.mark.timeout(900)
CUT_S = 20.0
TOKEN = "/root/.local/state/etude/clusters/trio/token"
OVER = (
    'machines.url="10.77.0.1:6379"', f'machines.token_file="{TOKEN}"', f"model.path={ROOT}/models/etude-tiny",
    "machines.places={trainer={trainer=1}, engine={CPU=1}, sessions={sessions=1}, rewards={trainer=1}}",
    "environment.limits=rlimit", "rollouts.max_steps=4", "rollouts.max_minutes=20", "rollouts.total_minutes=",
    "faults.restarts=1000", "rollouts.concurrency=8",
)  # fmt: skip
"""Sessions on the second or third machine, all else on the first. Machines have no control groups of their own."""
OFFERED = (
    "trainer = 4, rank = 2, engine = 1",
    "sessions = 1, rank = 2, engine = 1",
    "sessions = 1, rank = 2, engine = 1",
)
"""Two machines have room for the ranks of a mesh, so that one may die."""
MESH = (
    "trainer.ranks={fsdp=2, ep=2}", "trainer.piece_tokens=1024", 'trainer.optimizer={name="adamw", lr=3e-4}',
    "trainer.divergence_target=", "trainer.final_lr_share=", "fleet.engines=2",
    "machines.places={trainer={rank=1}, engine={engine=1}, sessions={trainer=1}, rewards={trainer=1}}",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    with Machines(3, tmp_path_factory.mktemp("machines"), shared=(shared,)) as machines:
        cluster = Cluster(machines, OFFERED)
        cluster.shared = shared
        cluster.did("up")
        yield cluster


def all_up(cluster):
    """Those too that a test before has unplugged."""
    for address in set(cluster.machines.addresses) - cluster.machines.inits.keys():
        cluster.machines.boot(address)
    cluster.did("up")


class Run:
    """Started on the head, as a user does who is logged in there."""

    def __init__(self, cluster, out, *overrides, resume=False):
        there = cluster.machines.there(cluster.machines.addresses[0])
        env = ["env", f"PYTHONPATH={ROOT}", "HOME=/root"]
        self.log = (cluster.machines.directory / f"{out.name}.log").open("w+")
        self.process = subprocess.Popen(
            [*there, *env, *command(out, *OVER, *overrides, resume=resume)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def wait(self, there, what, seconds=300):
        deadline = time.monotonic() + seconds
        while not (found := there()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, f"{what}: {self.said()}"
            time.sleep(0.5)
        return found

    def end(self, seconds=400):
        out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, out


def having(cluster, actor):
    """The machines on which an actor of this class is."""
    machines = cluster.machines
    return [address for address in machines.inits if any(actor in line for line in machines.processes(address))]


def ranks(cluster):
    """The machines of all ranks of a trainer, each as often as it has one."""
    lines = [(address, line) for address in cluster.machines.inits for line in cluster.machines.processes(address)]
    return sorted(address for address, line in lines if line.startswith(("ray::TrainerActor", "ray::RankActor")))


def test_a_directory_that_the_others_do_not_see_is_refused_before_anything_starts(cluster):
    with Run(cluster, cluster.machines.directory / "own") as run:
        code, _ = run.end()
        assert code == 42, run.said()
        assert "10.77.0.2 does not see" in run.said() or "10.77.0.3 does not see" in run.said()
        assert "must be on a file system that all machines share" in run.said()


def test_room_that_no_machine_has_is_named(cluster):
    with Run(cluster, cluster.shared / "room", "machines.places.engine={GPU=1}") as run:
        assert run.end()[0] == 42
        assert "machines.places.engine: no machine has GPU 1; of that they have: GPU 0" in run.said()


def test_ranks_for_which_machines_have_no_room_are_refused(cluster):
    with Run(cluster, cluster.shared / "narrow", *MESH, "trainer.ranks={fsdp=4, ep=2}") as run:
        assert run.end()[0] == 42
        assert "machines.places.trainer: only 6 of 8 ranks find rank 1; of that they have: rank 2" in run.said()


def test_a_store_that_another_machine_does_not_reach_is_refused(cluster):
    """It is at the head's loopback."""
    head = ["nsenter", f"--net=/proc/{cluster.machines.init(cluster.machines.addresses[0])}/ns/net"]
    with (
        Store(cluster.machines.directory / "near", prefix=head) as store,
        Run(cluster, cluster.shared / "near", *store.recipe()) as run,
    ):
        assert run.end()[0] == 42
        assert "does not see what is written into s3://bucket" in run.said()


def whole(run, out, count, seconds=400):
    """What a run says that had all its steps, and lost nothing."""
    code, said = run.end(seconds)
    assert code == 0, run.said()
    summary = json.loads(said.splitlines()[-1])
    assert [line["step"] for line in steps(out)] == list(range(1, count + 1))
    assert (summary["lost"], summary["trained_twice"]) == (0, 0)
    return summary


def goes_on_when_cut(cluster, out, seconds, count):
    """The wire of the machine that plays sessions is out for so long, after the first step of `count`."""
    with Run(cluster, out, f"rollouts.max_steps={count}") as run:
        run.wait(lambda: len(steps(out)) >= 1, "a step")
        (where,) = having(cluster, "SessionWorker")
        cluster.machines.cut(where, seconds)
        whole(run, out, count)


@pytest.mark.proof(75)
def test_a_run_goes_on_when_the_wire_of_a_machine_is_out_for_a_while(cluster):
    goes_on_when_cut(cluster, cluster.shared / "cut", CUT_S, 6)


@pytest.mark.proof(60)
def test_a_run_goes_on_when_a_machine_is_killed(cluster):
    out = cluster.shared / "run"
    with Run(cluster, out) as run:
        run.wait(lambda: len(steps(out)) >= 1, "a step")
        (where,) = having(cluster, "SessionWorker")
        assert where in cluster.machines.addresses[1:]
        cluster.machines.unplug(where)
        summary = whole(run, out, 4)
    assert summary["restarts"]["sessions"] >= 1
    with ArchiveReader(out) as reader:
        assert {row.worker.partition("/")[0] for row in reader.every()} == {"machine-2", "machine-3"}

    # `down` ends what it can reach, and names the machine that it cannot
    down = cluster.command("down")
    assert down.returncode == 1 and f"{where}: ssh gets no connection" in down.stderr
    left = {address: cluster.machines.processes(address) for address in cluster.machines.addresses if address != where}
    assert list(left.values()) == [[], []]


@pytest.mark.proof(60)
def test_a_run_goes_on_when_the_machine_of_its_trainer_is_killed(cluster):
    """Ray finds room for all ranks on another one; the checkpoint is in the directory that both see."""
    all_up(cluster)
    out = cluster.shared / "trainer"
    places = "machines.places={trainer={sessions=1}, engine={CPU=1}, sessions={trainer=1}, rewards={trainer=1}}"
    with Run(cluster, out, places) as run:
        run.wait(lambda: len(steps(out)) >= 1, "a step")
        (where,) = having(cluster, "TrainerActor")
        cluster.machines.unplug(where)
        run.wait(lambda: having(cluster, "TrainerActor"), "a trainer elsewhere")
        assert whole(run, out, 4)["restarts"]["trainer"] >= 1


@pytest.mark.proof(75)
def test_a_mesh_over_machines_goes_on_when_one_with_ranks_is_killed(cluster):
    """Two ranks each on two machines; where one of them is gone, its two start on the third, and all from what was
    saved.
    """
    all_up(cluster)
    out, machines = cluster.shared / "mesh", cluster.machines
    with Run(cluster, out, *MESH, "rollouts.max_steps=3") as run:
        run.wait(lambda: len(steps(out)) >= 1, "a step")
        before = ranks(cluster)
        assert len(before) == 4 and {before.count(each) for each in before} == {2}
        gone = max(before)  # not the head, which is the least
        machines.unplug(gone)
        summary = whole(run, out, 3)
    assert summary["restarts"]["trainer"] >= 1 and summary["restarts"].get("controller", 0) == 0
    manifest = Chain(open_store(out / "weights")).manifest(Version(3))
    assert len(manifest.packs) == 4, "one of each rank"
    assert root_of(export_served(load_checkpoint(out / "model")[0])) == manifest.root
