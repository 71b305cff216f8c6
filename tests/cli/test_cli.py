"""The `etude` command: quick to start, one line when something is wrong, real results when it is not."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from proofs import often, one_of_each

from etude.cli.main import main
from etude.cli.parser import COMMANDS, Parser

ROOT = Path(__file__).parents[2]


def etude(*arguments, code="from etude.cli.main import main; raise SystemExit(main())", cwd=ROOT):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=240)


def test_help_is_light():
    heavy = "print(sorted({'torch', 'ray', 'numpy', 'pydantic'} & set(sys.modules)))"
    code = f"import sys\nfrom etude.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    {heavy}"
    done = etude(code=code)
    assert "train" in done.stdout
    assert done.stdout.splitlines()[-1] in ("[]", "['pydantic']")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "there is no 'fly'; `etude --help` lists what there is"),
        (["sevre"], "there is no 'sevre'; did you mean serve?"),
        (["agnet", "-p", "hi"], "there is no 'agnet'; did you mean agent?"),
        (["tasks", "validte"], "there is no 'validte'; did you mean validate?"),
        (["tasks", "fly"], "there is no 'fly'; `etude tasks --help` lists what there is"),
        (["agent", "--output-format", "jsn"], "there is no 'jsn'; did you mean json?"),
    ],
)
def test_a_word_that_is_none_is_answered_with_the_nearest(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(said) and "runs" not in last


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["train", "nowhere.toml"], 42, "nowhere.toml: no such file"),
        (["train", "recipes/quickstart.toml", "--set", "groups.sise=4"], 42, "groups.sise: unknown key"),
        pytest.param(
            ["train", "recipes/quickstart.toml", "--set", "groups.size=four"],
            42,
            "groups.size",
            marks=pytest.mark.proof(3),
        ),
        (["train", "recipes/quickstart.toml", "--resume", "--out", "/nonexistent/run"], 42, "no run to resume"),
        (["play", "--task", "9:x"], 42, "RUNG:SEED, with a rung from 1 to 8"),
        (["play", "--task", "real:nosuch"], 42, "none of real:eval has this in its name; one is called real-"),
        (["play", "--dir", "."], 42, "PROMPT"),
        (["play", "--model", "nowhere"], 42, "there is no directory nowhere; give one that holds config.json"),
        (
            ["pretrain", "recipes/realcode-start.toml", "--set", "model=models/none"],
            42,
            "there is no directory models/none; give one that holds config.json and model.safetensors, as `etude",
        ),
        (["weights", "log", "/nonexistent/store"], 1, "/nonexistent/store"),
        (["config", "recipes/quickstart.toml", "--set", "groups.sise="], 42, "groups.sise: unknown key"),
        (["config", "."], 42, ".: is a directory; name the TOML file"),
        (["pretrain", "."], 42, ".: is a directory"),
        (["agent", "-p", "hi", "--config", "."], 42, ".: is a directory"),
        (
            ["agent", "-p", "hi", "--config", "no.toml"],
            42,
            "no.toml: no such file; write one with a table [endpoint], or",
        ),
        (["train", "recipes/base.toml"], 42, "recipes/base.toml: this is a file for `etude pretrain`"),
        (["config", "recipes/bench.toml"], 42, "recipes/bench.toml: this is a file for `etude bench run --config`"),
        (["pretrain", "recipes/quickstart.toml"], 42, "this is a file for `etude train`"),
        (["pretrain", "recipes/base.toml", "--set", "recordin.sessions=1"], 42, "recordin: unknown key (did you mean"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, exit_code, said, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    assert main(arguments) == exit_code
    told = capfd.readouterr().err
    assert said in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    one_of_each(
        0.7,
        [["-p", "-r", "nope"], ["-p", "--fork", "nope", "hi"], ["-r", "nope", "--diff"], ["-r", "nope", "--undo"]],
        lambda arguments: arguments[0],
    ),
)
def test_a_session_that_is_not_there_is_bad_input(tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("ETUDE_HOME", str(tmp_path))
    done = etude("agent", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", *arguments)
    assert done.returncode == 42
    assert f"session nope is not in {tmp_path}; `etude agent --list` shows those that are" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["agent", "-p", "x", "--mode", "read"],
        ["train", "recipes/quickstart.toml", "--res"],
        ["environments", "doctor", "--back", "qemu"],
    ],
)
def test_a_flag_is_not_guessed_from_its_beginning(arguments):
    done = etude(*arguments)
    assert done.returncode == 2
    assert "unrecognized arguments: --" in done.stderr


def parsers(parser):
    for action in parser._actions:
        for name, each in (action.choices or {}).items() if isinstance(action, argparse._SubParsersAction) else ():
            shown = {choice.dest for choice in action._choices_actions}
            yield name in shown, name, each
            yield from parsers(each)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_action(command):
    parser = Parser(prog=command)
    importlib.import_module(f"etude.cli.{command}").add_arguments(parser)
    found = list(parsers(parser))
    assert [name for shown, name, _ in found if not shown] == []
    assert [name for _, name, each in found if each.allow_abbrev] == []


def test_help_says_what_a_command_costs_and_how_it_ends():
    assert "trains for 60 s" in " ".join(etude("plan", "--help").stdout.split())
    assert "0, 1, 42, 43, 53 or 130" in " ".join(etude("agent", "--help").stdout.split())


@pytest.mark.parametrize(
    "command", one_of_each(1.7, [["agent"], ["agent", "-p", "hi"], ["sessions", "serve"]], lambda command: command[0])
)
def test_who_has_named_no_model_yet_reads_where_to(tmp_path, monkeypatch, command):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = etude(*command)
    assert done.returncode == 42
    assert "endpoint.url and endpoint.model must be set. `etude init` finds one and tries it." in done.stderr
    assert "Or write a table [endpoint]" in done.stderr
    assert str(tmp_path / "etude" / "agent.toml") in done.stderr
    assert 'url = "http://127.0.0.1:8000/v1"' in done.stderr and "docs/" not in done.stderr
    if command[0] == "agent":
        assert "no model is named: endpoint.model must be set" in etude(*command, "--endpoint", "http://x/v1").stderr


SICK = ["a link that leads nowhere", "a file", "a circle of links"]
HOMES = [(variable, sick) for sick in SICK for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME")]


@pytest.mark.parametrize(("variable", "sick"), one_of_each(1.5, HOMES, lambda variable, sick: variable))
def test_a_home_that_is_no_directory_is_named_with_what_to_do(tmp_path, monkeypatch, variable, sick):
    home = tmp_path / "home"
    match sick:
        case "a file":
            home.write_text("")
        case _:
            home.symlink_to("nowhere" if "nowhere" in sick else "home")
    monkeypatch.setenv(variable, str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project").mkdir()
    done = etude(
        "agent", "-p", "hi", "--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--dir", tmp_path / "project"
    )
    assert done.returncode == 1
    assert str(home) in done.stderr and variable in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_who_reads_no_further_is_told_nothing():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "etude.cli.main", "config", "recipes/quickstart.toml"]
    done = subprocess.run(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_tasks_are_generated_and_validated(tmp_path):
    made = etude("tasks", "generate", "--rung", 3, "--count", often(1, 2), "--out", tmp_path, "--json")
    paths = json.loads(made.stdout)["tasks"]
    assert len(paths) == often(1, 2)
    sound = etude("tasks", "validate", tmp_path, "--json")
    assert sound.returncode == 0 and all(f"{done}/{len(paths)} tasks" in sound.stderr for done in range(len(paths) + 1))
    said = json.loads(sound.stdout)
    assert sorted(said) == sorted(paths) and all(one["sound"] for one in said.values())


def test_doctor_tells_what_the_agent_needs_from_what_training_needs(tmp_path, monkeypatch):
    said = json.loads(etude("doctor", "--json").stdout)
    assert said["agent"]["ok"] and said["agent"]["detail"] == "works"
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = etude("doctor")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    of_agent = done.stdout.partition("For `etude agent`")[2].partition("For training")[0]
    assert "✗ the agent's sandbox: it does not start" in of_agent and str(tmp_path / "cache") in of_agent


def test_doctor_boots_a_sandbox():
    done = etude("environments", "doctor", "--backend", "namespace", "--json")
    assert done.returncode == 0, done.stdout
    said = json.loads(done.stdout)
    assert said["offered"] == ["namespace"] and all(finding["ok"] for finding in said["backends"]["namespace"])


@pytest.mark.parametrize("form", one_of_each(6, ["plain", "mxfp8"]))
def test_the_shipped_model_plays_a_task(form):
    shipped = ROOT / "models/etude-tiny"
    done = etude("play", "--model", shipped, "--task", "6:0", "--json", "--expert-format", form)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["usage"]["turns"] >= 1
    assert result["stop"] in ("finished", "turns", "context", "tokens", "repetition")
    assert done.returncode == (0 if result["solved"] else 1)


def test_one_attempt_is_played_as_its_benchmark_plays_it(tmp_path):
    from etude.bench.config import BenchConfig
    from etude.bench.play import SMALL, Play, play_config, task_for
    from etude.config import load_recipe
    from etude.errors import ConfigError

    recipe, model = ROOT / "recipes/realcode-bench.toml", ROOT / "models/etude-tiny"
    config, benchmark = play_config(recipe, {"policy.path": model, "seed": 3}), load_recipe(recipe, BenchConfig)
    assert config.policy == benchmark.policy.model_copy(update={"path": model}) and config.seed == 3
    assert (config.harness, config.limits) == (benchmark.harness, benchmark.limits) != (SMALL.harness, SMALL.limits)
    play = Play(config, task_for("real:toolz-count", None, None), True)
    assert play.task.id.startswith("real-toolz-count-") and play.task.limits.max_context_tokens == 4096
    (tmp_path / "solutions.toml").write_text('policy = { kind = "solution" }\n')
    with pytest.raises(ConfigError, match=r"solutions.toml: policy.kind is solution; here a checkpoint plays"):
        play_config(tmp_path / "solutions.toml", {})


def test_the_shipped_model_is_found_in_any_directory(tmp_path, monkeypatch):
    """By all that take it where no model is named."""
    from etude.bench.config import CheckpointPolicy
    from etude.bench.play import newest_model
    from etude.rollouts.config import ModelSource

    monkeypatch.chdir(tmp_path)
    for found in (CheckpointPolicy().path, newest_model(), ModelSource().path):
        assert (found / "model.safetensors").is_file() and found.name == "etude-tiny"


def test_a_directory_is_worked_on_as_a_copy(tmp_path):
    """By the shipped model, which no command line names, in a directory that has none."""
    (tmp_path / "ship.py").write_text("def ship(a, b):\n    # a plus b\n    return a - b\n")
    before = (tmp_path / "ship.py").read_bytes()
    done = etude("play", "Fix every bug in ship.py.", "--dir", ".", "--json", cwd=tmp_path)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["solved"] is None
    assert (tmp_path / "ship.py").read_bytes() == before


def test_no_two_servers_have_one_port_unless_they_are_told():
    from etude.engine.server.app import ServeConfig
    from etude.environments.server.app import ServerConfig
    from etude.product.sessions.config import SessionsConfig
    from etude.weights.relay import RelayConfig

    ports = [each.model_fields["port"].default for each in (ServeConfig, ServerConfig, SessionsConfig, RelayConfig)]
    assert len(set(ports)) == len(ports)
