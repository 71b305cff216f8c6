"""Self-summarisation: a session that outgrows its context goes on in a fresh one, from what its model wrote down.

    … turn, turn | request → summary ‖ system, task, summary, state | turn, turn …

At a token trigger, or by command, the model is asked for a summary; its segment is sealed, with the summary as its last
message; and the next context opens with the system prompt as it was, every word of the task, the summary, and what
needs no summary because the harness knows it: todo list, changed files, running commands, how many summaries there
were, and where the whole of what came before can be read. One attempt per context: a poor summary is gone on from all
the same, since the state and the history stand beside it.

Owns the words of it and `Summariser`. What it commits is folded by `harness.state`, so a kill at any step goes on with
the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Literal

from etude.environments.base import Sandbox
from etude.errors import ContextOverflow
from etude.harness.budget import Budget
from etude.harness.config import SummaryConfig
from etude.harness.dialogue import Dialogue
from etude.harness.protocol import Text, parse_message
from etude.harness.rewind import Rewind
from etude.harness.state import SessionState
from etude.harness.tools.base import cut_middle
from etude.harness.transcript import transcript
from etude.records import Event

HISTORY = "/tmp/etude"
REQUEST = (
    "Stop here and summarise this session for yourself. Your context ends now: you go on with the instructions, the "
    "list of todos, the names of changed files and your summary, and nothing else. Think first, between <think> and "
    "</think>, if that helps. Then write what you would miss: what you found out and where, what you decided and why, "
    "what you changed, what failed, what is left to do and what comes next. Be exact and short. Call no tool."
)
_FIRST_DRAW = 500_000
"""Summaries are drawn apart from turns, so that being summarised changes no other draw."""
_LATER_PROMPT_BYTES = 2000


def reserved_tokens(dialogue: Dialogue, config: SummaryConfig | None) -> int:
    """How much of every context a request and its summary may take; nothing where there are none."""
    return 0 if config is None else config.max_tokens + dialogue.observation([""], request_of(config)).tokens + 8


def request_of(config: SummaryConfig) -> str:
    """What a session with this config is asked."""
    return config.request or REQUEST


class Summariser:
    """For one session; `config` None is a session that is never summarised."""

    def __init__(
        self,
        state: SessionState,
        budget: Budget,
        sandbox: Sandbox,
        config: SummaryConfig | None,
        changed: Callable[[], Awaitable[list[str]]],
    ) -> None:
        self._state, self._budget, self._sandbox, self._config = state, budget, sandbox, config
        self._changed = changed
        self._kept: set[float] = set()
        """The last moments of the contexts that this process has put where the agent can read them."""

    @property
    def possible(self) -> bool:
        """Whether a cut would make the context shorter: one that holds no turn yet is as short as can be."""
        return self._config is not None and self._state.usage["turns"] > self._state.turns_before_context

    def due(self, tokens: int) -> bool:
        """Whether the context must be cut before it gets so many more tokens, and another turn."""
        if self._config is None or not self.possible:
            return False
        return self._state.dialogue.tokens >= self._config.trigger_tokens or self._budget.lacks_room(tokens)

    def due_after(self, tokens: int) -> bool:
        """Whether so many more tokens would make the context one that is cut before another turn."""
        enough = self._config is not None and self._state.dialogue.tokens + tokens >= self._config.trigger_tokens
        return enough and self.possible

    def ask(self, reason: Literal["context", "command"], results: Sequence[str] = ()) -> None:
        """Request a summary, beside the results that the last turn still owes the model."""
        assert self._config is not None, "a summary was asked for in a session that has none"
        before, words = self._state.dialogue.tokens, self._budget.fitted(results, request_of(self._config))
        own = {"request": self._config.request} if self._config.request else {}
        self._state.commit("summary_asked", words.record, reason=reason, before=before, tokens=words.tokens, **own)

    async def finish(self) -> None:
        """From whatever step of a cut the log is at to its end: a context that is sealed, and none that is open.

        Where a summary has no room after all, as with a model whose context is shorter than the config says, state and
        history have to do without."""
        state = self._state
        if state.cut is not None and state.cut.text is None:
            await self.keep_history()
            try:
                await self._write(state.cut.reason, state.cut.before)
            except ContextOverflow as error:
                state.commit("segment_sealed", segment="turns", tokens=state.dialogue.tokens, no_summary=str(error))
        if state.cut is not None:
            state.commit("segment_sealed", segment="summary", tokens=state.dialogue.tokens)

    async def _write(self, reason: str, before: int) -> None:
        assert self._config is not None, "a summary was asked for in a session that has none"
        state = self._state
        longest = min(self._config.max_tokens, self._budget.whole_room, self._budget.sampled_left)
        if longest < 1:
            raise ContextOverflow("no room is left for a summary; set harness.summary.trigger_tokens lower")
        reply = await state.dialogue.reply(longest, _FIRST_DRAW + state.usage["summaries"])
        text, number = summary_in(reply.text), state.contexts + 1
        after = state.dialogue.opening(state.system, await self._task(text, number, state.prompts)).tokens
        state.commit(
            "summary",
            reply.record,
            number=number,
            reason=reason,
            before=before,
            after=after,
            tokens=reply.tokens,
            text=text,
            version=reply.version,
        )

    async def task(self, prompt: str | None = None) -> str:
        """What the user is made to say in a context that is not the first: the task as it was, and all there is
        to know. The last prompt is in the log, or is `prompt`."""
        prompts = [*self._state.prompts, *([] if prompt is None else [prompt])]
        return await self._task(self._state.summary, self._state.contexts, prompts)

    async def _task(self, summary: str, number: int, prompts: Sequence[str]) -> str:
        return continuation(prompts, summary, await self._facts(number), number)

    async def _facts(self, number: int) -> list[str]:
        """What the harness knows without asking the model."""
        state = self._state
        running = [f"{each.id}: {each.command}" for each in await self._sandbox.processes() if each.running]
        changed = await self._changed()
        files = ", ".join(history_path(each) for each in range(1, number + 1))
        facts = [f"Todo list:\n{state.todos}"] if state.todos else []
        facts += [f"Files changed so far: {', '.join(changed)}"] if changed else []
        facts += ["Commands still running:\n" + "\n".join(running)] if running else []
        told = f"Everything said before is in {files}; look there for what the summary lacks."
        return [*facts, told] if self._keeps_history else facts

    @property
    def _keeps_history(self) -> bool:
        return self._config is None or self._config.history

    async def keep_history(self) -> None:
        """Put the contexts so far where the agent can read them. A sandbox that is new has none of them."""
        if not self._keeps_history:
            return
        log = self._state.log
        rewind = Rewind(log)
        for number, events in enumerate(_contexts(e for line, e in enumerate(log) if rewind.is_current(line)), 1):
            if events[-1].at not in self._kept:
                await self._sandbox.write_file(history_path(number), transcript(events).encode("utf-8", "replace"))
                self._kept.add(events[-1].at)


def history_path(number: int) -> str:
    return f"{HISTORY}/history-{number}.md"


def summary_in(message: str) -> str:
    """The summary alone: without the thinking before it, and without calls, which nobody runs."""
    words = "".join(item.text for item in parse_message(message, {}, False) if isinstance(item, Text))
    return words.rpartition("</think>")[2].strip()


def continuation(prompts: Sequence[str], summary: str, facts: Iterable[str], number: int) -> str:
    """The task and the last prompt word by word; those between may be cut, and are in the history."""
    first, *later = prompts
    if later:
        *between, last = later
        later = [*(cut_middle(text, _LATER_PROMPT_BYTES) for text in between), last]
    asked = [first, *(f"Then you were asked:\n{text}" for text in later)]
    times = "once" if number == 1 else f"{number} times"
    written = summary or "(nothing)"
    return "\n\n".join([*asked, f"[Your context was cut {times}. Your own summary:]\n{written}", *facts])


def _contexts(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The events of each context that a summary has ended or is about to end."""
    context: list[Event] = []
    for event in events:
        context.append(event)
        if event.kind == "segment_sealed":
            yield context
            context = []
    if any(event.kind == "summary_asked" for event in context):
        yield context
