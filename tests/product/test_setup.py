"""`etude init` and the first `etude agent`: real servers that are found and tried, and a real terminal that asks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from pseudo_terminal import CTRL_D, ENTER, Terminal
from scripted_openai import Reply, ScriptedServer

from etude.harness.endpoint import EndpointConfig
from etude.product.config import load_agent
from etude.product.setup.found import candidates
from etude.product.setup.written import text_of

MODEL = Path(__file__).parents[2] / "models/etude-tiny"
CALL = ("read_file", {"path": "README.md"})
GIVEN = re.compile(r"OPENAI|ANTHROPIC|XDG|TERM$|NO_COLOR|ETUDE_HOME")


class Here:
    """A user who has set up nothing yet, and whose machine has no server on the usual ports that answers."""

    def __init__(self, root: Path) -> None:
        self.root, self.project = root, root / "project"
        self.project.mkdir()
        self.file = root / "config" / "etude" / "agent.toml"
        own = {"XDG_CONFIG_HOME": str(root / "config"), "ETUDE_HOME": str(root / "home")}
        self.env = {name: value for name, value in os.environ.items() if not GIVEN.search(name)} | own

    def etude(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "etude.cli.main", *arguments]
        env = {**self.env, **variables}
        return subprocess.run(
            command, cwd=self.project, env=env, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
        )

    def terminal(self, *arguments: str, env: Mapping[str, str] = {}) -> Terminal:
        command = [sys.executable, "-m", "etude.cli.main", *arguments]
        return Terminal(command, {**self.env, **env}, columns=100)

    @property
    def written(self) -> dict[str, object]:
        return tomllib.loads(self.file.read_text())


@pytest.fixture
def here(outer: Path) -> Here:
    return Here(outer)


def test_what_is_given_is_tried_and_written(here: Here) -> None:
    with ScriptedServer([Reply("", [CALL])]) as server:
        done = here.etude("init", "--endpoint", server.url, "--key-env", "MY_KEY", "--json", MY_KEY="k-123456")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["model"], said["calls_tools"], said["before"]) == ("scripted", True, None)
    assert server.requests[0].headers["authorization"] == "Bearer k-123456" and server.bodies[0]["tools"]
    assert here.written["endpoint"] == {"url": server.url, "model": "scripted", "key_env": "MY_KEY"}
    assert "k-123456" not in here.file.read_text()
    assert load_agent(here.file, ()).endpoint.model == "scripted", "the agent reads it"
    with ScriptedServer([Reply("Hello.")]) as server:
        done = here.etude("init", "--endpoint", server.url, "--model", "other")
    assert done.returncode == 0 and "called no tool when it was asked to" in done.stdout
    assert f"wrote {here.file}; what was there is {here.file}.1" in done.stdout
    assert "scripted" in here.file.with_name("agent.toml.1").read_text()


def test_what_does_not_answer_is_not_written(here: Here) -> None:
    with ScriptedServer([Reply(status=401)]) as server:
        done = here.etude("init", "--endpoint", server.url, "--model", "m")
    assert done.returncode == 1 and "refuses the key (401" in done.stderr and "nothing was written" in done.stderr
    assert not here.file.exists()
    done = here.etude("init", "--endpoint", "localhost:8000", "--model", "m")
    assert done.returncode == 42 and "must be an address like http://127.0.0.1:8000/v1" in done.stderr


def test_an_endpoint_that_tells_no_models_is_the_failure_that_is_said(here: Here) -> None:
    def said(url: str, *more: str) -> tuple[int, str]:
        done = here.etude("init", "--endpoint", url, *more)
        assert not here.file.exists() and "which model?" not in done.stderr
        return done.returncode, done.stderr

    code, line = said("http://127.0.0.1:9/v1")
    assert code == 1 and line.startswith("etude init: http://127.0.0.1:9/v1 cannot be reached (")
    code, line = said("localhost:8000")
    assert code == 42 and "must be an address like http://127.0.0.1:8000/v1" in line
    with ScriptedServer([]) as server:
        root = server.url.removesuffix("/v1")
        assert said(root) == (
            1, f"etude init: {root} has no models, and {server.url} has: give --endpoint {server.url}\n"
        )  # fmt: skip
        code, line = said(f"{root}/nowhere")
        assert code == 1 and f"{root}/nowhere/models answers 404" in line and "--model NAME" in line
        code, line = said(server.url, "--key-env", "NO_SUCH_KEY")
        assert code == 42 and "$NO_SUCH_KEY is not set" in line


def test_a_model_with_a_short_context_gets_the_short_prompt(here: Here) -> None:
    """Such as the shipped one: the ten tools' prompt is longer than its context, and no session would get a turn."""
    with ScriptedServer([Reply("", [CALL]), Reply("Hello.")], context=1024) as server:
        done = here.etude("init", "--endpoint", server.url)
        assert done.returncode == 0 and "its context is 1024 tokens, too short for the agent's ten" in done.stdout
        config = load_agent(here.file, ())
        assert (config.context_tokens, config.surroundings, config.summarised.summary) == (1024, False, None)
        done = here.etude("agent", "-p", "hi")
    assert (done.returncode, done.stdout) == (0, "Hello.\n"), done.stderr
    assert len(server.bodies[1]["tools"]) == 6 and server.bodies[1]["max_tokens"] == 256
    with ScriptedServer([Reply("", [CALL])], context=8192) as server:
        assert "too short" not in here.etude("init", "--endpoint", server.url).stdout
    assert load_agent(here.file, ()).summarised.summary is not None


def test_a_server_that_takes_no_tools_gets_calls_in_the_text(here: Here) -> None:
    def answer(body: dict[str, object]) -> Reply:
        refused = {"error": {"message": "this model does not support tools"}}
        return Reply(status=400, body=refused) if body.get("tools") else Reply("Yes.")

    with ScriptedServer(answer) as server:
        assert here.etude("init", "--endpoint", server.url, "--model", "m").returncode == 0
    assert here.written["endpoint"] == {"url": server.url, "model": "m", "calls": "text"}


def test_without_a_terminal_it_says_what_to_write_and_what_there_is(here: Here) -> None:
    with ScriptedServer([]) as one, ScriptedServer([]) as two:
        found = {"OPENAI_BASE_URL": one.url, "ANTHROPIC_BASE_URL": two.url.removesuffix("/v1")}
        done = here.etude("init", **found)
    assert done.returncode == 42
    [line] = done.stderr.strip().splitlines()
    assert f"write a table [endpoint] to {here.file}" in line and "etude init --endpoint URL --model NAME" in line
    assert (
        f"$OPENAI_BASE_URL at {one.url} (scripted)" in line and f"$ANTHROPIC_BASE_URL at {two.url} (scripted)" in line
    )
    done = here.etude("agent", "-p", "hi")
    assert done.returncode == 42 and "`etude init` finds one and tries it" in done.stderr


def test_the_variables_of_providers_and_the_ports_of_local_servers_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer([]) as server:
        port = int(server.url.removesuffix("/v1").rpartition(":")[2])
        env = {"OPENAI_API_KEY": "k-123456", "OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "x"}
        monkeypatch.setenv("OPENAI_API_KEY", "k-123456")  # keys are read where the agent reads them
        local, named = asyncio.run(candidates(env, [("vLLM", port), ("Ollama", 1)]))
    assert (local.name, local.url, local.key_env) == ("vLLM", server.url, "")
    assert (named.name, named.key_env, named.model) == ("$OPENAI_API_KEY", "OPENAI_API_KEY", "x")
    assert [model.name for model in named.models] == ["scripted"]


def test_a_first_agent_asks_tries_writes_and_begins(here: Here) -> None:
    with ScriptedServer([Reply(status=401), Reply("", [CALL]), Reply("Hello there.")]) as server:
        with here.terminal("agent", "--dir", str(here.project), env={"GOOD_KEY": "k-123456"}) as terminal:
            terminal.see("This is the first start")
            terminal.see("Which endpoint should the agent ask")
            terminal.see(r"^  endpoint.*:$")
            terminal.type(f"{server.url}{ENTER}")
            terminal.see("✗ .*refuses the key")
            terminal.see("what now")
            terminal.type(f"k{ENTER}")
            terminal.see("variable with its key")
            terminal.type(f"NO_SUCH{ENTER}")
            terminal.see(r"\$NO_SUCH is not set here")
            terminal.type(f"GOOD_KEY{ENTER}")
            terminal.see("✓ scripted at .* answers in .* calls tools")
            terminal.see("wrote .*agent.toml")
            terminal.see("/help lists commands")
            terminal.type(f"Hello.{ENTER}")
            terminal.see("^Hello there.$")
            terminal.type(CTRL_D)
        assert here.written["endpoint"] == {"url": server.url, "model": "scripted", "key_env": "GOOD_KEY"}


def test_who_leaves_has_nothing_written(here: Here) -> None:
    with here.terminal("init") as terminal:
        terminal.see(r"^  endpoint.*:$")
        terminal.interrupt()
        terminal.see("nothing was written; `etude init` asks again")
    assert not here.file.exists()


def test_doctor_tries_the_model(here: Here) -> None:
    def model(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
        return json.loads(done.stdout)["model"]

    nothing = model(here.etude("doctor", "--json"))
    assert not nothing["ok"] and nothing["remedy"] == "etude init"
    here.file.parent.mkdir(parents=True)
    with ScriptedServer([Reply("", [CALL])]) as server:
        here.file.write_text(f'[endpoint]\nurl = "{server.url}"\nmodel = "m"\n')
        assert model(here.etude("doctor", "--json"))["ok"]
    away = model(here.etude("doctor", "--json"))
    assert not away["ok"] and "cannot be reached" in str(away["detail"]) and str(here.file) in str(away["remedy"])
    here.file.write_text("[endpoint]\n")
    assert "endpoint.url and endpoint.model must be set" in str(model(here.etude("doctor", "--json"))["detail"])


def test_the_file_says_in_comments_what_else_there_is(here: Here) -> None:
    here.file.parent.mkdir(parents=True)
    endpoint = EndpointConfig(url="http://127.0.0.1:8000/v1", model='odd"name\\')
    here.file.write_text(text_of(endpoint, 32_768))
    config = load_agent(here.file, ())
    assert (config.endpoint.model, config.context_tokens) == ('odd"name\\', 32_768)
    here.file.write_text(re.sub(r"(?m)^# ([a-z\[])", r"\1", text_of(endpoint, None)))
    config = load_agent(here.file, ())
    assert config.prices['odd"name\\'].input == 0.3 and config.endpoint.calls == "text", "every comment is a key"


def test_the_token_of_ones_own_server_is_found_wherever_it_listens(here: Here) -> None:
    """It is the very server that `etude init` would find by itself on its usual port."""
    command = [sys.executable, "-m", "etude.cli.main", "serve", str(MODEL), "--set", "port=0"]
    with subprocess.Popen(command, env=here.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            found = next(match for line in server.stdout if (match := re.search(r"at (http://\S+/v1); token in", line)))
            done = here.etude("init", "--endpoint", found[1])
            assert done.returncode == 0, done.stderr
            assert here.written["endpoint"]["key_file"] == str(here.root / "home/engine/token")  # ty: ignore
            assert len(list((here.root / "home/engine").iterdir())) == 2, "it has noted which process it is"
        finally:
            server.terminate()
    assert [each.name for each in (here.root / "home/engine").iterdir()] == ["token"]
