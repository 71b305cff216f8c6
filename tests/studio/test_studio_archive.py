"""What a run's archive keeps, as the studio's routes show it: over archives that the real writer made."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_run import ROOT, TOTAL, Studio, archive, evaluate, kept, make_run, studio

from etude.archive.reader import ArchiveReader
from etude.archive.records import FileChange
from etude.archive.writer import ArchiveWriter
from etude.bench.attempts import Attempt, Played
from etude.bench.config import BenchConfig
from etude.bench.results import Results
from etude.bench.run import head_of
from etude.records import Truncated
from etude.studio.diffs import file_of, hunks_of
from etude.studio.runs import Runs

LONG = "".join(f"line {number}\n" for number in range(200_000))
FINDING = "it changed its verifier by 'parse(date)'"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    root = tmp_path_factory.mktemp("archive")
    path = make_run(root / "runs" / "first", 3)
    archive(path)
    files = tuple(FileChange(f"many/{number}.py", b"", b"x\n") for number in range(450))
    with ArchiveWriter(path) as writer:
        writer.keep(kept("g7/0", outcome=Truncated("turns", 0.0, {"tests": 0.0}), result=LONG, files=files))
        writer.keep(kept("base/eval-r1-0/0"))
    shutil.copytree(ROOT / "models/etude-tiny", path / "model")
    agent = ["--agent-set", 'endpoint.url="http://127.0.0.1:9/v1"', "--agent-set", 'endpoint.model="none"']
    with studio(root / "home", path, more=["--work", *agent]) as server:
        yield server


def asked(served: Studio, path: str, status: int = 200):
    return served.get(f"/runs/{served.id('first')}{path}", status)


def ids(served: Studio, query: str) -> list[str]:
    return [row["id"] for row in asked(served, f"/trajectories?order=kept&{query}")["rows"]]


def test_pages_filters_and_counts_agree(served: Studio) -> None:
    whole = ids(served, "limit=1000")
    assert whole == ["g1/0", "g1/1", "g2/0", "g2/1", "g3/0", "g3/1", "g3/2", "g7/0", "base/eval-r1-0/0"]
    seen, after = [], ""
    while after is not None:
        page = asked(served, f"/trajectories?order=kept&limit=2&after={after}")
        seen += [row["id"] for row in page["rows"]]
        after = page["next"]
    assert seen == whole
    for query, expected in {
        "trained=true": ["g1/0", "g1/1", "g2/0", "g2/1"], "outcome=cheated": ["g3/2"], "group=g2": ["g2/0", "g2/1"],
        "step=2..": ["g2/0", "g2/1"], "finding=verifier": ["g3/2"], "reward=..0.5&phase=training&step=1": ["g1/1"],
        "phase=base": ["base/eval-r1-0/0"], "text=parse+date&tool=read_file&step=1": ["g1/0"], "task=none": [],
    }.items():  # fmt: skip
        assert ids(served, query) == expected, query
        assert asked(served, f"/trajectories/count?{query}")["count"] == len(expected)
    bins = asked(served, "/trajectories/histogram?field=reward&bins=2&phase=training")
    assert sum(bins["counts"]) == 8 and bins["counts"][0] == sum(bins["counts"]) - sum(bins["solved"])
    values = asked(served, "/trajectories/values")
    assert values["tool"] == {"grep": 9, "read_file": 6} and "reward" in values["orders"]
    for wrong in ("order=colour", "after=x", "outcome=good", "step=a..b", "text=%22%22", "colour=red", "limit=9999"):
        assert asked(served, f"/trajectories?{wrong}", 400)["error"]["kind"] == "invalid", wrong
    assert asked(served, "/trajectories/histogram?field=text", 400)["error"]["message"].startswith("text: no histogram")
    assert asked(served, "")["trajectories"] == 9


def test_one_trajectory(served: Studio) -> None:
    found = asked(served, "/trajectories/g1~0")
    assert found["row"]["id"] == "g1/0" and found["task"]["instruction"] == "Fix the parser of dates."
    first, last = found["turns"]
    assert (first["text"], first["thinking"], first["version"]) == ("I look.", "Hm.", 3)
    assert first["tokens"] == [0, 3, 5] and last["tokens"] == [0, 7, 10] and found["segments"][0]["tokens"] == TOTAL
    assert [(call["name"], call["failed"]) for call in first["calls"]] == [("read_file", False), ("grep", True)]
    assert first["calls"][0]["started_at"] < first["calls"][0]["ended_at"]
    assert last["text"] == "Done." and last["calls"] == []
    assert found["marks"] == {"step": 1, "trained_tokens": 4} and found["verifier"]["text"] == "ok\n"
    assert found["files"] == [{"path": "dates.py", "added": 1, "removed": 1, "binary": False, "cut": False}]
    cheat = asked(served, "/trajectories/g3~2")
    grep = next(call for call in cheat["turns"][0]["calls"] if call["name"] == "grep")
    assert cheat["findings"] == [{"text": FINDING, "event": grep["event"]}] and cheat["marks"] is None
    assert asked(served, "/trajectories/base~eval-r1-0~0")["row"]["phase"] == "base"
    assert asked(served, "/trajectories/g9~9", 404)["error"]["kind"] == "not_found"
    assert len(asked(served, "/trajectories/g1~0?turns=1,1")["turns"]) == 1


def test_long_things_come_in_parts(served: Studio) -> None:
    found = asked(served, "/trajectories/g7~0")
    call = found["turns"][0]["calls"][0]
    assert call["result"]["cut"] and call["result"]["bytes"] == len(LONG) and len(call["result"]["text"]) == 4000
    part = asked(served, f"/trajectories/g7~0/output?event={call['event']}&from=1000000&count=50")
    assert part == {"text": LONG[1_000_000:1_000_050], "begins": 1_000_000, "total": len(LONG)}
    assert asked(served, "/trajectories/g7~0/output?event=0", 404)
    assert asked(served, "/trajectories/g7~0/output?count=1")["text"] == "o"
    assert (len(found["files"]), found["files_total"]) == (200, 450)
    files = asked(served, "/trajectories/g7~0/files?after=400&limit=100")
    assert len(files["rows"]) == 50 and files["next"] is None and files["rows"][0]["added"] == 1


def test_tokens_in_columns(served: Studio) -> None:
    whole = asked(served, "/trajectories/g1~0/tokens")
    assert whole["total"] == TOTAL == len(whole["id"]) and whole["sampled"].count(True) == 5
    assert whole["logprob"][3:5] == [-0.5, -0.5] and whole["logprob"][0] is None
    assert whole["text"][0] == "<|im_start|>" and len(whole["text"]) == TOTAL
    assert [each for each in whole["mask"] if each] == ["trained", "trained", "left_out", "trained", "trained"]
    assert whole["advantage"][3] == 0.5 and whole["entropy"][7] is None, "what was left out has none"
    part = asked(served, "/trajectories/g1~0/tokens?from=4&count=4")
    assert part["begins"] == 4
    for name in ("id", "text", "logprob", "version", "advantage", "trainer_logprob", "entropy", "mask"):
        assert part[name] == whole[name][4:8], name
    untrained = asked(served, "/trajectories/g3~0/tokens?from=999")
    assert untrained["id"] == [] and untrained["mask"] is None and untrained["begins"] == TOTAL
    assert asked(served, "/trajectories/g1~0/tokens?segment=5", 404)


def test_diffs(served: Studio) -> None:
    found = asked(served, "/trajectories/g1~0/diff?path=dates.py")
    assert found["hunks"] == [{"old": 1, "new": 1, "lines": [["same", "a"], ["removed", "old"], ["added", "new"],
                                                            ["same", "b"]]}]  # fmt: skip
    assert asked(served, "/trajectories/g1~0/diff?path=../../etc/passwd", 404)
    lines = [f"{number}\n".encode() for number in range(100)]
    changed = [*lines[:10], b"x\n", *lines[11:50], *lines[51:]]
    told = hunks_of(FileChange("f", b"".join(lines), b"".join(changed)))
    assert [(hunk.old, hunk.new, len(hunk.lines)) for hunk in told.hunks] == [(8, 8, 8), (48, 48, 7)]
    assert hunks_of(FileChange("f", None, b"a\0b")).binary and file_of(FileChange("f", b"", b"\0"), True).added is None
    added = hunks_of(FileChange("f", None, b"1\n2\n"))
    assert added.hunks[0].lines == [("added", "1"), ("added", "2")] and not added.cut
    many = b"".join(b"%d\n" % number for number in range(60_000))
    rest = b"".join(b"%d\n" % (number + 1_000_000) for number in range(60_000))
    large = hunks_of(FileChange("f", many, rest))  # more than is compared line by line
    assert large.cut and len(large.hunks[0].lines) == 4000
    assert (file_of(FileChange("f", many, rest), True).added, hunks_of(FileChange("f", many, many)).hunks) == (
        60_000,
        [],
    )


def test_a_group_and_where_it_parts(served: Studio) -> None:
    found = asked(served, "/groups/g1")
    assert [member["row"]["id"] for member in found["members"]] == ["g1/0", "g1/1"]
    assert found["members"][0]["calls"] == ["read_file(dates.py); grep(parse(date))", "says: Done."]
    assert found["parting"] == [
        {"turn": 0, "kinds": {"g1/0": "read_file(dates.py); grep(parse(date))", "g1/1": "grep(date)"}}
    ]
    assert asked(served, "/groups/g99", 404)


def test_a_step_in_time(served: Studio) -> None:
    found = asked(served, "/steps/1")
    assert found["line"]["loss"] == -0.001 and "groups" not in found["line"]
    assert found["groups"] == [
        {"id": "g1", "task": "t1", "rewards": [1.0, 0.0], "trained": ["g1/0", "g1/1"], "dropped": {}}
    ]
    assert [lane["worker"] for lane in found["lanes"]] == ["here/1", "here/2"]
    [rollout] = found["lanes"][0]["rollouts"]
    begun = rollout["begun_at"]
    spans = [[round(begins - begun, 3), round(ends - begun, 3), version] for begins, ends, version in rollout["spans"]]
    assert spans == [[0, 0.5, 3], [0.5, 3, 4]]
    alone = asked(served, "/steps/3")
    assert alone["groups"][0] == {"id": "g3", "task": "", "rewards": [], "trained": ["g3/0", "g3/1"], "dropped": {}}
    assert asked(served, "/steps/77", 404) and asked(served, "/steps/x", 400)


def test_notes(served: Studio) -> None:
    path = f"/api/runs/{served.id('first')}/trajectories/g2~1/annotations"
    made = served.http.post(path, json={"text": "Here it recovers.", "author": "me", "event": 3})
    assert made.status_code == 201 and made.json()["place"] == {"event": 3}
    assert asked(served, "/trajectories/g2~1")["annotations"] == [made.json()]
    assert ids(served, "text=recovers") == ["g2/1"]
    assert served.http.delete(f"{path}/{made.json()['id']}").json() == {"removed": made.json()["id"]}
    assert asked(served, "/trajectories/g2~1")["annotations"] == []
    assert served.http.delete(f"{path}/none").status_code == 404
    assert served.http.post(path, json={"text": ""}).status_code == 400


def test_without_work_nothing_is_written_but_the_index(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "first", 2)
    archive(path)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    with studio(tmp_path / "home", path) as served:
        assert len(ids(served, "")) == 7
        refused = served.http.post(f"/api/runs/{served.id('first')}/trajectories/g1~0/annotations", json={"text": "x"})
        assert refused.status_code == 403 and "--work" in refused.json()["error"]["message"]
        index = path / "archive" / "index.sqlite"
        index.write_bytes(index.read_bytes()[:5000])  # as by a full disk
        assert len(ids(served, "")) == 7, "it is made anew"
    after = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    assert {each.name for each in after.keys() - before.keys()} <= {
        "index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "index.lock"
    }  # fmt: skip
    assert all(after[each] == data for each, data in before.items())


def test_an_archive_is_followed(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "first", 2)
    with studio(tmp_path / "home", path) as served:
        assert ids(served, "") == []
        with served.stream({f"run/{served.id('first')}/trajectories": None}) as events:
            assert next(events)[2] == {"opened": True}
            archive(path, 2)
            told: dict[str, int | None] = {}
            while told.get("g1/1") != 1 or "g2/2" not in told:
                data = next(events)[2]
                told |= {row["id"]: row["step"] for row in data.get("rows", ())}
        assert told == {"g1/0": 1, "g1/1": 1, "g2/0": None, "g2/1": None, "g2/2": None}


def long_archive(run: Path, chunks: int = 300, each: int = 150) -> None:
    """Whose index takes long to fill: the same chunk again and again, as if everything had been judged so often."""
    with ArchiveWriter(run) as writer:
        for number in range(each):
            writer.keep(kept(f"g{number}/0", result="", calls=()))
    (chunk,) = (run / "archive/chunks").glob("*.chunk")
    for number in range(chunks):
        shutil.copyfile(chunk, chunk.with_name(f"{number + 2:06}.chunk"))


def test_a_large_index_is_filled_beside_who_asks_and_holds_no_stop_up(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "first")
    long_archive(path)
    with studio(tmp_path / "home", path) as served:
        found = asked(served, "/trajectories/count")
        while not found["count"]:  # the first are in it at once
            assert found["filling"]
            found = asked(served, "/trajectories/count")
        assert found["filling"] and asked(served, "/trajectories?limit=5")["rows"]
        unknown = asked(served, "/trajectories/none", 429)["error"]
        assert unknown["retryable"] and "its index is being filled" in unknown["message"]
        early = asked(served, "/steps/1", 429)["error"]  # it is not said to have no rollout
        assert early["retryable"] and "step 1" in early["message"]
        assert served.stop() == 0
    with ArchiveReader(path, fill=False) as reader:
        assert reader.behind() > 0 and reader.count() > 0, "it stopped with most still to do, and what it had stands"


def test_who_reads_an_archive_does_not_make_its_run_look_changed(tmp_path: Path) -> None:
    path = make_run(tmp_path / "first", 5)
    archive(path)
    before = Runs([tmp_path]).rows()
    with ArchiveReader(path) as reader:
        reader.refresh(wait=True)
        assert reader.count() == 7
    assert (path / "archive/index.sqlite").exists() and Runs([tmp_path]).rows() == before


def attempt(task: str, number: int, solved: bool | None) -> Played:
    usage = dict.fromkeys(("turns", "sampled_tokens", "tool_calls", "parallel_turns", "malformed_calls"), 1)
    usage |= {"error_observations": 0}
    return Played(Attempt(task, number, "eval", solved, "passed" if solved else "failed", usage=usage), 1.0, 1, ())


def bench(directory: Path, name: str, solved: list[bool | None]) -> None:
    """A benchmark's results, as `etude bench run` writes them."""
    config = BenchConfig.model_validate({"name": name, "policy": {"kind": "solution"}})
    head = {**head_of(config, []), "tasks": {f"t{number}": "same" for number in range(len(solved))}}

    async def written() -> None:
        with Results(directory, head, [(f"t{number}", 0) for number in range(len(solved))], resume=False) as results:
            for number, each in enumerate(solved):
                await results.add(attempt(f"t{number}", 0, each))
            await results.finish()

    asyncio.run(written())


def test_benchmarks_are_found_and_compared(tmp_path: Path) -> None:
    bench(tmp_path / "runs/a", "a", [True, False, False, None])
    bench(tmp_path / "runs/deep/b", "b", [False, True, True, True])
    (tmp_path / "runs/odd").mkdir()
    (tmp_path / "runs/odd/results.jsonl").write_text("[]\n")
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        found = served.get("/bench")
        rows = {row["name"]: row for row in found["runs"]}
        assert (rows["a"]["judged"], rows["a"]["solved"], rows["b"]["rate"]) == (3, 1, 0.75)
        assert list(found["unread"]) == [str(tmp_path / "runs/odd")]
        told = served.get(f"/bench/compare?a={rows['a']['id']}&b={rows['b']['id']}")
        assert (told["tasks"], told["better"], told["worse"]) == (3, ["t1", "t2"], ["t0"])
        assert told["low"] <= told["difference"] <= told["high"] and told["test"] == "McNemar, exact"
        assert {flip["task"]: (flip["first"], flip["second"]) for flip in told["flipped"]}["t0"] == (1.0, 0.0)
        assert served.get(f"/bench/compare?a=none&b={rows['b']['id']}", 404)


# --- what a run was measured by ---------------------------------------------------------------------------------------


def test_rates_and_the_sessions_behind_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "first", 2, summary=True)
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        at = f"/runs/{served.id('first')}/results"
        assert served.get(at) == {
            "policies": [], "sets": [], "rungs": [], "conduct": [], "pair": None, "examples": [],
        }  # fmt: skip
        evaluate(run)
        told = served.get(at)
        assert told["policies"] == ["base", "after", "control"]
        shares = {row["name"]: [(each["solved"], each["played"]) for each in row["rates"]] for row in told["sets"]}
        assert shares == {"ladder": [(0, 2), (2, 2), (1, 2)], "held-out ladder": [(0, 2), (1, 2), (0, 2)]}
        low, high = (told["sets"][1]["rates"][1][name] for name in ("low", "high"))
        assert (low, high) == pytest.approx((0.0945, 0.9055), abs=1e-4), "by the formula of Wilson, 1 of 2"
        assert [row["name"] for row in told["rungs"]] == ["1 function", "2 file"]
        assert [each["solved"] for each in told["rungs"][1]["rates"]] == [0, 1, 0]
        means = {row["name"]: row["means"] for row in told["conduct"]}
        assert means["ran the check after the last edit"] == [0.0, 1.0, 0.5]
        assert means["turns of a solved session"] == [None, 3.0, 3.0]
        pair = told["pair"]
        assert (pair["gained"], pair["lost"], pair["played"]["task"]["id"]) == (2, 0, "eval-2")
        assert [each["row"]["id"] for each in pair["played"]["members"]] == ["after/eval-2/0", "control/eval-2/0"]
        assert pair["played"]["parting"][0]["turn"] == 0
        assert {each["title"]: each["row"]["id"] for each in told["examples"]} == {
            "the shortest success": "after/eval-1/0", "the longest success": "after/eval-2/0",
            "a failure": "after/heldout-2/0",
        }  # fmt: skip
        shutil.rmtree(run / "archive")
        told = served.get(at)
        assert told["pair"]["played"] is None and told["examples"] == [] and len(told["sets"]) == 2
        for content in (b"{", b"[1]", b'[{"task_id": 1}]', b"null"):
            (run / "evaluation-after.json").write_bytes(content)
            assert served.get(at)["policies"] == ["base", "control"]


def test_a_family_that_a_run_names_as_code_is_not_loaded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "first", 2)
    evaluate(run)
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["rollouts"]["family"] = "this:s"
    (run / "recipe.json").write_text(json.dumps(recipe))
    with studio(tmp_path / "home", tmp_path / "runs") as served:
        told = served.get(f"/runs/{served.id('first')}/results")
        assert [row["name"] for row in told["rungs"]] == ["rung 1", "rung 2"]
