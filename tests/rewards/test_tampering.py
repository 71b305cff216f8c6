"""Code under test that attacks its verifier, and the verifiers that must hold."""

import pytest
from proofs import one_of_each

from etude.environments import launcher
from etude.records import Task
from etude.rewards.verifier import verify
from etude.tasks.verifiers import calls_verifier, suite_verifier

CALLS = [("m", "add", [1, 2], 3), ("m", "add", ["a", "b"], "ab"), ("m", "add", [[1], [2]], [1, 2])]
WRONG = "\ndef add(a, b):\n    return None\n"
SUITE = """
import unittest
from m import add

def test_plain():
    assert add(1, 2) == 3

class AddTests(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(add([1], [2]), [1, 2])
"""

ATTACKS = {
    "writes the reward file": """
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")""",
    "writes the reward file and ends": """
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")
os._exit(0)""",
    "writes it and kills the verifier": """
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")
os.kill(os.getppid(), 9)""",
    "writes it again and again from a daemon": """
import os
os.makedirs("/logs/verifier", exist_ok=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        try:
            open("/logs/verifier/new", "w").write("1")
            os.rename("/logs/verifier/new", "/logs/verifier/reward.txt")
        except OSError:
            pass""",
    "renames it there by a path that takes long, and ends in the midst of it": r"""
import os
maze = "/logs/m"
os.makedirs(maze)
os.chdir(maze)
for _ in range(1900):
    os.mkdir("a")
    os.chdir("a")
deep = maze + "/" + "a/" * 1900
for k in range(39):
    os.symlink(deep + (f"n{k + 1}" if k < 38 else ""), f"n{k}")
for i in range(12):
    with open(f"e{i}", "w") as file:
        file.write("1.0")
os.makedirs("/logs/verifier", exist_ok=True)
for i in range(12):
    if os.fork() == 0:
        while True:
            try:
                os.rename(f"{deep}n0/e{i}", "/logs/verifier/reward.txt")
            except OSError:
                pass
            try:
                file = os.open(f"e{i}", os.O_WRONLY | os.O_CREAT, 0o644)
                os.write(file, b"1.0")
                os.close(file)
            except OSError:
                pass
import time
time.sleep(1.5)""",
    "makes the reward file unwritable": """
import os
os.makedirs("/logs/verifier/reward.txt/x", exist_ok=True)""",
    "closes the directory around a good reward": """
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")
os.chmod("/logs/verifier", 0o500)""",
    "exits at import": "import sys\nsys.exit(0)",
    "prints a pass": "print('passed 3 of 3; wrong: []')",
    "patches builtins": """
import builtins
builtins.repr = lambda value: "3"
builtins.eval = lambda *a: None
builtins.open = None""",
    "patches assertions": """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
unittest.TestCase.run = lambda self, result=None: result.startTest(self)
unittest.TestResult.wasSuccessful = lambda self: True""",
    "deletes the tests": """
import os
for name in os.listdir("/tests"):
    os.unlink("/tests/" + name)""",
    "replaces the verifier": """
for name in ("guard.py", "secret"):
    with open("/tests/" + name, "w") as file:
        file.write("import os; os.makedirs('/logs/verifier'); open('/logs/verifier/reward.txt', 'w').write('1')")""",
    "writes into every pipe": """
import os
for fd in range(3, 20):
    try:
        os.write(fd, b"0 3\\n1 'ab'\\n2 [1, 2]\\n'test_plain' 'ok'\\n")
    except OSError:
        pass""",
    "stops the verifier": "import os\nos.kill(os.getppid(), 19)",
    "loops for ever": "while True: pass",
    "loops and ignores signals": """
import signal
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
while True: pass""",
    "floods the pipe": """
import os
for fd in range(3, 20):
    try:
        while True:
            os.write(fd, b"x" * 65536)
    except OSError:
        pass""",
}
PLANT = b"""
import os
os.makedirs("/logs/verifier", exist_ok=True)
open("/logs/verifier/reward.txt", "w").write("1")
os._exit(0)
"""
MODULES = ("sitecustomize", "usercustomize", "conftest", "posix", "_ctypes", "unittest", "sys")
SHADOWS = {
    **{f"{name}.py": PLANT for name in MODULES},
    "pytest.ini": b"[pytest]\naddopts = --co\n",
    "x.pth": b"import os; os._exit(0)\n",
}
LASTING = ("stops the verifier", "loops for ever", "loops and ignores signals", "floods the pipe")
VERIFIERS = {
    "calls": lambda limit_s: calls_verifier(CALLS, limit_s),
    "suite": lambda limit_s: suite_verifier(SUITE, "test_m", ["test_plain", "AddTests.test_equal"], limit_s),
}


def task(verifier):
    return Task("attacked", "", {"m.py": b""}, verifier)


PAIRS = [(attack, verifier) for attack in ATTACKS for verifier in VERIFIERS]


@pytest.mark.parametrize(("attack", "verifier"), one_of_each(0.7, PAIRS, lambda attack, verifier: attack))
def test_an_attack_does_not_pass(run, attack, verifier):
    async def scenario(backend):
        attacked = task(VERIFIERS[verifier](0.5 if attack in LASTING else 1.5))
        verdict = await verify(attacked, {"m.py": (ATTACKS[attack] + WRONG).encode()}, backend)
        assert verdict.reward == 0.0, verdict

    run(scenario)


def test_a_reward_that_a_link_of_proc_leads_to_is_nobodys(run, monkeypatch):
    """Where the agent's own process works in another directory than commands do, as in a machine, it has two ends."""
    enter = launcher._enter
    monkeypatch.setattr(launcher, "_enter", lambda directory, env: enter("/", env))
    led = """
import os
os.makedirs("/workspace/tmp")
open("/tmp/reward.txt", "w").write("1.0")
os.system("rm -rf /logs/verifier; ln -s /proc/self/cwd/tmp /logs/verifier")"""

    async def scenario(backend):
        attacked = Task("t", "Fix add.", {"m.py": b""}, calls_verifier(CALLS))
        return await verify(attacked, {"m.py": (led + WRONG).encode()}, backend)

    assert run(scenario).reward == 0


def test_modules_of_the_workspace_do_not_shadow_the_verifiers(run):
    async def scenario(backend):
        verdict = await verify(task(calls_verifier(CALLS)), {**SHADOWS, "m.py": WRONG.encode()}, backend)
        assert (verdict.reward, verdict.reason) == (0.0, "failed"), verdict

    run(scenario)


def test_expected_values_cannot_be_found_by_the_code(run):
    thief = rb"""
import gc, glob, os, re, sys
def add(a, b):
    places = ["/tests/secret", *glob.glob("/proc/%d/*" % os.getppid()), *glob.glob("/proc/%d/fd/*" % os.getppid())]
    texts = [repr(item) for item in gc.get_objects() if isinstance(item, (dict, list, tuple))]
    frame = sys._getframe()
    while frame:
        texts.append(repr(frame.f_locals))
        frame = frame.f_back
    for path in places:
        try:
            texts.append(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 20).decode("latin1"))
        except OSError:
            pass
    found = [key for text in texts for key in re.findall("KEY-[0-9]+", text)]
    return found[0] if found else None
"""

    async def scenario(backend):
        calls = [("m", "add", [1, 2], "KEY-48151623")]
        assert (await verify(task(calls_verifier(calls)), {"m.py": thief}, backend)).reason == "failed"
        told = [("m", "add", [1, "KEY-48151623"], "KEY-48151623")]  # the thief does work where there is a key to find
        assert (await verify(task(calls_verifier(told)), {"m.py": thief}, backend)).reason == "passed"

    run(scenario)


def test_the_parents_memory_is_closed_to_the_code(run):
    reader = b"""
import os
def add(a, b):
    try:
        open("/proc/%d/mem" % os.getppid(), "rb").close()
        return "open"
    except PermissionError:
        return "closed"
"""

    async def scenario(backend):
        verdict = await verify(task(calls_verifier([("m", "add", [1, 2], "closed")])), {"m.py": reader}, backend)
        assert verdict.reason == "passed", verdict

    run(scenario)


def test_an_answer_that_equals_everything_is_compared_as_text(run):
    sly = b"""
class Same:
    def __eq__(self, other): return True
    def __repr__(self): return "Same()"
def add(a, b): return Same()
"""

    async def scenario(backend):
        assert (await verify(task(calls_verifier(CALLS)), {"m.py": sly}, backend)).reason == "failed"

    run(scenario)


def test_an_answer_that_says_one_thing_of_each_kind_is_not_paid(run):
    """The form in which a test's own objects are sent says that; an answer is one value."""
    sly = b"""
class Both:
    def __repr__(self): return "rich([3, 'ab', [1, 2]])"
def add(a, b): return Both()
"""

    async def scenario(backend):
        assert (await verify(task(calls_verifier(CALLS)), {"m.py": sly}, backend)).reason == "failed"

    run(scenario)
