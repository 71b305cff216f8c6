"""A real server whose model follows a script: what clients say to it is read, rendered and sampled as ever.

The engine is the real one over a random decoder with a long context. Each answer is sampled under a constraint that
leaves one token at a time: the next of what the script says after this prompt. As a program it serves until it is
ended, with the script `shelling`, and prints its address, token and model in one line.
"""

import signal
from contextlib import contextmanager

import torch
from engine_serving import TOKEN, serving
from small_models import SHAPE, random_decoder

from etude.engine.config import EngineConfig
from etude.engine.server.service import Service
from etude.harness.prompt import render_call

MODEL = "etude-played"
CONTEXT = 131_072
"""Known clients begin with prompts of 60,000 tokens, by our small tokenizer."""


class Forced:
    """Leaves one token at a time, the end of the message last (`engine.running.Constraint`)."""

    def __init__(self, ids, vocabulary):
        self._ids, self._at, self._vocabulary = ids, 0, vocabulary

    def allowed(self):
        only = torch.zeros(self._vocabulary, dtype=torch.bool)
        only[self._ids[self._at]] = True
        return only

    def take(self, token):
        assert token == self._ids[self._at]
        self._at = min(self._at + 1, len(self._ids) - 1)


class Played(Service):
    """`script` is told a prompt as the model would see it, and says what the model answers."""

    script = staticmethod(lambda prompt: "Hello.")

    def choices(self, ids, sampling, **asked):
        said = self.script(self.chat.tokenizer.decode(list(ids), skip_special_tokens=False))
        ids_said = [*self.chat.encode(said), self.chat.end_id]
        held = asked.pop("constraint", None) or (lambda: Forced(ids_said, self.engine.decoder.config.vocab_size))
        return super().choices(ids, sampling, constraint=held, **asked)


def calling(name, arguments, then):
    """A script: calls a tool, and once it has the result says something about it. A prompt without that tool, such as
    one for the conversation's title, gets a few words."""

    def script(prompt):
        said = prompt.rpartition("<|im_start|>user\n")[2]
        if "<tool_response>" in said:
            return then
        return render_call(name, arguments) if f"\n{name}(" in prompt else "A title"

    return script


SHELLS = {"Bash": "command", "exec_command": "cmd", "bash": "command", "run_terminal_cmd": "command"}
"""What Claude Code, Codex, opencode, mini-swe-agent and Etude's own agent call their shell, and its argument."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""How mini-swe-agent is told that a task is done."""


def shelling(command, then):
    """A script for any of these agents: calls its shell, and once it has the result says so, or submits."""

    def script(prompt):
        name = next((name for name in SHELLS if f"\n{name}(" in prompt), None)
        if name is None:
            return "A title"
        done = "<tool_response>" in prompt.rpartition("<|im_start|>user\n")[2]
        if done and SUBMIT not in prompt:
            return then
        given = {SHELLS[name]: SUBMIT if done else command}
        takes = prompt.partition(f"\n{name}(")[2].partition(")")[0].split(", ")
        return render_call(name, given | ({"description": "Makes it"} if "description" in takes else {}))

    return script


@contextmanager
def playing(script):
    """A server whose model follows `script`."""
    shape = SHAPE.model_copy(update={"max_context": CONTEXT, "layers": 1, "heads": 2, "width": 16})
    engine = EngineConfig(cache_tokens=CONTEXT)
    with serving(random_decoder(shape=shape), engine=engine, kind=Played, name=MODEL) as made:
        made.service.script = script
        yield made


if __name__ == "__main__":
    with playing(shelling("echo made here | tee here.txt", "The file is there.")) as made:
        print(made.url, TOKEN, MODEL, flush=True)
        signal.pause()
