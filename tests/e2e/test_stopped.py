"""A run that a signal stops, at whatever moment of its start: one line, and the code that says which signal."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from proofs import one_of_each
from small import ROOT, variables

pytestmark = pytest.mark.timeout(240)
EARLY = "stopped while it started, and nothing is lost; the same command starts it again"
TRAIN, PLAN = ["train", "recipes/quickstart.toml", "--out"], ["plan", "recipes/quickstart.toml"]


def below(pid, name):
    """Whether a process of this name has been started under that one."""
    try:
        return any(name in " ".join(each.cmdline()[:1]) for each in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return False


def stopped(words, number, until):
    """What a command says that is stopped, it and all below it, as by a terminal or `timeout`, once `until` holds."""
    started = subprocess.Popen(
        [sys.executable, "-m", "etude.cli.main", *words], cwd=ROOT, env=variables(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    over = threading.Timer(120, os.killpg, (started.pid, signal.SIGKILL))
    over.start()
    try:
        while not until(started.pid):
            assert started.poll() is None, started.communicate()
            time.sleep(0.02)  # to look all the time would take the core that Ray starts on
        for _ in range(3):
            os.killpg(started.pid, number)
        said, errors = started.communicate()
        return started.returncode, said, errors
    finally:
        over.cancel()
        started.kill()


WAYS = [(signal.SIGINT, 130, "gcs_server"), (signal.SIGTERM, 143, "raylet"), (signal.SIGTERM, 143, "gcs_server")]


@pytest.mark.parametrize(("number", "code", "name"), one_of_each(15, WAYS))
def test_a_run_that_is_stopped_while_ray_starts_says_one_line(tmp_path, number, code, name):
    words = [*TRAIN, str(tmp_path / "run")]
    ended, said, errors = stopped(words, number, lambda pid: below(pid, name))
    assert (ended, errors) == (code, f"etude train: {EARLY}\n"), said


def test_a_run_that_is_stopped_before_any_process_of_it_starts_says_one_line_and_can_be_started_again(tmp_path):
    words = [*TRAIN, str(tmp_path / "run")]
    for _ in range(2):
        (tmp_path / "run" / "recipe.json").unlink(missing_ok=True)
        ended, _, errors = stopped(words, signal.SIGINT, lambda _: (tmp_path / "run" / "recipe.json").exists())
        assert (ended, errors) == (130, f"etude train: {EARLY}\n")


def test_a_plan_that_is_stopped_while_ray_starts_says_one_line():
    ended, said, errors = stopped(PLAN, signal.SIGTERM, lambda pid: below(pid, "raylet"))
    assert (ended, said, errors) == (143, "", f"etude plan: {EARLY}\n")
