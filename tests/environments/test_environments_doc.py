"""docs/environments.md: its example runs as it stands, and the files it points to are there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from etude.environments.leftovers import leftovers

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "environments.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOC, re.M | re.S)


def test_there_is_an_example():
    assert len(EXAMPLES) == 1


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_runs(example, tmp_path):
    (tmp_path / "example.py").write_text(example)
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "example.py")]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as process:
        _, said = process.communicate(timeout=100)
    assert (process.returncode, said) == (0, "")
    assert [line for line in leftovers() if f"/{process.pid}-" in line] == []


def test_what_it_points_to_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", DOC)
    assert targets and [target for target in targets if not (ROOT / "docs" / target).exists()] == []
