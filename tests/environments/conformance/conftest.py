"""What every backend must do alike: each scenario here runs on every backend this machine offers."""

import os

import pytest
from scenarios import within

from etude.environments.kata.backend import KataBackend
from etude.environments.kata.config import KataConfig
from etude.environments.namespace import NamespaceBackend

CLUSTER = os.environ.get("ETUDE_TEST_KATA_IMAGE")
"""An image that the nodes of the cluster can pull whose kubeconfig is the usual one. Its network plugin must enforce
network policies."""


def on_cluster():
    if CLUSTER is None:
        pytest.skip("ETUDE_TEST_KATA_IMAGE names no image for pods: one with sh, coreutils, gzip and python3")
    return KataBackend(KataConfig(image=CLUSTER, network_policies_enforced=True))


BACKENDS = {"namespace": NamespaceBackend, "kata": on_cluster}


@pytest.fixture(params=[*BACKENDS, "docker", "remote", "qemu"])
def run(request):
    """Run `scenario(backend)` within a deadline, on a fresh backend, or on a clean one where fresh ones take long."""
    if request.param == "remote":
        return request.getfixturevalue("from_afar")
    if request.param == "docker":
        return request.getfixturevalue("containers")
    if request.param == "qemu":
        return request.getfixturevalue("machines")
    return lambda scenario, deadline_s=200.0: within(deadline_s, BACKENDS[request.param], scenario)
