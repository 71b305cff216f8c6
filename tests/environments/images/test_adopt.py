"""Harbor tasks written by hand, after Harbor's own documentation, run as they are: built, solved, judged.

Set ETUDE_HARBOR_PYTHON to the Python of an environment that has harbor, and its own models are asked about them too.
"""

import asyncio
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from etude.environments.images.build import BuildConfig
from etude.environments.images.store import Described
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError
from etude.rewards.mining.adopt import adopt
from etude.rewards.validate import validate
from etude.rewards.verifier import verify
from etude.tasks.foreign import read_foreign
from etude.tasks.harbor import read_task, write_task

TASKS = Path(__file__).parents[2] / "tasks" / "harbor_tasks"
NAMES = ("broken-script", "hello-world", "log-report")
SMALL = BuildConfig(memory_mb=256, disk_mb=64)
HARBOR = os.environ.get("ETUDE_HARBOR_PYTHON")
ACCEPTED = """
import sys
from pathlib import Path
from harbor.models.task.task import Task
for path in map(Path, sys.argv[1:]):
    task = Task(path)
    assert task.instruction and task.paths.test_path.exists() and task.config.schema_version == "1.4", path
    print(task.name)
"""


@pytest.fixture
def alpine(store, rootfs, tmp_path):
    """The store with an image of that name, as somebody imported it: busybox with a few more of its commands."""
    root = tmp_path / "alpine"
    shutil.copytree(rootfs, root, symlinks=True)
    for applet in ("sed", "tr"):
        (root / "bin" / applet).symlink_to("busybox")
    store.add_directory(root, Described(env=(("PATH", "/bin"),)), name="alpine:3.22")
    return store


def test_tasks_of_others_run_as_they_are(alpine, tmp_path):
    async def whole():
        backend = NamespaceBackend(NamespaceConfig(images=alpine.config))
        try:
            async with asyncio.timeout(120):
                for name in NAMES:
                    task = await adopt(TASKS / name, alpine, backend, SMALL)
                    found = await validate(task, backend)
                    assert found.sound, (name, found.problems)
                    write_task(task, tmp_path / name)
                    assert read_task(tmp_path / name) == task
                    tasks[name] = task
                half = await verify(tasks["log-report"], {"report.txt": b"mail 1\nweb 1\n"}, backend)
                assert (half.reward, half.reason) == (0.5, "failed")
        finally:
            await backend.close()

    tasks = {}
    asyncio.run(whole())
    assert tasks["hello-world"].solution == {"hello.txt": b"Hello, world!\n"}
    assert set(tasks["broken-script"].solution) == {"bin/join"}
    assert tasks["hello-world"].id == "examples/hello-world" and tasks["log-report"].id == "harbor/log-report"
    assert tasks["hello-world"].limits.wall_s == 120.0 and tasks["log-report"].provenance["difficulty"] == "medium"
    assert tasks["broken-script"].provenance["harbor"]["environment"] == {"cpus": 2.0, "memory_mb": 1024}


@pytest.mark.skipif(HARBOR is None, reason="ETUDE_HARBOR_PYTHON names no Python that has harbor")
def test_harbor_itself_accepts_them(tmp_path):
    command = [HARBOR, "-c", ACCEPTED, *(str(TASKS / name) for name in NAMES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["examples/broken-script", "examples/hello-world", "log-report"]


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("solution/solve.sh", "exit 3\n", "ended with 3"),
        ("solution/solve.sh", "true\n", "changes nothing"),
        ("solution/solve.sh", "rm bin/join\n", "removes bin/join"),
    ],
)
def test_a_solution_that_a_task_cannot_hold_is_refused(alpine, tmp_path, path, text, says):
    shutil.copytree(TASKS / "broken-script", tmp_path / "task")
    (tmp_path / "task" / path).write_text(text)

    async def whole():
        backend = NamespaceBackend(NamespaceConfig(images=alpine.config))
        try:
            with pytest.raises(ConfigError, match=says):
                await adopt(tmp_path / "task", alpine, backend, SMALL)
        finally:
            await backend.close()

    asyncio.run(whole())


def test_a_solution_holds_every_name_of_a_file(alpine, tmp_path):
    shutil.copytree(TASKS / "hello-world", tmp_path / "task")
    (tmp_path / "task/solution/solve.sh").write_text("echo 1 > one; ln one two\n")

    async def whole():
        backend = NamespaceBackend(NamespaceConfig(images=alpine.config))
        try:
            return await adopt(tmp_path / "task", alpine, backend, SMALL)
        finally:
            await backend.close()

    assert asyncio.run(whole()).solution == {"one": b"1\n", "two": b"1\n"}


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("environment/docker-compose.yaml", "services: {}", "several containers"),
        ("tests/Dockerfile", "FROM x", "environment of their own"),
        ("steps/one/instruction.md", "x", "steps: not supported"),
        ("task.toml", 'schema_version = "1.4"\n[verifier]\nenv = { KEY = "x" }\n', r"verifier\.env: unknown key"),
        ("task.toml", 'schema_version = "1.4"\n[environment]\nnetwork_mode = "public"\n', r"environment\.network_mode"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, path, text, says):
    shutil.copytree(TASKS / "hello-world", tmp_path / "task")
    (tmp_path / "task" / path).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / "task" / path).write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_foreign(tmp_path / "task")


def test_an_image_beside_its_dockerfile_is_the_one_that_is_built(tmp_path):
    """As registries of converted tasks have it; Harbor takes the built one, which no store of ours has."""
    shutil.copytree(TASKS / "hello-world", tmp_path / "task")
    path = tmp_path / "task/task.toml"
    path.write_text(path.read_text().replace("[environment]\n", '[environment]\ndocker_image = "them/theirs:1"\n'))
    found = read_foreign(tmp_path / "task")
    assert (found.task.image, found.context) == ("host", tmp_path / "task/environment")
    (tmp_path / "task/environment/Dockerfile").unlink()
    found = read_foreign(tmp_path / "task")
    assert (found.task.image, found.context) == ("them/theirs:1", None)
    shutil.copyfile(TASKS / "hello-world/task.toml", path)
    with pytest.raises(ConfigError, match=r"docker_image or environment/Dockerfile"):
        read_foreign(tmp_path / "task")


@pytest.mark.parametrize("named", ["version", "schema_version"])
@pytest.mark.parametrize("version", ["1.0", "1.3"])
def test_tasks_of_earlier_versions_are_read_as_harbor_reads_them(tmp_path, named, version):
    """Those of its first registries say `version`."""
    shutil.copytree(TASKS / "hello-world", tmp_path / "task")
    path = tmp_path / "task/task.toml"
    text = path.read_text()
    assert text.count('schema_version = "1.4"') == 1
    path.write_text(text.replace('schema_version = "1.4"', f'{named} = "{version}"'))
    assert read_foreign(tmp_path / "task") == replace(
        read_foreign(TASKS / "hello-world"), context=tmp_path / "task/environment"
    )
    path.write_text(text.replace('schema_version = "1.4"', f'{named} = "2.0"'))
    with pytest.raises(ConfigError, match="schema_version"):
        read_foreign(tmp_path / "task")
