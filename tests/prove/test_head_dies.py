"""A run over machines ends with the head that it was started on, and is resumed there: minutes, as Ray starts anew."""

import pytest
from machines import Machines
from small import steps
from test_bare_cluster import Cluster
from test_run_over_machines import OFFERED, Run, whole

pytestmark = pytest.mark.timeout(900)


def test_a_run_ends_with_the_head_and_is_resumed_on_it(tmp_path):
    shared, wires = tmp_path / "shared", tmp_path / "machines"
    shared.mkdir()
    wires.mkdir()
    with Machines(3, wires, shared=(shared,)) as machines:
        cluster = Cluster(machines, OFFERED)
        cluster.shared, out, head = shared, shared / "head", machines.addresses[0]
        cluster.did("up")
        with Run(cluster, out) as run:
            run.wait(lambda: len(steps(out)) >= 1, "a step")
            machines.unplug(head)  # the controller is on it
        machines.boot(head)
        cluster.did("up")
        with Run(cluster, out, resume=True) as run:
            whole(run, out, 4)
        cluster.did("down")
