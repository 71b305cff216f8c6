"""Agents at work in the studio: eight of them on a real repository, in real sandboxes, with scripted models; what they
ask, what they change hunk by hunk, and what of it lands in the tree."""

from __future__ import annotations

import concurrent.futures
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "harness"))
from made_run import Json, Studio, make_run, studio
from scripted_openai import Reply, Script, ScriptedServer

BEFORE = "".join(f"line {number}\n" for number in range(1, 61))


@pytest.fixture
def root() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))  # a sandbox has a /tmp of its own
    project = root / "project"
    project.mkdir()
    (project / "text.txt").write_text(BEFORE)
    (project / "odd.bin").write_bytes(b"\0\1\2")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    make_run(root / "runs" / "first", 1)
    yield root
    shutil.rmtree(root)


def git(where: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *named, *words], cwd=where, check=True, capture_output=True, text=True).stdout


@contextmanager
def working(root: Path, script: Script) -> Iterator[Studio]:
    with ScriptedServer(script) as model:
        more = ["--work", "--agent-set", f'endpoint.url="{model.url}"', "--agent-set", 'endpoint.model="m"']
        more += ["--agent-set", "workspace.start_timeout_s=180", "--agent-set", f'fleet.directory="{root}/trees"']
        with studio(root / "home", root / "runs", more=more) as served:
            yield served


def post(served: Studio, path: str, status: int = 200, **body: object) -> Json:
    answer = served.http.post(f"/api{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def at(team: Json) -> str:
    """Where a team is."""
    return "/".join(("/work", team["id"]))


def resting(served: Studio, team: str) -> Json:
    """When every agent of a team has come to rest, as the stream tells it."""
    with served.stream({"work": None}) as events:
        for _, _, data in events:
            for each in data.get("work", {}).get("teams", ()):
                if each["id"] == team and all(agent["state"] in ("resting", "failed") for agent in each["agents"]):
                    return each
    raise AssertionError("the stream has ended")


def edit(*pairs: tuple[str, str]) -> list[tuple[str, Json]]:
    return [("edit_file", {"path": "text.txt", "old": old, "new": new}) for old, new in pairs]


CHANGED = BEFORE.replace("line 3\n", "LINE 3\n").replace("line 30\n", "LINE 30\nand more\n").replace("line 60\n", "")


def test_hunks_that_are_taken_land_in_the_tree_exactly(root: Path) -> None:
    calls = [
        *edit(("line 3\n", "LINE 3\n"), ("line 30\n", "LINE 30\nand more\n"), ("line 59\nline 60\n", "line 59\n")),
        ("write_file", {"path": "new.txt", "content": "hello\n"}),
        ("write_file", {"path": "other.txt", "content": "not wanted"}),
    ]
    with working(root, [*(Reply("", [call]) for call in calls), Reply("Done.")]) as served:
        team = post(served, "/work", 201, directory=str(root / "project"), tasks=["Change it."], mode="auto")
        assert [agent["name"] for agent in team["agents"]] == ["agent-1"] and team["agents"][0]["error"] is None
        done = resting(served, team["id"])["agents"][0]
        assert (done["ended"], done["turns"]) == ("finished", 6), done
        assert (root / "project/text.txt").read_text() == BEFORE and git(root / "project", "status", "-s") == ""
        path = f"{at(team)}/agents/agent-1"
        changes = served.get(f"{path}/changes")
        files = {each["path"]: each for each in changes["files"]}
        assert {name: each["status"] for name, each in files.items()} == {
            "new.txt": "A", "other.txt": "A", "text.txt": "M"
        }  # fmt: skip
        hunks = files["text.txt"]["hunks"]
        assert [(hunk["old"], hunk["new"]) for hunk in hunks] == [(1, 1), (27, 27), (57, 58)]
        assert ["removed", "line 3"] in hunks[0]["lines"] and ["added", "and more"] in hunks[1]["lines"]
        chosen = {"text.txt": [0, 2], "other.txt": []}
        brought = post(served, f"{path}/apply", commit=changes["commit"], files=chosen, rest=True)
        assert brought["paths"] == ["new.txt", "text.txt"]
        assert (root / "project/text.txt").read_text() == CHANGED.replace("LINE 30\nand more\n", "line 30\n")
        assert (root / "project/new.txt").read_text() == "hello\n" and not (root / "project/other.txt").exists()
        rest = post(served, f"{path}/apply", commit=changes["commit"], files={"text.txt": [1]})
        assert rest["paths"] == ["text.txt"] and (root / "project/text.txt").read_text() == CHANGED
        assert post(served, f"{path}/apply", 409, commit="0" * 40)["error"]["kind"] == "conflict"
        for files in ({"text.txt": [7]}, {"odd.bin": None}, {"../x": None}):
            assert post(served, f"{path}/apply", 400, commit=changes["commit"], files=files)["error"]["message"]
        (root / "project/other.txt").write_text("the user's own")
        refused = post(served, f"{path}/apply", 400, commit=changes["commit"])
        assert "conflicts with your changes to other.txt" in refused["error"]["message"]
        assert (root / "project/other.txt").read_text() == "the user's own"
        ended = served.http.delete(f"/api{at(team)}").json()
        assert ended["ended"] and not list((root / "trees").glob("*/[0-9]*"))
        assert served.get(f"{path}/changes")["total"] == 3, "what it did is kept"
        assert "refs/etude/results/" in git(root / "project", "for-each-ref", "--format=%(refname)")


def eight(request: Json) -> Reply:
    """Each agent writes its own line, and asks to run something."""
    if any(each["role"] == "tool" for each in request["messages"]):
        return Reply("Done.")
    number = next(number for number in range(1, 9) if f"task {number}." in str(request["messages"]))
    write = ("write_file", {"path": "text.txt", "content": f"agent {number}\n"})
    return Reply("", [write, ("run_terminal_cmd", {"command": f"cat text.txt; make all-{number}"})])


def test_eight_agents_ask_in_one_inbox(root: Path) -> None:
    """Whose answers go to whom asked; what does not go together is told; a ninth finds no room."""
    with working(root, eight) as served:
        tasks = [f"This is task {number}." for number in range(1, 9)]
        team = post(served, "/work", 201, directory=str(root / "project"), tasks=tasks)
        assert len(team["agents"]) == 8 and len({agent["session"] for agent in team["agents"]}) == 8
        refused = post(served, "/work", 429, directory=str(root / "project"), tasks=["One more."])
        assert "of 8 at most" in refused["error"]["message"]
        inbox: list[Json] = []
        with served.stream({"work": None}) as events:
            while len(inbox) < 8:
                inbox = next(events)[2].get("work", {}).get("inbox", [])
        for asked in inbox:
            [question] = asked["questions"]
            assert f"all-{asked['agent'][-1]}" in question["arguments"]["command"]
            path = f"/sessions/{asked['session']}/permissions/{asked['request']}"
            answer = {"allowed": asked["agent"] == "agent-1", "words": "Not now."}
            assert post(served, path, answers=[answer]) == {"answered": 1}
        done = resting(served, team["id"])
        assert {agent["ended"] for agent in done["agents"]} == {"finished"}, done
        results = {}
        for agent in done["agents"]:
            with served.stream({f"session/{agent['session']}": None}) as events:
                told = []
                while not told or told[-1][2].get("name") != "now":
                    told.append(next(events))
            lines = [data["line"] for _, _, data in told if "line" in data]
            assert [id for _, id, data in told if "line" in data] == [str(at + 1) for at in range(len(lines))]
            results[agent["name"]] = lines[-1]["kind"], str([each for each in lines if each["kind"] == "tool_result"])
        assert all(
            kind == "end" and ("Not now." in said) is (name != "agent-1") for name, (kind, said) in results.items()
        )
        while len((told := served.get(f"{at(team)}"))["conflicts"]) < 28:
            assert not told["ended"]
        third = served.get(f"{at(team)}/agents/agent-3/changes")
        brought = post(served, f"{at(team)}/agents/agent-3/apply", commit=third["commit"])
        assert brought["paths"] == ["text.txt"] and (root / "project/text.txt").read_text() == "agent 3\n"
        fourth = served.get(f"{at(team)}/agents/agent-4/changes")
        refused = post(served, f"{at(team)}/agents/agent-4/apply", 400, commit=fourth["commit"])
        assert "conflicts with your changes" in refused["error"]["message"]
        assert (root / "project/text.txt").read_text() == "agent 3\n"
    left = git(root / "project", "for-each-ref", "--format=%(refname)", "refs/etude/results").split()
    assert len(left) == 8, "who stops the studio loses no work"
    assert not list((root / "trees").glob("*/[0-9]*"))


def test_a_studio_that_only_looks_has_nobody_at_work(root: Path) -> None:
    with studio(root / "home", root / "runs") as served:
        assert served.get("/sessions")["sessions"] == []
        for method, path in [("GET", "/work"), ("POST", "/work"), ("POST", "/sessions"), ("POST", "/sessions/x/prompt"),
                             ("GET", "/sessions/x/diff")]:  # fmt: skip
            answer = served.http.request(method, f"/api{path}", json={} if method == "POST" else None)
            assert answer.status_code == 403 and "--work" in answer.json()["error"]["message"], path
        assert served.http.post("/api/stream", json={"topics": {"work": None}}).status_code == 403


SILENT_S = 300.0


def busy(request: Json) -> Reply:
    """One makes call after call, one runs a command that does not end, one waits for a model that says nothing."""
    for task, reply in (
        ("call", Reply("", [("run_terminal_cmd", {"command": "make all"})])),
        ("run", Reply("", [("write_file", {"path": "new.txt", "content": "kept"}), ("run_terminal_cmd", SLEEP)])),
    ):
        if f"Please {task}." in str(request["messages"]):
            return reply
    return Reply("Never.", stall_s=SILENT_S)


SLEEP = {"command": "sleep 1000; true"}


def test_sigterm_stops_it_whatever_agents_wait_for(root: Path) -> None:
    """And keeps what they did; a team that is just beginning is ended too."""
    with working(root, busy) as served:
        tasks = ["Please call.", "Please run.", "Please wait."]
        project = str(root / "project")
        team = post(served, "/work", 201, directory=project, tasks=tasks, mode="auto")
        seen: dict[str, Json] = {}
        with served.stream({"work": None}) as events:
            for _, _, data in events:
                seen |= {
                    agent["task"]: agent
                    for each in data.get("work", {"teams": []})["teams"]
                    for agent in each["agents"]
                }
                if seen and "sleep" in seen["Please run."]["doing"]:
                    break
        assert {agent["state"] for agent in seen.values()} == {"working"}, seen
        with concurrent.futures.ThreadPoolExecutor() as pool:
            later = pool.submit(served.http.post, "/api/work", json={"directory": project, "tasks": ["Please wait."]})
            wait_for_second(root, len(tasks))
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(100) == 0
            assert concurrent.futures.wait([later], 100).done, "whoever asks is answered, or sees the end"
    assert not list((root / "trees").glob("*/[0-9]*")), "no worktree is left"
    results = git(root / "project", "for-each-ref", "--format=%(refname)", "refs/etude/results/").split()
    assert any(git(root / "project", "ls-tree", each, "new.txt") for each in results), "who stops it loses no work"
    assert team["id"]


def wait_for_second(root: Path, first: int) -> None:
    """Until a second team's worktree is being made."""
    deadline = time.monotonic() + 100
    while len(list((root / "trees").glob("*/*"))) <= first:
        assert time.monotonic() < deadline, "a second team within 100 s"
        time.sleep(0.01)
