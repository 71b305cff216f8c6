"""Which tests may run at the same time: those of a file, of one Ray or of virtual machines stay with one process.

And how long Hypothesis may take: as long as it does, on a machine that is busy. Which of the long proofs are played,
proofs.py says."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import proofs
import pytest
from hypothesis import HealthCheck, settings

sys.dont_write_bytecode = False  # hundreds of tests start an `etude`, each of which would compile it anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on CPU; read when Triton is first imported, by whomever
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is below a script's `make test &`, and in all we start
    signal.signal(signal.SIGINT, signal.default_int_handler)

RAY = ("environments/cluster/", "e2e/")
PAGES = "test_pages_played.py"
MACHINES = tuple(f"environments/test_{name}.py" for name in ("machines", "firecracker", "machine_postgres"))


def group_of(nodeid: str) -> str:
    """Tests of one group stay with one process, in order."""
    path, _, test = nodeid.removeprefix("tests/").partition("::")
    if path.startswith(RAY):
        return "ray"
    if path in MACHINES or "qemu" in test.partition("[")[2]:
        return "machines"  # an emulated machine takes a whole core, and its image is built once
    if path == PAGES:
        return nodeid  # each plays a world of its own
    return path  # what a file's fixtures start is started once


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Not by `xdist_group`: its names get lost where another hook, or another pytest, changes what comes first."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The longest groups first, so that no process is left with one at the end: Ray's, then the longest tests, then
    the machines'. Proofs are chosen from what -k and -m have left."""
    proofs.choose(config, items)
    order = {"ray": 0, "machines": 2}
    items.sort(key=lambda item: 1 if PAGES in item.nodeid else order.get(group_of(item.nodeid), 3))


def pytest_terminal_summary(terminalreporter):
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    if said := proofs.summary([report for report in reports if isinstance(report, pytest.TestReport)]):
        terminalreporter.write_line(said)


class Failed:
    """Names a test as soon as it has failed: the reasons come at the end, which a run that is cut off never sees."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_line(f"failed: {report.nodeid}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput") and (terminal := config.pluginmanager.get_plugin("terminalreporter")):
        config.pluginmanager.register(Failed(terminal))


@pytest.fixture
def outer() -> Iterator[Path]:
    """A directory not below /tmp, of which a sandbox over the user's own files has its own."""
    path = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)
