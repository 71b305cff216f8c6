"""The agent without a terminal: a prompt in, an answer or JSON out, and an exit code for scripts.

Owns what `etude agent --print` does: text (the answer alone), json (one object at the end) and stream-json (one object
a line, as it happens, in the words that other agents' streams have: init, message, tool_use, tool_result, error,
result; pieces of an answer come as messages with `delta` before the message itself). Of an answer that failed half way,
what had come is shown. Nobody is asked for permissions: what no rule allows is refused, the model is told so, and at
the end the user reads what it was and which rules would allow it. Text is printed with its control characters made
visible; JSON holds them.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from etude.errors import ConfigError, EtudeError, Exit
from etude.harness.endpoint import Delta, Retry, TextDelta
from etude.harness.permissions.gate import Gate
from etude.harness.state import Stop, cut_for
from etude.harness.store import SessionStore
from etude.plain import plain_line, say
from etude.product.agent import Agent, open_agent
from etude.product.config import AgentConfig
from etude.product.terminal.show import call_shown, stopped_by
from etude.records import Event

EXIT: Mapping[Stop, Exit] = {
    "finished": Exit.DONE, "turns": Exit.LIMIT, "tokens": Exit.LIMIT, "wall": Exit.LIMIT, "context": Exit.FAILED,
    "repetition": Exit.FAILED,
}  # fmt: skip
"""Limits that a larger budget would lift, and what none would."""


@dataclass(frozen=True)
class Asked:
    """One invocation. `session` is gone on with; without a `prompt`, from where it was cut short."""

    prompt: str | None
    directory: Path
    output: Literal["text", "json", "stream-json"] = "text"
    session: str | None = None
    allow: Sequence[str] = ()


async def run(config: AgentConfig, asked: Asked, store: SessionStore, out: TextIO | None = None) -> int:
    """Returns the exit code. Errors are raised where the output is text, and told in it where it is JSON."""
    out = out or sys.stdout
    stream = asked.output == "stream-json"

    heard: list[str] = []

    def on_delta(delta: Delta) -> None:
        if isinstance(delta, Retry):
            heard.clear()
            line = {"type": "error", "severity": "warning", "message": f"{delta.why}; the answer is asked for again"}
        elif isinstance(delta, TextDelta) and delta.kind == "text":
            heard.append(delta.text)
            line = {"type": "message", "role": "assistant", "content": delta.text, "delta": True}
        else:
            return
        if stream:
            say(json.dumps(line, ensure_ascii=True), out)

    def on_event(event: Event) -> None:
        if event.kind == "completion":
            heard.clear()
            if "repeated" in event.data and asked.output == "text":
                say(cut_for(event.data["repeated"]), sys.stderr)
        for line in stream_event(event) if stream else ():
            say(json.dumps(line, ensure_ascii=True), out)

    try:
        async with open_agent(
            config, asked.directory, store, asked.session, on_event=on_event, on_delta=on_delta, allow=asked.allow
        ) as agent:
            stop = await agent.play(asked.prompt)
            assert stop != "cancelled", "nobody is there to cancel it"
            result = _result(agent, stop)
    except EtudeError as error:
        partial = "".join(heard)
        if asked.output == "text":
            if partial:
                say(partial, out)
            raise
        code = 42 if isinstance(error, ConfigError) else 1
        failed = {"type": "error", "severity": "error", "message": str(error), "exit_code": code}
        if partial and not stream:
            failed["partial"] = partial
        say(json.dumps(failed), out)
        return code
    if asked.output == "json":
        say(json.dumps(result), out)
    elif asked.output == "text":
        say(result["response"], out)
        for line in _refused(agent.gate):
            say(line, sys.stderr)
        if stop != "finished":
            say(f"{stopped_by(stop)}; go on with --resume {result['session_id']}", sys.stderr)
    elif agent.gate.unasked:
        said = {"type": "error", "severity": "warning", "message": "\n".join(_refused(agent.gate))}
        say(json.dumps({**said, "refused": result["refused"], "wanting": result["wanting"]}), out)
    return Exit.REFUSED if stop == "finished" and agent.gate.unasked else EXIT[stop]


def _refused(gate: Gate) -> Iterator[str]:
    """What was refused for want of a person, a line a call, and what permits all of it."""
    for each in gate.unasked:
        yield f"refused, as nobody could be asked: {plain_line(''.join(call_shown(each.tool, each.arguments)))}"
    if gate.missing_rules:
        yield "to permit: " + " ".join(f"--allow {shlex.quote(rule)}" for rule in gate.missing_rules)
    ruled = [reason.by for each in gate.unasked for reason in each.decision.reasons if reason.asked_by_rule]
    for by in dict.fromkeys(ruled):
        yield f"{plain_line(by)} wants a person asked, and no --allow answers it; run without -p, or take the rule away"
    if any(each.tool == "run_terminal_cmd" and not each.decision.remember for each in gate.unasked) and not ruled:
        # a program that is given words which only a run would tell: a user's own rule on it lets it have them
        pieces = [reason.piece.split() for each in gate.unasked for reason in each.decision.reasons]
        for name in dict.fromkeys(words[0] for words in pieces if len(words) > 1 and words[-1] == "…"):
            yield f"{plain_line(name)} is given what only a run would tell, which a rule on it may permit: " + (
                f"--allow {shlex.quote(f'run({name} *)')}"
            )
        yield "no rule is offered for one of these: write it differently; to permit every command: --allow run"


def _result(agent: Agent, stop: Stop) -> dict[str, Any]:
    said = [event.data["text"] for event in agent.session.log if event.kind == "completion"]
    return {
        "session_id": agent.id,
        "response": said[-1].strip() if said else "",
        "stop": stop,
        "usage": {**agent.session.state.usage, **agent.endpoint.counters},
        "cost": agent.ledger.spent.money,
        "permissions": dict(agent.gate.counts),
        "refused": [
            {"tool_name": each.tool, "parameters": dict(each.arguments), "why": each.decision.explain()}
            for each in agent.gate.unasked
        ],
        "wanting": list(agent.gate.missing_rules),
        **({"hooks": dict(agent.hooks_run)} if agent.hooks_run else {}),
        **({"spans": dict(agent.spans.ended)} if agent.spans is not None else {}),
    }


@dataclass(frozen=True)
class Act:
    """Something done to a session without playing it. `turns`: to undo so many, and not the whole last prompt."""

    what: Literal["undo", "redo", "diff", "compact"]
    directory: Path
    session: str
    as_json: bool = False
    turns: int | None = None


async def act(config: AgentConfig, act: Act, store: SessionStore, out: TextIO | None = None) -> int:
    """Do it, and print what came of it. Raises ConfigError where there is nothing to undo, redo or summarise."""
    summaries: list[Event] = []

    def on_event(event: Event) -> None:
        if event.kind == "summary":
            summaries.append(event)

    async with open_agent(config, act.directory, store, act.session, on_event=on_event) as agent:
        checkpoints = agent.session.checkpoints
        match act.what:
            case "diff":
                said: dict[str, Any] = {"diff": await checkpoints.diff()}
                text = said["diff"].removesuffix("\n")
            case "compact":
                await agent.compact()
                said = {key: summaries[-1].data[key] for key in ("before", "after")} if summaries else {}
                text = ", ".join(f"{tokens} tokens {when}" for when, tokens in said.items())
            case _:
                undo = act.what == "undo"
                restored = await (checkpoints.undo(act.turns) if undo else checkpoints.redo())
                said = {"written": restored.written, "removed": restored.removed, "kept": restored.kept}
                text = "\n".join(f"{what} {path}" for what, paths in said.items() for path in paths)
    line = json.dumps({"session_id": act.session, **said}) if act.as_json else text
    if line:
        say(line, out)
    return 0


def stream_event(event: Event) -> Iterator[dict[str, Any]]:
    """An event in the stream's words; nothing for those that only the session itself needs."""
    data, at = event.data, {"at": event.at}
    match event.kind:
        case "session":
            yield {"type": "init", **at, "session_id": data["id"], "model": data["model"], "cwd": data["workspace"]}
        case "prompt":
            yield {"type": "message", **at, "role": "user", "content": data["user"]}
        case "completion":
            yield {"type": "message", **at, "role": "assistant", "content": data["text"], "turn": data["turn"]}
            if "repeated" in data:
                yield {"type": "error", **at, "severity": "warning", "message": cut_for(data["repeated"])}
        case "tool_call":
            given = data.get("arguments", {"malformed": data.get("raw", "")})
            yield {"type": "tool_use", **at, "tool_id": _id(data), "tool_name": data["name"], "parameters": given}
        case "tool_result":
            status = "error" if data["error"] else "success"
            yield {"type": "tool_result", **at, "tool_id": _id(data), "status": status, "output": data["text"]}
        case "summary":
            yield {"type": "summary", **at, "before": data["before"], "after": data["after"], "why": data["reason"]}
        case "checkpoint" if "error" in data:
            yield {"type": "error", **at, "severity": "warning", "message": data["error"]}
        case "end":
            status = "success" if data["stop"] == "finished" else "limit"
            yield {"type": "result", **at, "status": status, "stop": data["stop"], "usage": data["usage"]}


def _id(data: Mapping[str, Any]) -> str:
    return f"{data['turn']}.{data['index']}"
