"""One agent session: the loop that product, rollouts and evaluation all run, byte for byte the same.

    opening → sample → append exactly that → read the calls → run them → append the observation → sample → …

until a message without a call (`finished`), a limit, or turns that repeat themselves. This is the heart of Etude: a
model is trained by what happened here, and used through it afterwards. So the rules are strict:

- Token ids are the only truth. The context only ever grows at its end; what the sampler returned is kept as it is, with
  log-probability and version of each token, and is never decoded and encoded again. Text is a view, for the parser.
- Only tokens that were sampled are marked so. A message cut off by a limit is closed with an end token that is not.
- What a model does wrongly, from a misspelt parameter to a failing command, is answered and stays in the data.
  What our machinery does wrongly is raised (SandboxError, DeadlineExceeded, …): it must never look like the model's
  doing. A sandbox that the model's own commands have ended (SandboxSpoiled) ends the session, which stays in the data.
- A limit ends the session, not the rollout: the calls of the last message are run, so the final state can be judged.
- Nothing has happened before the log says so: every step is committed first and folded into the state next
  (`harness.state`), and a command starts only when the log that names it is on disk (`harness.turns`). A session whose
  log is a file goes on from any `kill -9`, in the middle of a turn too.
- A session that outgrows its context is summarised by its model (`harness.summary`), where the config says so.

Owns `Session`, of any number of prompts, and `run_session` and `run_dialogue`, of one. Talks to a `Dialogue` (a sampler
and a chat, in training) and a `Sandbox`, and knows the engine, tokenizer and backend behind none of them. Imports
neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from etude.environments.base import Sandbox
from etude.errors import CheckpointError, ConfigError, ContextOverflow, SandboxSpoiled
from etude.harness.began import Began
from etude.harness.budget import Budget, require_room
from etude.harness.checkpoints import Checkpointer, Snapshots
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import Dialogue, PreparedInput, RouteStore, TokenDialogue
from etude.harness.events import EventLog
from etude.harness.journal import Journal
from etude.harness.prompt import PERSONA, persona
from etude.harness.rules import file_rules
from etude.harness.safeguards import safeguards
from etude.harness.sampler import Chat, Sampler
from etude.harness.state import SessionState, Stop
from etude.harness.summary import Summariser, reserved_tokens
from etude.harness.tools import Tool
from etude.harness.turns import Review, TurnRunner
from etude.records import Event, Limits, Segment, Task

NO_FILES: Mapping[str, bytes] = {}
MOST_STALE_TURNS = 3
"""A model that is told nothing new for so many turns in a row will not get out of it by itself."""
_CHANGED = "[Your instructions have changed since. They are now:]"


@dataclass(frozen=True)
class SessionPersistence:
    """How a session is kept while it is played, so that another process can go on with it.

    Its log is that journal, which may have a past, and there is a snapshot after each turn that comes `after_s` or more
    after the last one. `routes` has what is too large for a log.
    """

    journal: Journal
    snapshots: Snapshots | None
    """None: of its files nothing is kept."""
    after_s: float = 0.0
    routes: RouteStore | None = None


@dataclass(frozen=True)
class SessionResult:
    """A session that ended by itself or by a limit; one that our machinery broke raises instead.

    `usage` counts turns, calls that were well formed and that were not, turns with two well-formed calls or more,
    messages cut off by a limit, tokens sampled and observed (the first opening is neither), results that begin with
    `error:`, and summaries.
    """

    session_id: str
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    stop: Stop
    usage: Mapping[str, int]
    spoiled: str = ""
    """What its own commands did to end the sandbox, and the session with it, where they did."""


async def run_session(
    instruction: str,
    sandbox: Sandbox,
    sampler: Sampler,
    chat: Chat,
    config: HarnessConfig,
    limits: Limits,
    *,
    session_id: str,
    seed: int,
    temperature: float = 1.0,
    on_event: Callable[[Event], None] | None = None,
    persistence: SessionPersistence | None = None,
    files: Mapping[str, bytes] = NO_FILES,
) -> SessionResult:
    """Play one instruction to its end, or go on with one that `persistence` has. The sandbox stays the caller's, to
    judge and destroy; `files` are what its workspace began with.

    The same seed, sampler and observations give the same session. Raises what sampler and sandbox raise for failures of
    their own. Cancelling it is safe: nothing runs on behind.
    """
    routes = persistence.routes if persistence else None
    dialogue = token_dialogue(
        sampler, chat, config, session_id=session_id, seed=seed, temperature=temperature, routes=routes
    )
    about = {"seed": seed, "temperature": temperature}
    return await run_dialogue(
        instruction,
        sandbox,
        dialogue,
        config,
        limits,
        session_id=session_id,
        about=about,
        on_event=on_event,
        persistence=persistence,
        files=files,
    )


def token_dialogue(
    sampler: Sampler,
    chat: Chat,
    config: HarnessConfig,
    *,
    session_id: str,
    seed: int,
    temperature: float,
    routes: RouteStore | None = None,
) -> TokenDialogue:
    """A dialogue in token ids as the config has it."""
    return TokenDialogue(
        sampler,
        chat,
        config.chosen(),
        session_id=session_id,
        seed=seed,
        temperature=temperature,
        explained=config.toolset == "agent",
        lenient=config.lenient_calls,
        routes=routes,
    )


async def run_dialogue(
    instruction: str,
    sandbox: Sandbox,
    dialogue: Dialogue,
    config: HarnessConfig,
    limits: Limits,
    *,
    session_id: str,
    about: Mapping[str, Any],
    on_event: Callable[[Event], None] | None = None,
    persistence: SessionPersistence | None = None,
    files: Mapping[str, bytes] = NO_FILES,
) -> SessionResult:
    """The same with whatever model is behind the dialogue; `about` stands in the log's first event. With the agent's
    tools it is the product's session whole (`harness.safeguards`)."""
    log = EventLog(on_event, persistence.journal if persistence else None)
    snapshots, after_s = (persistence.snapshots, persistence.after_s) if persistence else (None, 0.0)
    around = safeguards(config, sandbox, files, session_id) if config.toolset == "agent" else None
    session = Session(
        sandbox, dialogue, config, limits, log, snapshots=snapshots, after_s=after_s,
        tools=around.tools if around else None, review=around.review if around else None,
        persona=around.persona if around else None, began=around.began if around else None,
    )  # fmt: skip
    if session.state.prompts:
        if around:
            await around.take_up(log.events[0].data)
        stop = await session.resume(last=True)
    else:
        session.begin(id=session_id, **about, **(await around.begin() if around else {}))
        stop = await session.prompt(instruction, last=True)
    return SessionResult(
        session_id, tuple(session.state.sealed), log.events, stop, session.state.usage, session.spoiled
    )


def check_room(task: Task, dialogue: Dialogue, config: HarnessConfig, limits: Limits) -> None:
    """Raises ConfigError where a session of this task would have no room for one turn; plays nothing."""
    rules = file_rules(task.files) if config.toolset == "agent" else ""
    opening = dialogue.opening(dialogue.system(persona(rules)), task.instruction)
    require_room(opening.tokens, config, limits, reserved_tokens(dialogue, config.summary))


class Session:
    """A conversation that works in a sandbox. One prompt at a time; its log is all there is to it.

    A log with a past is taken up: `dialogue` must then be fresh, and be made as the first one was. `resume` finishes
    what was cut short; a new `prompt` leaves it at that. Cancelling either is safe, and the same as a kill.

    After a turn there is one of the `snapshots`, if the last is `after_s` old; where they are a `Shadow` of the
    workspace, each of them can be gone back to, by `checkpoints`. `tools` are the config's, where somebody stands guard
    before them; `review` sees the calls of a turn before any of them is run, and `on_output`, by the call's place in
    the turn, what commands print while they run: it is shown and not kept. `persona` is asked with every prompt, so
    that rules it holds may change. `began` knows the files of the beginning where snapshots do not.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        dialogue: Dialogue,
        config: HarnessConfig,
        limits: Limits,
        log: EventLog,
        *,
        snapshots: Snapshots | None = None,
        after_s: float = 0.0,
        tools: Mapping[str, Tool] | None = None,
        review: Review | None = None,
        on_output: Callable[[int, bytes], None] | None = None,
        persona: Callable[[], Awaitable[str]] | None = None,
        began: Began | None = None,
    ) -> None:
        self.config, self.limits, self.log, self.dialogue = config, limits, log, dialogue
        self._tools = config.chosen() if tools is None else tools
        self._persona = persona
        self.state = SessionState(dialogue, log)
        self.spoiled = ""
        """Why the sandbox can no longer be used, where a session's last prompt saw to that."""
        self._taken_up = bool(self.state.prompts)
        """Whether the past is another process's, and this one has said nothing yet."""
        self._budget = Budget(self.state, config, limits, reserved_tokens(dialogue, config.summary))
        self.checkpoints = Checkpointer(self.state, self._tools, snapshots, after_s, began)
        before_change, beginning = self.checkpoints.settle, self.checkpoints.baseline
        self._runner = TurnRunner(
            self.state, self._tools, sandbox, config.tool, limits.wall_s, before_change, beginning, review, on_output
        )
        self._summariser = Summariser(self.state, self._budget, sandbox, config.summary, self.checkpoints.changed)

    def begin(self, versions: Mapping[str, str] | None = None, **about: Any) -> None:
        """The first event: who this is and how it samples; `versions` where they are not the config's own."""
        config = self.config
        versions = config.versions() if versions is None else versions
        self.state.commit("session", **about, toolset=config.toolset, tools=config.tools, versions=versions)

    async def prompt(self, text: str, *, last: bool = False) -> Stop:
        """Play until the model answers without a call, or a limit; `last` seals the context after it."""
        if self._taken_up:
            self._go_on()
        return await self._to_its_end(self._prompted(text), last)

    async def resume(self, *, last: bool = False) -> Stop:
        """Go on where the log ends; `last` as for a prompt. A prompt that had ended stays so."""
        if not self.state.prompts:
            raise CheckpointError("this session has no prompt yet; give it one")
        if self.state.stop is not None:
            return self.state.stop
        self._go_on()
        return await self._to_its_end(self._resumed(), last)

    def _go_on(self) -> None:
        """Say when; a log's own clock stands still between two processes."""
        self._taken_up = False
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self.state.commit("resumed", time=time, tokens=self.dialogue.tokens)

    async def compact(self) -> None:
        """Summarise now; the next prompt opens a fresh context. There must be a turn to summarise."""
        if self.config.summary is None:
            raise ConfigError("harness.summary: this session has no summaries; set harness.summary.trigger_tokens")
        if not self._summariser.possible:
            raise ConfigError("there is nothing to summarise yet")
        if self.state.cut is None:
            self._summariser.ask("command", self._left_open())
        await self._summariser.finish()
        await self.log.sync()

    # --- one prompt -----------------------------------------------------------------------------------------------

    async def _to_its_end(self, work: Coroutine[Any, Any, Stop], last: bool) -> Stop:
        try:
            stop = await work
        except SandboxSpoiled as error:
            if not last:
                raise
            stop, self.spoiled = "finished", str(error)
        finally:
            await self.checkpoints.settle()
        if last:
            self.state.commit("segment_sealed", segment="turns", tokens=self.dialogue.tokens)
        self.state.commit("end", stop=stop, usage=dict(self.state.usage))
        await self.log.sync()
        return stop

    async def _prompted(self, text: str) -> Stop:
        await self.checkpoints.before_prompt()
        if not self.state.prompts:
            system = await self._system()
            words = self.dialogue.opening(system, text)
            require_room(words.tokens, self.config, self.limits, self._budget.reserved_tokens)
            self.state.commit("prompt", words.record, system=system, user=text, tokens=words.tokens)
            return await self._play()
        results = self._left_open()
        await self._make_room_for(text, results)
        system, told = await self._system(), text
        if not self.dialogue.tokens:
            words = await self._reopening(system, text)
        else:
            if system != self.state.system:
                told = f"{text}\n\n{_CHANGED}\n{system}"
            words = self._budget.fitted(results, told)
        self.state.commit("prompt", words.record, system=system, user=text, tokens=words.tokens)
        return await self._play()

    async def _make_room_for(self, text: str, results: list[str]) -> None:
        """Finish a cut that was begun, or make one where the prompt would not fit."""
        open_ = self.state.cut is None and self.dialogue.tokens > 0
        if open_ and self._summariser.due(self._budget.fitted(results, text).tokens):
            self._summariser.ask("context", results)
        await self._summariser.finish()

    def _left_open(self) -> list[str]:
        """The results that the last turn still owes the model: its prompt ended before they were in the context."""
        if self.state.turn is None:
            return []
        self._runner.leave(self.state.turn)
        return self.state.turn.texts()

    async def _reopening(self, system: str, prompt: str | None = None) -> PreparedInput:
        """The start of a context that is not the first."""
        return self.dialogue.opening(system, await self._summariser.task(prompt))

    async def _system(self) -> str:
        return self.dialogue.system(PERSONA if self._persona is None else await self._persona())

    async def _resumed(self) -> Stop:
        await self._summariser.keep_history()
        return await self._play()

    async def _play(self) -> Stop:
        """Turns until something ends them. Each pass begins where the state, which may be a killed session's, is."""
        while True:
            if self.state.turn is None and (stop := await self._next_turn()):
                return stop
            turn = self.state.open_turn
            if not turn.calls and not turn.cut:
                return "finished"
            if turn.repeated and self.state.repetitions > 1:
                return "repetition"
            if not await self._runner.run(turn):
                return "wall"
            await self.checkpoints.turn_over(turn)
            if self.state.stale_turns >= MOST_STALE_TURNS:
                return "repetition"
            words = self._budget.fitted(turn.texts())
            if stop := self._budget.exhausted(words.tokens):
                return stop
            if self._summariser.due_after(words.tokens):
                self._summariser.ask("context", turn.texts())  # in one message: no reply stands between the two
                continue
            self.state.commit("observation", words.record, turn=turn.number, tokens=words.tokens)

    async def _next_turn(self) -> Stop | None:
        """Have the model write, in this context or, where it is full, in the next one; or say why it cannot."""
        if stop := self._budget.spent:
            return stop
        if self.state.cut is None and self._summariser.due(0):
            self._summariser.ask("context")
        await self._summariser.finish()
        if not self.dialogue.tokens:
            system = await self._system()
            words = await self._reopening(system)
            self.state.commit("opening", words.record, system=system, tokens=words.tokens)
        if stop := self._budget.exhausted(0):
            return stop
        try:
            reply = await self.dialogue.reply(self._budget.next_message, self.state.usage["turns"])
        except ContextOverflow as error:
            if not self.state.usage["turns"]:
                raise ConfigError(
                    f"the very first message does not fit the model's context: {error}. Give that context's length: "
                    "context_tokens of an agent, limits.max_context_tokens of a benchmark"
                ) from None
            if not self._summariser.possible:
                return "context"
            self._summariser.ask("context")
            return await self._next_turn()
        self.state.commit(
            "completion",
            reply.record,
            turn=self.state.usage["turns"] + 1,
            text=reply.text,
            tokens=reply.tokens,
            context=reply.context,
            finish="repetition" if reply.repeated else "length" if reply.cut else "stop",
            version=reply.version,
            **({"repeated": reply.repeated} if reply.repeated else {}),
        )
        return None
