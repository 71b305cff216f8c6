"""What `etude cluster manifest` writes, run on three machines of namespaces: SkyPilot's script as it stands, and of
KubeRay's documents what its operator makes of them, by its published rules: a command line of `ray start`, a pod's
variables with the token, and the entrypoint on the head. The real operator and a real SkyPilot have not run them.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines import NETWORK, ROOT, Machines
from small import SMALL, steps

from etude.archive.reader import ArchiveReader
from etude.rollouts.machines import kuberay, skypilot
from etude.rollouts.machines.manifest import planned
from etude.rollouts.machines.nodes_config import NodesConfig

pytestmark = pytest.mark.timeout(1500)
TOKEN, STORE_KEY = "a-token-of-at-least-sixteen-characters", "a-secret-that-is-in-no-manifest"
SETS = (
    *SMALL, f"model.path={ROOT}/models/etude-tiny", "environment.limits=rlimit", "rollouts.max_steps=2",
    "rollouts.max_minutes=20", "rollouts.total_minutes=", "rollouts.concurrency=8", "rollouts.workers=2",
    "deadlines.scale=3",
    "machines.places={trainer={trainer=1}, engine={CPU=1}, sessions={sessions=1}, rewards={trainer=1}}",
)  # fmt: skip
GB = 1 << 30
ROUTE = f"ip route replace default via {NETWORK}.254"
"""A pod has one, by which Ray finds what its own address is; nothing is sent there."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def machines(tmp_path_factory, shared):
    with Machines(3, tmp_path_factory.mktemp("machines"), shared=(shared,)) as machines:
        yield machines


def run_of(shared, seed):
    each = {"cpus": 2, "memory_gb": 1, "privileged": True}
    nodes = NodesConfig(
        image="etude:test", shared=shared, volume="etude", env={"PYTHONPATH": str(ROOT)},
        secrets={"STORE_KEY": "store/key"},
        groups=[
            {"name": "head", "resources": {"trainer": 4}, **each},
            {"name": "sessions", "count": 2, "resources": {"sessions": 1}, **each},
        ],
    )  # fmt: skip
    return planned(ROOT / "recipes/machines.toml", [*SETS, f"seed={seed}"], nodes)


def started(machines, rank, script, log, **env):
    """A script on a machine, with the programs of Etude and Ray on PATH, as an image has them."""
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/root"}
    words = [
        *machines.there(machines.addresses[rank]),
        "env",
        "-i",
        *(f"{name}={value}" for name, value in env.items()),
    ]
    with log.open("wb") as out:
        return subprocess.Popen([*words, "bash", "-c", script], stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def ended(process, log, seconds=1200):
    try:
        assert process.wait(seconds) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def whole(log, out):
    """That both steps were made, with sessions on other machines, and nothing was lost."""
    summary = json.loads((out / "summary.json").read_text())
    assert [line["step"] for line in steps(out)] == [1, 2], log.read_text()
    assert (summary["lost"], summary["trained_twice"]) == (0, 0)
    with ArchiveReader(out) as reader:
        assert {row.worker.partition("/")[0] for row in reader.every()} <= {"machine-2", "machine-3"}


def bare(machines):
    """No process of Ray is left on any machine."""
    deadline = time.monotonic() + 150
    while left := {each: machines.processes(each) for each in machines.addresses if machines.processes(each)}:
        assert time.monotonic() < deadline, left
        time.sleep(1)


@pytest.mark.proof(75)
def test_skypilots_script_starts_a_ray_the_run_and_ends_both(machines, shared, tmp_path):
    run = run_of(shared, seed=1)
    (task,) = skypilot.documents_of(run)
    given = {
        "SKYPILOT_NODE_IPS": "\n".join(machines.addresses), "SKYPILOT_NUM_NODES": 3, "ETUDE_RAY_TOKEN": TOKEN,
        "STORE_KEY": STORE_KEY,
    }  # fmt: skip
    logs = [tmp_path / f"{rank}.log" for rank in range(3)]
    nodes = [started(machines, rank, task["run"], logs[rank], SKYPILOT_NODE_RANK=rank, **given) for rank in range(3)]
    for node, log in zip(nodes, logs, strict=True):
        ended(node, log)
    whole(logs[0], shared / "runs" / run.name)
    bare(machines)


def pod(group):
    """What the operator starts in a pod of this group, and its variables."""
    container = group["template"]["spec"]["containers"][0]
    limits = container["resources"]["limits"]
    params = {
        **group["rayStartParams"], "num-cpus": limits["cpu"], "memory": int(limits["memory"].removesuffix("Gi")) * GB,
        "resources": f"'{json.dumps({name: float(amount) for name, amount in group['resources'].items()})}'",
    }  # fmt: skip
    env = {each["name"]: each.get("value", STORE_KEY) for each in container["env"]}
    return params, {**env, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}


@pytest.mark.proof(75)
def test_kuberays_pods_form_a_ray_and_the_entrypoint_trains_there(machines, shared, tmp_path):
    run = run_of(shared, seed=2)
    config_map, job = kuberay.documents_of(run)
    head, (workers,) = (job["spec"]["rayClusterSpec"][key] for key in ("headGroupSpec", "workerGroupSpecs"))
    pods = []
    for rank, group in enumerate([head, *[workers] * workers["replicas"]]):
        params, env = pod(group)
        place = "--head" if rank == 0 else f"--address={machines.addresses[0]}:6379"
        words = " ".join(f"--{name}={value}" for name, value in params.items())
        script = f"{ROUTE}\nexec ray start {place} {words} --block"
        pods.append(started(machines, rank, script, tmp_path / f"{rank}.log", **env))
    try:
        given = "".join(
            f"cat > /run/etude/{name} <<'END'\n{text}END\n" for name, text in config_map["data"].items()
        )  # fmt: skip
        log = tmp_path / "job.log"
        script = f"mkdir -p /run/etude\n{given}{job['spec']['entrypoint']}"
        ended(started(machines, 0, script, log, **pod(head)[1]), log)
        whole(log, shared / "runs" / run.name)
    finally:
        for address in machines.addresses:
            machines.terminate(address)
        for each in pods:
            each.wait(150)
    bare(machines)
