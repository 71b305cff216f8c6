"""`etude agent --print` without descriptors, and on a disk that takes its time under a clock that jumps."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_openai import Reply, ScriptedServer
from sick_disk import mounted
from small import ROOT
from test_small_run import agent, etude, writing, written

from etude.harness.store import SessionStore
from etude.product.terminal.typing import Typed

FILES = [f"{n}.txt" for n in range(4)]
DAYS_S = 10 * 86_400


@pytest.fixture
def there(outer):
    """A project, and a home for its session, on a disk with all the room there is."""
    (outer / "project").mkdir()
    return outer, {"ETUDE_HOME": str(outer / "home"), "XDG_CONFIG_HOME": str(outer / "config")}


def started(words, variables) -> subprocess.Popen:
    command = [sys.executable, "-m", "etude.cli.main", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def whole(outer: Path) -> None:
    """Every call was made once, and all that it did is there."""
    [log] = (outer / "home" / "sessions").glob("*/events.jsonl")
    kinds = [event.kind for event, _ in SessionStore(outer / "home").events(log.parent.name)]
    assert kinds.count("tool_call") == kinds.count("tool_result") == len(FILES) and kinds.count("end") == 1
    assert written(outer) == FILES


@pytest.mark.parametrize("turn", range(len(FILES)))
def test_descriptors_that_run_out_in_the_middle(turn, there):
    """From the moment in which the model answers: what it says is heard, and nothing can be opened any more."""
    outer, home = there
    model, victims = writing(len(FILES)), []

    def starving(body) -> Reply:
        if victims and sum(message["role"] == "tool" for message in body["messages"]) == turn:
            _, hard = resource.prlimit(victims[0].pid, resource.RLIMIT_NOFILE)
            resource.prlimit(victims.pop().pid, resource.RLIMIT_NOFILE, (3, hard))
        return model(body)

    with ScriptedServer(starving) as server:
        process = started(agent(outer, server, "Write them."), home)
        victims.append(process)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1 and "Traceback" not in said, said
        assert said.count("\n") == 1 and "ulimit -n" in said, said
        done = etude(*agent(outer, server, "--continue"), **home)
        assert done.returncode == 0 and done.stdout == "Done.\n", done.stderr
    whole(outer)


def test_a_limit_that_is_too_low_from_the_start(there):
    outer, home = there
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = 0
    with ScriptedServer(writing(len(FILES))) as server:
        for limit in range(8, 40):
            process = started(agent(outer, server, "Write them."), home)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, hard))
            out, said = process.communicate(timeout=120)
            if process.returncode == 0:
                break
            refused += 1
            assert process.returncode == 1 and "ulimit -n" in said and said.count("\n") == 1, (limit, said)
        assert refused and out == "Done.\n" and written(outer) == FILES


def test_a_slow_disk_and_a_clock_that_jumps(there, tmp_path):
    """Each sync takes a third of a second, and the day changes between two answers."""
    outer, home = there
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    library, offset, model = tmp_path / "set_clock.so", tmp_path / "offset", writing(len(FILES))
    source = ROOT / "tests/environments/server/set_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True, timeout=60)
    offset.write_text("0")

    def jumping(body) -> Reply:
        offset.write_text(str(DAYS_S * (-1) ** len(body["messages"])))
        return model(body)

    slow = {"LD_PRELOAD": str(library), "SET_CLOCK": str(offset), "SLOW_MS": "300"}
    with ScriptedServer(jumping) as server:
        done = etude(*agent(outer, server, "Write them.", "--json"), **home, **slow)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["response"] == "Done."
    whole(outer)


def test_a_typed_line_that_cannot_be_kept_is_no_error(tmp_path):
    with mounted(tmp_path / "disk", "64k") as disk:
        history = Typed(str(disk.at / "history"))
        history.store_string("first")
        disk.fill()
        history.store_string("x" * 9_000)
        disk.clear()
        history.store_string("last")
        assert [*history.load_history_strings()][::-1][:1] + [*history.load_history_strings()][:1] == ["first", "last"]
