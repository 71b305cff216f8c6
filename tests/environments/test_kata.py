"""The kata backend against Kubernetes' published API, and its sandboxes on an agent that really runs.

What every backend must do alike runs on a real cluster where one is named: see conformance/conftest.py.
"""

import asyncio
import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_stand_in import StandIn
from container_scenarios import SHARED, a_workspace_begins_with_the_images_own_files
from scenarios import within

from etude.config import Config, parse
from etude.environments import store
from etude.environments.backends import BackendConfig, open_backend
from etude.environments.base import Resources, SandboxSpec
from etude.environments.doctor import survey
from etude.environments.kata.backend import KataBackend
from etude.environments.kata.config import KataConfig
from etude.environments.kata.pod import policy
from etude.environments.kata.probe import probe
from etude.environments.namespace import NamespaceConfig
from etude.errors import ConfigError, DeadlineExceeded, MissingDependency, SandboxError, SandboxSpoiled

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@pytest.fixture
def cluster(tmp_path):
    with StandIn(tmp_path) as cluster:
        yield cluster
    assert cluster.wrong == []


def settings(cluster, **more):
    own = {"kubeconfig": cluster.kubeconfig, "image": "machine", "network_policies_enforced": True}
    return KataConfig(**{**own, "stop_timeout_s": 5.0, **more})


def run(cluster, scenario, deadline_s=200.0, **more):
    def make():
        backend = open_backend(settings(cluster, **more))
        assert isinstance(backend, KataBackend)
        return backend

    return within(deadline_s, make, scenario)


async def make_one(backend):
    return await backend.create(SandboxSpec())


def until(true, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


def posted(cluster, what):
    return [body for method, path, _, body in cluster.log if method == "POST" and path.endswith(f"/{what}")]


@pytest.mark.parametrize("scenario", SHARED, ids=lambda scenario: scenario.__name__)
def test_what_all_containers_do(cluster, scenario):
    run(cluster, scenario, deadline_s=120.0)
    assert cluster.pods == {}


def test_a_workspace_begins_with_the_images_own_files(cluster):
    cluster.images["machine"] = {"files": {"src/app.py": b"print(1)\n", "README": b"image's"}}
    run(cluster, a_workspace_begins_with_the_images_own_files)


def test_what_it_says_of_itself(cluster):
    async def scenario(backend):
        capabilities = backend.capabilities
        assert (capabilities.name, capabilities.isolation, capabilities.snapshot) == ("kata", "vm", "disk")
        assert not capabilities.network

    run(cluster, scenario)


def test_nothing_is_left_to_the_clusters_defaults(cluster):
    cluster.runtime_classes["other"] = "kata-clh"

    async def scenario(backend):
        size = Resources(memory_mb=100, pids=7, cpus=0.5, disk_mb=16)
        box = await backend.create(SandboxSpec(resources=size))
        assert (await box.exec("echo $EXTRA; sed -n 's/^Max processes *//p' /proc/self/limits")).output.split()[:3] == [
            b"a$b$$(c)", b"8", b"8",
        ]  # fmt: skip
        await backend.create(SandboxSpec(base=await box.snapshot()))

    run(cluster, scenario, env={"EXTRA": "a$b$$(c)"}, runtime_class="other", life_s=77)
    body, forked = posted(cluster, "pods")
    spec = body["spec"]
    assert spec["runtimeClassName"] == "other" and spec["activeDeadlineSeconds"] == 77
    assert spec["restartPolicy"] == "Never" and spec["automountServiceAccountToken"] is False
    assert spec["dnsPolicy"] == "None" and spec["enableServiceLinks"] is False
    first, second = spec["initContainers"] + spec["containers"]
    assert second["resources"]["limits"] == {"cpu": "500m", "memory": "196Mi"} == second["resources"]["requests"]
    assert second["stdin"] and second["stdinOnce"] and not second["tty"]
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in (first, second))
    volumes = {volume["name"]: volume.get("emptyDir") for volume in spec["volumes"]}
    assert volumes["workspace"] == {"medium": "Memory", "sizeLimit": str(16 << 20)}
    assert "/seed" in first["command"][2] and "/seed" not in forked["spec"]["initContainers"][0]["command"][2]
    (made,) = posted(cluster, "networkpolicies")
    selector = made["spec"]["podSelector"]["matchLabels"]
    assert selector.items() <= body["metadata"]["labels"].items()
    assert set(made["spec"]["policyTypes"]) == {"Ingress", "Egress"} and made["spec"].keys().isdisjoint({"egress"})


def test_the_contract_knows_what_is_wrong(cluster):
    def complaints(spec):
        return cluster.complaints({"metadata": {"name": "x"}, "spec": {"containers": [], **spec}}, "V1Pod")

    assert complaints({"runtimeClass": "kata"}) == ["V1Pod: .spec.runtimeClass is no field"]
    assert "is read as" in complaints({"activeDeadlineSeconds": "5"})[0]
    assert complaints({"restartPolicy": "Never"}) == []


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
def test_both_protocols_of_attaching_will_do(tmp_path, protocol):
    async def scenario(backend):
        box = await make_one(backend)
        await box.write_file("/workspace/large", bytes(range(256)) * (16 << 12))  # 16 MiB, in many messages
        assert await box.read_file("/workspace/large", max_bytes=32 << 20) == bytes(range(256)) * (16 << 12)

    with StandIn(tmp_path, protocols=(protocol,)) as cluster:
        run(cluster, scenario)
    assert cluster.wrong == []


def test_a_pod_on_its_nodes_own_kernel_is_refused(cluster):
    cluster.boot_id = BOOT_ID.read_text().strip()
    with pytest.raises(SandboxError, match="kernel of its node node-1, so it is no virtual machine"):
        run(cluster, make_one)
    assert cluster.pods == {}


def test_a_runtime_class_that_is_not_katas_is_refused(cluster):
    with pytest.raises(ConfigError, match="'plain' has the handler 'runc'"):
        run(cluster, make_one, runtime_class="plain")
    with pytest.raises(MissingDependency, match="no RuntimeClass 'kata-fc': install Kata Containers"):
        run(cluster, make_one, runtime_class="kata-fc")
    assert posted(cluster, "pods") == []


def test_a_pod_that_reaches_the_cluster_is_refused_whatever_was_said(cluster, monkeypatch):
    monkeypatch.setattr("etude.environments.kata.backend._CLOSED_WITHIN_S", 0.0)
    cluster.networked = True
    with pytest.raises(SandboxError, match=r"has a network on node node-1.*install a network plugin"):
        run(cluster, make_one)
    assert cluster.pods == {}


def test_without_the_operators_word_no_pod_is_made(cluster):
    with pytest.raises(ConfigError, match=r"network_policies_enforced.*Calico and Cilium"):
        run(cluster, make_one, network_policies_enforced=False)
    assert cluster.log == []


def test_another_policy_that_lets_something_through_is_named(cluster):
    cluster.policies["dns"] = {**policy(), "metadata": {"name": "dns"}}
    run(cluster, make_one)  # one more that only forbids
    cluster.policies["dns"]["spec"]["egress"] = [{"ports": [{"port": 53, "protocol": "UDP"}]}]
    with pytest.raises(ConfigError, match="the network policy 'dns' lets something through"):
        run(cluster, make_one)


def test_the_program_is_kept_once_and_not_believed_when_changed(cluster):
    run(cluster, make_one)
    run(cluster, make_one)
    ((name, kept),) = cluster.config_maps.items()
    assert name.startswith("etude-guest-") and kept["immutable"]
    kept["binaryData"] = {"guest.gz": "AAAA"}
    with pytest.raises(SandboxError, match="is not the guest program that we keep there"):
        run(cluster, make_one)


def test_what_hinders_a_pod_is_told(cluster):
    cluster.images["elsewhere"] = {"workdir": "/app"}

    async def scenario(backend):
        with pytest.raises(SandboxError, match=r"its image cannot be pulled \(Back-off"):
            await backend.create(SandboxSpec(image="nothere"))
        with pytest.raises(SandboxError, match=r"working directory is /app.*WORKDIR /workspace"):
            await backend.create(SandboxSpec(image="elsewhere"))
        cluster.unschedulable, cluster.events = "0/3 nodes available", ['no runtime for "kata" is configured']
        with pytest.raises(DeadlineExceeded, match=r"to run: it is not scheduled.*nodes available.*no runtime for"):
            await make_one(backend)
        assert backend.live == {} and cluster.pods == {}

    run(cluster, scenario, start_timeout_s=1.0)


def test_why_a_sandbox_ended_is_told(cluster):
    async def scenario(backend):
        box = await make_one(backend)
        cluster.killed_for = "OOMKilled"
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        (pod,) = cluster.pods.values()
        cluster.loop.call_soon_threadsafe(pod.kill)
        with pytest.raises(SandboxSpoiled, match="its pod has ended: container 'sandbox': OOMKilled, exit code"):
            await running

    run(cluster, scenario)


def test_a_pod_that_is_not_gone_in_time_is_named(cluster):
    async def scenario(backend):
        box = await make_one(backend)
        cluster.stuck = True
        with pytest.raises(DeadlineExceeded, match=r"pod etude-.* to be gone: its node may be lost"):
            await box.destroy()

    with pytest.raises(DeadlineExceeded, match="to be gone"):  # closing the backend says so, too
        run(cluster, scenario, stop_timeout_s=0.5)


def test_an_api_that_is_too_busy_is_asked_again(cluster):
    async def scenario(backend):
        cluster.busy = 1
        await make_one(backend)

    run(cluster, scenario)
    assert cluster.busy == 0


def test_a_cancelled_start_leaves_no_pod(cluster):
    async def scenario(backend):
        await (await make_one(backend)).destroy()
        asked = len(posted(cluster, "pods"))
        start = asyncio.ensure_future(make_one(backend))
        while len(posted(cluster, "pods")) == asked:  # the scenario's deadline bounds this
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert cluster.pods == {} and backend.live == {}

    run(cluster, scenario)


def test_no_cluster_is_said_with_what_to_do(tmp_path, cluster):
    nowhere = KataConfig(kubeconfig=tmp_path / "none", network_policies_enforced=True)
    with pytest.raises(MissingDependency, match=r"no kubeconfig at .*kubectl get pods"):
        open_backend(nowhere)
    (finding,) = probe(nowhere)
    assert not finding.ok and "kubectl get pods" in finding.remedy
    gone = tmp_path / "gone"
    gone.write_text(cluster.kubeconfig.read_text().replace(str(cluster.port), "1"))
    with pytest.raises(SandboxError, match=r"the Kubernetes API at http://127\.0\.0\.1:1 is gone"):
        open_backend(KataConfig(kubeconfig=gone, network_policies_enforced=True))


def test_the_doctor_says_in_turn_what_is_missing(cluster):
    def said(**more):
        return {finding.subject: finding for finding in probe(settings(cluster, **more))}

    every = said()
    assert all(finding.ok for finding in every.values()), every
    assert "v1.35.0" in every["Kubernetes"].said and "'kata-qemu'" in every["runtime class"].said
    assert "on a kernel of its own" in every["a real sandbox"].said and cluster.pods == {}
    cluster.denied = {("create", "pods"), ("get", "nodes")}
    lacking = said(network_policies_enforced=False, runtime_class="none", image=None)
    assert "we may not create pods, create pods/attach, get nodes" in lacking["rights"].said
    assert "docs/environments.md" in lacking["rights"].remedy and not lacking["runtime class"].ok
    assert "Calico" in lacking["network policies"].remedy and "a real sandbox" not in lacking
    cluster.denied = set()
    assert "name one with `image`" in said(image=None)["a real sandbox"].remedy


def test_the_doctors_command_can_be_told_where_the_cluster_is(cluster):
    overrides = [f"kubeconfig={cluster.kubeconfig}", "network_policies_enforced=true", "stop_timeout_s=5"]
    found = survey(["kata"], "machine", overrides)["kata"]
    assert [finding.subject for finding in found if not finding.ok] == []


def test_a_backend_is_chosen_by_its_name_only():
    class Recipe(Config):
        environment: BackendConfig = NamespaceConfig()

    def parsed(**table):
        return parse({"environment": table}, Recipe, "recipe").environment

    assert parsed(kind="kata") == parsed(kind="kata", isolation="vm") == KataConfig()
    for wrong in ({"kind": "kata", "isolation": "container"}, {"kind": "kata", "namespace": "Not A Name"}):
        with pytest.raises(ConfigError, match="environment"):
            parsed(**wrong)


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from etude.environments.base import SandboxSpec
from etude.environments.kata.backend import KataBackend
from etude.environments.kata.config import KataConfig

async def main():
    config = KataConfig(kubeconfig=Path(sys.argv[1]), image="machine", network_policies_enforced=True)
    box = await KataBackend(config).create(SandboxSpec())
    await box.start("sleep 600")
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_controllers_pod_ends_and_is_removed_by_the_next(cluster):
    child = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(cluster.kubeconfig)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        (pod,) = cluster.pods.values()
        assert pod.status["phase"] == "Running"
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    until(lambda: pod.status["phase"] == "Succeeded")

    async def scenario(backend):
        await make_one(backend)
        while pod.name in cluster.pods:  # the scenario's deadline bounds this
            await asyncio.sleep(0.05)

    run(cluster, scenario)


def test_only_what_nobody_uses_is_swept(cluster):
    _, _, boot, namespace, _ = store.new_instance().split("-")
    long_ago = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).isoformat()
    owners = {"dead": f"1-1-{boot}-{namespace}-0", "elsewhere": "1-1-00000000-1-0", "left": "1-1-00000000-1-1"}

    async def scenario(backend):
        await make_one(backend)
        bodies = {name: {**posted(cluster, "pods")[0]} for name in owners}
        for name, body in bodies.items():
            labels = {**body["metadata"]["labels"], "etude.instance": owners[name]}
            body["metadata"] = {"name": name, "labels": labels}
            body["spec"] = {key: value for key, value in body["spec"].items() if key != "nodeName"}
            cluster.call(cluster.abandon(body))
        cluster.pods["left"].status |= {"phase": "Failed"}
        cluster.pods["left"].body["metadata"]["creationTimestamp"] = long_ago

    async def next_one(backend):
        await make_one(backend)
        until(lambda: {"dead", "left"}.isdisjoint(cluster.pods))
        assert "elsewhere" in cluster.pods

    run(cluster, scenario)
    run(cluster, next_one)
