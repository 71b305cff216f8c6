"""What a session has left of its limits.

Owns `Budget`. A session with summaries reserves room for the request and the summary in every context, and cuts results
to fit into the rest. `require_room` refuses a session that could not have one turn. Decides no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.errors import ConfigError
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import PreparedInput
from etude.harness.state import SessionState, Stop
from etude.harness.tools.base import cut_middle
from etude.records import Limits

_SHORTEST_RESULT = 200


def require_room(opening: int, config: HarnessConfig, limits: Limits, reserved_tokens: int) -> None:
    """Raises ConfigError where a context that opens with so many tokens has no room for one turn: that is nothing an
    agent did, and so nothing that it may be judged by."""
    if opening + reserved_tokens + config.min_turn_tokens > limits.max_context_tokens:
        kept = f" and {reserved_tokens} are kept for a summary (harness.summary.max_tokens)" if reserved_tokens else ""
        raise ConfigError(
            f"no room for a single turn: the prompt takes {opening} of the context's {limits.max_context_tokens} tokens"
            f"{kept}; shorten the task, give fewer tools (harness.toolset, harness.tools), or take a model with a "
            "longer context"
        )


class Budget:
    """Counts against `limits`, in tokens as the session's own dialogue counts them."""

    def __init__(self, state: SessionState, config: HarnessConfig, limits: Limits, reserved_tokens: int) -> None:
        self._state, self._config, self._limits, self.reserved_tokens = state, config, limits, reserved_tokens

    @property
    def room(self) -> int:
        """Tokens that turns may still add to this context."""
        return self._limits.max_context_tokens - self.reserved_tokens - self._state.dialogue.tokens

    @property
    def whole_room(self) -> int:
        """Tokens the context has left, what is kept back included."""
        return self.room + self.reserved_tokens

    @property
    def sampled_left(self) -> int:
        return self._limits.max_sampled_tokens - self._state.usage["sampled_tokens"]

    @property
    def next_message(self) -> int:
        """The longest the next message may be."""
        return min(self.room, self.sampled_left, self._config.max_turn_tokens)

    @property
    def spent(self) -> Stop | None:
        """The limit that no fresh context would help against, if one is reached."""
        if self._state.usage["turns"] - self._state.turns_before_prompt >= self._limits.max_turns:
            return "turns"
        return "tokens" if self.sampled_left <= 0 else None

    def lacks_room(self, tokens: int) -> bool:
        """Whether this context has no room for another turn after so many more tokens."""
        return self.room - tokens < self._config.min_turn_tokens

    def exhausted(self, tokens: int) -> Stop | None:
        """The limit that is reached after so many more tokens, if any."""
        return self.spent or ("context" if self.lacks_room(tokens) else None)

    def fitted(self, results: Sequence[str], user: str | None = None) -> PreparedInput:
        """An observation; where contexts are summarised, one that leaves room for a turn, its longest results cut."""
        words = self._state.dialogue.observation(results, user)
        longest = max((len(text.encode("utf-8", "replace")) for text in results), default=0)
        while self.reserved_tokens and longest > _SHORTEST_RESULT and self.lacks_room(words.tokens):
            longest //= 2
            words = self._state.dialogue.observation([cut_middle(text, longest) for text in results], user)
        return words
