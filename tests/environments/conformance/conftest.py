"""What every backend must do alike: each scenario here runs on every backend this machine offers, or on the one that
`--backend` names: a kind that is installed, or package.module:attribute of its plug-in."""

import pytest
from scenarios import EVERYWHERE, within

from etude.config import load_recipe
from etude.environments.namespace import NamespaceBackend
from etude.environments.plugin import Plugin
from etude.plugins import find

SECONDS = {"docker": 0.7, "remote": 0.5, "qemu": 1.2}
"""How long a scenario of the others has: all of them are played on `namespace`, those EVERYWHERE on these as well."""


def ours(test):
    """The backends of a scenario, most of which are proofs."""
    proofs = {name: pytest.mark.proof(seconds) for name, seconds in SECONDS.items()}
    if test in EVERYWHERE:
        proofs = {name: mark for name, mark in proofs.items() if name == "qemu"}
    return ("namespace", *(pytest.param(name, marks=proofs.get(name, ())) for name in SECONDS))


def pytest_addoption(parser):
    parser.addoption("--backend", metavar="NAME", help="test this sandbox backend: a kind, or package.module:PLUGIN")
    parser.addoption("--set", action="append", default=[], metavar="KEY=VALUE", help="in the config of --backend")


def pytest_generate_tests(metafunc):
    if "run" in metafunc.fixturenames:
        named = metafunc.config.getoption("--backend", default=None)
        metafunc.parametrize("run", [named] if named else ours(metafunc.function.__name__), indirect=True)


@pytest.fixture
def run(request):
    """Run `scenario(backend)` within a deadline, on a fresh backend, or on a clean one where fresh ones take long."""
    if named := request.config.getoption("--backend", default=None):
        plugin = find("backends", named, Plugin)
        config = load_recipe(None, plugin.config, request.config.getoption("--set"))
        return lambda scenario, deadline_s=200.0: within(deadline_s, lambda: plugin.create_backend(config), scenario)
    if request.param == "remote":
        return request.getfixturevalue("from_afar")
    if request.param == "docker":
        return request.getfixturevalue("containers")
    if request.param == "qemu":
        return request.getfixturevalue("machines")
    return lambda scenario, deadline_s=200.0: within(deadline_s, NamespaceBackend, scenario)
