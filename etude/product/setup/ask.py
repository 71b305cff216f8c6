"""Sets up the agent: with a person at a terminal by questions, and without one by what is given or plain to see.

Owns `Given`, `set_up` and `what_to_write`. Nothing is written before the model has answered, unless the person says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from etude.errors import ConfigError, EndpointError, Interrupted
from etude.harness.endpoint import EndpointConfig
from etude.product.setup.found import Candidate, candidates, looked_at
from etude.product.setup.silent import why_silent
from etude.product.setup.trial import Trial, tried
from etude.product.setup.written import remark, text_of, write_config
from etude.product.terminal.screen import Screen

_SHOWN = 12
"""Models of one endpoint that are listed; a provider has hundreds."""


@dataclass(frozen=True)
class Given:
    """What the command line says; empty is not said."""

    url: str = ""
    model: str = ""
    key_env: str = ""

    def candidate(self) -> Candidate:
        return Candidate("--endpoint", self.url, self.key_env, model=self.model)


@dataclass(frozen=True)
class Done:
    """What was set up; `before` is where a file that was there has been moved to, `remark` what to know of the
    model."""

    trial: Trial
    file: Path
    before: Path | None
    remark: str = ""


def set_up(given: Given, file: Path, screen: Screen | None, read: Callable[[str], str] = input) -> Done:
    """Find, ask, try, write. Without a `screen` nobody is asked: then ConfigError says what to write or to give, and
    EndpointError what the endpoint said. Raises Interrupted where the person leaves."""
    if screen is None:
        candidate, model = _alone(given, file)
        trial = _tried(candidate.config(model))
        if trial.error:
            raise EndpointError(f"{trial.said}; nothing was written")
        return _write(file, candidate, trial)
    try:
        candidate, trial = _Talk(screen, read).through(given)
    except (KeyboardInterrupt, EOFError):
        screen.piece("\n")
        raise Interrupted("nothing was written; `etude init` asks again") from None
    return _write(file, candidate, trial)


def what_to_write(file: Path, found: Sequence[Candidate]) -> str:
    """For who cannot be asked: the file, what stands in it, and what was found here."""
    said = (
        f"no model is named. Run `etude init` in a terminal, or `etude init --endpoint URL --model NAME`, or write "
        f'a table [endpoint] to {file}, with url = "http://127.0.0.1:8000/v1" (of any OpenAI-compatible server), '
        'model = "NAME" (as that server calls it) and, if it wants a key, key_env = "VARIABLE", with it'
    )
    here = "; ".join(f"{each.name} at {each.url}{_models(each)}" for each in found)
    return f"{said}. Found here: {here}" if here else f"{said}. No server was found on this machine's usual ports"


def _write(file: Path, candidate: Candidate, trial: Trial) -> Done:
    context = candidate.context(trial.config.model)
    return Done(trial, file, write_config(file, text_of(trial.config, context)), remark(context))


def _alone(given: Given, file: Path) -> tuple[Candidate, str]:
    """The one endpoint and model that can be meant."""
    if given.url:
        candidate = asyncio.run(looked_at(given.candidate()))
    else:
        found = asyncio.run(candidates(os.environ))
        having = [each for each in found if given.model in [model.name for model in each.models]]
        if len(meant := having or found) != 1:
            raise ConfigError(what_to_write(file, found))
        candidate = replace(meant[0], model=given.model or meant[0].model)
    model = candidate.model or (candidate.models[0].name if len(candidate.models) == 1 else "")
    if not model:
        if not candidate.answers:
            raise asyncio.run(why_silent(candidate))
        raise ConfigError(f"which model? give --model NAME: {candidate.name} at {candidate.url}{_models(candidate)}")
    return candidate, model


def _tried(config: EndpointConfig) -> Trial:
    """Tries it, and where the server takes no tools, with calls in the text."""
    trial = asyncio.run(tried(config))
    if trial.error and "tool" in trial.error.lower() and config.calls == "native":
        in_text = asyncio.run(tried(config.model_copy(update={"calls": "text"})))
        return trial if in_text.error else in_text
    return trial


def _models(candidate: Candidate) -> str:
    names = [model.name for model in candidate.models]
    if not names:
        return ""
    return f" ({', '.join(names)})" if len(names) <= 3 else f" ({len(names)} models)"


class _Talk:
    """The questions, in their order."""

    def __init__(self, screen: Screen, read: Callable[[str], str]) -> None:
        self._screen, self._read = screen, read

    def through(self, given: Given) -> tuple[Candidate, Trial]:
        candidate = asyncio.run(looked_at(given.candidate())) if given.url else self._endpoint()
        model = given.model or self._model(candidate)
        while True:
            self._screen.line((f"trying {model} …", "dim"))
            trial = _tried(candidate.config(model))
            if not trial.error:
                self._answered(candidate, trial)
                return candidate, trial
            self._screen.line(("✗ ", "bold red"), (trial.error, "red"))
            match self._next():
                case "e":
                    candidate = self._endpoint()
                    model = self._model(candidate)
                case "m":
                    model = self._model(candidate, again=True)
                case "k":
                    candidate = asyncio.run(looked_at(self._key(candidate)))
                case "w":
                    return candidate, trial

    def _answered(self, candidate: Candidate, trial: Trial) -> None:
        self._screen.line(("✓ ", "bold green"), trial.said)
        if not trial.calls:
            self._screen.line(("an agent needs a model that calls tools; this one may only talk", "yellow"), indent=2)
        if said := remark(candidate.context(trial.config.model)):
            self._screen.line((said, "yellow"), indent=2)

    def _endpoint(self) -> Candidate:
        self._screen.line(("looking for models …", "dim"))
        found = asyncio.run(candidates(os.environ))
        self._screen.gap()
        self._screen.line(("Which endpoint should the agent ask?", "bold"))
        for number, each in enumerate(found, 1):
            silent = "" if each.answers else " (it did not tell its models)"
            self._screen.line(
                (f"{number} ", "bold"), each.name, (f"  {each.url}", "cyan"), (f"{_models(each)}{silent}", "dim")
            )
        if not found:
            said = "No server was found on this machine's usual ports, and neither OPENAI_API_KEY nor ANTHROPIC_API_KEY"
            self._screen.line((f"{said} is set.", "dim"))
        self._screen.line(("or type the URL of any OpenAI-compatible server, http://127.0.0.1:8000/v1 say", "dim"))
        while True:
            typed = self._ask("endpoint", "1" if found else "")
            if typed.isdigit() and 1 <= int(typed) <= len(found):
                return found[int(typed) - 1]
            candidate = Candidate("the server", typed)
            try:
                candidate.config("?")
            except ConfigError:
                self._screen.line(("type a number of the list, or an address like http://127.0.0.1:8000/v1", "yellow"))
                continue
            return self._keyed(candidate)

    def _keyed(self, candidate: Candidate) -> Candidate:
        """It may want a key before it tells its models."""
        candidate = asyncio.run(looked_at(candidate))
        return candidate if candidate.answers else asyncio.run(looked_at(self._key(candidate)))

    def _key(self, candidate: Candidate) -> Candidate:
        """The variable is asked for, never the key."""
        while True:
            said = "variable with its key, as OPENAI_API_KEY; empty: it wants none"
            typed = self._ask(said, "").removeprefix("$")
            if not typed or typed in os.environ:
                return replace(candidate, key_env=typed, key_file=None)
            self._screen.line((f"${typed} is not set here: export it and start again, or name another", "yellow"))

    def _model(self, candidate: Candidate, again: bool = False) -> str:
        names = [model.name for model in candidate.models]
        usual = candidate.model or (names[0] if len(names) == 1 else "")
        if len(names) == 1 and usual == names[0] and not again:
            return usual
        self._screen.gap()
        self._screen.line(("Which model?", "bold"))
        for number, name in enumerate(names[:_SHOWN], 1):
            self._screen.line((f"{number} ", "bold"), name)
        if len(names) > _SHOWN:
            self._screen.line((f"… and {len(names) - _SHOWN} more; type a name", "dim"))
        while True:
            typed = self._ask("model", usual or ("1" if names else ""))
            if typed.isdigit() and 1 <= int(typed) <= len(names[:_SHOWN]):
                return names[int(typed) - 1]
            if typed:
                return typed

    def _next(self) -> Literal["e", "m", "k", "w"]:
        self._screen.line(
            ("e", "bold"), " another endpoint · ", ("m", "bold"), " another model · ", ("k", "bold"), " its key · ",
            ("w", "bold"), " write it all the same · ctrl-c leaves",
        )  # fmt: skip
        while True:
            match self._ask("what now", "e"):
                case "e" | "m" | "k" | "w" as chosen:
                    return chosen

    def _ask(self, what: str, usual: str) -> str:
        typed = self._read(f"  {what}{f' [{usual}]' if usual else ''}: ").strip()
        self._screen.typed()
        return typed or usual
