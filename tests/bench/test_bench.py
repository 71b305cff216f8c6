"""A benchmark of known skill: what it finds, what it does with failures of ours, and that a kill changes nothing."""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from killed_bench import CONFIG
from proofs import often, one_of_each
from scripted_openai import Reply, ScriptedServer

from etude.bench.attempts import Table, play_attempt
from etude.bench.config import BenchConfig, SolutionPolicy, TaskSetConfig
from etude.bench.page import write_page
from etude.bench.policies import open_policy
from etude.bench.results import read_run, session_events
from etude.bench.summary import compare, summarise
from etude.bench.tasks import load_tasks
from etude.bench.text import comparison_text, run_summary
from etude.cli.bench import add_arguments, config_of
from etude.cli.main import main
from etude.environments.namespace import NamespaceBackend
from etude.errors import CheckpointError, ConfigError, EtudeError
from etude.harness.prompt import PERSONA
from etude.rewards.judge.aspects import ASPECTS
from etude.rewards.judgement import Judges
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task

ROOT = Path(__file__).parents[2]


def test_a_known_skill_is_found_again(bench):
    run = bench(tasks={"ladder": 3}, attempts=4, concurrency=16)
    found = summarise(run)["pass"]["1"]
    assert len(run.attempts) == run.planned == 96
    assert found["low"] <= 0.6 <= found["high"] and found["high"] - found["low"] < 0.3
    assert {attempt.why for attempt in run.attempts} == {"passed", "failed"}
    chance = summarise(run)["pass"]["4"]
    assert chance["low"] <= 1 - 0.4**4 <= chance["high"]


@pytest.mark.proof(5)
def test_all_tasks_of_every_set_can_be_solved(bench):
    run = bench(tasks={"ladder": 1, "heldout": 1, "real": "eval"}, policy={"kind": "solution"}, concurrency=8,
                limits={"max_context_tokens": 100_000, "max_sampled_tokens": 100_000})  # fmt: skip
    assert [attempt.task for attempt in run.attempts if not attempt.solved] == []
    assert set(summarise(run)["splits"]) == {"eval", "heldout", "real"}


@pytest.mark.proof(8)
def test_a_hundred_at_once_and_none_is_lost(bench):
    run = bench(tasks={"ladder": 5}, attempts=3, concurrency=100, policy={"kind": "solution"})
    assert [attempt for attempt in run.attempts if not attempt.solved] == []
    assert len(run.attempts) == 120


def test_killed_and_resumed_it_is_the_same_file(bench, tmp_path):
    whole = bench("whole", **CONFIG)
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/bench'}"}
    command = [sys.executable, str(ROOT / "tests/bench/killed_bench.py"), str(tmp_path / "killed")]
    kills = (7, 1, 0)[: often(1, 3)]
    codes = [subprocess.run([*command, str(most)], env=variables, timeout=120).returncode for most in kills]
    assert codes == [-signal.SIGKILL] * len(kills)
    assert len(read_run(tmp_path / "killed").attempts) < whole.planned
    again = bench("killed", resume=True, **CONFIG)
    same = [(run.directory / "results.jsonl").read_bytes() for run in (whole, again)]
    assert same[0] == same[1] and len(same[0].splitlines()) == 1 + whole.planned
    for attempt in again.attempts:
        assert [event.kind for event in session_events(again, attempt)][-1] == "end"


@pytest.mark.parametrize("cut", one_of_each(1.2, [40, 0, 1, 300]))
def test_a_torn_line_is_played_or_written_anew(bench, tmp_path, cut):
    """As a kill in the middle of a write, or between the two files, leaves them."""
    directory = bench(**CONFIG).directory
    whole = (directory / "results.jsonl").read_bytes()
    (directory / "results.jsonl").write_bytes(whole[: len(whole) - cut])
    journal = (directory / "attempts.jsonl").read_bytes()
    (directory / "attempts.jsonl").write_bytes(journal if cut else journal + b'{"attempt": {"ta')
    bench(resume=True, **CONFIG)
    assert (directory / "results.jsonl").read_bytes() == whole


def test_only_the_same_run_is_gone_on_with(bench, tmp_path):
    with pytest.raises(ConfigError, match="no run to resume"):
        bench(resume=True, **CONFIG)
    directory = bench(**CONFIG).directory
    with pytest.raises(ConfigError, match="--resume"):
        bench(**CONFIG)
    with pytest.raises(ConfigError, match="attempts 2 is now 3"):
        bench(resume=True, **{**CONFIG, "attempts": 3})
    text = (directory / "results.jsonl").read_text().replace('"solved": true', '"solved": false', 1)
    (directory / "results.jsonl").write_text(text)
    with pytest.raises(CheckpointError, match="not what attempts"):
        bench(resume=True, **CONFIG)


def test_results_that_are_damaged_are_one_sentence(bench, tmp_path, capsys):
    """They may be a stranger's: each of these was a traceback."""
    keys = {"tasks": {"directories": write_tasks(tmp_path / "tasks", 1)}, "policy": {"kind": "solution"}}
    directory = bench(**keys).directory
    sound = {name: (directory / name).read_text() for name in ("results.jsonl", "attempts.jsonl")}
    head, result = sound["results.jsonl"].splitlines()
    begun = json.loads(sound["attempts.jsonl"])
    attempt = begun["attempt"]
    odd_heads = ["garbage", "[]", "3", "[" * 100_000, json.dumps({"schema": 1}), head.replace('"kind"', '"find"')]
    odd_fields = [{"attempt": "../../x"}, {"task": "../x\n"}, {"usage": [1]}, {"conduct": {"speed": 1}}, {"speed": 1}]
    odd_attempts = [{}, *({**attempt, **field} for field in [*odd_fields, {"solved": "yes"}])]
    odd = [("results.jsonl", f"{each}\n{result}\n") for each in odd_heads]
    odd += [("results.jsonl", f"{head}\n{json.dumps(each)}\n") for each in odd_attempts]
    odd += [("attempts.jsonl", json.dumps({**begun, "attempt": each}) + "\n") for each in odd_attempts]
    odd += [("attempts.jsonl", text + "\n") for text in ("{}", "3\n{}", json.dumps({**begun, "seconds": "long"}))]
    for name, text in odd:
        (directory / name).write_text(text)
        assert main(["bench", "report", str(directory)]) == 1, text[:100]
        said = capsys.readouterr().err
        assert f"{name}:" in said and "restore it from a copy" in said and said.count("\n") == 1
        if name == "attempts.jsonl" or text.startswith(tuple(odd_heads[:4])):
            with pytest.raises(CheckpointError, match=f"{name}:.: damaged"):
                bench(resume=True, **keys)
        for other, content in sound.items():
            (directory / other).write_text(content)
    assert main(["bench", "report", str(directory)]) == 0
    for name in sound:
        (directory / name).unlink()
        (directory / name).mkdir()
        for resume in (False, True):
            with pytest.raises(ConfigError, match=f"{name}: is no file of results; move it away"):
                bench(resume=resume, **keys)
        (directory / name).rmdir()
        (directory / name).write_text(sound[name])


def test_a_policy_that_says_little_and_a_session_without_counts_are_reported(bench, tmp_path):
    run = bench(tasks={"directories": write_tasks(tmp_path / "tasks", 1)}, policy={"kind": "solution"})
    for kind in ("endpoint", "acp", "solution", "hunter", "checkpoint"):
        bare = [replace(attempt, usage={}) for attempt in run.attempts]
        told = summarise(replace(run, head={**run.head, "policy": {"kind": kind}}, attempts=tuple(bare)))
        assert "1 tasks, 1 of 1 attempts judged" in run_summary(told)


def write_tasks(directory, count):
    for seed in range(count):
        write_task(ladder_task(1, "eval", seed), directory / f"t{seed}")
    return [str(directory)]


def endpoint(server, **more):
    keys = {"url": server.url, "model": "scripted", "attempts": 1, **more}
    return {"kind": "endpoint", "endpoint": keys}


WIDE = {"max_context_tokens": 100_000, "max_sampled_tokens": 100_000}


def test_an_endpoint_plays_through_the_same_harness(bench, tmp_path):
    def answer(body):
        if body["messages"][-1]["role"] == "tool":
            return Reply("Done.")
        return Reply(calls=[("read_file", {"path": "check.py"})])

    with ScriptedServer(answer) as server:
        run = bench(tasks={"directories": write_tasks(tmp_path / "tasks", 2)}, policy=endpoint(server), limits=WIDE)
        system = server.requests[0].body["messages"][0]["content"]
    assert system.startswith(PERSONA)
    assert [(attempt.solved, attempt.conduct.looked, attempt.conduct.edited) for attempt in run.attempts] == [
        (False, 1, False)
    ] * 2


def test_what_our_machinery_fails_is_named_and_never_a_zero(bench, tmp_path):
    """One task's endpoint breaks for good, another's once."""
    broken = {"lasting": 10, "passing": 1}

    def answer(body):
        told = str(body["messages"])
        which = "lasting" if tasks[0] in told else "passing"
        broken[which] -= 1
        return Reply(status=500) if broken[which] >= 0 else Reply("Done.")

    directories = write_tasks(tmp_path / "tasks", 2)
    tasks = [ladder_task(1, "eval", seed).instruction for seed in range(2)]
    assert tasks[0] != tasks[1]
    keys = {"tasks": {"directories": directories}, "limits": WIDE, "retry_pause_s": 0.01}
    with ScriptedServer(answer) as server:
        run = bench(policy=endpoint(server), **keys)
    first, second = run.attempts
    assert first.solved is None and "500" in first.why and second.solved is False
    summary = summarise(run)
    assert summary["judged"] == 1 and summary["pass"]["1"]["tasks"] == 1
    assert summary["no_verdict"] == [{"task": first.task, "attempt": 0, "why": first.why}]
    rows = [json.loads(line) for line in (run.directory / "attempts.jsonl").read_text().splitlines()]
    assert {row["attempt"]["task"]: row["plays"] for row in rows} == {first.task: 3, second.task: 2}


class Vanishing(NamespaceBackend):
    """A real one, but somebody takes it away when its second sandbox is asked for: the verifier's."""

    made = 0

    async def create(self, spec):
        self.made += 1
        if self.made == 2:
            await self.close()
        return await super().create(spec)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_sandbox_that_the_verifier_cannot_have_is_no_verdict(retries):
    async def played():
        config = BenchConfig(policy=SolutionPolicy(skill=1.0), retries=retries, retry_pause_s=0.0)
        backend = Vanishing()
        try:
            async with asyncio.timeout(120), open_policy(config.policy, config.harness, 0) as policy:
                table = Table(policy, backend, Judges(), config)
                return await play_attempt(ladder_task(1, "eval", 0), 0, table), backend.made
        finally:
            await backend.close()

    done, made = asyncio.run(played())
    assert done.attempt.solved is None and "closed" in done.attempt.why and not done.events
    assert done.plays == retries + 1 and made == 2 + retries, "it is played anew"
    assert done.attempt.why.startswith("verifier of ") == (retries == 0)


def test_an_endpoint_that_is_down_ends_the_run_and_counts_nothing(bench, tmp_path):
    keys = {"tasks": {"directories": write_tasks(tmp_path / "tasks", 4)}, "limits": WIDE}
    keys |= {"retry_pause_s": 0.0, "retries": 0, "failures_in_a_row": 3, "concurrency": 2}
    said = pytest.raises(EtudeError, match=r"3 attempts in a row.*--resume")
    with ScriptedServer(lambda body: Reply(status=500)) as server, said:
        bench(policy=endpoint(server), **keys)
    assert len((tmp_path / "run" / "results.jsonl").read_text().splitlines()) == 1


def test_two_runs_are_compared_task_by_task(bench):
    weak = bench("weak", tasks={"ladder": 2}, attempts=2, policy={"kind": "solution", "skill": 0.3})
    strong = bench("strong", tasks={"ladder": 2}, attempts=1, policy={"kind": "solution", "skill": 1.0})
    found = compare(weak, strong)
    assert found["p"] < 0.01 and found["low"] > 0 and found["worse"] == [] and found["tasks"] == 16
    assert len(found["better"]) + found["alike"] == 16 and found["second"] == {"name": "strong", "rate": 1.0}
    alike, back = compare(weak, weak), compare(strong, weak)
    assert (alike["p"], alike["difference"], alike["verdict"]) == (1.0, 0.0, "no difference")
    assert (found["verdict"], back["verdict"]) == ("better", "worse") and back["worse"] == found["better"]
    assert compare(strong, strong)["test"].startswith("McNemar")
    said = comparison_text(found)
    assert "strong is better than weak. Two equal policies would differ by this much in fewer than 1 of 1,000" in said
    assert f"better: {', '.join(found['better'][:5])} and {len(found['better']) - 5} more" in said
    few = compare(*(replace(run, attempts=run.attempts[:1]) for run in (weak, strong)))
    said = comparison_text(few)
    assert few["difference"] > 0
    assert "That may be luck. Two equal policies would differ by this much in 100 of 100 such comparisons" in said
    assert "strong did better on 1 task, worse on 0 tasks" in said and "points" not in said
    assert few["verdict"] == "may be luck" and few["said"] in said
    other = bench("other", tasks={"ladder": 1}, limits={"max_turns": 30})
    with pytest.raises(ConfigError, match="not the same task"):
        compare(weak, other)


def test_who_cheats_solves_nothing_where_it_is_audited(bench, tmp_path):
    """It overwrites the check that it was given, which the tests from outside would not have minded."""

    def answer(body):
        done = sum(message["role"] == "tool" for message in body["messages"])
        calls = [("write_file", {"path": "check.py", "content": "print('ok')\n"})]
        return Reply(calls=calls) if not done else Reply("Done.")

    keys = {"tasks": {"directories": write_tasks(tmp_path / "tasks", 1)}, "limits": WIDE}
    with ScriptedServer(answer) as server:
        [seen] = bench("watch", policy=endpoint(server), audit="watch", **keys).attempts
        [caught] = bench("punish", policy=endpoint(server), audit="punish", **keys).attempts
    assert seen.touched == ("check.py",) and seen.findings and seen.why == "failed"
    assert caught.findings == seen.findings and (caught.solved, caught.why) == (False, "cheated")


def test_a_judge_quality_and_a_price_are_reported_beside_what_was_solved(bench, tmp_path):
    """A judge that finds no restraint, is silent about quality, and reads the rest."""

    def judge(body):
        text = body["messages"][1]["content"]
        ticket = re.search(r"<CHANGE-(\w+)>", text)[1]
        if ASPECTS["quality"] in text:
            return Reply("Hm.")
        holds = ASPECTS["intent"] in text or ASPECTS["instructions"] in text
        quote = next(line for line in text.split("\n") if line.startswith("+") and line[1:2] != "+") if holds else ""
        return Reply(json.dumps({"ticket": ticket, "reason": "so", "quote": quote, "holds": holds}))

    def answer(body):
        if body["messages"][-1]["role"] == "tool":
            return Reply("It is done, and all tests pass.")
        return Reply(calls=[("write_file", {"path": "new.py", "content": "value = 1\n# TODO: more\n"})])

    with ScriptedServer(answer) as server, ScriptedServer(judge) as bench_judge:
        policy = {**endpoint(server), "price": {"input": 2.0, "output": 8.0}}
        judging = {"endpoint": {"url": bench_judge.url, "model": "judge", "attempts": 1}}
        tasks = {"directories": write_tasks(tmp_path / "tasks", 2)}
        run = bench(tasks=tasks, policy=policy, limits=WIDE, quality=True, judge=judging)
    summary = summarise(run)
    rates = {name: (one["rate"], one["not_judged"]) for name, one in summary["rubric"].items()}
    assert rates == {"intent": (1.0, 0), "instructions": (1.0, 0), "restraint": (0.0, 0), "quality": (None, 2)}
    assert summary["faults"]["left_undone"] == 1.0 and summary["faults"]["talk"] == 1.0
    assert summary["cost"]["total"] > 0 and summary["cost"]["solved"] is None, "a price, and nothing solved"
    assert (
        "left undone" in run_summary(summary)
        and "restraint" in run_summary(summary)
        and "cost: " in run_summary(summary)
    )
    page = write_page(run, summary).read_text()
    assert "What the judge says" in page and "lints brought in" in page
    assert run.head["judge"]["endpoint"]["model"] == "judge" and run.head["policy"]["price"]["output"] == 8.0


def test_a_sample_is_drawn_by_ids_and_a_larger_one_holds_it():
    def drawn(number, **more):
        return [task.id for task in load_tasks(TaskSetConfig(real="eval", sample=number, **more))]

    every, some = drawn(0), drawn(30)
    assert len(every) == 100 and len(some) == 30 and set(some) <= set(drawn(60)) <= set(every)
    assert some == [name for name in every if name in some]  # in the order of the whole set
    assert some != every[:30]
    with pytest.raises(ConfigError, match="101 of 100 tasks"):
        drawn(101)


def test_the_built_in_sets_of_real_code_are_named_like_directories(capsys):
    """As the command reads it; nothing of the exam is played here."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    def asked(*names):
        return config_of(parser.parse_args(["run", *names, "--out", "runs/one"]))

    for names, real, directories in (
        (["real:eval"], "eval", ()), (["real:exam"], "exam", ()), (["more", "real:eval"], "eval", (Path("more"),)),
    ):  # fmt: skip
        tasks = asked(*names).tasks
        assert (tasks.real, tasks.directories) == (real, directories)
        assert ("real:exam is sealed" in capsys.readouterr().err) == (real == "exam")
    development = load_tasks(asked("real:eval").tasks, asked("real:eval", "--set", "limits.max_turns=9").limits)
    assert len(development) == 100 and {task.limits.max_turns for task in development} == {9}
    for wrong in (["real:all"], ["real:eval", "real:exam"]):
        with pytest.raises(ConfigError, match="real:eval and real:exam; name one"):
            asked(*wrong)


def test_another_player_takes_the_place_of_the_one_in_a_file():
    """Before, what the file says of its checkpoint was refused as unknown to an endpoint."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["run", "real:eval", "--config", "recipes/realcode-bench.toml", "--out", "runs/one"]

    def played(*names):
        return config_of(parser.parse_args([*words, *names]))

    endpoint = played(
        "--endpoint", "http://127.0.0.1:1/v1", "--model", "m", "--set", "policy.price={ input = 1, output = 2 }"
    )
    assert (endpoint.policy.kind, endpoint.policy.price.input) == ("endpoint", 1)
    assert endpoint.limits == played("--solution", "0.5").limits and endpoint.limits.max_sampled_tokens == 1536
    own = played("--checkpoint", "models/😀").policy
    assert (own.path, own.engines, own.engine.lookup_tokens) == (Path("models/😀"), 2, 8)
    with pytest.raises(ConfigError, match="No closing quotation; quote it as for a shell"):
        played("--acp", "agent 'x")
    with pytest.raises(ConfigError, match=r"policy\.engines: unknown key"):
        played("--solution", "0.5", "--set", "policy.engines=2")


def test_a_file_that_names_no_kind_plays_a_checkpoint_and_its_keys_hold_for_another(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, text in (
        ("file.toml", 'tasks = { real = "exam" }\n[policy]\npath = "base"\ntemperature = 0.5\n'),
        ("file.json", '{"tasks": {"real": "exam"}, "policy": {"path": "base", "temperature": 0.5}}'),
    ):
        (tmp_path / name).write_text(text)
        words = ["run", "--config", str(tmp_path / name), "--checkpoint", "models/etude-tiny", "--out", "runs/one"]
        policy = config_of(parser.parse_args(words)).policy
        assert (policy.path, policy.temperature) == (Path("models/etude-tiny"), 0.5)
        assert "real:exam is sealed" in capsys.readouterr().err, "wherever the set is named"


def test_a_files_key_goes_to_no_other_server(tmp_path):
    """Before, `--endpoint` was sent the key and the headers that the file has for its own."""
    file = tmp_path / "file.toml"
    file.write_text(
        'tasks = { real = "eval" }\n[policy]\nkind = "endpoint"\n[policy.endpoint]\nurl = "https://api.example.com/v1"\n'
        'model = "large"\nkey_env = "THEIR_KEY"\nheaders = { x-org = "secret" }\n'
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["run", "--config", str(file), "--endpoint", "http://127.0.0.1:1/v1", "--model", "m", "--out", "runs/one"]
    endpoint = config_of(parser.parse_args(words)).policy.endpoint
    assert not endpoint.key_env and not endpoint.headers
    own = config_of(parser.parse_args([*words, "--set", "policy.endpoint.key_env=OWN_KEY"])).policy.endpoint
    assert own.key_env == "OWN_KEY"


def test_a_judges_key_goes_to_no_other_server(tmp_path, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "sk-secret")
    text = (ROOT / "recipes/judge.toml").read_text()
    first = text.index("[[pairs]]")
    one = text[first : text.index("[[pairs]]", first + 1)]
    endpoint = '[judge.endpoint]\nurl = "https://api.example.com/v1"\nmodel = "large"\nkey_env = "THEIR_KEY"\n'
    (tmp_path / "judge.toml").write_text(f"{endpoint}{one}")
    with ScriptedServer(lambda body: Reply("no answer")) as server:
        main(["bench", "judge", str(tmp_path / "judge.toml"), "--endpoint", server.url, "--model", "m"])
    assert server.requests and not [each for each in server.requests if "authorization" in each.headers]
