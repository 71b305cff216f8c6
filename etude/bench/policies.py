"""Who plays: a checkpoint through our engine, an endpoint, an agent over ACP, a script, or a task's own solution.

Owns `open_policy` and the `Policy` protocol: a session for every attempt, over one engine or endpoint for the whole
run. The session is the harness's own, whoever plays, but for an agent over ACP, which brings its own. Talks to: engine,
harness.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from etude.bench.config import AcpPolicy, CheckpointPolicy, EndpointPolicy, HunterPolicy, SolutionPolicy
from etude.environments.base import Sandbox
from etude.errors import ConfigError, MissingDependency
from etude.extras import install_command
from etude.harness.config import HarnessConfig
from etude.harness.cost import Price
from etude.harness.dialogue import Dialogue
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.prompt import render_call, render_calls
from etude.harness.sampler import Chat, Sampler
from etude.harness.scripted import ScriptedDialogue, ScriptedSampler
from etude.harness.session import SessionResult, check_room, run_dialogue, token_dialogue
from etude.models.files import fault_of, hashes_of
from etude.records import Event, Limits, Task
from etude.rewards.judge import JudgeConfig
from etude.rewards.judge.config import MAX_CHARS
from etude.tasks.hunter import Hunter
from etude.tasks.scripted import FAREWELL, RUN_CHECK

if TYPE_CHECKING:
    from etude.engine.several import SeveralEngines

AnyPolicy = CheckpointPolicy | EndpointPolicy | AcpPolicy | SolutionPolicy | HunterPolicy


@dataclass(frozen=True)
class AttemptRequest:
    """One attempt that is to be played: its task is in the sandbox."""

    task: Task
    attempt: int
    sandbox: Sandbox
    seed: int
    on_event: Callable[[Event], None] | None = None
    """Told what the session does, as it does it; nothing where an agent brings a harness of its own."""

    @property
    def session_id(self) -> str:
        return f"{self.task.id}#{self.attempt}"


@dataclass(frozen=True)
class PlayedSession:
    """A session that was played, and what it cost; None where nobody knows."""

    result: SessionResult
    cost: float | None = None


class Policy(Protocol):
    def check(self, task: Task) -> None:
        """Raises ConfigError where a session of this task would have no room for one turn."""
        ...

    async def play(self, request: AttemptRequest) -> PlayedSession:
        """A session of its own. Raises what is no doing of the policy's."""
        ...


def identity(config: AnyPolicy) -> dict[str, Any]:
    """What tells a policy from another: in a result file's head. Where a key is read from is not."""
    match config:
        case CheckpointPolicy():
            files = _hashes(config.path)
            said = config.model_dump(mode="json", include={"kind", "expert_format", "temperature"})
            return {**said, "files": files}
        case EndpointPolicy():
            endpoint = endpoint_identity(config.endpoint)
            price = {"price": config.price.model_dump(mode="json")} if config.price else {}
            return {"kind": "endpoint", **price, **endpoint}
        case AcpPolicy():
            return {"kind": "acp", "command": list(config.command)}
        case SolutionPolicy():
            return {"kind": "solution", "skill": config.skill}
        case HunterPolicy():
            return {"kind": "hunter", "files": _hashes(config.path, weights=False)}


def endpoint_identity(config: EndpointConfig) -> dict[str, Any]:
    """What decides an endpoint's answers; not where a key is read from, nor how long is waited."""
    silent = {"key_env", "key_file", "headers", "attempts"}
    return config.model_dump(mode="json", exclude=silent)


def judge_identity(config: JudgeConfig) -> dict[str, Any]:
    """The same of a judge."""
    said = config.model_dump(mode="json", include={"votes", "structured", "max_tokens"})
    endpoint = endpoint_identity(config.endpoint.with_body({}))
    return {**said, "control": True, "max_chars": MAX_CHARS, "endpoint": endpoint}


def _hashes(directory: Path, weights: bool = True) -> dict[str, str]:
    if fault := fault_of(directory):
        raise ConfigError(f"policy.path: {fault}")
    return hashes_of(directory, weights)


@contextlib.asynccontextmanager
async def open_policy(config: AnyPolicy, harness: HarnessConfig, seed: int) -> AsyncGenerator[Policy]:
    """Load the model or open the endpoint; closed at the end."""
    match config:
        case CheckpointPolicy():
            with _engines(config) as (engines, chat):
                yield SamplerPlayer(engines, chat, harness, config.temperature, engines.max_context)
        case EndpointPolicy():
            endpoint = Endpoint(config.endpoint)
            try:
                yield EndpointPlayer(endpoint, harness, config.price)
            finally:
                await endpoint.close()
        case AcpPolicy():
            yield Edited(config)
        case SolutionPolicy():
            yield SolutionPlayer(config.skill, harness, seed)
        case HunterPolicy():
            from etude.models.chat import open_chat

            yield HunterPlayer(open_chat(config.path), harness)


@contextlib.contextmanager
def _engines(config: CheckpointPolicy) -> Generator[tuple[SeveralEngines, Chat]]:
    from etude.engine.several import open_engines
    from etude.models.chat import open_chat
    from etude.models.checkpoint import load_checkpoint
    from etude.models.expert_format import set_expert_format

    decoder, tokenizer = load_checkpoint(config.path)
    set_expert_format(decoder, config.expert_format)
    with open_engines(decoder, config.engine, config.engines) as engines:
        yield engines, open_chat(config.path, tokenizer)


class SamplerPlayer:
    """A policy that is sampled from in token ids; `context` is the most that its model takes."""

    def __init__(self, sampler: Sampler, chat: Chat, harness: HarnessConfig, temperature: float, context: int) -> None:
        self._sampler, self._chat, self._harness, self._temperature = sampler, chat, harness, temperature
        self._context = context

    def check(self, task: Task) -> None:
        check_room(task, self._dialogue(task.id, 0), self._harness, task.limits.within(self._context))

    async def play(self, request: AttemptRequest) -> PlayedSession:
        dialogue, limits = self._dialogue(request.session_id, request.seed), request.task.limits.within(self._context)
        return PlayedSession(await _through_harness(request, dialogue, self._harness, limits))

    def _dialogue(self, session_id: str, seed: int) -> Dialogue:
        return token_dialogue(
            self._sampler, self._chat, self._harness, session_id=session_id, seed=seed, temperature=self._temperature
        )


class SolutionPlayer:
    """No model: a share `skill` of the attempts play the task's solution, and the others give up."""

    def __init__(self, skill: float, harness: HarnessConfig, seed: int) -> None:
        self._skill, self._harness, self._seed = skill, harness, seed

    def check(self, task: Task) -> None:
        """A script has no context that could be too short."""

    async def play(self, request: AttemptRequest) -> PlayedSession:
        chance = random.Random(f"solution {self._seed} {request.task.id} {request.attempt}").random()
        script = solving(request.task) if chance < self._skill else giving_up()
        dialogue = ScriptedDialogue(script, self._harness.chosen())
        return PlayedSession(await _through_harness(request, dialogue, self._harness, request.task.limits))


class HunterPlayer:
    """The script, in a model's tokens, so that the limits of a model's session are its own, too."""

    def __init__(self, chat: Chat, harness: HarnessConfig) -> None:
        self._chat, self._harness = chat, harness

    def check(self, task: Task) -> None:
        check_room(task, self._dialogue(task, task.id, 0), self._harness, task.limits)

    async def play(self, request: AttemptRequest) -> PlayedSession:
        dialogue = self._dialogue(request.task, request.session_id, request.seed)
        return PlayedSession(await _through_harness(request, dialogue, self._harness, request.task.limits))

    def _dialogue(self, task: Task, session_id: str, seed: int) -> Dialogue:
        sampler = ScriptedSampler(Hunter(task.instruction, seed).next_message, self._chat)
        return token_dialogue(sampler, self._chat, self._harness, session_id=session_id, seed=0, temperature=1.0)


class EndpointPlayer:
    """A policy that is asked over HTTP."""

    def __init__(self, endpoint: Endpoint, harness: HarnessConfig, price: Price | None) -> None:
        self._endpoint, self._harness, self._price = endpoint, harness, price

    def check(self, task: Task) -> None:
        check_room(task, self._dialogue(task.id), self._harness, task.limits)

    def _dialogue(self, session_id: str) -> EndpointDialogue:
        return EndpointDialogue(self._endpoint, self._harness.chosen(), session_id=session_id)

    async def play(self, request: AttemptRequest) -> PlayedSession:
        dialogue = self._dialogue(request.session_id)
        result = await _through_harness(request, dialogue, self._harness, request.task.limits)
        if self._price is None:
            return PlayedSession(result)
        return PlayedSession(
            result, sum(self._price.of(said.prompt, said.cached, said.completion) for said in dialogue.billed)
        )


class Edited:
    """An agent with a harness of its own, as an editor would use it."""

    def __init__(self, config: AcpPolicy) -> None:
        self._config = config

    def check(self, task: Task) -> None:
        """What room there is, the agent's own harness sees to."""

    async def play(self, request: AttemptRequest) -> PlayedSession:
        try:
            from etude.bench.acp import play_acp
        except ModuleNotFoundError as error:
            if error.name != "acp":
                raise
            raise MissingDependency(
                f'policy.kind "acp" needs agent-client-protocol: {install_command("acp")}'
            ) from None
        return PlayedSession(*await play_acp(self._config, request.task, request.sandbox, request.session_id))


async def _through_harness(
    request: AttemptRequest, dialogue: Dialogue, harness: HarnessConfig, limits: Limits
) -> SessionResult:
    about = {"task": request.task.id, "attempt": request.attempt}
    return await run_dialogue(
        request.task.instruction, request.sandbox, dialogue, harness, limits,
        session_id=request.session_id, about=about, on_event=request.on_event, files=request.task.files,
    )  # fmt: skip


# --- without a model --------------------------------------------------------------------------------------------------

Script = Callable[[Sequence[str]], str]


def solving(task: Task) -> Script:
    """Plays the solution: on the ladder the one edit and the check, else it writes the solution's files."""
    facts = task.provenance
    if facts.get("family") == "ladder":
        edit = ("edit_file", {"path": facts["path"], "old": facts["old"], "new": facts["new"]})
        return _script([render_calls([edit, RUN_CHECK]), FAREWELL])
    if not task.solution:
        raise ConfigError(f"policy.kind: {task.id} has no solution that could be played")
    writes = [("write_file", {"path": path, "content": _text(task, path)}) for path in task.solution]
    return _script([render_calls(writes), FAREWELL])


def giving_up() -> Script:
    """Looks around and leaves everything as it was."""
    return _script([render_call("list_dir", {"path": "."}), FAREWELL])


def _script(messages: Sequence[str]) -> Script:
    left = iter(messages)
    return lambda _: next(left, FAREWELL)


def _text(task: Task, path: str) -> str:
    try:
        return task.solution[path].decode()
    except UnicodeDecodeError:
        raise ConfigError(f"policy.kind: the solution of {task.id} has a file that is no text: {path}") from None
