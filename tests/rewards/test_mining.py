"""Mining a real git repository, made here commit by commit, with the real installer and in real sandboxes."""

import ast
import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from offline_wheels import PYTEST, pack
from users_git import git

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError
from etude.rewards.mining.journal import Decision, Journal, funnel
from etude.rewards.validate import validate
from etude.rewards.verifier import verify
from etude.tasks.difficulty import level_of
from etude.tasks.harbor import read_task
from etude.tasks.mined.environment import PLACE
from etude.tasks.mined.history import Commit, Tree
from etude.tasks.mined.instruction import instruction_of
from etude.tasks.mined.issues import Issue, read_issues, referenced_issue
from etude.tasks.mined.split import Candidate, Rejected
from etude.tasks.rubric import CHANGE

ROOT = Path(__file__).parents[2]
CART = """
def total(prices, discount=0):
    return sum(prices) - discount


def largest(prices):
    return max(prices)
"""
MENDED = CART.replace("return sum(prices) - discount", "return max(0, sum(prices) - discount)")
TESTS = """
from shop.cart import largest, total

def test_total():
    assert total([1, 2]) == 3
"""
BELOW_ZERO = TESTS + "\n\ndef test_the_total_is_never_negative():\n    assert total([1], discount=5) == 0\n"
RANDOM = """
import random
import pytest
from shop.luck import draw

@pytest.mark.parametrize("number", range(40))
def test_draw(number):
    assert draw() and random.random() < 0.5
"""
PARCEL = '''"""Parcels."""

def weight_of(items):
    grams_each = 250
    return len(items) * grams_each
'''
PATCHED = b"""
import _pytest.reports as r
r.TestReport.outcome = property(lambda self: "passed", lambda self, value: None)
total = largest = None
"""
WEIGHT_TEST = "from shop.parcel import weight_of\n\ndef test():\n    assert weight_of([1]) == 250\n"
STORY = [
    ("A shop", {"shop/__init__.py": "", "shop/cart.py": CART, "tests/test_cart.py": TESTS}),
    ("Say what the shop is for", {"README.md": "A shop."}),
    (
        "fix(cart): Totals must not fall below zero (#12)\n\nA discount may be larger than the price. It now takes "
        "max(0, sum(prices) - discount). Pinned by test_the_total.\n\nSigned-off-by: A <a@b>",
        {"shop/cart.py": MENDED, "tests/test_cart.py": BELOW_ZERO},
    ),
    ("Test the largest price", {"tests/test_more.py": "def test_true():\n    assert True\n"}),
    ("Customers can draw a prize", {"shop/luck.py": "def draw():\n    return True\n", "tests/test_luck.py": RANDOM}),
    (
        "Add a table of all rates",
        {
            "shop/rates.py": "".join(f"RATE_{n} = {n}\n" for n in range(300)),
            "tests/test_rates.py": "from shop.rates import RATE_1\n\ndef test_rate():\n    assert RATE_1 == 1\n",
        },
    ),
    (
        "Explain the largest price better",
        {
            "shop/cart.py": MENDED.replace("(prices):\n", '(prices):\n    """The largest."""\n'),
            "tests/test_cart.py": BELOW_ZERO + "\n\ndef test_largest():\n    assert largest([1, 2]) == 2\n",
        },
    ),
    (
        "Make smallest use return sorted(prices)[0] for speed",
        {
            "shop/small.py": "def smallest(prices):\n    return sorted(prices)[0]\n",
            "tests/test_small.py": "from shop.small import smallest\n\ndef test():\n    assert smallest([2, 1]) == 1\n",
        },
    ),
    (
        "Parcels have a weight now",
        {
            "shop/parcel.py": PARCEL,
            "tests/test_parcel.py": WEIGHT_TEST,
        },
    ),
    (
        "Prices can be printed in colour",
        {
            "requirements.txt": "no-such-package-anywhere==1.0\n",
            "shop/colour.py": "def colour():\n    return 'red'\n",
            "tests/test_colour.py": "from shop.colour import colour\n\ndef test_it():\n    assert colour()\n",
        },
    ),
]
ISSUES = [
    {"number": 3, "title": "Nobody asked", "body": "for this one"},
    {
        "number": 12,
        "title": "[Bug] A discount makes the total negative",
        "body": "### What happened\n\nI gave a discount of 5 on a price of 1 and got money back.\n\n```python\n"
        "total([1], 5)\n```\n\n<!-- a form -->\n- [ ] I searched\n\nIt should be `max(0, sum(prices) - discount)`.\n\n"
        "Same as #3.",
        "labels": ["bug"],
    },
]
EXPECTED = {
    "Say what": "no source", "fix(cart)": None, "Test the": "no source", "Customers": "flaky",
    "Add a": "too many lines", "Explain": "no fail-to-pass", 
    "Make": "message gives the answer away", "Parcels": None, "Prices": "no environment",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """pytest and what it needs, packed again from what is installed here, so that pip needs no network."""
    return pack(tmp_path_factory.mktemp("wheels"), PYTEST)


@pytest.fixture(scope="module")
def mined(tmp_path_factory, wheels):
    """(what mining printed, the directory), of a run that was killed once on its way."""
    base = tmp_path_factory.mktemp("mining")
    shop = base / "shop"
    shop.mkdir()
    git(shop, "init", "-q")
    for message, files in STORY:
        for path, text in files.items():
            (shop / path).parent.mkdir(parents=True, exist_ok=True)
            (shop / path).write_text(text)
        git(shop, "add", "-A")
        git(shop, "commit", "-q", "-m", message)
    out = base / "out"
    (base / "issues.jsonl").write_text("".join(f"{json.dumps(issue)}\n" for issue in ISSUES))
    command = [
        sys.executable, "-m", "etude.cli.main", "tasks", "mine", str(shop), "--out", str(out), "--json",
        "--environments", str(base / "environments"), "--set", "eval_since=2020-01-01",
        "--issues", str(base / "issues.jsonl"),
    ]  # fmt: skip
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    some = [*command, "--most", "5"]  # so that one that is to be kept is left, even where the kill comes late
    first = subprocess.Popen(some, env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True)
    for line in first.stderr:
        if "kept as" in line:
            break
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=120)
    journal = (out / "journal.jsonl").read_bytes()
    (out / "journal.jsonl").write_bytes(journal + b'{"commit": "torn')
    second = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280, check=False)
    assert second.returncode == 0, second.stderr
    assert (out / "journal.jsonl").read_bytes().startswith(journal)
    assert "kept as" in second.stderr
    return json.loads(second.stdout), out


def decisions(out):
    lines = (out / "journal.jsonl").read_text().splitlines()[1:]
    return {line["commit"]: line for line in map(json.loads, lines)}


def test_every_commit_is_kept_or_dropped_for_its_own_reason(mined):
    said, out = mined
    found = decisions(out)
    shop = out.parent / "shop"
    titles = {commit: git(shop, "log", "-1", "--format=%s", commit) for commit in found}
    reasons = {
        start: line["reason"]
        for start in EXPECTED
        for commit, line in found.items()
        if titles[commit].startswith(start)
    }
    assert reasons == EXPECTED, found
    assert said == json.loads((out / "report.json").read_text())
    assert said["commits"] == len(EXPECTED) == sum(said["dropped"].values()) + len(said["kept"])
    assert {path.name for path in out.iterdir() if path.is_dir()} == set(said["kept"])


def by_module(mined, module):
    said, out = mined
    tasks = [read_task(out / name) for name in said["kept"]]
    return next(task for task in tasks if task.provenance["test_modules"] == [module])


def test_a_task_says_what_is_wanted_and_no_more(mined):
    cart, parcel = by_module(mined, "tests/test_cart.py"), by_module(mined, "tests/test_parcel.py")
    assert cart.instruction.startswith(
        "A discount makes the total negative.\n\nI gave a discount of 5 on a price of 1 and got money back.\n\n"
        "```python\ntotal([1], 5)\n```\n"
    )
    assert cart.provenance["issue"] == 12 and "issue" not in parcel.provenance
    assert "max(0" not in cart.instruction and "#12" not in cart.instruction and "Signed" not in cart.instruction
    assert "Pinned" not in cart.instruction
    assert "weight_of" in parcel.instruction and "grams_each" not in parcel.instruction
    assert cart.files["shop/cart.py"].decode() == CART and b"negative" not in cart.files["tests/test_cart.py"]
    assert cart.provenance["fail_to_pass"] == ["tests/test_cart.py::test_the_total_is_never_negative"]
    assert cart.provenance["pass_to_pass"] == ["tests/test_cart.py::test_total"]
    assert cart.split == "eval" and "pytest==" in cart.setup[0]
    assert cart.rubric == CHANGE and level_of(cart) == cart.provenance["difficulty"]["level"] == 1


@pytest.mark.proof(4)
def test_tests_come_from_outside_whatever_the_agent_did(mined):
    """Each of these passes a plain `pytest` in the workspace; only the solution is worth anything."""
    task = by_module(mined, "tests/test_cart.py")
    hook = b"import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n    (yield)"
    hook += b".get_result().outcome = 'passed'\n"
    cheats = {
        "tests emptied": {"tests/test_cart.py": b"def test_total(): pass\n"},
        "a conftest that passes all": {"conftest.py": hook},
        "settings that skip": {"pytest.ini": b"[pytest]\naddopts = --collect-only\n"},
        "a pytest of its own": {"pytest.py": b"def main(*a, **k): pass\n", "_pytest/__init__.py": b""},
        "an early end": {"shop/cart.py": b"import os\nos._exit(0)\n"},
        "reports patched": {"shop/cart.py": PATCHED},
    }  # fmt: skip

    async def scenario():
        binds = {PLACE: mined[1].parent / "environments"}
        backend = NamespaceBackend(NamespaceConfig(binds=binds))
        try:
            sound = await validate(task, backend, runs=1)
            assert sound.sound, sound.problems
            for name, files in cheats.items():
                verdict = await verify(task, {**task.files, **files}, backend)
                assert (name, verdict.reward) == (name, 0.0), verdict
            extra = {**task.files, **task.solution, "conftest.py": b"raise SystemExit(3)", "tests/test_cart.py": b"no"}
            assert (await verify(replace(task), extra, backend)).reward == 1.0
        finally:
            await backend.close()

    asyncio.run(scenario())


def test_what_fits_the_values_of_its_tests_is_not_paid(mined):
    """Both commits have functions that tests call. One could be called otherwise: it is new, and its issue names no
    parameters."""
    said, _ = mined
    task, parcel = by_module(mined, "tests/test_cart.py"), by_module(mined, "tests/test_parcel.py")
    told = told_of(task)["unseen"]
    calls = [call for key, call in told["request"].items() if key != "environment"]
    assert {(module, name) for module, name, _ in calls} == {("shop.cart", "total")}  # `largest` was not changed
    assert task.provenance["unseen"] == len(calls) > 3
    assert told["away"] == ["tests/test_cart.py"]
    assert parcel.provenance["unseen"] == 0 and said["tests_alone"] == 1
    hard_coded = CART.replace("sum(prices) - discount", "{5: 0}.get(discount, sum(prices) - discount)")
    otherwise = CART.replace(
        "return sum(prices) - discount",
        "left = -discount\n    for price in prices:\n        left += price\n    return left if left > 0 else 0",
    )
    secret = {key: value for key, value in told_of(task).items() if key != "unseen"}
    files = {**task.verifier.files, "/tests/secret": repr(secret).encode()}
    alone = replace(task, verifier=replace(task.verifier, files=files))

    async def scenario():
        backend = NamespaceBackend(NamespaceConfig(binds={PLACE: mined[1].parent / "environments"}))
        try:
            for judged, text, reason in (
                (alone, hard_coded, "passed"), (task, hard_coded, "failed"), (task, otherwise, "passed"),
            ):  # fmt: skip
                verdict = await verify(judged, {**task.files, "shop/cart.py": text.encode()}, backend)
                assert verdict.reason == reason, verdict
        finally:
            await backend.close()

    asyncio.run(scenario())


def told_of(task):
    return ast.literal_eval(task.verifier.files["/tests/secret"].decode())


def test_a_journal_answers_one_question_for_one_process(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, {"before": 2})
    journal.add(Decision("a", None, "flaky"))
    with pytest.raises(ConfigError, match="another process"):
        Journal(path, {"before": 2})
    journal.close()
    with pytest.raises(ConfigError, match="another `before"):
        Journal(path, {"before": 3})
    again = Journal(path, {"before": 2})
    report = funnel(again.decisions, {"b": "no room"})
    assert report.dropped == {"flaky": 1} and report.commits == 2 and any("no room" in line for line in report.lines())
    assert report.lines()[-1].endswith("are judged by the repository's own tests only (no hidden checks)")
    untested = funnel({"a": Decision("a", None, "no tests")}, {})
    assert "test_*.py or *_test.py" in untested.lines()[-1]
    again.close()


def candidate(message, before=CART, after=MENDED):
    trees = [Tree({"shop/cart.py": text.encode()}, (), ()) for text in (before, after)]
    tests = {"tests/test_cart.py": BELOW_ZERO.encode()}
    return Candidate(Commit("a", "b", 0, message), *trees, trees[1].files, tests, ("tests/test_cart.py",), 2)


def test_without_an_issue_the_commit_speaks():
    said = instruction_of(candidate(STORY[2][0]))
    assert said == "Totals must not fall below zero. A discount may be larger than the price.\n"
    assert instruction_of(candidate("#376: Handle a discount of None")) == "Handle a discount of None.\n"
    assert instruction_of(candidate("Fixes #3, #4: handle None in totals")) == "handle None in totals.\n"
    telling = Issue(number=1, title="Use max(0, sum(prices) - discount) please", body="x")
    assert instruction_of(candidate(STORY[2][0]), telling) == said
    assert isinstance(instruction_of(candidate("wip")), Rejected)
    assert (
        instruction_of(candidate("wip"), Issue(number=1, title="The total is negative")) == "The total is negative.\n"
    )


def test_the_issue_that_a_commit_closes_comes_before_one_it_names():
    issues = {number: Issue(number=number, title="t") for number in (3, 12)}
    assert referenced_issue("See #3. Fixes #12", issues).number == 12
    assert referenced_issue("See https://host/acme/shop/issues/3 and #99", issues).number == 3
    assert referenced_issue("Nothing of 3 here, or #4", issues) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [("{", "x.jsonl:1: not JSON"), ("[1]", "an issue is an object"), ('{"number": 0, "title": "t"}', "number"),
     ('{"number": 1}', "title")],
)  # fmt: skip
def test_a_wrong_line_of_issues_is_named(tmp_path, line, says):
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=says):
        read_issues(tmp_path / "x.jsonl")
