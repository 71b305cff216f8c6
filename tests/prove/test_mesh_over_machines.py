"""The whole loop past one computer: a mesh of four ranks and two engines over three machines, and a store between them.
A rank, the store and a machine are killed, one after the other: minutes, as each time four processes start anew. The
engines are Etude's own, or two vLLM servers outside, which the machines reach over the network.
"""

import contextlib
import json
import os
import signal

import pytest
from machines import Machines
from restarted_store import Store
from small import lines, steps
from test_bare_cluster import Cluster
from test_run_over_machines import MESH, OFFERED, ROOT, Run, ranks, whole
from vllm_server import VllmServer, needs_vllm

from etude.engine.served import export_served
from etude.models.checkpoint import load_checkpoint
from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.store import StoreConfig
from etude.weights.subscriber import Subscriber

pytestmark = pytest.mark.timeout(3600)
STEPS, AWAY_S, PATIENT_S = 10, 20.0, 1500.0


OPERATOR = "10.77.0.254"


def test_a_mesh_goes_on_when_a_rank_the_store_and_a_machine_are_killed(tmp_path):
    counters = goes_on(tmp_path, lambda machines: contextlib.nullcontext(()))
    assert counters["routes_given"] > 0


@pytest.mark.vllm
@needs_vllm
def test_so_it_does_where_vllm_samples(tmp_path):
    """It gives no routes on a CPU, and is checked against our own forward pass after every version."""

    @contextlib.contextmanager
    def served(machines):
        with contextlib.ExitStack() as running:
            urls = [running.enter_context(vllm(tmp_path, machines)).url for _ in range(2)]
            weights = tmp_path / "shared" / "weights"
            engine = f'kind="vllm", update="rebuild", routes=false, urls={json.dumps(urls)}, weights_dir="{weights}"'
            yield f"engine={{{engine}}}", "trainer.router_replay=false", "fleet.engines="

    counters = goes_on(tmp_path, served)
    assert counters["checks"] >= STEPS and counters.get("routes_given", 0) == 0


def vllm(tmp_path, machines):
    return VllmServer(ROOT / "models/etude-tiny", tmp_path, 1024, OPERATOR, machines.prefix)


def goes_on(tmp_path, engines):
    """The counters of a run that lost nothing and trained on nothing twice."""
    shared, wires, out = tmp_path / "shared", tmp_path / "machines", tmp_path / "shared" / "run"
    shared.mkdir()
    wires.mkdir()
    with (
        Machines(3, wires, shared=(shared,)) as machines,
        Store(tmp_path / "objects", OPERATOR, machines.prefix) as store,
        engines(machines) as overrides,
    ):
        cluster = Cluster(machines, OFFERED)
        cluster.did("up")
        with Run(cluster, out, *MESH, *store.recipe(), *overrides, f"rollouts.max_steps={STEPS}") as run:
            run.wait(lambda: len(steps(out)) >= 1, "a step", PATIENT_S)
            before = ranks(cluster)
            assert len(before) == 4 and len(set(before)) == 2

            kill_a_rank(machines, max(before))
            run.wait(lambda: trainers(out) == 1, "the ranks to start anew", PATIENT_S)
            further(run, out, "a step after a rank is gone")

            store.restart(AWAY_S)
            further(run, out, "a step after the store was away")

            gone = max(ranks(cluster))
            machines.unplug(gone)
            run.wait(lambda: len(ranks(cluster)) == 4, "four ranks on the machines that are left", PATIENT_S)
            assert gone not in ranks(cluster)
            summary = whole(run, out, STEPS, PATIENT_S)
        assert trainers(out) == summary["restarts"]["trainer"] >= 2 and store.lives == 2
        # a version that was on its way when its trainer died or the store was away may be replaced by the next one
        assert STEPS - summary["restarts"]["trainer"] - 1 <= summary["counters"]["deltas_published"] <= STEPS
        assert summary["counters"]["roots_verified"] > 0
        same_bits(read_here(store, out), out)
        return summary["counters"]


def trainers(out):
    """How often the trainer was started anew."""
    return sum(line["process"] == "trainer" for line in lines(out, "restart"))


def further(run, out, what):
    """Wait for a step more than there are."""
    before = len(steps(out))
    run.wait(lambda: len(steps(out)) > before, what, PATIENT_S)


def kill_a_rank(machines, address):
    """With -9, one that is not the first; which machine it is on does not matter to the others."""
    found = machines.pids(address, "ray::RankActor")
    assert found
    os.kill(found[0], signal.SIGKILL)


def read_here(store, out):
    """The chain of a run from a store that was started among machines, which nobody else reaches: what it keeps on the
    disk is the same.
    """
    store.kill()
    store.address, store.prefix, store.port = "127.0.0.1", [], "0"
    store.start()
    options = {"region": "us-east-1", "access_key_id": "x", "secret_access_key": "x"}
    config = StoreConfig(options=options | {"endpoint": f"http://127.0.0.1:{store.port}"})
    return open_store(f"s3://bucket/{out.name}/weights", config)


def same_bits(store, out):
    """The trainer's, what is in the store, and what each engine has served, are one."""
    chain = Chain(store)
    last = chain.manifest(Version(STEPS))
    assert len(last.packs) == 4, "one of each rank"
    assert root_of(export_served(load_checkpoint(out / "model")[0])) == last.root
    assert root_of(Subscriber(store).fetch(None, None, Version(STEPS))[0]) == last.root
    served = lines(out, "delivery")
    assert served[-1]["version"] == STEPS
    assert all(line["root"] == chain.manifest(Version(line["version"])).root for line in served)
