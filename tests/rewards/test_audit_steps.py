"""What an audit costs grows as what it reads does: of twice as much code it makes about twice as many calls, whatever
shape the code has. Calls are counted, not times. One state that costs more keeps the audits of others waiting."""

import sys

import pytest

from etude.records import Task
from etude.rewards.audit import Workspace, audit
from etude.tasks.verifiers import calls_verifier

TASK = Task("t", "", {"m.py": b"def f(a):\n    return 0\n"}, calls_verifier([("m", "f", [1234], 4321)]))


def many(count, line, before="", after=""):
    return {"m.py": before + "".join(line.format(n) for n in range(count)) + after}


SHAPES = {
    "files": lambda n: {f"m{each}.py": f"import os\ndef f{each}():\n    return os.sep\n" for each in range(6 * n)},
    "data beside code": lambda n: {f"{each}": "x" for each in range(n)} | {f"m{each}.py": "x" for each in range(n)},
    "decorators": lambda n: many(n, "@a\n", after="def f():pass\n"),
    "decorators that are called": lambda n: many(n, "@a.b(c)\n", after="def f():pass\n"),
    "arguments": lambda n: many(n, "a,", "f(", ")\n"),
    "arguments of a method": lambda n: many(n, "a.b,", "f.g(", ")\n"),
    "keys": lambda n: many(n, "a,", "f[", "]\n"),
    "functions": lambda n: many(n, "def f{}(): pass\n"),
    "functions that call each other": lambda n: many(n, "def f{0}(): g({0})\n", after="f0()\n"),
    "a chain": lambda n: chain(n),
    "a chain of classes": lambda n: many(n, "class C{0}(D): x = 1\n", after="C0()\n"),
    "exits in a function": lambda n: many(n, "    os._exit(0)\n", "import os\ndef f():\n"),
    "exits below a condition": lambda n: many(n, "    os._exit(0)\n", f"import os\nif {'a or ' * n}b:\n"),
    "subclasses": lambda n: many(n, "class C{0}: pass\nC{0}.__subclasses__()\n"),
    "hashes": lambda n: many(n, "    d[h]\n    d = x\n", "def f(a):\n    h = hash(a)\n"),
    "assignments": lambda n: many(n, "a{0} = b.c\n"),
    "names of names": lambda n: many(n, "a{0} = b{0}\n", "from x import b\n"),
    "conditions": lambda n: many(n, "    if a == {0}: return {0}\n", "def f(a):\n"),
    "skips": lambda n: {"test_m.py": "".join(f"@skip\ndef test_{each}(): pass\n" for each in range(n))},
    "exec": lambda n: many(n, "exec('import os')\n"),
    "comments": lambda n: many(n, "# I think, hmm, wait\n"),
    "tracebacks": lambda n: many(n, "a.tb_frame\n"),
    "frames": lambda n: many(n, "a.f_globals,", "f('__name__', ", ")\n"),
}  # fmt: skip


def chain(count):
    return {"m.py": "".join(f"def f{n}(): f{n + 1}()\n" for n in range(count, -1, -1)) + "f0()\n"}


def calls(count, shape):
    """How many an audit makes, Python's own included."""
    counted = 0

    def count_one(frame, event, arg):
        nonlocal counted
        counted += event in ("call", "c_call")

    files = {path: text.encode() for path, text in SHAPES[shape](count).items()}
    sys.setprofile(count_one)
    try:
        audit(TASK, (), Workspace({**TASK.files, **files}, {}))
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_as_much_code_takes_twice_as_many_calls(shape):
    calls(1, shape)  # what is made once in a process
    once, twice = calls(100, shape), calls(200, shape)
    assert twice < 2.5 * once, f"{once} calls, and of twice as much {twice}"
