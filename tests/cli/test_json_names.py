"""What `--json` prints has one name for one thing, whichever command says it: docs/json.md lists them all.

Every command is run for real and its output walked: most of them here, and what needs a run, a repository or a server
as its example on docs/commands.md (`SCENES_OF`). `NOT_RUN` are the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from knowing_judge import PAIRS, knowing
from page_commands import commands_of
from page_scenes import SCENES
from page_world import world
from scripted_openai import Reply, ScriptedServer
from users_git import git
from weight_samples import make_chain, publisher_on

from etude.cli.main import main
from etude.cli.parser import COMMANDS
from etude.records import Version
from etude.weights.opening import open_store

ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes/quickstart.toml")
ROW = re.compile(r"^\| `(\w+)`(, by \w+)? \| \S.* \|$", re.M)
BY_PATH = ("etude tasks import", "etude tasks adopt")
"""What they print is by tasks, which are data."""
WEIGHTS = ("keygen", "log", "inspect", "verify", "pin", "pins", "unpin", "rollback", "rewind")
_FIGURES = "figures with names of their own: docs/json.md says which commands have such"
NOT_RUN = {
    **dict.fromkeys(
        ("train", "pretrain", "plan", "bench behaviour", "tasks mine", "tasks split", "environments burst"), _FIGURES
    ),
    "cluster up": "starts Ray on other machines; it prints what status does",
    "cluster manifest": "the names are those of Kubernetes and SkyPilot",
    "cluster wait": "needs a Ray of several machines; it prints its url, and how many are alive",
}
"""Each with the reason."""
SCENES_OF = {
    "commands live": {"runs set", "runs replace", "runs engines", "runs export", "runs push", "runs gc"},
    "sitting": {"sessions serve"},
    "looking": {"studio"},
    "sandboxes": {"play", "serve", "environments serve"},
    "commands images": {"images build"},
    "commands index": {"index build", "index status", "index search", "index push", "index fetch", "index gc"},
    "commands models": {"models import", "models check", "models export"},
    "commands tasks": {"tasks adopt", "tasks import"},
    "chain": {"weights relay"},
}
"""The examples of docs/commands.md that are played in these scenes of page_scenes.py, with --json."""


@pytest.fixture(scope="module")
def names() -> dict[str, bool]:
    """Every name that the page lists, and whether what it holds is by names that are data."""
    return {name: bool(by) for name, by in ROW.findall((ROOT / "docs/json.md").read_text())}


Run = Callable[..., list[Any]]
"""Runs a command with --json, or another flag for it; the objects that it prints."""


@pytest.fixture
def run(outer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    for name in ("ETUDE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(outer / name))

    def told(*words: object) -> list[Any]:
        main([*map(str, words), *([] if "stream-json" in words else ["--json"])])
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[:1] in ("[", "{")]
        assert said, f"{words} printed nothing"
        return said

    return told


def used(said: Any, listed: dict[str, bool], data: bool = False) -> set[str]:
    """The names of every object in it; those of a map, which are data, are passed over."""
    if isinstance(said, list):
        return set().union(*(used(each, listed) for each in said))
    if not isinstance(said, dict):
        return set()
    inner = (used(each, listed, data=not data and listed.get(name, False)) for name, each in said.items())
    return set(() if data else said).union(*inner)


def with_json() -> set[str]:
    """Every command and action that has --json."""
    found = set()
    for command in COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"etude.cli.{command}").add_arguments(parser)
        [*actions] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        for name, one in actions[0].choices.items() if actions else [("", parser)]:
            found |= {f"{command} {name}".strip()} if "--json" in one._option_string_actions else set()
    return found


def agent(run: Run, place: Path) -> Iterator[Any]:
    project = place / "project"
    project.mkdir()
    git(project, "init", "-q")
    (project / "a.txt").write_text("a\n")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Begin.")

    def write(path: str) -> Reply:
        return Reply("", [("write_file", {"path": path, "content": "hello\n"})])

    script = [
        write("b.txt"), Reply("", [("run_terminal_cmd", {"command": "make it"})]), Reply("Done."),
        Reply("", [("read_file", {"path": "a.txt"})]), Reply("Again."), Reply("What was done."),
        write("c.txt"), Reply("Made."), Reply(status=401),
    ]  # fmt: skip
    with ScriptedServer(script) as server:
        words = ["agent", "--dir", project, "--endpoint", server.url, "--model", "m"]
        yield run(*words, "-p", "Go.")
        yield run(*words, "-p", "--output-format", "stream-json", "Again.")
        for act in ("--diff", "--undo", "--redo", "--compact"):
            yield run(*words, "-c", act)
        yield run(*words, "--best-of", "1", "Make it.")
        yield run(*words, "-p", "Fail.")
    [results] = run("agent", "--results", "--dir", project)
    yield results
    yield run("agent", "--list", "--dir", project)
    yield run("sessions", "export", results["agents"][0]["session_id"], "-o", place / "x.json")


def init(run: Run, place: Path) -> Iterator[Any]:
    with ScriptedServer([Reply("Hello.")]) as server:
        yield run("init", "--endpoint", server.url, "--model", "m")


def doctors(run: Run, place: Path) -> Iterator[Any]:
    yield run("doctor")
    yield run("environments", "doctor", "--backend", "namespace")


def config(run: Run, place: Path) -> Iterator[Any]:
    yield run("config", RECIPE)
    yield run("train", RECIPE, "--explain", "groups.size")


def cluster(run: Run, place: Path) -> Iterator[Any]:
    """Over a stand-in for ssh that runs the far side here."""
    ssh = place / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift 2; exec sh -c "$*"\n')
    ssh.chmod(0o755)
    file = place / "machines.toml"
    file.write_text(f'name = "nobody"\npython = "{sys.executable}"\nmachines = [{{address = "192.0.2.7"}}]\n')
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(ssh.parent), prepend=":")
        yield run("cluster", "status", file)
        yield run("cluster", "down", file)


def tasks(run: Run, place: Path) -> Iterator[Any]:
    [made] = run("tasks", "generate", "--rung", "2", "--count", "1", "--out", place / "tasks")
    yield made
    [task] = made["tasks"]
    yield {"values": run("tasks", "validate", task)[0]}
    yield run("tasks", "pack", task, "--out", place / "bundle")
    yield run("tasks", "unpack", place / "bundle", "--out", place / "there")


def images(run: Run, place: Path) -> Iterator[Any]:
    if os.geteuid() == 0:  # else their files could have no owners
        (place / "root").mkdir()
        yield run("images", "add", place / "root", "--name", "base", "--dir", place / "images")
    yield {"values": run("images", "list", "--dir", place / "images")[0]}
    yield run("images", "gc", "--dir", place / "images")


def bench(run: Run, place: Path) -> Iterator[Any]:
    for number, skill in enumerate((1.0, 0.0)):
        yield run("bench", "run", "--ladder", "1", "--attempts", "1", "--solution", skill, "--out", place / str(number))
    yield run("bench", "compare", place / "0", place / "1")
    yield run("bench", "report", place / "0", "--against", place / "1")
    with ScriptedServer(knowing()) as server:
        yield run("bench", "judge", PAIRS, "--endpoint", server.url, "--model", "m")


def weights(run: Run, place: Path) -> Iterator[Any]:
    publisher, store, at = publisher_on(open_store(place / "store")), place / "store", ["--version", "1"]
    for version, bits in enumerate(make_chain(3)):
        publisher.publish(Version(version), bits)
    yield run("weights", "keygen", place / "key")
    for action in ("log", "inspect", "verify"):
        yield run("weights", action, store)
    yield run("weights", "pin", store, *at, "--name", "ab")
    yield run("weights", "pins", store)
    yield run("weights", "unpin", store, *at, "--name", "ab")
    yield run("weights", "rollback", store, *at)
    yield run("weights", "rewind", store, "--version", "3")


PLAYS: dict[tuple[str, ...], Callable[[Run, Path], Iterator[Any]]] = {
    ("agent", "sessions export"): agent,
    ("init",): init,
    ("doctor", "environments doctor"): doctors,
    ("config",): config,
    ("cluster status", "cluster down"): cluster,
    ("tasks generate", "tasks validate", "tasks pack", "tasks unpack"): tasks,
    ("images add", "images list", "images gc"): images,
    ("bench run", "bench compare", "bench report", "bench judge"): bench,
    tuple(
        f"weights {each}"
        for each in ["keygen", "log", "inspect", "verify", "pin", "pins", "unpin", "rollback", "rewind"]
    ): weights,
}


def test_every_command_is_run_or_listed_as_not() -> None:
    assert with_json() == NOT_RUN.keys() | set(chain.from_iterable(PLAYS)) | set().union(*SCENES_OF.values())


def test_the_list_has_one_name_for_one_thing(names: dict[str, bool]) -> None:
    others = {
        "id", "session", "sessionId", "run", "image", "tool", "arguments", "args", "input_tokens", "output_tokens",
        "tokens_in", "tokens_out", "duration", "duration_s", "elapsed", "stats", "workspace",
    }  # fmt: skip
    assert len(names) > 60 and not others & names.keys()
    listed = [name for name, _ in ROW.findall((ROOT / "docs/json.md").read_text())]
    assert len(listed) == len(set(listed)), "no name stands for two things"


def test_what_is_walked() -> None:
    said = {"a": [{"b": 1}], "m": {"x": {"c": 1}, "y": {"d": {"e": 2}}}}
    assert used(said, {"m": True}) == {"a", "b", "m", "c", "d", "e"}


@pytest.mark.parametrize("commands", PLAYS, ids=lambda commands: commands[0])
def test_every_name_is_in_the_list(
    commands: tuple[str, ...], run: Run, outer: Path, names: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    found = set()
    for said in PLAYS[commands](run, outer):
        found |= used(said, names)
    assert found and found - names.keys() == set(), "name it as others do, or list it in docs/json.md"


@pytest.mark.proof(75)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCENES_OF)
def test_every_name_of_an_example_is_in_the_list(name: str, names: dict[str, bool]) -> None:
    scene = SCENES[name]
    if lacking := scene.needs():
        pytest.skip(lacking)
    lines = [line for line, _ in commands_of(ROOT / scene.page) if re.search(scene.lines, line)]
    lines = [line for line in lines if any(f"{line} ".startswith(f"etude {each} ") for each in SCENES_OF[name])]
    assert len(lines) == len(SCENES_OF[name])
    with world(scene.smaller, *scene.prepare) as made:
        for line in lines:
            said = [json.loads(each) for each in made.printed(f"{line} --json").splitlines() if each[:1] in ("[", "{")]
            keyed = [{"values": each} for each in said] if line.startswith(BY_PATH) else said
            assert said and sorted(used(keyed, names) - names.keys()) == [], line
