"""Python's clients, as PyPI has them, through a conversation with a tool against `etude serve`."""

import os
import subprocess

import pytest
from engine_serving import TOKEN
from installed import pip
from through_clients import MODEL, calling, playing

from etude.harness.prompt import render_call

DEADLINE_S = 120
ANSWER = "It is forty-two."
ANTHROPIC = """
import anthropic, os
client = anthropic.Anthropic(base_url=os.environ["URL"], auth_token=os.environ["TOKEN"], max_retries=0)
shape = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
asked = dict(model=os.environ["MODEL"], max_tokens=4000, thinking={"type": "enabled", "budget_tokens": 1024})
asked |= dict(tools=[{"name": "shell", "description": "Runs it.", "input_schema": shape}], metadata={"user_id": "u"})
messages = [{"role": "user", "content": "What is it?"}]
with client.messages.stream(messages=messages, **asked) as stream:
    kinds = [event.type for event in stream]
    said = stream.get_final_message()
assert "input_json" in kinds, kinds
(call,) = [block for block in said.content if block.type == "tool_use"]
assert call.input == {"command": "ask"}, call
result = {"type": "tool_result", "tool_use_id": call.id, "content": "42"}
messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
print(client.messages.create(messages=messages, **asked).content[0].text)
"""
LITELLM = """
import litellm, os
shape = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
asked = dict(model="openai/" + os.environ["MODEL"], api_base=os.environ["URL"] + "/v1", api_key=os.environ["TOKEN"])
asked |= dict(tools=[{"type": "function", "function": {"name": "shell", "parameters": shape}}], user="u")
messages = [{"role": "user", "content": "What is it?"}]
chunks = list(litellm.completion(messages=messages, stream=True, **asked))
said = litellm.stream_chunk_builder(chunks).choices[0].message
(call,) = said.tool_calls
assert call.function.name == "shell", call
messages += [said.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "42"}]
print(litellm.completion(messages=messages, **asked).choices[0].message.content)
"""
LANGCHAIN = """
import os
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def shell(command: str) -> str:
    "Runs it."
    return "42"

for responses in (False, True):
    model = ChatOpenAI(
        base_url=os.environ["URL"] + "/v1", api_key=os.environ["TOKEN"], model=os.environ["MODEL"],
        use_responses_api=responses, max_retries=0,
    ).bind_tools([shell], strict=not responses)
    messages = [HumanMessage("What is it?")]
    said = None
    for chunk in model.stream(messages):
        said = chunk if said is None else said + chunk
    (call,) = said.tool_calls
    messages += [said, ToolMessage(shell.invoke(call["args"]), tool_call_id=call["id"])]
    print(model.invoke(messages).text)
"""
LLM = """
import os, pathlib, subprocess, sys
home = pathlib.Path(os.environ["LLM_USER_PATH"])
home.mkdir()
known = "- model_id: played\\n  model_name: {}\\n  api_base: {}/v1\\n  supports_tools: true\\n"
(home / "extra-openai-models.yaml").write_text(known.format(os.environ["MODEL"], os.environ["URL"]))
tool = "def shell(command: str) -> str:\\n    return '42'\\n"
words = [sys.executable, "-m", "llm", "-m", "played", "--key", os.environ["TOKEN"], "--functions", tool, "What is it?"]
subprocess.run(words, check=True, timeout=100)
"""
SCRIPTS = {"anthropic": ANTHROPIC, "litellm": LITELLM, "langchain": LANGCHAIN, "llm": LLM}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    where = tmp_path_factory.mktemp("pip") / "venv"
    return pip(where, "anthropic", "litellm", "langchain-openai", "llm", "mini-swe-agent")


def environment(tmp_path, url):
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    given = {"URL": url, "TOKEN": TOKEN, "MODEL": MODEL, "HOME": str(tmp_path), "LLM_USER_PATH": str(tmp_path / "llm")}
    return {**kept, **given, "LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@pytest.mark.proof(20)
@pytest.mark.parametrize("client", SCRIPTS)
def test_a_tool_is_called_and_its_result_answered(python, tmp_path, client):
    with playing(calling("shell", {"command": "ask"}, ANSWER)) as server:
        words = [python, "-c", SCRIPTS[client]]
        env = environment(tmp_path, server.url)
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        assert ANSWER in done.stdout
        assert server.service.parsed["tool_calls"] >= 1 and server.at_rest()


@pytest.mark.proof(30)
def test_mini_swe_agent_works_in_a_directory_and_submits(python, tmp_path):
    def script(prompt):
        done = "made here" in prompt.rpartition("<|im_start|>user\n")[2]
        command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" if done else "echo made here | tee here.txt"
        return render_call("bash", {"command": command})

    with playing(script) as server:
        words = [python.parent / "mini", "-m", f"openai/{MODEL}", "-t", "Make it.", "-y", "--exit-immediately"]
        quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
        endpoint = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": TOKEN, "TERM": "dumb"}
        env = {**environment(tmp_path, server.url), **quiet, **endpoint}
        done = subprocess.run(
            [*words, "-o", tmp_path / "run.json"],
            env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert (tmp_path / "here.txt").read_text() == "made here\n"
        assert server.service.parsed["tool_calls"] == 2
