"""Messages that a program writes, in place of a model: recorded demonstrations, and solutions that are played.

Owns `ScriptedSampler`, which stands behind the same seam as an engine and sees what an engine sees, token ids; so the
sessions it plays are sessions like any other, and can be trained on. Its tokens carry log-probability 0: nothing was
drawn. And `ScriptedDialogue`, for where nobody needs token ids: it has no tokenizer and no limit of tokens. Neither
writes an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from etude.harness.dialogue import PreparedInput, Reply
from etude.harness.events import Record
from etude.harness.prompt import parse_results, system_prompt
from etude.harness.protocol import calls_of, parse_message
from etude.harness.sampler import Chat, Completion, SampleRequest
from etude.harness.schema import MalformedCall, ToolCall, ToolSchema
from etude.records import BASE_VERSION


class ScriptedSampler:
    """Plays one session. `next_message` gets the tool results of the previous turn (none at first), and returns the
    next assistant message, rendered with `harness.prompt`.

    A script that can be summarised comes with the words that ask for it, and with `summary`, which gets the results
    that the model would read before writing one; they are handed to no `next_message` again.
    """

    def __init__(
        self,
        next_message: Callable[[list[str]], str],
        chat: Chat,
        summary: Callable[[list[str]], str] | None = None,
        request: str = "",
    ) -> None:
        self._next_message, self._summary, self._request = next_message, summary, request
        self._chat = chat
        self._known: tuple[int, ...] = ()
        """The context up to the end of our last message; what comes after it are observations."""

    async def sample(self, request: SampleRequest) -> Completion:
        told = len(self._known)
        fresh = request.prompt_ids[:told] != self._known
        news = "" if fresh or not told else self._chat.decode(request.prompt_ids[told:])
        asked = self._summary is not None and self._request in news
        say = self._summary if self._summary is not None and asked else self._next_message
        message = say(parse_results(news))
        whole = [*self._chat.encode(message), self._chat.end_id]
        ids = tuple(whole[: request.max_tokens])
        self._known = (*request.prompt_ids, *ids)
        return Completion(
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            versions=(int(BASE_VERSION),) * len(ids),
            finish="stop" if len(ids) == len(whole) else "length",
        )


class ScriptedDialogue:
    """Implements `Dialogue` over a script. Its context is as long as it has messages, and none of them is cut off: a
    limit of tokens is for a model, and a solution that is long is a solution all the same."""

    def __init__(self, next_message: Callable[[list[str]], str], tools: Mapping[str, ToolSchema]) -> None:
        self._next_message, self._tools = next_message, tools
        self._messages = 0
        self._results: list[str] = []

    @property
    def tokens(self) -> int:
        return self._messages

    def system(self, persona: str) -> str:
        return system_prompt(self._tools.values(), persona)

    def opening(self, system: str, user: str) -> PreparedInput:
        return PreparedInput(1, {"results": []})

    def observation(self, results: Sequence[str], user: str | None = None) -> PreparedInput:
        return PreparedInput(1, {"results": list(results)})

    async def reply(self, max_tokens: int, draw: int) -> Reply:
        text = self._next_message(self._results)
        return Reply(text, 0, self._messages + 1, cut=False, version=int(BASE_VERSION), record={})

    def calls(self, reply: Record, text: str, cut: bool) -> list[ToolCall | MalformedCall]:
        return calls_of(parse_message(text, self._tools, cut))

    def append_input(self, words: Record) -> None:
        self._messages += 1
        self._results = words["results"]

    def append_reply(self, reply: Record) -> None:
        self._messages += 1

    def seal(self, kind: Literal["turns", "summary"]) -> None:
        self._messages, self._results = 0, []
