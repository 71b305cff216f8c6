"""Tasks of Etude's under verifiers' own evaluator: `vf-eval` plays one against an endpoint that says a script.

Set ETUDE_VERIFIERS_PYTHON to the Python of an environment that has Etude and verifiers 0.4 (`pip install . verifiers`).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "harness"))
from scripted_openai import Reply, ScriptedServer  # noqa: E402

from etude.records import Limits, Task, Verifier  # noqa: E402
from etude.tasks.harbor import write_task  # noqa: E402

VERIFIERS = os.environ.get("ETUDE_VERIFIERS_PYTHON")
MAIN = "import sys; from verifiers.v1.cli.eval.main import main; sys.exit(main())"
"""What its command `vf-eval` runs."""
PROJECT = ROOT / "integrations" / "verifiers"
CHECK = b"python3 -c 'from calc import add; assert add(2, 3) == 5' && echo 1 > /logs/verifier/reward.txt\n"
LIMITS = Limits(max_turns=6, max_context_tokens=30_000, max_sampled_tokens=30_000)
EDIT = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})


def test_the_project_names_this_package_and_the_version_it_was_written_for():
    made = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert "verifiers>=0.4,<0.5" in made["project"]["dependencies"]
    assert (PROJECT / made["tool"]["uv"]["sources"]["etude"]["path"]).resolve() == ROOT
    assert importlib.metadata.version("etude")


def evaluated(tmp_path, *words):
    """What `vf-eval` writes of every rollout."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(PROJECT), str(ROOT))), "SCRIPTED_KEY": "a-key"}
    done = subprocess.run(
        [VERIFIERS, "-c", MAIN, "etude-verifiers", "--no-push", "--no-rich", "-m", "scripted",
         "--client.api-key-var", "SCRIPTED_KEY", "-o", str(tmp_path / "out"), *words],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    episodes = [json.loads(line) for path in tmp_path.glob("out/**/traces.jsonl") for line in path.open()]
    return done, episodes


@pytest.fixture
def task(tmp_path):
    files = {"calc.py": b"def add(a, b):\n    return a - b\n", "AGENTS.md": b"Be short.\n"}
    verifier = Verifier({"/tests/test.sh": CHECK}, "sh /tests/test.sh", 60)
    made = Task("mend-add", "add subtracts. Mend it.", files, verifier, limits=LIMITS)
    write_task(made, tmp_path / "tasks" / "mend-add")
    return tmp_path / "tasks"


@pytest.mark.skipif(VERIFIERS is None, reason="ETUDE_VERIFIERS_PYTHON names no Python that has verifiers")
@pytest.mark.parametrize(("said", "reward"), [([Reply("", [EDIT]), Reply("Done.")], 1.0), ([Reply("No.")], 0.0)])
def test_its_evaluator_plays_a_task_and_takes_our_verdict(task, tmp_path, said, reward):
    with ScriptedServer(said) as server:
        done, episodes = evaluated(
            tmp_path, "--env.taskset.directories", json.dumps([str(task)]), "--client.base-url", server.url,
            "--env.agent.harness.id", "etude-verifiers", "--env.agent.runtime.type", "subprocess",
        )  # fmt: skip
    assert done.returncode == 0 and len(episodes) == 1 and episodes[0]["ok"], done.stdout[-3000:] + done.stderr[-3000:]
    [trace] = episodes[0]["traces"]
    assert len(server.requests) == len(said), "every message was asked through its interception server"
    first = server.bodies[0]
    assert "Be short." in first["messages"][0]["content"] and len(first["tools"]) == 10
    assert trace["rewards"] == {"solved": {"score": reward, "weight": 1.0}}, trace["rewards"]
    assert trace["metrics"]["turns"] == len(said) and trace["info"]["etude"]["stop"] == "finished"
    assert "add subtracts" in json.dumps(trace["nodes"]), "its trace has the conversation"


@pytest.mark.skipif(VERIFIERS is None, reason="ETUDE_VERIFIERS_PYTHON names no Python that has verifiers")
def test_an_endpoint_that_fails_is_an_error_and_no_reward(task, tmp_path):
    with ScriptedServer(lambda _: Reply(status=401)) as server:
        done, episodes = evaluated(
            tmp_path, "--env.taskset.directories", json.dumps([str(task)]), "--client.base-url", server.url,
            "--env.agent.harness.id", "etude-verifiers", "--env.agent.runtime.type", "subprocess",
        )  # fmt: skip
    [episode] = episodes
    assert not episode["ok"] and "solved" not in json.dumps(episode["traces"][0]["rewards"]), done.stdout[-2000:]
    assert episode["traces"][0]["errors"]
