"""docs/environments.md: its example runs as it stands, and the files it points to are there."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from etude.environments.cluster.backend import ClusterBackend
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


def test_the_clusters_example_is_what_its_code_takes():
    """It needs a Ray, so it is not run: its names are there, and each call has arguments that its function takes."""
    [example] = re.findall(r"^```py\n(.*?)^```$", DOC, re.M | re.S)
    imports, calls = example.split("\n\n")
    names = {}
    exec(imports, names)
    tree = ast.parse(calls)
    [launched, opened, asked] = [line.value for line in tree.body[1:]]
    inspect.signature(names["launch"]).bind(*launched.value.args)
    exec(compile(ast.Module(tree.body[:1], []), "example", "exec"), names)
    values = [eval(compile(ast.Expression(each), "example", "eval"), names) for each in launched.value.args]
    assert [type(each).__name__ for each in values] == ["str", "AgentConfig", "ServiceConfig"]
    config = eval(compile(ast.Expression(opened.args[0]), "example", "eval"), names)
    assert config.name == "etude" and ast.unparse(opened.func) == "open_backend"
    inspect.signature(ClusterBackend.waiting).bind(None, *(each.value for each in asked.value.args))


def test_what_it_points_to_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", DOC)
    assert targets and [target for target in targets if not (ROOT / "docs" / target).exists()] == []
