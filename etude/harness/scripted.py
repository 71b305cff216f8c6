"""A sampler whose messages are written by a program: recorded demonstrations, and sessions that repeat exactly.

Owns `ScriptedSampler`. It stands behind the same seam as an engine and sees what an engine sees, token ids; so the
sessions it plays are sessions like any other. Its tokens carry log-probability 0: nothing was drawn. Never writes an
observation.
"""

from __future__ import annotations

from collections.abc import Callable

from etude.harness.prompt import parse_results
from etude.harness.sampler import Chat, Completion, SampleRequest
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
