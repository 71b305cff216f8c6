"""docs/safety.md: its example runs as it stands, its rules are rules, and the tests that documents name are there."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from etude.harness.permissions import load_permissions
from etude.harness.permissions.store import IN_REPOSITORY

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "safety.md").read_text()


def test_the_example_runs(tmp_path):
    [example] = re.findall(r"^```python\n(.*?)^```$", DOC, re.M | re.S)
    (tmp_path / "example.py").write_text(example)
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "example.py")]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    said = "git -C . push: rule deny run(git push *)"
    assert said in done.stdout and said in DOC
    assert "Read-only file system" in done.stdout and "['here']" in done.stdout


def test_its_rules_are_read(tmp_path):
    text, of_repository = re.findall(r"^```toml\n(.*?)^```$", DOC, re.M | re.S)
    assert tomllib.loads(text)
    (tmp_path / ".etude").mkdir()
    (tmp_path / IN_REPOSITORY).write_text(of_repository)
    (tmp_path / "permissions.toml").write_text(text.replace("/home/ada/engine", str(tmp_path)))
    loaded = load_permissions(tmp_path, tmp_path / "permissions.toml")
    assert loaded.allow == ("run(pytest *)", "run(make)") and loaded.deny[-1] == "read(infra/**)"
    assert f"rule {loaded.rules()[len(loaded.deny) - 1]}" in DOC.replace("\n", " ")


def test_what_it_points_to_exists():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", DOC) if "://" not in target]
    assert targets and [target for target in targets if not (ROOT / "docs" / target).exists()] == []


def test_every_defence_of_the_threat_model_names_tests_that_exist():
    [table] = re.findall(r"^\| attacker .*?\n\n?\Z", DOC, re.M | re.S)
    rows = table.strip().splitlines()[2:]
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py::test_\w+` *(,|\|$)", row), row
    assert len(rows) >= 15


@pytest.mark.parametrize("doc", [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")], ids=lambda path: path.name)
def test_the_tests_that_a_document_names_are_there(doc):
    for file, name in re.findall(r"(tests/\w+/[\w/]+\.py)(?:::(\w+))?", doc.read_text()):
        assert (f"def {name}(" if name else "") in (ROOT / file).read_text(), (file, name)
