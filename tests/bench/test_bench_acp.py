"""An agent over ACP as a benchmark's policy: a real `etude acp`, asked over its own stdin, with a scripted model."""

import sys
from pathlib import Path

import pytest
from scripted_openai import Reply, ScriptedServer

from etude.bench.summary import summarise
from etude.cli.main import main
from etude.errors import EtudeError
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task

pytest.importorskip("acp")
ROOT = Path(__file__).parents[2]
TASKS = [ladder_task(1, "eval", seed) for seed in range(2)]
LIMITS = {"wall_s": 120.0}


def write_tasks(directory, tasks=TASKS):
    for task in tasks:
        write_task(task, directory / task.id)
    return {"directories": [str(directory)]}


def agent(server, tmp_path, monkeypatch):
    monkeypatch.setenv("ETUDE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "etude.cli.main", "acp", "--endpoint", server.url, "--model", "scripted"]
    command += ["--set", "prices.scripted={input = 2, output = 10}"]
    return {"kind": "acp", "command": command, "pass_env": ["ETUDE_HOME", "XDG_CONFIG_HOME", "PYTHONPATH", "ABSENT"]}


def test_an_agent_with_a_harness_of_its_own_is_judged_like_any_other(bench, tmp_path, monkeypatch):
    """It looks at two files at once, mends the first task and says so, and does nothing about the second."""
    fix = {key: str(TASKS[0].provenance[key]) for key in ("path", "old", "new")}

    def model(body):
        told = str(body["messages"])
        if TASKS[0].instruction not in told:
            return Reply("I leave it.")
        answers = sum(message["role"] == "tool" for message in body["messages"])
        if answers == 0:
            return Reply("Let me look.", [("read_file", {"path": fix["path"]}), ("list_dir", {"path": "."})])
        return Reply("", [("edit_file", fix)]) if answers == 2 else Reply("It is fixed.")

    assert TASKS[0].instruction != TASKS[1].instruction
    with ScriptedServer(model) as server:
        policy = agent(server, tmp_path, monkeypatch)
        run = bench(tasks=write_tasks(tmp_path / "tasks"), policy=policy, limits=LIMITS, concurrency=1, audit="watch")
    mended, left = run.attempts
    assert (mended.solved, mended.why, mended.stop) == (True, "passed", "finished")
    assert (mended.conduct.edited, mended.usage["turns"], mended.usage["tool_calls"]) == (True, 3, 3)
    assert mended.conduct.looked == 2 and mended.usage["parallel_turns"] == 1 and mended.cost > 0
    assert (left.solved, left.conduct.edited, left.usage["tool_calls"]) == (False, False, 0)
    assert summarise(run)["cost"]["solved"] > 0 and run.head["policy"]["kind"] == "acp"


@pytest.mark.proof(4)
def test_what_an_agent_leaves_that_cannot_be_judged_counts_against_it(bench, tmp_path, monkeypatch):
    with ScriptedServer(lambda body: Reply("I leave it.")) as server:
        policy = agent(server, tmp_path, monkeypatch)
        policy["command"] = ["sh", "-c", 'truncate -s 900G huge; exec "$@"', "sh", *policy["command"]]
        run = bench(tasks=write_tasks(tmp_path / "tasks", TASKS[:1]), policy=policy, limits=LIMITS)
    assert [(attempt.solved, attempt.why) for attempt in run.attempts] == [(False, "blocked")]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-agent"], "no-such-agent failed: "),
        (["sh", "-c", "exit 3"], "sh failed: "),
        (["sleep", "60"], "sleep failed: no answer within 0.5 s"),
    ],
)
def test_an_agent_that_is_none_is_no_failure_of_a_policy(bench, tmp_path, command, said):
    policy = {"kind": "acp", "command": command, "start_s": 0.5}
    keys = {"tasks": write_tasks(tmp_path / "tasks"), "limits": LIMITS, "retries": 0, "failures_in_a_row": 1}
    with pytest.raises(EtudeError, match=said):
        bench(policy=policy, **keys)


def test_a_command_is_named_on_the_command_line(capsys, tmp_path):
    arguments = ["--ladder", "1", "--acp", "no-such-agent --fast", "--out", str(tmp_path / "run")]
    assert main(["bench", "run", *arguments, "--set", "failures_in_a_row=1", "--set", "retries=0"]) == 1
    assert "no-such-agent failed" in capsys.readouterr().err
