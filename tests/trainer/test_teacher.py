"""A teacher behind a real HTTP endpoint: what it solved is learned as our model would have said it."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from etude.cli.main import main
from etude.environments.backends import open_backend
from etude.environments.base import SandboxSpec
from etude.errors import Exit
from etude.harness.config import HarnessConfig
from etude.harness.prompt import render_calls
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import run_session
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint
from etude.tasks.ladder import ladder_task
from etude.trainer.lessons import FIRST_SEED

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / each) for each in ("harness", "engine")]
from engine_serving import TOKEN, serving  # noqa: E402
from scripted_openai import Reply, ScriptedServer  # noqa: E402

MODEL = ROOT / "models/etude-tiny"
KEY = "sk-teacher-0123456789abcdef"
TASKS = [ladder_task(1, "train", FIRST_SEED + number) for number in range(3)]
PRICED = ("source.price={input=1000000, output=2000000}",)


def pretrain(out, url, *sets):
    given = [
        f'model="{MODEL}"', "threads=1", "tokens=1500", "tokens_per_step=800", "rungs=[1]", "sessions=3",
        f'source.endpoint.url="{url}"', *sets,
    ]  # fmt: skip
    overrides = [part for each in given for part in ("--set", each)]
    recipe = str(ROOT / "recipes/teacher-start.toml")
    return main(["pretrain", recipe, "--out", str(out), "--json", *overrides])


def task_of(body):
    said = json.dumps(body["messages"])
    return next(task for task in TASKS if json.dumps(task.instruction)[1:-1] in said)


def edit_of(task):
    facts = task.provenance
    return ("edit_file", {"path": facts["path"], "old": facts["old"], "new": facts["new"]})


def solving(body):
    """Says what it is about to do, mends the file, and is done; knows every task."""
    if any(message["role"] == "tool" for message in body["messages"]):
        return Reply("Done.")
    return Reply("I mend it.", calls=[edit_of(task_of(body))])


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def lines_of(out):
    return [json.loads(line) for line in (out / "sessions.jsonl").read_text().splitlines()][1:]


async def _by_itself(task):
    """The same words, said by our own model."""
    chat, backend = open_chat(MODEL), open_backend()
    left = iter([f"I mend it.\n{render_calls([edit_of(task)])}", "Done."])
    try:
        sandbox = await backend.create(SandboxSpec(files=task.files))
        sampler = ScriptedSampler(lambda _: next(left), chat)
        return await run_session(
            task.instruction, sandbox, sampler, chat, HarnessConfig(), task.limits, session_id="own", seed=0
        )
    finally:
        await backend.close()


def test_a_solved_session_is_learned_token_for_token_as_our_model_would_have_had_it(tmp_path, capsys):
    with ScriptedServer(solving) as server:
        assert pretrain(tmp_path, server.url, *PRICED) == 0
        said = told(capsys)
        assert len(server.requests) == 6 and server.bodies[0]["tools"], "told natively what tools there are"
    assert said["played"] == said["kept"] == 3 and not said["dropped"] and said["messages"] == 6
    assert said["cost"] == {"requests": 6, "prompt": 600, "cached": 0, "completion": 60, "money": 720.0}
    for line in lines_of(tmp_path):
        task = next(task for task in TASKS if task.id == line["task"])
        [segment] = asyncio.run(_by_itself(task)).segments
        [document] = line["documents"]
        assert document["ids"] == segment.token_ids.tolist()
        assert [mark == "1" for mark in document["sampled"]] == segment.sampled.tolist()
        assert [each["text"] for each in line["events"] if each["kind"] == "completion"] == ["I mend it.", "Done."]
    before, after = load_file(MODEL / "model.safetensors"), load_file(tmp_path / "model/model.safetensors")
    assert any(not torch.equal(each, before[name]) for name, each in after.items())


def test_what_was_paid_for_is_not_asked_for_again(tmp_path, capsys):
    with ScriptedServer(solving) as server:
        assert pretrain(tmp_path, server.url, *PRICED) == 0
        text = (tmp_path / "sessions.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "sessions.jsonl").write_text("".join(text[:-1]) + text[-1][:50])  # killed while it wrote
        assert pretrain(tmp_path, server.url, *PRICED, "tokens=900") == 0, "it may be learned for longer or shorter"
        assert len(server.requests) == 6 + 2 and len(lines_of(tmp_path)) == 3
        capsys.readouterr()
        assert pretrain(tmp_path, server.url, *PRICED) == 0
        assert len(server.requests) == 8 and told(capsys)["cost"]["requests"] == 6
        assert pretrain(tmp_path, server.url, *PRICED, "source.endpoint.model=other") == Exit.BAD_INPUT
    assert "was made with another `source`" in capsys.readouterr().err


def test_what_went_wrong_is_read_and_not_learned(tmp_path, capsys):
    def clumsy(body):
        results = sum(message["role"] == "tool" for message in body["messages"])
        if results == 0:
            return Reply("Looking.", calls=[("read_file", {"file": "a.py"})])
        return Reply(calls=[edit_of(task_of(body))]) if results == 1 else Reply("Done.")

    with ScriptedServer(clumsy) as server:
        assert pretrain(tmp_path, server.url, "sessions=1") == 0
    said = told(capsys)
    assert said["messages"] == 3 and said["malformed"] == 1 and "money" not in said["cost"]
    chat, [line] = open_chat(MODEL), lines_of(tmp_path)
    [document] = line["documents"]
    learned = [token for token, mark in zip(document["ids"], document["sampled"], strict=True) if mark == "1"]
    whole = chat.tokenizer.decode(document["ids"], skip_special_tokens=False)
    assert "Looking." in whole and "read_file" in whole
    assert "Looking." not in chat.decode(learned) and "edit_file" in chat.decode(learned)


def test_what_was_not_solved_is_kept_on_the_disk_and_dropped(tmp_path, capsys):
    def lazy(body):
        return Reply("Done.") if task_of(body) is TASKS[0] else solving(body)

    with ScriptedServer(lazy) as server:
        assert pretrain(tmp_path, server.url) == 0
    said = told(capsys)
    assert said["played"] == 3 and said["kept"] == 2 and said["dropped"] == {"failed": 1}
    [failed] = [line for line in lines_of(tmp_path) if not line["solved"]]
    assert failed["task"] == TASKS[0].id and not failed["documents"] and failed["events"]


def test_no_session_is_begun_once_enough_is_spent(tmp_path, capsys):
    with ScriptedServer(solving) as server:
        limited = ("source.most_cost=200", "concurrency=1")  # a session costs 240
        assert pretrain(tmp_path, server.url, *PRICED, *limited) == 0
        assert len(server.requests) == 2
    said = told(capsys)
    assert said["played"] == 1 and said["dropped"] == {"not_played": 2} and said["cost"]["money"] == 240
    assert pretrain(tmp_path / "b", "http://127.0.0.1:9/v1", "source.most_cost=1") == Exit.BAD_INPUT
    assert "give source.price too" in capsys.readouterr().err


def test_an_endpoint_that_hides_what_it_costs_is_not_paid_without_end(tmp_path, capsys):
    limited = (*PRICED, "source.most_cost=200", "concurrency=1")
    with ScriptedServer(lambda body: replace(solving(body), usage=False)) as server:
        assert pretrain(tmp_path / "a", server.url, *limited) == Exit.FAILED
        assert len(server.requests) == 3, "one a session"
    assert "does not say how many tokens it has used" in capsys.readouterr().err
    with ScriptedServer(lambda body: replace(solving(body), completion_tokens=-1000)) as server:
        assert pretrain(tmp_path / "b", server.url, *limited) == 0
    assert told(capsys)["cost"]["money"] == 200 and len(server.requests) == 2


def test_the_key_is_sent_and_written_nowhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TEACHERS_KEY", KEY)

    def telling(body):
        said = solving(body)
        return Reply(f"I was asked with {KEY}.") if said.text == "Done." else said

    with ScriptedServer(telling) as server:
        assert pretrain(tmp_path / "a", server.url, "source.endpoint.key_env=TEACHERS_KEY", "sessions=1") == 0
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    [document] = lines_of(tmp_path / "a")[0]["documents"]
    assert "I was asked with [key]." in open_chat(MODEL).decode(document["ids"]), "nor is it learned"
    refused = [Reply(status=401, body={"error": {"message": f"no such key: {KEY}"}})] * 20
    with ScriptedServer(refused) as server:
        assert pretrain(tmp_path / "b", server.url, "source.endpoint.key_env=TEACHERS_KEY") == Exit.FAILED
        assert len(server.requests) == 3, "a refusal is not asked for again"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4 and not any(KEY.encode() in path.read_bytes() for path in files)
    printed = capsys.readouterr()
    assert KEY not in printed.err + printed.out and "3 sessions" not in printed.out


def test_a_served_model_of_ours_teaches(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TEACHERS_KEY", TOKEN)
    decoder, tokenizer = load_checkpoint(MODEL)
    with serving(decoder, tokenizer) as server:
        given = ("source.endpoint.model=small", "source.endpoint.key_env=TEACHERS_KEY", "sessions=12")
        assert pretrain(tmp_path, f"{server.url}/v1", *given) == 0
    said = told(capsys)
    assert said["played"] == 12 and said["kept"] >= 1 and said["cost"]["requests"] >= 12
    chat = open_chat(MODEL)
    for line in lines_of(tmp_path):
        for document in line["documents"]:
            assert chat.decode(document["ids"]).count("<tool_response>") >= 1
