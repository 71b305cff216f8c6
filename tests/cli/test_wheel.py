"""The wheel, installed where no clone is: what commands need outside a checkout is in it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import light
import pytest
from light import ROOT

sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))
from scripted_openai import Reply, ScriptedServer


def pip(*words, cwd):
    done = subprocess.run([sys.executable, "-m", "pip", *map(str, words)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The interpreter of an environment with the wheel and what `pip install` brings with it."""
    root = tmp_path_factory.mktemp("wheel")
    offline = ["--no-build-isolation"] if find_spec("hatchling") else []  # else pip fetches it, as it does for users
    pip("wheel", "-q", "--no-deps", *offline, "-w", root / "dist", ROOT, cwd=root)
    python = light.light_environment(root / "venv", with_etude=False)
    [wheel] = (root / "dist").glob("etude-*.whl")
    pip("--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=root)
    return python


@pytest.mark.proof(40)
def test_five_commands_in_an_empty_environment(installed, tmp_path, outer):
    told = {**os.environ, "XDG_CONFIG_HOME": str(outer / "config"), "ETUDE_HOME": str(outer / "home")}
    told.pop("PYTHONPATH", None)

    def etude(*arguments):
        return light.run(installed, *arguments, cwd=tmp_path, env=told)

    where = subprocess.run(
        [installed, "-c", "import etude; print(etude.__file__)"], cwd=tmp_path, capture_output=True, text=True, env=told
    )
    assert Path(where.stdout).is_relative_to(installed.parents[1]), "not the clone"
    made = etude("tasks", "generate", "--rung", 1, "--count", 2, "--out", "tasks", "--json")
    assert etude("tasks", "validate", *json.loads(made.stdout)["tasks"]).returncode == 0
    run = etude("bench", "run", "tasks", "--solution", 1, "--out", "run", "--json")
    assert json.loads(run.stdout)["solved"] == 2, run.stderr
    assert "No difference" in etude("bench", "compare", "run", "run").stdout
    call = Reply("", [("read_file", {"path": "README.md"})])
    with ScriptedServer([call, Reply("Hello.")]) as server:
        assert etude("init", "--endpoint", server.url, "--model", "m").returncode == 0
        (outer / "project").mkdir()
        asked = etude("agent", "-p", "Hi.", "--dir", outer / "project")
    assert (asked.returncode, asked.stdout) == (0, "Hello.\n"), asked.stderr


@pytest.mark.proof(30)
def test_the_shipped_model_is_in_the_wheel(installed, tmp_path):
    """Played by the packages of the tests' own environment, with the wheel's Etude before the clone's."""
    packages = next(installed.parents[1].glob("lib/python*/site-packages"))
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from etude.cli.main import main\n"
        "import etude.models.shipped as shipped; print(shipped.shipped_model(), file=sys.stderr); sys.exit(main())"
    )
    command = [sys.executable, "-c", script, str(packages), "play", "--task", "1:0", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.stderr.splitlines()[0] == str(packages / "etude/shipped/etude-tiny")
    assert json.loads(done.stdout.splitlines()[-1])["usage"]["turns"] >= 1
