"""A warm start by the hunter: what it mends by trying is learned, with the tries that were none."""

import asyncio
import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from shelf_tasks import LABEL, SHARE

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError, Exit
from etude.harness.cost import SessionCost
from etude.models.chat import open_chat
from etude.tasks.harbor import write_task
from etude.trainer.attempts import Attempt
from etude.trainer.documents import Document
from etude.trainer.hunting import HunterSource
from etude.trainer.lessons import offer
from etude.trainer.taught import Kept, TaughtSession, TaughtSessions
from etude.trainer.warm_start import WarmStartConfig

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/etude-tiny"
RECIPE = ROOT / "recipes/realcode-start.toml"
HOPELESS = replace(
    LABEL, id="calls-hopeless", instruction="python3 check.py fails: there is a bug in nothing in shelf.py. Fix it."
)


def longer(model):
    """The shipped model with room for sessions of several tries."""
    shutil.copytree(MODEL, model)
    about = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**about, "max_position_embeddings": 4096}))


def pretrain(directory, out, *sets):
    given = [f'model="{directory.parent / "model"}"', f'directories=["{directory}"]', "frozen=", "threads=1"]
    given += ["tokens=1500", "tokens_per_step=800", "sessions=9"]
    given += ["source.attempts=3", "source.misspell=0.5", "source.per_task=1"]
    given += ["limits.max_context_tokens=4096", "limits.max_sampled_tokens=3000", "limits.max_turns=30", *sets]
    overrides = [part for each in given for part in ("--set", each)]
    return main(["pretrain", str(RECIPE), "--out", str(out), "--json", *overrides])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tasks, a warm start of them, and the lines that it has kept."""
    home = tmp_path_factory.mktemp("hunting")
    longer(home / "model")
    for task in (LABEL, SHARE, HOPELESS):
        write_task(task, home / "tasks" / task.id)
    assert pretrain(home / "tasks", home / "out") == 0
    head, *lines = [json.loads(line) for line in (home / "out/sessions.jsonl").read_text().splitlines()]
    return home, head, lines


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_what_passed_is_learned_and_a_session_that_gave_up_is_dropped(made, capsys):
    home, _, lines = made
    assert pretrain(home / "tasks", home / "out") == 0  # nothing is left to be played
    found = told(capsys)
    solved = {line["task"] for line in lines if line["solved"]}
    assert found["played"] == len(lines) == 9 and solved == {LABEL.id, SHARE.id}
    assert found["kept"] == 2 and found["dropped"]["failed"] >= 3 and sum(found["dropped"].values()) == 7
    assert found["slips"] > 0 and found["tries"] == sum(first(lines, task)["tries"] for task in solved)
    assert not any(line["documents"] for line in lines if not line["solved"])
    before, after = (load_file(each / "model.safetensors") for each in (MODEL, home / "out/model"))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def first(lines, task):
    """The notes of the first attempt that solved it."""
    return min((line["number"], line["notes"]) for line in lines if line["solved"] and line["task"] == task)[1]


def test_of_each_task_the_first_session_that_passed_is_learned(tmp_path):
    """Not the shortest: whoever sees the lucky ones alone never learns to go on."""
    attempts = [Attempt(task, 0, number) for number in range(3) for task in (LABEL, SHARE)]
    tries = {f"0/{LABEL.id}#0": 9, f"0/{LABEL.id}#2": 4, f"0/{SHARE.id}#0": 5, f"0/{SHARE.id}#1": 7}
    kept = Kept(per_task=1, longest=100)

    def session(attempt):
        tried = tries.get(attempt.id, 0)
        documents = (Document(np.arange(20, dtype=np.int32), np.arange(20) < 15 - tried),) if tried else ()
        why, notes = "passed" if tried else "failed", {"tries": tried or 3, "slips": 1}
        return TaughtSession(
            attempt.id, 0, attempt.task.id, attempt.number, "", bool(tried), why, True, documents, SessionCost(), notes
        )

    async def write(sessions):
        for attempt in attempts[:-1]:  # the last was never played
            await sessions.add(session(attempt))

    with TaughtSessions(tmp_path, {}) as sessions:
        asyncio.run(write(sessions))
        offer(attempts, sessions, kept)
    assert sorted(int(each.sampled.sum()) for each in kept.balanced(1)) == [6, 10]
    assert kept.notes == {"tries": 14, "slips": 2}
    assert kept.dropped == {"enough_of_its_task": 2, "failed": 1, "not_played": 1}


_CALL = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
_ANSWER = re.compile(r"<tool_response>\n(.*?)</tool_response>", re.DOTALL)


def test_what_failed_is_read_and_not_learned(made):
    """Call by call: those that are not learned were refused, and what stands beside them is learned, guesses too."""
    chat, (_, _, lines) = open_chat(MODEL), made
    masked = guesses = 0
    for line in lines:
        for document in line["documents"]:
            text = chat.tokenizer.decode(document["ids"], skip_special_tokens=False)
            expected = ""
            for part in text.split("<|im_start|>assistant\n")[1:]:
                said, _, after = part.partition("<|im_end|>")
                for call, answer in itertools.zip_longest(_CALL.findall(said), _ANSWER.findall(after), fillvalue=""):
                    refused = answer.startswith(("error: ", "no matches"))
                    masked += refused
                    guesses += not refused and "<function=edit_file>" in call and "\nFAIL " in after
                    expected += "" if refused else call
            ids = [id for id, mark in zip(document["ids"], document["sampled"], strict=True) if mark == "1"]
            learned = chat.tokenizer.decode(ids, skip_special_tokens=False)
            assert "".join(_CALL.findall(learned)) == expected
            assert set(_CALL.sub("", learned).replace("<|im_end|>", "").split()) <= {"Done."}
    solved = [line["notes"] for line in lines if line["solved"]]
    failed, slips, tries = (sum(notes[each] for notes in solved) for each in ("calls_failed", "slips", "tries"))
    assert masked == failed == slips > 0
    assert guesses == tries - len(solved) > 0, "wrong tries are learned"


def test_slips_that_are_asked_for_and_never_happen_are_an_error(made, capsys):
    home, _, _ = made
    assert pretrain(home / "tasks", home / "never", "source.misspell=0.000001") == Exit.FAILED
    assert "a slip; play more sessions, or set it to 0" in capsys.readouterr().err


def test_sessions_stand_when_more_is_learned_of_them_and_not_when_another_seed_would_play(made, capsys):
    home, _, _ = made
    text = (home / "out/sessions.jsonl").read_text()
    assert pretrain(home / "tasks", home / "out", "tokens=900", "source.per_task=2") == 0
    assert told(capsys)["kept"] > 2 and (home / "out/sessions.jsonl").read_text() == text
    for changed, said in (("seed=1", "seed"), ("source.misspell=0.1", "source")):
        assert pretrain(home / "tasks", home / "out", changed) == Exit.BAD_INPUT
        assert f"made with another `{said}`" in capsys.readouterr().err


def test_what_was_played_counts_the_tasks_that_are_named_now(made, capsys):
    home, _, lines = made
    write_task(LABEL, home / "one" / LABEL.id)
    assert pretrain(home / "one", home / "out", "source.per_task=3") == 0  # nothing is left to be played
    found = told(capsys)
    assert found["played"] == found["kept"] + sum(found["dropped"].values()) == 3 < len(lines)


def test_the_recipe_plays_directories_with_the_small_tools():
    start = load_recipe(RECIPE, WarmStartConfig)
    assert start.source == HunterSource(attempts=4, misspell=0.15) and start.format == "bf16"
    for sets in (["directories=", "rungs=[1]"], ["harness.toolset=agent"]):
        with pytest.raises(ConfigError, match="a hunter plays task directories"):
            load_recipe(RECIPE, WarmStartConfig, sets)
