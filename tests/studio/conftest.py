"""One browser, one server and two runs for the tests of the pages; and the packages that the pages are built with."""

import shutil
import subprocess

import pytest
from browser import Chromium, Tab
from hostile import keep_hostile
from installed import lacking
from made_run import ROOT, archive, evaluate, make_run, studio
from test_studio_archive import bench


@pytest.fixture(scope="session")
def web(tmp_path_factory):
    """A copy of what the pages are built from, with its packages installed as the lock file says."""
    place = tmp_path_factory.mktemp("web")
    shutil.copytree(ROOT / "web", place / "web", ignore=shutil.ignore_patterns("node_modules"))
    (place / "tools").mkdir()
    shutil.copy(ROOT / "tools/web.sh", place / "tools")
    if shutil.which("npm") is None:
        lacking("this needs npm, with Node 20.19 or later")
    words = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(words, cwd=place / "web", capture_output=True, text=True, timeout=280)
    if done.returncode:
        lacking(f"npm ci: {done.stderr[-500:]}")
    return place


@pytest.fixture(scope="module")
def chromium():
    """Not for longer: while it is there an event loop runs in this thread, and no test could begin another."""
    browser = Chromium()
    yield browser.browser
    browser.close()


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """Two runs that have ended, and two benchmarks."""
    runs = tmp_path_factory.mktemp("runs")
    keep_hostile(make_run(runs / "first", 12, "one", summary=True))
    archive(runs / "first")
    evaluate(runs / "first")
    archive(make_run(runs / "second", 5, "another", summary=True))
    bench(runs / "benches/before", "before", [True, False, False, None])
    bench(runs / "benches/after", "after", [False, True, True, True])
    return runs


@pytest.fixture(scope="session")
def shown(places, tmp_path_factory):
    """A server over both."""
    with studio(tmp_path_factory.mktemp("home"), places) as server:
        yield server


@pytest.fixture
def context(chromium):
    context = chromium.new_context(viewport={"width": 1360, "height": 860})
    yield context
    context.close()


@pytest.fixture
def tab(context, shown):
    """Of the server over both runs. A fault in its console fails the test."""
    tab = Tab(context, shown)
    yield tab
    assert tab.faults == []
