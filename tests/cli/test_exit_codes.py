"""Every command ends with the codes of `Exit`: the same fault, the same code."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from etude.cli.examples import EXAMPLES
from etude.cli.main import main
from etude.cli.parser import COMMANDS
from etude.errors import Exit
from etude.product import headless

ROOT = Path(__file__).parents[2]
MODEL = ["--endpoint", "http://127.0.0.1:9/v1", "--model", "m"]
NOWHERE = [
    ["train", "nowhere.toml"],
    ["train", "nowhere.toml", "--unsupervised"],
    ["config", "nowhere.toml"],
    ["plan", "nowhere.toml"],
    ["cluster", "status", "nowhere.toml"],
    ["cluster", "manifest", "nowhere.toml", "nowhere.toml", "--form", "kuberay"],
    ["cluster", "wait", "nowhere", "1"],
    ["plan", str(ROOT / "recipes/quickstart.toml"), "--from", "nowhere"],
    ["runs", "set", "nowhere", "groups.size=4"],
    ["runs", "replace", "nowhere", "trainer"],
    ["runs", "engines", "nowhere"],
    ["runs", "export", "nowhere", "--format", "jsonl", "--out", "out"],
    ["runs", "gc", "nowhere", "--days", "1"],
    ["studio", "nowhere"],
    ["pretrain", "nowhere.toml"],
    ["models", "import", "nowhere", "out"],
    ["models", "import", "nowhere.gguf", "out"],
    ["models", "check", "nowhere"],
    ["models", "export", "nowhere", "out"],
    ["init", "--endpoint", "nowhere", "--model", "m", "--config", "agent.toml"],
    ["agent", "-p", "hi", "--dir", "nowhere", *MODEL],
    ["agent", "--list", "--dir", "nowhere"],
    ["acp", "--config", "nowhere.toml"],
    ["play", "--model", "nowhere"],
    ["sessions", "serve", "nowhere.toml"],
    ["sessions", "export", "nowhere"],
    ["serve", "nowhere"],
    ["environments", "serve", "nowhere.toml"],
    ["environments", "doctor", "--backend", "nowhere"],
    ["images", "build", "nowhere"],
    ["images", "add", "nowhere"],
    ["tasks", "mine", "nowhere", "--out", "out"],
    ["tasks", "generate", "nowhere", "--out", "out"],
    ["tasks", "validate", "nowhere"],
    ["tasks", "pack", "nowhere", "--out", "out"],
    ["tasks", "unpack", "nowhere", "--out", "out"],
    ["tasks", "adopt", "nowhere", "--out", "out"],
    ["tasks", "import", "nowhere", "--clone", "a/b=c", "--out", "out"],
    ["index", "build", "--dir", "nowhere"],
    ["index", "status", "--dir", "nowhere"],
    ["index", "search", "x", "--dir", "nowhere"],
    ["bench", "run", "nowhere", "--solution", "1", "--out", "out"],
    ["bench", "compare", "nowhere", "nowhere"],
    ["bench", "report", "nowhere"],
    ["bench", "behaviour", "nowhere"],
    ["bench", "judge", "nowhere.toml"],
    ["weights", "relay", "nowhere", "--config", "nowhere.toml"],
]
TAKES_NOTHING = {"doctor", "completion"}


@pytest.mark.parametrize("words", NOWHERE, ids=" ".join)
def test_what_is_not_there_is_bad_input(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("ETUDE_HOME", str(tmp_path / "home"))
    assert main(words) == Exit.BAD_INPUT
    [*_, last] = capfd.readouterr().err.splitlines()
    assert last.startswith(f"etude {words[0]}: ")


def test_a_recipe_with_a_wrong_model_is_bad_input(tmp_path, capfd):
    words = ["train", str(ROOT / "recipes/quickstart.toml"), "--out", str(tmp_path / "run"), "--unsupervised"]
    assert main([*words, "--set", "model.path=nowhere"]) == Exit.BAD_INPUT
    assert "(model.path is nowhere: --set model.path=DIRECTORY names another; relative paths" in capfd.readouterr().err


def test_a_prompt_without_a_directory_is_bad_input(capfd):
    assert main(["play", "models/mine"]) == Exit.BAD_INPUT
    said = "etude play: 'models/mine': a prompt goes with --dir, and a model with --model\n"
    assert capfd.readouterr().err == said


def test_every_command_is_asked_for_what_is_not_there():
    assert {words[0] for words in NOWHERE} | TAKES_NOTHING == COMMANDS.keys()


@pytest.mark.parametrize("line", EXAMPLES.values())
def test_an_unknown_flag_ends_every_command_alike(line, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(line.partition(" > ")[0])[1:], "--no-such-flag"])
    assert ended.value.code == Exit.UNKNOWN
    assert "unrecognized arguments: --no-such-flag" in capsys.readouterr().err


def test_a_store_without_versions_is_a_failure(capsys):
    assert main(["weights", "log", "/nonexistent/store"]) == Exit.FAILED


def test_no_other_number_is_returned_by_a_command():
    """What is neither 0 nor 1 has a name in `Exit`."""
    for file in (ROOT / "etude/cli").glob("*.py"):
        returned = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Return)]
        numbers = [each.value for each in returned if isinstance(each, ast.Constant) and isinstance(each.value, int)]
        assert set(numbers) <= {Exit.DONE, Exit.FAILED}, file
    assert set(headless.EXIT.values()) <= set(Exit)


def test_the_page_of_the_agent_has_the_same_codes():
    page = (ROOT / "docs/agent.md").read_text()
    codes = [int(code) for code in re.findall(r"^\| (\d+) \| ", page, re.M)]
    assert codes == [code for code in Exit if code not in (Exit.CRASHED, Exit.TERMINATED)]
