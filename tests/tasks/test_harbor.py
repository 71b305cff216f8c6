"""Harbor directories: a Task comes back as it was, and what cannot is refused by name."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.errors import ConfigError
from etude.records import Limits, Task, Verifier
from etude.tasks.foreign import read_foreign
from etude.tasks.harbor import read_task, write_task
from etude.tasks.ladder import ladder_task
from etude.tasks.names import file_name, is_id
from etude.tasks.packed import packed_names, unpack_tasks
from etude.tasks.realcode import suite_tasks

HARBOR = os.environ.get("ETUDE_HARBOR_PYTHON")
MINED = Path(__file__).parents[2] / "benchmarks" / "mined" / "toolz.bundle"
ACCEPTED = """
import sys
from pathlib import Path
from harbor.models.task.task import Task
for path in map(Path, sys.argv[1:]):
    task = Task(path)
    assert task.instruction and task.paths.test_path.exists() and task.config.schema_version == "1.4", path
    print(task.name, task.config.verifier.timeout_sec)
"""
TASK = Task(
    id="Größe/1 a",
    instruction="Fix it.\r\nÜber – 😀 \x7f\n\n",
    files={
        "a.py": b"x = 1\n", "data.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\n", "deep/er/.hidden": b"",
        "odd name\n\t'\"$(x)*?.txt": b"odd", "ünïcode/文件": "ü".encode(), "-rf": b"dash", "back\\slash": b"",
        "Dockerfile": b"FROM scratch", "task.toml": b"[not ours]",
    },
    verifier=Verifier({"/tests/test.sh": b"exit 0\n", "/tests/sub/case.bin": b"\x00\xff"}, timeout_s=7.25),
    image="registry.example/img:1",
    setup=('printf "a\\tb"\necho two', "true"),
    solution={"a.py": b"x = 2\n", "deep/new.py": b""},
    rubric=("short", "named “well”"),
    limits=Limits(3, 512, 99, 12.5),
    split="heldout",
    provenance={"family": "x", "rung": 2, "ok": True, "p": 0.5, "list": ["a", {"b": [1]}], "executable": ["run.sh"]},
)  # fmt: skip


def test_everything_a_task_holds_comes_back(tmp_path):
    write_task(TASK, tmp_path / "task")
    assert read_task(tmp_path / "task") == TASK


def test_executable_bits_are_kept_and_scripts_can_run(tmp_path):
    write_task(TASK, tmp_path / "task")
    runnable = {
        str(path.relative_to(tmp_path / "task"))
        for path in (tmp_path / "task").rglob("*")
        if path.is_file() and os.access(path, os.X_OK) and path.stat().st_mode & 0o100
    }
    assert runnable == {"environment/workspace/run.sh", "tests/test.sh", "solution/solve.sh"}


def test_generated_and_real_tasks_come_back(tmp_path):
    tasks = [ladder_task(rung, "train", 1) for rung in (1, 5)] + suite_tasks()[:3]
    for task in tasks:
        write_task(task, tmp_path / task.id)
        assert read_task(tmp_path / task.id) == task


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3).map("/".join)
values = st.recursive(
    st.text(max_size=5) | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def trees(min_size=0):
    def free_of_clashes(files):
        return not any(other.startswith(f"{path}/") for path in files for other in files)

    return st.dictionaries(paths, st.binary(max_size=40), min_size=min_size, max_size=4).filter(free_of_clashes)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    task=st.builds(
        Task,
        id=paths.filter(is_id),
        instruction=st.text(max_size=40),
        files=trees(),
        verifier=st.builds(
            lambda files, command, seconds: Verifier(
                {
                    **{f"/tests/{path}": data for path, data in files.items() if path.split("/")[0] != "test.sh"},
                    **({"/tests/test.sh": b"x"} if command is None else {}),
                },
                "sh /tests/test.sh" if command is None else command,
                seconds,
            ),
            trees(),
            st.none() | st.text(min_size=1, max_size=20),
            st.floats(0.1, 1e4),
        ),
        setup=st.lists(st.text(max_size=20), max_size=2).map(tuple),
        solution=trees(),
        rubric=st.lists(st.text(max_size=10), max_size=2).map(tuple),
        limits=st.builds(Limits, st.integers(1, 99), st.integers(1, 9999), st.integers(1, 9999), st.floats(0.1, 1e5)),
        split=st.sampled_from(["train", "eval", "heldout", "real"]),
        provenance=st.dictionaries(
            st.text(max_size=6).filter(lambda key: key not in ("etude", "harbor", "executable")), values, max_size=3
        ),
    )
)
def test_any_task_comes_back(task, tmp_path):
    directory = tmp_path / os.urandom(8).hex()
    write_task(task, directory)
    assert read_task(directory) == task


def with_files(**fields):
    return replace(TASK, **{"provenance": {}, **fields})


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (with_files(files={"../out": b""}), r"workspace: '\.\./out'"),
        (with_files(files={"/etc/passwd": b""}), "plain relative path"),
        (with_files(files={"a/../../b": b""}), "plain relative path"),
        (with_files(files={"a//b": b""}), "plain relative path"),
        (with_files(files={"": b""}), "plain relative path"),
        (with_files(files={".": b""}), "plain relative path"),
        (with_files(files={"a\0b": b""}), "plain relative path"),
        (with_files(files={"a": b"", "a/b": b""}), "lies below"),
        (with_files(solution={"../../x": b""}), "solution/files"),
        (with_files(verifier=Verifier({"/tests/test.sh": b"", "/tests/../x": b""})), r"tests: '\.\./x'"),
        (with_files(verifier=Verifier({"/tests/test.sh": b"", "/etc/x": b""})), "verifier.files: '/etc/x'"),
        (with_files(verifier=Verifier({"/tests/test.sh": b""}, "other")), "verifier.command"),
        (with_files(verifier=Verifier({})), "test.sh"),
        (with_files(provenance={"a": {"b": [None]}}), r"provenance\.a\.b\[0\]: None"),
        (with_files(provenance={"a": (1,)}), r"provenance\.a"),
        (with_files(provenance={"etude": 1}), r"provenance\.etude"),
        (with_files(provenance={"executable": ["none"]}), "provenance.executable"),
        (with_files(provenance={"harbor": {"environment": {"gpus": 1}}}), "gpus: unknown key"),
        (with_files(image="a\nRUN b"), "image"),
        (with_files(id="../out"), r"task: id: '\.\./out' is none"),
        (with_files(limits=replace(TASK.limits, max_turns=0)), "max_turns"),
        (with_files(instruction="\ud800"), "instruction"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, task, says):
    with pytest.raises(ConfigError, match=says):
        write_task(task, tmp_path / "task")
    assert os.listdir(tmp_path) == []


def test_an_existing_directory_is_not_overwritten(tmp_path):
    write_task(TASK, tmp_path / "task")
    with pytest.raises(ConfigError, match="exists already"):
        write_task(TASK, tmp_path / "task")


FILES = ("task.toml", "instruction.md", "environment/Dockerfile", "solution/solve.sh")
DIRECTORIES = ("environment", "environment/workspace", "tests", "solution", "solution/files")


def turned(path):
    """A file becomes a directory, and a directory a file."""
    if path.is_file():
        path.unlink()
        path.mkdir()
    else:
        shutil.rmtree(path)
        path.write_text("x")


def edit(directory, path, old, new):
    target = directory / path
    text = target.read_text()
    assert old in text
    target.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: (d / "task.toml").unlink(), r"task\.toml: missing"),
        (lambda d: (d / "task.toml").write_text("= 1"), "not valid TOML"),
        (lambda d: edit(d, "task.toml", '"1.4"', '"9.9"'), "schema_version"),
        (lambda d: edit(d, "task.toml", "[agent]", "[agent]\nspeed = 1"), r"agent\.speed: unknown key"),
        (lambda d: edit(d, "task.toml", "timeout_sec = 7.25", "timeout_sec = 'x'"), r"verifier\.timeout_sec"),
        (lambda d: edit(d, "task.toml", "no-network", "public"), r"environment\.network_mode"),
        (lambda d: edit(d, "task.toml", "max_turns = 3", "max_turn = 3"), r"metadata\.etude.*max_turn"),
        (lambda d: edit(d, "task.toml", "max_turns = 3", "max_turns = -1"), r"metadata\.etude: max_turns"),
        (lambda d: edit(d, "task.toml", "timeout_sec = 7.25", "timeout_sec = nan"), r"verifier\.timeout_sec"),
        (lambda d: edit(d, "task.toml", "timeout_sec = 12.5", "timeout_sec = -5"), r"agent\.timeout_sec"),
        (lambda d: edit(d, "task.toml", "timeout_sec = 12.5", "timeout_sec = inf"), r"agent\.timeout_sec"),
        (lambda d: (d / "instruction.md").unlink(), r"instruction\.md: missing"),
        (lambda d: (d / "instruction.md").write_bytes(b"\xff"), r"instruction\.md: not UTF-8"),
        (lambda d: (d / "tests" / "test.sh").unlink(), r"tests/test\.sh"),
        (lambda d: (d / "environment" / "workspace" / "link").symlink_to("/etc/passwd"), "workspace/link"),
        (lambda d: (d / "tests" / "dir").symlink_to("/etc"), "tests/dir"),
        (
            lambda d: os.truncate(d / "instruction.md", 1 << 40),
            "instruction.md: with it the task has more than 1024 MB",
        ),
        (lambda d: os.mkfifo(d / "tests" / "pipe"), "tests/pipe"),
        (lambda d: edit(d, "environment/Dockerfile", "WORKDIR", "USER x\nWORKDIR"), "Dockerfile"),
        (lambda d: (d / "environment" / "docker-compose.yaml").touch(), "docker-compose"),
        (lambda d: (d / "steps").mkdir(), "steps"),
        *((lambda d, at=at: turned(d / at), f"{at}: a directory; it must be a file") for at in FILES),
        *((lambda d, at=at: turned(d / at), f"{at}: a file; it must be a directory") for at in DIRECTORIES),
        (lambda d: edit(d, "task.toml", "ok = true", "protected = 5"), "metadata: protected: must be a list of texts"),
        (lambda d: edit(d, "task.toml", "ok = true", "facts = [5]"), "metadata: facts: must be a list of texts"),
        (lambda d: edit(d, "task.toml", "ok = true", "harbor = 5"), "metadata: harbor: this key is Etude's own"),
        (lambda d: edit(d, "solution/solve.sh", "set -e", "rm x"), r"solution/solve\.sh"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, spoil, says):
    directory = tmp_path / "task"
    write_task(TASK, directory)
    spoil(directory)
    with pytest.raises(ConfigError, match=says):
        read_task(directory)


ODD_IDS = ["", ".", "..", "/abs", "a//b", "a/../../x", "a/.git", "a\nb", "a\u001b[2J", "a\u202eb", "x" * 241, "ü" * 81]


@pytest.mark.parametrize("task_id", ODD_IDS)
def test_no_id_leads_out_of_a_directory_or_drives_a_terminal(tmp_path, task_id):
    write_task(TASK, tmp_path / "task")
    edit(tmp_path / "task", "task.toml", 'id = "Größe/1 a"', f"id = {json.dumps(task_id)}")
    with pytest.raises(ConfigError, match=r"metadata\.etude: id: .* is none: an id is visible text"):
        read_task(tmp_path / "task")
    text = (tmp_path / "task" / "task.toml").read_text().partition("[metadata")[0]
    (tmp_path / "task" / "task.toml").write_text(re.sub("name = .*", lambda _: f"name = {json.dumps(task_id)}", text))
    for read in (read_task, read_foreign):
        with pytest.raises(ConfigError, match="id is visible text"):
            read(tmp_path / "task")


def test_ids_that_there_are_may_be_and_each_has_a_file_of_its_own():
    ids = ["train-r1-0", "calls-a.b.c-x-12", "real-pydantic.v1.utils-f-sign-8", "organisation/name", TASK.id]
    ids += ["a%2fb", "a/b", "...", "-rf", ".hidden", "ā1", "ထ1", "x" * 240]
    assert [each for each in ids if not is_id(each)] == []
    assert [file_name(each) for each in ids[:3]] == ids[:3] and file_name("a/b c") == "a%2fb%20c"
    assert len({file_name(each) for each in ids}) == len(ids) and not [each for each in ids if "/" in file_name(each)]


def test_another_authors_task_is_read_and_kept(tmp_path):
    directory = tmp_path / "theirs"
    for path, text in {
        "task.toml": """
schema_version = "1.4"
[task]
name = "acme/fix-parser-0001"
description = "A parser."
keywords = ["python"]
[metadata]
difficulty = "hard"
[agent]
timeout_sec = 1800.0
[verifier]
timeout_sec = 60.0
environment_mode = "shared"
[environment]
docker_image = "acme/img:1"
cpus = 2
memory_mb = 4096
network_mode = "no-network"
""",
        "instruction.md": "Fix the parser.\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    task = read_task(directory)
    assert (task.id, task.image, task.limits.wall_s) == ("acme/fix-parser-0001", "acme/img:1", 1800.0)
    assert task.provenance["harbor"] == {
        "task": {"name": "acme/fix-parser-0001", "description": "A parser.", "keywords": ["python"]},
        "environment": {"cpus": 2, "memory_mb": 4096},
    }
    write_task(task, tmp_path / "again")
    assert read_task(tmp_path / "again") == task
    again = tomllib.loads((tmp_path / "again" / "task.toml").read_text())
    theirs = tomllib.loads((directory / "task.toml").read_text())
    assert again["environment"].items() >= theirs["environment"].items()
    assert again["task"].items() >= theirs["task"].items()


def test_solve_sh_makes_the_solution(tmp_path):
    write_task(TASK, tmp_path / "task")
    script = (tmp_path / "task" / "solution" / "solve.sh").read_text()
    here = script.replace("/solution/", f"{tmp_path}/task/solution/").replace("/workspace/", f"{tmp_path}/place/")
    (tmp_path / "place").mkdir()
    subprocess.run(["sh", "-c", here], check=True, timeout=120)
    made = {
        str(p.relative_to(tmp_path / "place")): p.read_bytes()
        for p in Path(tmp_path / "place").rglob("*")
        if p.is_file()
    }
    assert made == TASK.solution


@pytest.mark.skipif(HARBOR is None, reason="ETUDE_HARBOR_PYTHON names no Python that has harbor")
def test_harbor_itself_accepts_what_is_written(tmp_path):
    """Its model of a task.toml, and its reader of a whole directory."""
    tasks = [TASK, *(ladder_task(rung, "train", 1) for rung in (1, 5)), *suite_tasks()[:3]]
    for number, task in enumerate(tasks):
        write_task(task, tmp_path / str(number))
    mined = unpack_tasks(MINED, tmp_path / "mined", packed_names(MINED)[:3])
    command = [HARBOR, "-c", ACCEPTED, *(str(tmp_path / str(number)) for number in range(len(tasks))), *map(str, mined)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(tasks) + len(mined) and said[0].endswith(" 7.25")
