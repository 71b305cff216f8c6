"""What every backend must do alike: each scenario here runs on every backend this machine offers, or on the one that
`--backend` names: a kind that is installed, or package.module:attribute of its plug-in."""

import pytest
from scenarios import within

from etude.config import load_recipe
from etude.environments.namespace import NamespaceBackend
from etude.plugins import find

OURS = ("namespace", "docker", "remote", pytest.param("qemu", marks=pytest.mark.proof(1.2)))


def pytest_addoption(parser):
    parser.addoption("--backend", metavar="NAME", help="test this sandbox backend: a kind, or package.module:PLUGIN")
    parser.addoption("--set", action="append", default=[], metavar="KEY=VALUE", help="in the config of --backend")


def pytest_generate_tests(metafunc):
    if "run" in metafunc.fixturenames:
        named = metafunc.config.getoption("--backend", default=None)
        metafunc.parametrize("run", [named] if named else OURS, indirect=True)


@pytest.fixture
def run(request):
    """Run `scenario(backend)` within a deadline, on a fresh backend, or on a clean one where fresh ones take long."""
    if named := request.config.getoption("--backend", default=None):
        plugin = find("backends", named)
        config = load_recipe(None, plugin.config, request.config.getoption("--set"))
        return lambda scenario, deadline_s=200.0: within(deadline_s, lambda: plugin.create_backend(config), scenario)
    if request.param == "remote":
        return request.getfixturevalue("from_afar")
    if request.param == "docker":
        return request.getfixturevalue("containers")
    if request.param == "qemu":
        return request.getfixturevalue("machines")
    return lambda scenario, deadline_s=200.0: within(deadline_s, NamespaceBackend, scenario)
