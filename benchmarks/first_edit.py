"""How likely a model is to mend a bug in real code with its first edit: no chance in it, and minutes in place of hours.

    python benchmarks/first_edit.py MODEL... [--base MODEL] [--threads 1]

Each development task of real code (never the exam) is played by the script that hunts bugs until it makes its first
edit. In place of that stands the edit that puts back the author's line, and each model says how likely it is to make
it: the line, given the session so far and the edit's path, and the change, given the line. Models that share a
tokenizer are asked the same tokens. This is what 100 tasks tell of choices between models, where one session of each
would leave them eight points of uncertainty; what a whole session solves, `etude bench` says. Paired intervals are by
bootstrap over tasks, beside --base (by default the first). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from etude.bench.config import BenchConfig
from etude.bench.measures import bootstrap
from etude.config import load_recipe
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.harness.config import HarnessConfig
from etude.harness.prompt import render_calls
from etude.harness.scripted import ScriptedSampler
from etude.models.chat import ChatRenderer, open_chat
from etude.models.checkpoint import load_checkpoint
from etude.records import Task
from etude.tasks.hunter import Hunter
from etude.tasks.real import real_tasks
from etude.trainer.demonstrations import play_script
from etude.trainer.documents import Document, message_runs
from etude.trainer.supervised import token_nlls

RECIPE = Path(__file__).parents[1] / "recipes" / "realcode-bench.toml"
LINE, CHANGE = "<parameter=old>\n", "\n</parameter>\n<parameter=new>\n"


class Edit(NamedTuple):
    """A session up to its first edit, which puts the author's line back."""

    session: Document
    """Up to the edit's end; said are the line and what it becomes, each up to its end."""
    line: int
    """How many of the tokens that are said name the line."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--base", type=Path, help="the model that the others are compared with")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base = options.base or options.models[0]
    models = list(dict.fromkeys([base, *options.models]))
    edits = asyncio.run(first_edits(real_tasks("eval"), open_chat(base)))
    found = {str(model): likely(model, edits) for model in models}
    figures: dict[str, Any] = {"tasks": len(edits)}
    for model, each in found.items():
        more = (each["edit"] - found[str(base)]["edit"]).tolist()
        figures[model] = {name: round(float(values.mean()), 4) for name, values in each.items()}
        figures[model]["more_than_base"] = [round(value, 4) for value in (fmean(more), *bootstrap(more))]
        print(model, figures[model], flush=True)
    print(json.dumps(figures))


async def first_edits(tasks: list[Task], chat: ChatRenderer) -> list[Edit]:
    """Of all that the script edits, with harness and limits of the benchmark."""
    config, backend = load_recipe(RECIPE, BenchConfig), open_backend()
    try:
        found = [await _first_edit(task, chat, config.harness, backend) for task in config.limits.given_to(tasks)]
        return [edit for edit in found if edit is not None]
    finally:
        await backend.close()


async def _first_edit(task: Task, chat: ChatRenderer, harness: HarnessConfig, backend: Backend) -> Edit | None:
    script = ScriptedSampler(Hunter(task.instruction, 0).next_message, chat)
    result = await play_script(script, task, backend, chat, harness, 0)
    segment = result.segments[0]
    for start, end in message_runs(segment.sampled):
        said = chat.decode(segment.token_ids[start:end].tolist())
        if LINE in said:
            return _right_edit(task, said, segment.token_ids[:start], chat)
    return None


def _right_edit(task: Task, said: str, before: np.ndarray, chat: ChatRenderer) -> Edit:
    """The message with the author's line in its edit, in place of what the script tried."""
    facts = task.provenance
    lines = task.files[facts["path"]].decode().split("\n")
    wrong = next(line for line in lines if line.strip() == facts["old"].strip())
    right = wrong.replace(facts["old"].strip(), facts["new"].strip())
    call = render_calls([("edit_file", {"path": facts["path"], "old": wrong, "new": right})])
    text = said[: said.index("<tool_call>")] + call
    ids = chat.encode(text)
    named, changed = text.index(LINE) + len(LINE), text.index(CHANGE) + len(CHANGE)
    at = np.array([len(chat.decode(ids[:count])) for count in range(len(ids) + 1)])
    begins, ends = at[:-1], at[1:]  # a token may hold the end of what is before the line and its indentation
    edit = (ends > named) & (begins < text.index("\n</function>", changed))
    said_or_not = np.concatenate([np.zeros(len(before), bool), edit])
    return Edit(Document(np.concatenate([before, ids]), said_or_not), int(np.count_nonzero(edit & (begins < changed))))


def likely(model: Path, edits: list[Edit]) -> dict[str, np.ndarray]:
    """The probability of each task's line, of the change given the line, and of both. [tasks]"""
    decoder, _ = load_checkpoint(model)
    losses = [(edit.line, token_nlls(decoder, [edit.session]).double()) for edit in edits]
    line = np.array([_probability(each[:count]) for count, each in losses])
    change = np.array([_probability(each[count:]) for count, each in losses])
    return {"line": line, "change": change, "edit": line * change}


def _probability(losses: torch.Tensor) -> float:
    return float(torch.exp(-losses.sum()))


if __name__ == "__main__":
    main()
