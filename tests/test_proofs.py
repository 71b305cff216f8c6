"""Every proof comes in one slice, every process has the same one, and no other test is ever left out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import proofs
import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
MADE = {
    "test_a.py": """
import pytest
pytestmark = pytest.mark.proof(20)
@pytest.mark.parametrize("n", range(3))
def test_long(n): pass
@pytest.mark.proof(70)
def test_longer(): pass
""",
    "test_b.py": """
import pytest
@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.proof(5))])
def test_now_and_then(n): pass
@pytest.fixture(params=["fast", pytest.param("slow", marks=pytest.mark.proof(70))])
def kind(request): return request.param
def test_on(kind): pass
def test_always(): pass
""",
}
ALWAYS = {"test_b.py::test_always", "test_b.py::test_now_and_then[1]", "test_b.py::test_now_and_then[2]"}
ALWAYS |= {"test_b.py::test_on[fast]"}
PROOFS = {f"test_a.py::test_long[{n}]" for n in range(3)}
PROOFS |= {"test_a.py::test_longer", "test_b.py::test_now_and_then[3]", "test_b.py::test_on[slow]"}
SLICES = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project whose tests are chosen by the conftest of these."""
    root = tmp_path_factory.mktemp("made")
    for name, text in MADE.items():
        (root / name).write_text(text)
    for name in ("conftest.py", "proofs.py"):
        (root / name).symlink_to(ROOT / "tests" / name)
    (root / "pytest.ini").write_text("[pytest]\nmarkers = proof: long\n")
    return root


def run(root, *arguments, **variables):
    """Directories of other runs are not looked at, let alone removed."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("ETUDE_PROOFS", "PYTEST_"))}
    bare["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ("-p", "xdist.plugin", "-p", "no:cacheprovider", "--basetemp", root / "tmp")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *plugins, *arguments],
        cwd=root, env=bare | variables, capture_output=True, text=True, timeout=250,
    )  # fmt: skip


def played(done) -> set[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"test_\w\.py::\S+(?= PASSED)|(?<=PASSED )test_\w\.py::\S+", done.stdout))


@given(st.lists(st.floats(0.1, proofs.SLICE)))
def test_every_proof_is_in_one_slice_and_none_is_too_long(costs):
    cut = proofs.slices(costs)
    assert [at for positions in cut for at in positions] == list(range(len(costs)))
    assert all(sum(costs[at] for at in positions) <= proofs.SLICE for positions in cut)


def test_the_first_of_each_kind_is_no_proof():
    params = proofs.one_of_each(3, [("a", 1), ("a", 2), ("b", 1)], lambda name, number: name)
    assert [[mark.args for mark in each.marks] for each in params] == [[], [(3,)], []]
    one, two = proofs.one_of_each(2, ["x", pytest.param("y", id="why")])
    assert (one.values, two.values, two.id, len(two.marks)) == (("x",), ("y",), "why", 1)


def test_a_seed_plays_its_slice_and_everything_that_is_no_proof(made):
    """With processes side by side it is the same one: where it was not, xdist would not begin."""
    found = [played(run(made, ETUDE_PROOFS_SEED=str(seed))) for seed in range(SLICES)]
    assert all(each >= ALWAYS for each in found)
    slices = [each - ALWAYS for each in found]
    assert set.union(*slices) == PROOFS and sum(map(len, slices)) == len(PROOFS)
    done = run(made, "-n", "2")
    said = re.search(rf"(\d+) proofs played, slice \d of {SLICES}: ETUDE_PROOFS_SEED=(\d+)", done.stdout)
    assert played(done) == found[int(said[2]) % SLICES] and len(slices[int(said[2]) % SLICES]) == int(said[1])


def test_all_are_played_where_they_are_asked_for(made):
    assert played(run(made, ETUDE_PROOFS="all")) == ALWAYS | PROOFS
    assert played(run(made, "-k", "test_longer")) == {"test_a.py::test_longer"}
    assert played(run(made, "-k", "test_long")) == {each for each in PROOFS if "test_a" in each}
    done = run(made, "test_a.py::test_long")
    assert played(done) == {f"test_a.py::test_long[{n}]" for n in range(3)}
    assert "3 proofs played, all that were asked for" in done.stdout


def test_what_is_wrong_is_said(made, tmp_path):
    done = run(made, ETUDE_PROOFS="some")
    assert done.returncode == 4 and "ETUDE_PROOFS is one of slice, all" in done.stdout + done.stderr
    (tmp_path / "conftest.py").symlink_to(ROOT / "tests" / "conftest.py")
    (tmp_path / "proofs.py").symlink_to(ROOT / "tests" / "proofs.py")
    (tmp_path / "test_c.py").write_text("import pytest\n@pytest.mark.proof(1000)\ndef test_too_long(): pass\n")
    done = run(tmp_path)
    assert done.returncode == 4 and "test_c.py::test_too_long: proof(seconds)" in done.stdout + done.stderr


def test_a_whole_run_that_is_killed_and_goes_on_is_always_played(tmp_path):
    done = run(tmp_path, "-p", "pytest_timeout", "--collect-only", "-m", "not proof", ROOT / "tests/e2e/test_run.py")
    assert "test_a_killed_run_goes_on_where_it_was" in done.stdout
