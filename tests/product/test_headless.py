"""`etude agent --print` against a real HTTP server, in a real directory below the OS sandbox."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_openai import Json, Reply, ScriptedServer

from etude.cli.main import main

WRITE = ("write_file", {"path": "new.txt", "content": "hello\n"})
RUN = ("run_terminal_cmd", {"command": "cat new.txt && echo ran"})


class Setting:
    """A project, a home for sessions, and `etude agent` in both."""

    def __init__(self, root: Path) -> None:
        self.project, self.home = root / "project", root / "home"
        self.project.mkdir()
        (self.project / "AGENTS.md").write_text("Always say please.\n")

    def arguments(self, server: ScriptedServer, *more: str) -> list[str]:
        return ["agent", "--print", "--endpoint", server.url, "--model", "m", "--dir", str(self.project), *more]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, outer: Path) -> Setting:
    setting = Setting(outer)
    monkeypatch.setenv("ETUDE_HOME", str(setting.home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(outer / "config"))
    return setting


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_text(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([Reply("I write.", [WRITE]), Reply("Done, please.")]) as server:
        assert main(here.arguments(server, "Write it.")) == 0
    assert capsys.readouterr().out == "Done, please.\n"
    assert (here.project / "new.txt").read_text() == "hello\n"
    system = server.bodies[0]["messages"][0]
    assert system["role"] == "system" and "## AGENTS.md\nAlways say please." in system["content"]
    assert main(["agent", "--list", "--json", "--dir", str(here.project)]) == 0
    [listed] = lines(capsys.readouterr().out)
    assert listed["task"] == "Write it." and (here.home / "sessions" / listed["session_id"]).is_dir()


def test_another_config_has_its_own_model_effort_and_a_directory_beside(
    here: Setting, outer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (beside := outer / "beside").mkdir()
    (here.project / "make.sh").write_text(f"echo made > {beside}/there.txt\n")
    with ScriptedServer([Reply("", [("run_terminal_cmd", {"command": "sh make.sh"})]), Reply("Done.")]) as server:
        endpoint = f'url = "{server.url}"\nmodel = "work"\nbody = {{ reasoning_effort = "high" }}\n'
        (outer / "work.toml").write_text(f'[endpoint]\n{endpoint}[workspace]\nwritable = ["{beside}"]\n')
        words = ["--config", str(outer / "work.toml"), "--dir", str(here.project), "--allow", "run"]
        assert main(["agent", "-p", "Go.", *words]) == 0
    assert (beside / "there.txt").read_text() == "made\n"
    assert {(body["model"], body["reasoning_effort"]) for body in server.bodies} == {("work", "high")}


def test_a_list_has_a_line_for_each_session(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([Reply("Done.")]) as server:
        assert main(here.arguments(server, "Write it.\n20200101-000000-ffffff  2020-01-01 00:00  forged")) == 0
    capsys.readouterr()
    assert main(["agent", "--list", "--dir", str(here.project)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_what_nobody_could_be_asked_about_is_told_with_what_permits_it(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("run_terminal_cmd", {"command": "alias a=b; make"})
    with ScriptedServer([Reply("I run.", [asked]), Reply("I could not.")]) as server:
        assert main(here.arguments(server, "Run it.")) == 43
    said = capsys.readouterr()
    assert said.out == "I could not.\n"
    what, line = said.err.splitlines()
    assert what == "refused, as nobody could be asked: $ alias a=b; make"
    assert line == "no rule is offered for one of these: write it differently; to permit every command: --allow run"
    rules = shlex.split(line.rpartition(": ")[2])
    with ScriptedServer([Reply("I run.", [asked]), Reply("I could.")]) as server:
        assert main(here.arguments(server, "Run it.", "--json", *rules)) == 0
    permitted = lines(capsys.readouterr().out)[0]
    assert (permitted["wanting"], permitted["refused"]) == ([], []), "its words do permit it"


def test_a_rule_on_the_program_that_is_given_unknown_words_is_named(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("run_terminal_cmd", {"command": 'find . -name "*.py" | xargs wc -l | tail -1'})
    with ScriptedServer([Reply("I run.", [asked]), Reply("I could not.")]) as server:
        assert main(here.arguments(server, "Run it.")) == 43
    line = capsys.readouterr().err.splitlines()[1]
    assert line.startswith("wc is given what only a run would tell, which a rule on it may permit: ")
    rules = shlex.split(line.rpartition(": ")[2])
    assert rules == ["--allow", "run(wc *)"]
    with ScriptedServer([Reply("I run.", [asked]), Reply("I could.")]) as server:
        assert main(here.arguments(server, "Run it.", *rules)) == 0


def test_what_a_written_rule_asks_about_no_permission_answers(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    """To advise the widest permission, which does not help, would be the repository's own doing."""
    (here.project / ".etude").mkdir()
    (here.project / ".etude" / "permissions.toml").write_text('ask = ["run(make deploy *)"]\n')
    with ScriptedServer(
        [Reply("I run.", [("run_terminal_cmd", {"command": "make deploy all"})]), Reply("No.")]
    ) as server:
        assert main(here.arguments(server, "Run it.", "--allow", "run")) == 43
    told = capsys.readouterr().err
    assert "rule ask run(make deploy *) of this repository wants a person asked" in told and "--allow run" not in told


def test_an_answer_does_not_drive_the_terminal(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "Look: \x1b]52;c;ZXZpbA==\x07\x1b[2Jdone\tnow."
    with ScriptedServer([Reply(hostile), Reply(hostile)]) as server:
        assert main(here.arguments(server, "Go.")) == 0
        assert capsys.readouterr().out == "Look: ␛]52;c;ZXZpbA==␇␛[2Jdone\tnow.\n"
        assert main(here.arguments(server, "Go.", "--json")) == 0
    assert lines(capsys.readouterr().out)[-1]["response"] == hostile  # what a program reads is exact


def test_stream_json_and_permissions(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    script = [
        Reply("", [WRITE]),
        Reply("", [RUN]),
        Reply("", [("run_terminal_cmd", {"command": "python3 -c 1"})]),
        Reply("Done."),
    ]
    with ScriptedServer(script) as server:
        code = main(
            here.arguments(
                server, "Go.", "--output-format", "stream-json", "--allow", "run(cat *)", "--allow", "run(echo *)"
            )
        )
    shown = lines(capsys.readouterr().out)
    assert "".join(line["content"] for line in shown if line.get("delta")) == "Done."
    told = [line for line in shown if not line.get("delta")]
    assert code == 43 and [line["type"] for line in told] == [
        "init", "message", *["message", "tool_use", "tool_result"] * 3, "message", "result", "error",
    ]  # fmt: skip
    refused = told.pop()
    assert refused["severity"] == "warning" and "--allow 'run(python3 -c 1)'" in refused["message"]
    assert [each["parameters"]["command"] for each in refused["refused"]] == ["python3 -c 1"]
    results = [line for line in told if line["type"] == "tool_result"]
    assert results[1]["output"] == "hello\nran" and results[1]["status"] == "success"
    assert results[2]["status"] == "error" and "not permitted without a user" in results[2]["output"]
    assert told[0]["cwd"] == str(here.project) and told[-1]["usage"]["tool_calls"] == 3


def test_secrets_and_files_that_are_denied_are_not_there(
    here: Setting, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "tok-9f8e7d6c5b4a")
    (here.project / "notes.txt").write_text("use tok-9f8e7d6c5b4a here\n")
    (here.project / "hidden.txt").write_text("a needle\n")
    permissions = here.project.parent / "config" / "etude" / "permissions.toml"
    permissions.parent.mkdir(parents=True)
    permissions.write_text('[permissions]\ndeny = ["read(hidden.txt)"]\nallow = ["run"]\n')
    command = "echo $DEPLOY_TOKEN; cat notes.txt; grep -r needle . || echo none"
    with ScriptedServer([Reply("", [("run_terminal_cmd", {"command": command})]), Reply("Done.")]) as server:
        assert main(here.arguments(server, "Go.", "--json")) == 0
    seen = server.bodies[-1]["messages"][-1]["content"]
    assert "tok-9f8e" not in seen and "use " in seen and "none" in seen and "a needle" not in seen


def test_a_limit_of_turns_and_going_on(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    read = ("read_file", {"path": "AGENTS.md"})
    with ScriptedServer([Reply("", [read])] * 2 + [Reply("Done.")]) as server:
        assert main(here.arguments(server, "Go.", "--set", "max_turns=2", "--output-format", "json")) == 53
        [first] = lines(capsys.readouterr().out)
        assert first["stop"] == "turns" and first["usage"]["turns"] == 2
        (here.project / "AGENTS.md").write_text("Never say please.\n")
        assert main(here.arguments(server, "Go on.", "--continue", "--json")) == 0
        [second] = lines(capsys.readouterr().out)
    assert second["session_id"] == first["session_id"] and second["response"] == "Done."
    messages = server.bodies[-1]["messages"]
    assert [message["role"] for message in messages].count("tool") == 2
    assert "Go on." in messages[-1]["content"] and "Never say please." in messages[-1]["content"]
    other = [*here.arguments(server, "x", "--resume", first["session_id"]), "--dir", str(here.project.parent)]
    assert main(other) == 42 and "go on with it there" in capsys.readouterr().err


def test_a_past_session_is_undone_shown_and_summarised(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([Reply("", [WRITE]), Reply("Done."), Reply("A summary.")]) as server:
        past = [*here.arguments(server), "--continue"]
        assert main(here.arguments(server, "Write it.")) == 0
        assert main([*past, "--diff"]) == 0
        assert "+hello" in capsys.readouterr().out
        assert main([*past, "--undo"]) == 0
        assert capsys.readouterr().out == "removed new.txt\n" and not (here.project / "new.txt").exists()
        assert main([*past, "--undo"]) == 42 and "nothing to undo" in capsys.readouterr().err
        assert main([*past, "--redo", "--json"]) == 0
        assert lines(capsys.readouterr().out)[0]["written"] == ["new.txt"]
        assert main([*past, "--compact"]) == 0
        assert "tokens before" in capsys.readouterr().out
        assert main([*past, "--undo", "3"]) == 42 and "not 3 turns" in capsys.readouterr().err
        assert main(here.arguments(server, "--undo")) == 42 and "-c or -r ID" in capsys.readouterr().err


def test_bad_input(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--print", "--dir", str(here.project), "x"]) == 42
    assert "endpoint" in capsys.readouterr().err
    with ScriptedServer([]) as server:
        assert main(here.arguments(server)) == 42
        assert "needs a PROMPT" in capsys.readouterr().err
        assert main(here.arguments(server, "--continue")) == 42
        assert main(here.arguments(server, "x", "--set", "max_turns=0", "--json")) == 42


def test_an_endpoint_that_refuses_is_an_error_in_json(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([Reply(status=401, body={"error": {"message": "no key"}})]) as server:
        assert main(here.arguments(server, "x", "--json")) == 1
    [told] = lines(capsys.readouterr().out)
    assert told["type"] == "error" and told["exit_code"] == 1 and told["message"]


def test_what_had_come_of_an_answer_that_failed_is_shown(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [Reply("Half of it is here already.", drop_after=3)]
    once = ["--set", "endpoint.attempts=1"]
    with ScriptedServer(broken) as server:
        assert main(here.arguments(server, "x", "--json", *once)) == 1
    [told] = lines(capsys.readouterr().out)
    assert told["type"] == "error" and told["partial"].startswith("Half")
    with ScriptedServer(broken) as server:
        assert main(here.arguments(server, "x", *once)) == 1
    assert capsys.readouterr().out.startswith("Half")


def endless(words: Json) -> Reply:
    """A stream that says the same for ever: it ends when who reads it goes away."""
    return Reply(events=itertools.repeat({"choices": [{"index": 0, "delta": words, "finish_reason": None}]}))


@pytest.mark.parametrize("key", ["content", "reasoning_content"])
def test_a_model_that_loops_for_ever_is_cut_told_and_stopped(
    here: Setting, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    loop = endless({key: "Wait, I look once more. "})
    said = r"the answer was cut off, because it repeated the same 24 characters \d+ times over"
    with ScriptedServer([loop] * 4 + [Reply("At last.")]) as server:
        assert main(here.arguments(server, "Go.")) == 1
        out, err = capsys.readouterr()
        first, second, last = err.splitlines()
        assert re.fullmatch(said, first) and re.fullmatch(said, second)
        assert last.startswith("stopped: the model repeats itself; go on with --resume 2")
        assert out == ("Wait, I look once more. Wait, I look once more.\n" if key == "content" else "\n")
        assert main(here.arguments(server, "Go.", "--output-format", "stream-json")) == 1
        told = [line for line in lines(capsys.readouterr().out) if not line.get("delta")]
        assert [line["type"] for line in told] == [
            "init", "message", "message", "error", "message", "error", "result",
        ]  # fmt: skip
        assert re.fullmatch(said, told[3]["message"]) and told[-1]["stop"] == "repetition"
        assert len(server.requests) == 4
        assert main(here.arguments(server, "Then this.", "--continue", "--json")) == 0
    [result] = lines(capsys.readouterr().out)
    assert (result["stop"], result["response"], result["usage"]["cut_messages"]) == ("finished", "At last.", 2)
    assert "because it repeated the same 24" in server.bodies[-1]["messages"][-1]["content"]


def test_a_loop_that_the_model_leaves_is_counted(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer([endless({"content": "Well, then. "}), Reply("Done.")]) as server:
        assert main(here.arguments(server, "Go.", "--json")) == 0
    [result] = lines(capsys.readouterr().out)
    assert (result["response"], result["usage"]["repetitions"], result["usage"]["requests"]) == ("Done.", 1, 2)


def test_a_model_named_on_the_command_line_has_its_own_context(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not that of the model in the file. Where the server does not say, the user is told which one is used."""
    file = here.project.parent / "config" / "etude" / "agent.toml"
    file.parent.mkdir(parents=True)

    def limit(context: int | None, *more: str, model: str = "scripted") -> tuple[str, str]:
        """The context that the model is told of, and what stands on stderr."""
        with ScriptedServer([Reply("Done.")], context) as server:
            file.write_text(f'context_tokens = 9000\n[endpoint]\nurl = "{server.url}"\nmodel = "own"\n')
            assert main(["agent", "-p", "Go.", "--dir", str(here.project), "--model", model, *more]) == 0
            system = server.bodies[0]["messages"][0]["content"]
        [tokens] = re.findall(r"a context of (\d+) tokens", system)
        return tokens, capsys.readouterr().err

    assert limit(20_000) == ("20000", "")
    assert limit(20_000, "--set", "context_tokens=7000") == ("7000", "")
    assert limit(20_000, model="own") == ("9000", "")
    tokens, said = limit(None)
    assert tokens == "9000" and "how long the context of scripted is" in said and "--set context_tokens=N" in said


def test_an_endpoint_that_dies_in_the_middle_says_what_the_page_explains(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer([Reply("Done.")]) as server:
        arguments = here.arguments(server, "Go.", "--set", "endpoint.attempts=2")
        assert main(arguments) == 0
    capsys.readouterr()
    assert main(arguments) == 1
    line = capsys.readouterr().err
    page = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text()
    [said] = re.findall(r"^\| `(.+? cannot be reached .+?)` ", page, re.M)
    assert re.search(re.escape(said).replace("…", ".+"), line)


def test_killed_in_the_middle_of_a_command(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    command = "echo started >> ledger; sleep 30; echo ended >> ledger"
    script = [Reply("", [("run_terminal_cmd", {"command": command})]), Reply("I looked. Done.")]
    with ScriptedServer(script) as server:
        arguments = here.arguments(server, "Go.", "--output-format", "stream-json", "--allow", "run")
        child = subprocess.Popen(
            [sys.executable, "-m", "etude.cli.main", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        try:
            whole = (line for line in child.stdout if not json.loads(line).get("delta"))
            first = lines("".join(next(whole) for _ in range(4)))
            assert [line["type"] for line in first] == ["init", "message", "message", "tool_use"]
            until = 100
            while not (here.project / "ledger").exists() and until:
                until -= 1
                subprocess.run(["sleep", "0.1"], check=True)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(120)
            child.stdout.close()
        assert main(here.arguments(server, "--resume", first[0]["session_id"], "--json")) == 0
    [told] = lines(capsys.readouterr().out)
    assert told["response"] == "I looked. Done."
    result = server.bodies[-1]["messages"][-1]
    assert result["role"] == "tool" and result["content"].startswith("error: interrupted")
    assert (here.project / "ledger").read_text() == "started\n", "the sandbox died with its session"


def test_tools_of_an_mcp_server(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """They are judged like any other, and one that cannot be started takes nothing else away."""
    config = here.project.parent / "config" / "etude" / "agent.toml"
    config.parent.mkdir(parents=True)
    clock = f'[mcp.servers.clock]\ncommand = {json.dumps(sys.executable)}\nargs = ["-m", "mcp_server_time"]\n'
    config.write_text(f'{clock}connect_s = 110.0\n[mcp.servers.gone]\ncommand = "etude-no-such-command"\n')
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    calls = [("mcp__clock__convert_time", noon), ("mcp__clock__get_current_time", {"timezone": "UTC"})]
    with ScriptedServer([Reply("", calls), Reply("Nine.")]) as server:
        assert main(here.arguments(server, "Go.", "--json", "--allow", "mcp__clock__convert_time")) == 43
    said = capsys.readouterr()
    converted, refused = (each["content"] for each in server.bodies[-1]["messages"] if each["role"] == "tool")
    assert "21:00" in converted and "not permitted without a user" in refused
    assert "etude-no-such-command" in said.err and lines(said.out)[0]["response"] == "Nine."
