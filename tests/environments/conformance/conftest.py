"""What every backend must do alike: each scenario here runs on every backend this machine offers."""

import pytest
from scenarios import within

from etude.environments.namespace import NamespaceBackend


@pytest.fixture(params=["namespace", "docker", "remote", pytest.param("qemu", marks=pytest.mark.proof(1.2))])
def run(request):
    """Run `scenario(backend)` within a deadline, on a fresh backend, or on a clean one where fresh ones take long."""
    if request.param == "remote":
        return request.getfixturevalue("from_afar")
    if request.param == "docker":
        return request.getfixturevalue("containers")
    if request.param == "qemu":
        return request.getfixturevalue("machines")
    return lambda scenario, deadline_s=200.0: within(deadline_s, NamespaceBackend, scenario)
