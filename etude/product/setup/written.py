"""Writes agent.toml: what was found out, and beside it in comments what else a user may want to set.

Owns `text_of`, `remark` and `write_config`. The file holds no key. One that is there
already is kept under another name.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import tomli_w

from etude.durable import write_whole
from etude.harness.endpoint import EndpointConfig
from etude.product.config import LEAST_CONTEXT

_DEFAULT_CONTEXT = 128_000


def remark(context: int | None) -> str:
    """What to tell a person whose model has this context; nothing where it is long enough or not known."""
    if context is None or context >= LEAST_CONTEXT:
        return ""
    return (
        f"its context is {context} tokens, too short for the agent's ten tools ({LEAST_CONTEXT} at least): it gets six "
        "and a short prompt, and a session ends where its context does"
    )


def text_of(endpoint: EndpointConfig, context: int | None) -> str:
    """The file's text. `context` is the model's, where it is known."""
    tokens = context or _DEFAULT_CONTEXT
    known = "as the server says" if context else "not known: set it to the model's own"
    summary, small = "; a session is summarised at four fifths of it", ""
    if remark(context):
        summary = f"; below {LEAST_CONTEXT} a session ends there and is not summarised"
        small = _SMALL.format(turn=tokens // 4, bytes=tokens * 3 // 2)
    url, model = _value(endpoint.url), _value(endpoint.model)
    key = '# key_env = "VARIABLE"         # the variable that holds the key; this endpoint wants none'
    if endpoint.key_env:
        key = (
            f"key_env = {_value(endpoint.key_env)}  # the variable that holds the key; the key itself never stands here"
        )
    elif endpoint.key_file is not None:
        key = f"key_file = {_value(str(endpoint.key_file))}  # the file that holds the key"
    calls = '# calls = "text"                # for a model without function calling'
    if endpoint.calls == "text":
        calls = 'calls = "text"                  # this server takes no tools, so calls are written in the text'
    return f"""# For `etude agent`, `etude acp` and `etude sessions serve`; written by `etude init`.
# Every key is in docs/agent.md and docs/endpoints.md of Etude's repository; `etude agent --set KEY=VALUE` is for once.

context_tokens = {tokens}          # {known}{summary}
# max_turns = 200                # of one prompt
# images = true                  # the model sees images: read_file shows it image files
{small}
[endpoint]
url = {url}
model = {model}
{key}
{calls}
# temperature = 0.7              # unset: the server's own

# [prices.{model}]               # for a million tokens; without it no cost is shown
# input = 0.30
# cached = 0.06
# output = 1.20

# [mcp.servers.git]              # tools of MCP servers, beside the agent's own
# command = "mcp-server-git"

# [[hooks]]                      # a command of yours after each edit; what it says when it fails, the model reads
# on = "after_tool"
# tools = ["edit_file", "write_file"]
# run = 'case "$ETUDE_FILE" in *.py) ruff check --quiet "$ETUDE_FILE";; esac'
"""


_SMALL = """surroundings = false             # no words about the system, the date and git in the prompt

[harness]
toolset = "small"                # six tools with short answers, in place of ten
max_turn_tokens = {turn}            # of one message

[harness.tool]
max_observation_bytes = {bytes}     # of one answer of a tool
"""
"""For a model whose context is short: what a recipe gives such a model, too."""


def write_config(file: Path, text: str) -> Path | None:
    """Write it; where one was there, the place where that is kept. It stays where it was if this fails."""
    tomllib.loads(text)
    file.parent.mkdir(parents=True, exist_ok=True)
    before = None
    if file.exists():
        before = next(
            place for number in range(1, 10_000) if not (place := file.with_name(f"{file.name}.{number}")).exists()
        )
        write_whole(before, file.read_bytes())
    write_whole(file.resolve(), text.encode())
    return before


def _value(text: str) -> str:
    return tomli_w.dumps({"x": text}).partition(" = ")[2].strip()
