"""The process above a run, with small programs in the controller's place: what it starts again, and what it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from proofs import often, one_of_each

from etude.config import parse
from etude.deadlines import DeadlineConfig
from etude.errors import ConfigError
from etude.rollouts.faults import (
    FIRST_PAUSE_S,
    FaultConfig,
    Patience,
    RestartBudgetSpent,
    Restarts,
    Supervised,
    restarts_of,
)

ROOT = Path(__file__).parents[2]
ABOVE = """
import sys
from pathlib import Path
from etude.errors import EtudeError, Interrupted, Terminated
from etude.rollouts.faults import FaultConfig, Patience, Restarts
from etude.rollouts.supervisor import Supervisor
directory, early_s, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
faults = FaultConfig(restarts=3)
patience = Patience(ping_every_s=0.05, ping_s=2, longest_pause_s=0.01, again_s=1, stop_early_s=early_s)
restarts = Restarts(faults, directory / "metrics.jsonl", patience)
beside = [sys.executable, str(directory / "beside.py")] if (directory / "beside.py").exists() else []
try:
    sys.exit(Supervisor(command, "--resume", directory / "recipe.json", restarts, beside).run())
except Interrupted as error:
    sys.exit(f"{143 if isinstance(error, Terminated) else 130}: {error}")
except EtudeError as error:
    sys.exit(str(error))
finally:
    assert not {"torch", "ray"} & set(sys.modules)
"""
LIFE = """
import os, pathlib, signal, subprocess, sys, time
directory = pathlib.Path(sys.argv[1])
with (directory / "lives").open("a") as file:
    file.write(" ".join(sys.argv[2:]) + ";")
(directory / "recipe.json").touch()
lives = (directory / "lives").read_text().count(";")
"""
LEAVES = """
left = subprocess.Popen(["setsid", "sh", "-c", "sleep 600 & sleep 600"])
with (directory / "left").open("a") as file:
    file.write(f"{left.pid}\\n")
time.sleep(0.2)
"""
DIES = "os.kill(os.getpid(), signal.SIGKILL)\n"


def start(directory, life, beside=None, stop_early_s=60):
    directory.mkdir()
    if beside is not None:
        (directory / "beside.py").write_text(beside)
    (directory / "life.py").write_text(LIFE + life)
    above = [sys.executable, "-c", ABOVE, str(directory), str(stop_early_s)]
    command = [*above, sys.executable, str(directory / "life.py"), str(directory)]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_a_dead_controller_is_started_again_with_resume_and_what_it_left_is_ended(tmp_path):
    out = tmp_path / "run"
    process = start(out, f"{LEAVES}if lives < 3: {DIES}sys.exit(7)")
    died = "etude: the controller has ended (signal 9 (Killed)); it starts anew\n"
    assert ended(process) == (7, 2 * died)
    assert (out / "lives").read_text() == ";--resume;--resume;"
    assert restarts_of(out / "metrics.jsonl") == {"controller": 2}
    left = list(map(int, (out / "left").read_text().split()))
    assert (len(left), any(map(psutil.pid_exists, left))) == (3, False)


def test_a_budget_that_is_spent_ends_the_run_and_says_why(tmp_path):
    code, said = ended(start(tmp_path / "run", DIES))
    assert code == 1
    assert "the controller died 4 times within 600 s, the last time: signal 9 (Killed)" in said
    assert "faults.restarts" in said


CODES = [(0, 1), (42, 1), (1, 1), (130, 1), (70, 4)]


@pytest.mark.parametrize(("code", "lives"), one_of_each(0.4, CODES, lambda code, lives: (lives, code > 0)))
def test_only_a_bug_is_tried_again_and_no_error_that_has_a_name(tmp_path, code, lives):
    ended_with, _ = ended(start(tmp_path / "run", f"sys.exit({code})"))
    assert (tmp_path / "run" / "lives").read_text().count(";") == lives
    assert ended_with == (code if lives == 1 else 1)


STOPPED = """
def stop(number, frame):
    (directory / "stopped").write_text(str(number))
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
(directory / "ready").touch()
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_user_who_stops_it_is_passed_on(tmp_path, number):
    out = tmp_path / "run"
    process = start(out, STOPPED)
    wait_for(out / "ready")
    process.send_signal(number)
    assert ended(process)[0] == 130
    assert (out / "stopped").read_text() == str(int(number))
    assert (out / "lives").read_text() == ";"


STUCK = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # as it is below Ray's C++
(directory / "ready").touch()
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_that_does_not_stop_is_ended_when_the_user_asks_again(tmp_path, number, code):
    out = tmp_path / "run"
    process = start(out, STUCK)
    wait_for(out / "ready")
    process.send_signal(number)
    process.send_signal(number)  # an echo of the first
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(number)
    said = ended(process)[1]
    assert f"{code}: ended at once, as you asked a second time; what is saved stays so: go on with --resume" in said
    assert (out / "lives").read_text() == ";"


def test_one_that_never_answered_and_does_not_stop_is_ended_soon(tmp_path):
    out = tmp_path / "run"
    process = start(out, STUCK, stop_early_s=0.2)
    wait_for(out / "ready")
    process.send_signal(signal.SIGTERM)
    assert "143: ended at once, as it had not stopped 0 s after you asked it to" in ended(process)[1]


def test_a_controller_dies_with_its_supervisor(tmp_path):
    out = tmp_path / "run"
    process = start(out, STOPPED)
    wait_for(out / "ready")
    below = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    assert psutil.wait_procs(below, timeout=60)[1] == []


BESIDE = """
import os, pathlib, signal, sys, time
directory = pathlib.Path(__file__).parent
with (directory / "companions").open("a") as file:
    file.write(f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), sys.exit(0)))
while True: time.sleep(0.01)
"""
WAITS = """
def companions(): return (directory / "companions").read_text().split() if (directory / "companions").exists() else []
while len(companions()) < lives: time.sleep(0.01)
"""
KILLS_IT = f"""{WAITS}
os.kill(int(companions()[0]), signal.SIGKILL)
while len(companions()) < 2: time.sleep(0.01)
"""


def test_what_goes_on_beside_a_run_outlives_its_lives_and_ends_with_the_last(tmp_path):
    out = tmp_path / "run"
    waits = WAITS.replace("< lives", "< 1")
    code, said = ended(start(out, f"{waits}{LEAVES}if lives < 3: {DIES}sys.exit(7)", BESIDE))
    assert (code, said.splitlines()[-1]) == (7, "asked to end")
    [companion] = map(int, (out / "companions").read_text().split())
    assert not psutil.pid_exists(companion)
    assert restarts_of(out / "metrics.jsonl") == {"controller": 2}


def test_that_it_dies_is_no_matter_for_the_run(tmp_path):
    out = tmp_path / "run"
    assert ended(start(out, f"{KILLS_IT}sys.exit(0)", BESIDE))[0] == 0
    assert (out / "lives").read_text() == ";"
    killed, again = map(int, (out / "companions").read_text().split())
    assert killed != again and not psutil.pid_exists(again)
    nothing = tmp_path / "nothing"
    assert ended(start(nothing, "sys.exit(0)", "raise SystemExit(1)"))[0] == 0


def test_it_ends_with_a_supervisor_that_is_killed(tmp_path):
    out = tmp_path / "run"
    process = start(out, f"{WAITS.replace('< lives', '< 1')}{STOPPED}", BESIDE)
    wait_for(out / "ready")
    below = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    assert psutil.wait_procs(below, timeout=60)[1] == [] and len(below) == 2


LIVES = often(2, 3)
HANGS = rf"""
import socket
if lives == {LIVES}:
    sys.exit(0)
(directory / "control.sock").unlink(missing_ok=True)
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(directory / "control.sock"))
listening.listen()
for _ in range(2):
    connection, _ = listening.accept()
    connection.recv(100)
    connection.sendall(b'{{"ok": true, "said": ""}}\n')
    connection.close()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_controller_that_is_stopped_is_killed_and_started_again(tmp_path):
    out = tmp_path / "run"
    assert ended(start(out, HANGS))[0] == 0
    assert restarts_of(out / "metrics.jsonl") == {"controller": LIVES - 1}
    assert "it did not answer any more" in (out / "metrics.jsonl").read_text()


def wait_for(path):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_restarts_are_counted_from_whole_lines_alone(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    line = json.dumps({"kind": "restart", "process": "engine", "why": "x", "at": 0})
    metrics.write_text(f'{{"kind": "step"}}\n{line}\n{line[:20]}')
    assert restarts_of(metrics) == {"engine": 1}


@pytest.mark.parametrize("kind", ["controller", "trainer", "engine", "sessions", "rewards"])
def test_a_budget_of_its_own_is_refused_and_what_to_write_said(kind):
    with pytest.raises(ConfigError, match=rf"faults: key {kind} is gone: write faults\.restarts, which"):
        parse({"name": "test", "faults": {kind: {"restarts": 3}}}, Supervised, "recipe")


def test_kinds_share_the_keys_and_not_the_budget(tmp_path):
    restarts = Restarts(FaultConfig(restarts=1), tmp_path / "metrics.jsonl")
    assert restarts.spend("engine", "it died") == restarts.spend("sessions", "it died") == FIRST_PAUSE_S
    with pytest.raises(RestartBudgetSpent, match="the engine died 2 times within 600 s, the last time: again"):
        restarts.spend("engine", "again")


def test_pauses_double_up_to_the_longest(tmp_path):
    restarts = Restarts(FaultConfig(), tmp_path / "metrics.jsonl", Patience(longest_pause_s=1.0))
    assert [restarts.spend("trainer", "it died") for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    many = Restarts(FaultConfig(restarts=1000), tmp_path / "metrics.jsonl")
    assert [many.spend("trainer", "it died") for _ in range(4)] == [0.2, 0.4, 0.6, 0.6]  # 600 s / 1000


def test_one_factor_scales_what_processes_are_waited_for(tmp_path, monkeypatch):
    for name, value in DeadlineConfig(scale=2).variables().items():
        monkeypatch.setenv(name, value)
    slow = Restarts(FaultConfig(), tmp_path / "metrics.jsonl")
    assert (slow.start_s, slow.drain_s, slow.ping_s, slow.ping_every_s) == (600, 240, 60, 10)
