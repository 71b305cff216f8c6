"""A task's directory, built as its Dockerfile says, gives its agent what the task itself would."""

import asyncio

from etude.environments.base import SandboxSpec
from etude.environments.images.build import BuildConfig, build_image
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.records import Task, Verifier
from etude.tasks.harbor import HOST_IMAGE, write_task

TASK = Task(
    id="adding",
    instruction="Add.",
    files={"src/add.sh": b"echo $(( $1 - $2 ))\n", "README": b"adds\n"},
    verifier=Verifier({"/tests/test.sh": b"test $(sh src/add.sh 1 2) = 3\n"}, "sh /tests/test.sh", 10.0),
    setup=("mkdir -p out && echo ready > out/state", "cat README >> out/state\necho 'two lines' >> out/state"),
)


def test_a_task_directory_is_built_and_worked_on(busybox, tmp_path):
    write_task(TASK, tmp_path / "task")
    busybox.name(busybox.get("busybox").id, HOST_IMAGE)  # as somebody imported it

    async def whole():
        backend = NamespaceBackend(NamespaceConfig(images=busybox.config))
        try:
            async with asyncio.timeout(60):
                environment = tmp_path / "task" / "environment"
                config = BuildConfig(memory_mb=256, disk_mb=64)
                built = await build_image(busybox, backend, environment, name="adding", config=config)
                assert built.ran == 4 and built.image.workspace == "/workspace"
                box = await backend.create(SandboxSpec(image="adding"))
                seen = await box.exec("cat src/add.sh out/state")
                assert seen.output == TASK.files["src/add.sh"] + b"ready\nadds\ntwo lines\n"
                tests = {path.removeprefix("/"): data for path, data in TASK.verifier.files.items()}
                before = await judge(backend, await box.snapshot(), tests)
                await box.write_file("/workspace/src/add.sh", b"echo $(( $1 + $2 ))\n")
                return before, await judge(backend, await box.snapshot(), tests)
        finally:
            await backend.close()

    assert asyncio.run(whole()) == (1, 0)


async def judge(backend, snapshot, tests):
    """In a fresh sandbox on the same image."""
    box = await backend.create(SandboxSpec(image="adding", base=snapshot))
    for path, data in tests.items():
        await box.write_file(f"/{path}", data)
    return (await box.exec(TASK.verifier.command)).exit_code
