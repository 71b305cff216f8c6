"""What every backend must do alike: each scenario here runs on every backend this machine offers."""

import os
from pathlib import Path

import pytest
from scenarios import within

from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig
from etude.environments.kata.backend import KataBackend
from etude.environments.kata.config import KataConfig
from etude.environments.namespace import NamespaceBackend

ENGINE = Path(os.environ.get("ETUDE_TEST_ENGINE", "/var/run/docker.sock"))
IMAGE = os.environ.get("ETUDE_TEST_ENGINE_IMAGE")
"""An image that the engine has, with a shell, the usual small programs, and python3."""

CLUSTER = os.environ.get("ETUDE_TEST_KATA_IMAGE")
"""An image that the nodes of the cluster can pull whose kubeconfig is the usual one. Its network plugin must enforce
network policies."""


def on_engine():
    if not ENGINE.is_socket():
        pytest.skip(f"no container engine at {ENGINE}; ETUDE_TEST_ENGINE names the socket of one")
    if IMAGE is None:
        pytest.skip("ETUDE_TEST_ENGINE_IMAGE names no image for containers: one with sh, coreutils and python3")
    return DockerBackend(DockerConfig(socket=ENGINE, image=IMAGE))


def on_cluster():
    if CLUSTER is None:
        pytest.skip("ETUDE_TEST_KATA_IMAGE names no image for pods: one with sh, coreutils, gzip and python3")
    return KataBackend(KataConfig(image=CLUSTER, network_policies_enforced=True))


BACKENDS = {"namespace": NamespaceBackend, "docker": on_engine, "kata": on_cluster}


@pytest.fixture(params=[*BACKENDS, "remote", "qemu"])
def run(request):
    """Run `scenario(backend)` within a deadline, on a fresh backend, or on a clean one where fresh ones take long."""
    if request.param == "remote":
        return request.getfixturevalue("from_afar")
    if request.param == "qemu":
        return request.getfixturevalue("machines")
    return lambda scenario, deadline_s=60.0: within(deadline_s, BACKENDS[request.param], scenario)
