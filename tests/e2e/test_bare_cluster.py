"""`etude cluster` on three machines of namespaces, over the real sshd: started, looked at, one killed, ended."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from machines import ROOT, Machines

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 60.0
"""What `status` may take of a machine that is gone: its own deadline is 30 s, and Python has to start."""
SECRET = "a-secret-that-is-on-no-command-line"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with Machines(3, tmp_path_factory.mktemp("machines")) as machines:
        yield machines


@pytest.fixture(scope="module")
def cluster(machines):
    return Cluster(machines)


class Cluster:
    """What the operator has and gives."""

    def __init__(self, machines, offered=("trainer = 1", "sessions = 1", "sessions = 1")):
        """What each machine offers beside two CPUs, the head first."""
        self.machines, directory = machines, machines.directory
        (directory / "secret").write_text(f"{SECRET}\n")
        (directory / "hosts.toml").write_text("x = 1\n")
        self.file = directory / "machines.toml"
        of_each = "".join(
            f'\n[[machines]]\naddress = "{address}"\nssh = "root@{address}"\ncpus = 2\nresources = {{ {resources} }}\n'
            for address, resources in zip(machines.addresses, offered, strict=True)
        )
        self.file.write_text(
            f'name = "trio"\npython = "{sys.executable}"\ntoken_file = "{directory}/token"\n'
            f"ssh_options = {json.dumps(machines.ssh_options)}\n"
            f'[files]\n"/root/given/hosts.toml" = "{directory}/hosts.toml"\n'
            f'[env]\nPYTHONPATH = "{ROOT}"\n[secrets]\nSTORE_KEY = "{directory}/secret"\n{of_each}'
        )

    def command(self, *words):
        command = [*self.machines.prefix, sys.executable, "-m", "etude.cli.main", "cluster", words[0], str(self.file)]
        return subprocess.run([*command, *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=300)

    def did(self, *words):
        """What a command says, as JSON, that ends well."""
        done = self.command(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def on(self, number, script):
        """What a script of Python says on a machine, where the cluster's token is known."""
        env = [
            f"PYTHONPATH={ROOT}", "RAY_AUTH_MODE=token", "RAY_USAGE_STATS_ENABLED=0", "HOME=/root",
            "RAY_AUTH_TOKEN_PATH=/root/.local/state/etude/clusters/trio/token",
        ]  # fmt: skip
        there = self.machines.there(self.machines.addresses[number])
        done = subprocess.run(
            [*there, "env", *env, sys.executable, "-c", script], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return json.loads(next(line for line in done.stdout.splitlines() if line.startswith(("{", "["))))

    def kill(self, number, program):
        """With -9, what is on a machine by this path."""
        found = self.machines.pids(self.machines.addresses[number], program)
        assert found
        for process in found:
            os.kill(process, signal.SIGKILL)

    def states(self):
        """By the machine's number, and how long it took to say."""
        began = time.monotonic()
        said = json.loads(self.command("status", "--json").stdout)
        assert time.monotonic() - began < DEADLINE_S
        return [each["state"] for each in said["machines"]]


NODES = """
import json, os, ray
ray.init(address="10.77.0.1:6379", log_to_driver=False)
print(json.dumps({each["NodeManagerAddress"]: each["Alive"] for each in ray.nodes()}))
"""
WHO = """
import json, os, ray, socket
ray.init(address="10.77.0.1:6379", log_to_driver=False)
@ray.remote(num_cpus=0, resources={"sessions": 1})
def who():
    return socket.gethostname(), os.environ["STORE_KEY"], open("/root/given/hosts.toml").read(), os.listdir("/tmp")
print(json.dumps(ray.get(who.remote())))
"""


@pytest.mark.proof(60)
def test_up_status_and_down_on_three_machines_of_which_one_dies(cluster):
    machines = cluster.machines
    assert cluster.states() == ["stopped"] * 3

    up = cluster.did("up")
    assert (up["alive"], up["url"]) == (3, "10.77.0.1:6379")
    assert [each["resources"] for each in up["machines"]] == [
        {"CPU": 2, "trainer": 1}, {"CPU": 2, "sessions": 1}, {"CPU": 2, "sessions": 1}
    ]  # fmt: skip
    assert cluster.on(0, NODES) == dict.fromkeys(machines.addresses, True)

    # secrets and files are there, on another machine, and on no command line
    host, secret, given, own = cluster.on(0, WHO)
    assert (host, secret, given) == (host, SECRET, "x = 1\n") and host in ("machine-2", "machine-3") and "ray" in own
    token = (machines.directory / "token").read_text().strip()
    lines = [line for address in machines.addresses for line in machines.processes(address)]
    assert len(lines) > 9 and not [line for line in lines if SECRET in line or token in line]

    table = cluster.command("status")
    assert table.returncode == 0 and table.stdout.splitlines()[-1] == "3 of 3 machines alive"
    assert cluster.did("up")["alive"] == 3  # changes nothing

    machines.unplug(machines.addresses[2])
    assert cluster.states() == ["alive", "alive", "unreachable"]
    refused = cluster.command("status")
    assert refused.returncode == 1 and "ssh gets no connection" in refused.stdout
    deadline = time.monotonic() + 90
    while cluster.on(0, NODES)[machines.addresses[2]]:
        assert time.monotonic() < deadline, "Ray to give up the machine that is gone"

    machines.boot(machines.addresses[2])  # plugged in again: it knows nothing, and joins
    assert cluster.did("up")["alive"] == 3

    down = cluster.did("down")
    assert set(down["ended"]) == set(machines.addresses)
    assert [machines.processes(address) for address in machines.addresses] == [[], [], []]
    assert cluster.states() == ["stopped"] * 3


@pytest.mark.proof(50)
def test_a_machine_whose_ray_dies_is_told_of_and_a_head_that_dies_starts_all_anew(cluster):
    cluster.did("up")
    cluster.kill(1, "raylet/raylet")
    assert cluster.states() == ["alive", "dead", "alive"]

    cluster.kill(0, "gcs/gcs_server")  # and with it the cluster
    assert cluster.states()[:2] == ["dead", "dead"]
    assert cluster.did("up")["alive"] == 3
    cluster.did("down")
    assert [cluster.machines.processes(address) for address in cluster.machines.addresses] == [[], [], []]
