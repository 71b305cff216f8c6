"""Claude Code, Codex and opencode, as npm has them, through a session with a tool against `etude serve`."""

import json
import os
import subprocess
import threading

import pytest
from engine_serving import TOKEN
from installed import npm
from page_commands import ROOT, blocks
from through_clients import MODEL, playing, shelling

DEADLINE_S = 200
PAGE = ROOT / "docs/serving.md"
CONFIG = """
model = "{model}"
model_provider = "etude"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.etude]
name = "etude"
base_url = "{url}/v1"
env_key = "ETUDE_TOKEN"
wire_api = "responses"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return npm(tmp_path_factory.mktemp("npm"), "@anthropic-ai/claude-code", "@openai/codex", "opencode-ai")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's home and workspace that nothing of this machine's user is in."""
    (tmp_path / "work").mkdir()
    for name in [
        name for name in os.environ if name.startswith(("ANTHROPIC_", "OPENAI_", "CLAUDE_", "CODEX_", "XDG_"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PWD", str(tmp_path / "work"))  # opencode works there, wherever it is started
    return tmp_path


def claude(programs, url):
    words = [programs / "claude", "-p", "Make the file.", "--output-format", "stream-json", "--verbose"]
    words += ["--include-partial-messages", "--allowedTools", "Bash", "--tools", "Bash", "--system-prompt", "Be brief."]
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": TOKEN, "ANTHROPIC_MODEL": MODEL}
    quiet = {"ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return list(map(str, words)), {**os.environ, **env, **quiet}


def codex(programs, url):
    config = os.path.join(os.environ["HOME"], ".codex")
    os.makedirs(config)
    with open(f"{config}/config.toml", "w") as file:
        file.write(CONFIG.format(model=MODEL, url=url))
    words = [str(programs / "codex"), "exec", "--skip-git-repo-check", "--json", "Make the file."]
    return words, {**os.environ, "ETUDE_TOKEN": TOKEN}


def opencode(programs, url):
    """With the config that docs/serving.md shows, and the fewest tools: the sooner a prompt is computed."""
    [shown] = [text for language, text in blocks(PAGE) if language == "json"]
    shown = shown.replace("http://127.0.0.1:8450", url).replace("TOKEN", TOKEN).replace("NAME", MODEL)
    agent = {"build": {"tools": {"*": False, "bash": True}}}
    config = {**json.loads(shown), "permission": "allow", "autoupdate": False, "agent": agent}
    words = [str(programs / "opencode"), "run", "--model", f"etude/{MODEL}", "--format", "json", "Make the file."]
    return words, {**os.environ, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}


@pytest.mark.proof(60)
@pytest.mark.parametrize("client", [claude, codex, opencode])
def test_it_completes_a_tool_call_and_tells_the_answer(programs, home, client):
    with playing(shelling("echo made > here.txt", "The file is there.")) as server:
        words, env = client(programs, server.url)
        done = subprocess.run(
            words,
            cwd=home / "work",
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert (home / "work/here.txt").read_text() == "made\n"
        assert "The file is there." in done.stdout
        assert server.service.parsed["tool_calls"] == 1
        assert server.at_rest()


@pytest.mark.proof(40)
def test_claude_code_shows_an_answer_as_it_comes_and_ends_it_when_it_is_killed(programs, home):
    """The answer is longer than anybody waits for."""
    with playing(lambda prompt: "word " * 20_000) as server:
        words, env = claude(programs, server.url)
        running = subprocess.Popen(
            words, cwd=home / "work", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        timer = threading.Timer(DEADLINE_S, running.kill)
        timer.start()
        try:
            assert any("text_delta" in line for line in running.stdout), "nothing was shown"
            assert server.service.under_way
        finally:
            running.kill()
            running.wait(DEADLINE_S)
            timer.cancel()
        assert server.at_rest(within_s=30)
