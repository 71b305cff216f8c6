"""Slices hold what is named, unchanged, and run without the rest of the package."""

import subprocess
import sys

import pytest

from etude.tasks.slices import NotSliceable, SourcePackage, slice_of

FILES = {
    "pkg/__init__.py": "from .core import *\nfrom .extra import late\nVERSION = 1\n",
    "pkg/core.py": '''"""Docs."""
from __future__ import annotations

import math, os
from itertools import chain as join, count

from .helpers import LIMIT, helper as help_out

_marker = object()

try:
    from missing_package import fast
except ImportError:
    def fast(x):
        return x


# a comment between
def wrapped(function):
    return function


@wrapped
def target(xs, first=_marker):
    """Keep  this   spacing."""
    return help_out(list(join(xs, [fast(LIMIT)])))


def unrelated():
    return count(os.getpid())
''',
    "pkg/helpers.py": "LIMIT = 3\nUNUSED = 4\n\n\ndef helper(x):\n    return x[:LIMIT + 4]\n",
    "pkg/extra.py": "from . import core\n\n\ndef late():\n    return core.target([])\n",
    "test_pkg.py": "import pkg as p\nfrom pkg import late\n\n\ndef test_it():\n    assert p.target([1]) == [1, 3]\n\n\n"
    "def test_late():\n    assert late() == [3]\n",
}


@pytest.fixture
def package(tmp_path):
    for path, text in FILES.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_text(text)
    return SourcePackage(tmp_path / "source", "pkg")


def test_a_slice_holds_what_is_needed_and_no_more(package):
    files = slice_of(package, [("pkg.core", "target")])
    core = files["pkg/core.py"]
    assert set(files) == {"pkg/__init__.py", "pkg/core.py", "pkg/helpers.py"}
    assert '@wrapped\ndef target(xs, first=_marker):\n    """Keep  this   spacing."""\n' in core
    assert "from itertools import chain as join" in core
    assert "from __future__ import annotations" in core
    assert "unrelated" not in core
    assert "import os" not in core
    assert "UNUSED" not in files["pkg/helpers.py"]
    assert files["pkg/__init__.py"] == ""


def test_a_slice_of_a_test_runs_by_itself(package, tmp_path):
    tests = package.add_tests(tmp_path / "source" / "test_pkg.py", "test_pkg")
    files = slice_of(package, [(tests.name, "test_it")])
    assert "test_late" not in files["test_pkg.py"]
    assert "VERSION" not in files["pkg/__init__.py"]
    for path, text in files.items():
        (tmp_path / "out" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / path).write_text(text)
    command = [sys.executable, "-c", "import test_pkg; test_pkg.test_it(); print('ran')"]
    done = subprocess.run(command, cwd=tmp_path / "out", capture_output=True, text=True, timeout=30)
    assert done.stdout == "ran\n", done.stderr


def test_names_are_followed_through_the_package(package, tmp_path):
    tests = package.add_tests(tmp_path / "source" / "test_pkg.py", "test_pkg")
    assert package.direct_uses(tests, tests.binders["test_it"]) == [("pkg.core", "target")]
    assert package.direct_uses(tests, tests.binders["test_late"]) == [("pkg.extra", "late")]


def test_what_is_not_there_is_refused(package):
    with pytest.raises(NotSliceable, match="binds no nowhere"):
        slice_of(package, [("pkg.core", "nowhere")])
    with pytest.raises(NotSliceable, match="not source of pkg"):
        slice_of(package, [("json", "loads")])
