"""Code that nobody can read never reaches a verifier: each kind is paid by a verifier that does not look."""

import io
import py_compile
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.environments.archive import take_out
from etude.environments.base import SandboxSpec
from etude.records import Task
from etude.rewards.legible import legible
from etude.rewards.verifier import verify
from etude.tasks.verifiers import calls_verifier

WRONG = b"def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TASK = Task("add", "", {"m.py": WRONG}, calls_verifier([("m", "add", [2, 3], 5)], 20.0))
EXTENSION = r"""
#include <Python.h>
static PyObject *add(PyObject *self, PyObject *args) {
    long a, b;
    return PyArg_ParseTuple(args, "ll", &a, &b) ? PyLong_FromLong(a + b) : NULL;
}
static PyMethodDef methods[] = {{"add", add, METH_VARARGS, ""}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", "", -1, methods};
PyMODINIT_FUNC PyInit_m(void) { return PyModule_Create(&module); }
"""


def bytecode(tmp_path: Path) -> bytes:
    (tmp_path / "m.py").write_text(RIGHT)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return Path(py_compile.compile(str(tmp_path / "m.py"), str(tmp_path / "c"), invalidation_mode=mode)).read_bytes()


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, RIGHT)
    return b"a note\n" + buffer.getvalue()


def planted(kind: str, tmp_path: Path) -> dict[str, bytes]:
    from_data = b"import sys\nsys.path.insert(0, '/workspace/notes.dat')\nfrom real import add\n"
    loaded = b"import marshal\nwith open('/workspace/notes.dat', 'rb') as f:\n    exec(marshal.loads(f.read()[16:]))\n"
    match kind:
        case "bytecode with an unchecked hash":
            return {"__pycache__/m.cpython-311.pyc": bytecode(tmp_path)}
        case "bytecode in the place of source":
            return {"real.pyc": bytecode(tmp_path), "m.py": b"from real import add\n"}
        case "bytecode under another name":
            return {"notes.dat": bytecode(tmp_path), "m.py": loaded}
        case "an archive under another name":
            return {"notes.dat": zipped("real.py"), "m.py": from_data}
        case "a start-up file":
            return {"sitecustomize.py": RIGHT.encode(), "m.py": b"from sitecustomize import add\n"}
        case "a directory of a tool":
            return {".venv/real.py": RIGHT.encode(), "m.py": from_data.replace(b"notes.dat", b".venv")}
        case "git's directory":
            return {".git/real.py": RIGHT.encode(), "m.py": from_data.replace(b"notes.dat", b".git")}
        case "an extension module beside the source":
            (tmp_path / "m.c").write_text(EXTENSION)
            include = sysconfig.get_path("include")
            subprocess.run(
                ["cc", "-shared", "-fPIC", f"-I{include}", "-o", tmp_path / "m.so", tmp_path / "m.c"],
                check=True, timeout=120,
            )  # fmt: skip
            return {f"m{sysconfig.get_config_var('EXT_SUFFIX')}": (tmp_path / "m.so").read_bytes()}
    raise ValueError(kind)


KINDS = (
    "bytecode with an unchecked hash", "bytecode in the place of source", "bytecode under another name",
    "an archive under another name", "a start-up file", "a directory of a tool", "git's directory",
)  # fmt: skip
needs_compiler = pytest.mark.skipif(
    not shutil.which("cc") or not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="no C compiler"
)


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("an extension module beside the source", marks=needs_compiler)])
def test_what_cannot_be_read_is_left_away(run, kind, tmp_path):
    files = {"m.py": WRONG, **planted(kind, tmp_path)}

    async def scenario(backend):
        verdict = await verify(TASK, files, backend)
        assert verdict.reward == 0.0 and verdict.stripped, verdict
        agent = await backend.create(SandboxSpec(files=files))  # as a session leaves it
        sealed = await take_out(agent)
        await agent.destroy()
        assert (await verify(TASK, sealed, backend)).stripped == verdict.stripped

    run(scenario)


@pytest.mark.parametrize(
    "source",
    [
        b"# coding: utf-7\n" + WRONG + "#\nadd = lambda a, b: a + b\n".encode("utf-7").replace(b"\n", b"+AAo-"),
        b"#!/usr/bin/python3\n# -*- coding: utf-16 -*-\n" + WRONG,
        b"# x\r# vim: fileencoding=rot13\r" + WRONG,
        b"\xef\xbb\xbf# coding=unicode_escape\n" + WRONG,
        b"# coding: nobody-knows\n" + WRONG,
        WRONG + b"\0\nadd = int\n",
    ],
)
def test_source_in_an_encoding_that_hides_is_refused(run, source):
    async def scenario(backend):
        verdict = await verify(TASK, {"m.py": source}, backend)
        assert (verdict.reward, verdict.reason) == (0.0, "blocked") and "m.py" in verdict.detail

    run(scenario)
    assert not legible({"m.py": source}, {"m.py": source}).refused, "the task's own"


@pytest.mark.parametrize(
    "cookie", [b"", b"# coding: utf-8\n", b"# -*- coding: latin-1 -*-\n", b"\xef\xbb\xbf", b"#!x\n"]
)
def test_plain_source_is_judged(run, cookie):
    async def scenario(backend):
        verdict = await verify(
            TASK, {"m.py": cookie + RIGHT.encode(), "docs/a.zip": b"PK", "b.csv": b"a,\r\n"}, backend
        )
        assert (verdict.reward, verdict.stripped) == (1.0, ())

    run(scenario)


def test_what_the_task_gave_stays():
    files = {"lib/fast.so": b"\x7fELF1", "x.pth": b"lib\n", "vendor/a.zip": zipped("a.py"), ".mypy_cache/a.json": b"{}"}
    assert legible(files, files).state == files
    changed = {path: data + b"2" for path, data in files.items()}
    assert legible(files, changed).state == {}
    assert legible({"__pycache__/m.pyc": b"x"}, {"__pycache__/m.pyc": b"x"}).stripped == ("__pycache__/m.pyc",)


@pytest.mark.parametrize("magic", [b"\x7fELF", b"MZ\x90\x00", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\x00asm"])
def test_machine_code_is_known_by_its_content(magic):
    assert legible({}, {"data/table.dat": magic + b"\1\2\3"}).stripped == ("data/table.dat",)


@pytest.mark.parametrize(
    "name",
    ["m.pyc", "m.pyo", "m.pyd", "m.so", "m.so.1.2", "m.dll", "m.dylib", "m.node", "m.wasm", "m.pth", "m.egg", "m.whl",
     "m.egg-link", "m.pyz", "m.pyzw"],
)  # fmt: skip
def test_what_is_loaded_beside_source_is_known_by_its_name(name):
    files = {f"lib/{name}": b"../elsewhere\n", f"{name}.txt": b"a note\n"}
    assert legible({}, files).stripped == (f"lib/{name}",)


def directory_of_a_zip(entries: int) -> bytes:
    """As it stands at an archive's end; each entry is a file `a`."""
    entry = b"PK\x01\x02" + bytes(24) + (1).to_bytes(2, "little") + bytes(16) + b"a"
    return entry * entries + b"PK\x05\x06" + bytes(18)


def test_an_archive_with_more_names_than_anybody_reads_is_left_away():
    most = 100_000
    files = {"read.dat": directory_of_a_zip(most), "unread.dat": directory_of_a_zip(most + 1)}
    assert legible({}, files).stripped == ("unread.dat",)


@given(st.dictionaries(st.text(min_size=1, max_size=9), st.binary(max_size=40), max_size=4))
def test_no_content_stops_the_sieve(files):
    assert set(legible({}, files).stripped) <= set(files)
