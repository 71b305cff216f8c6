"""The mined tasks that are checked in: how many, of what, and a sample of them judged as the validator judges."""

import asyncio
import importlib.metadata
from dataclasses import replace
from pathlib import Path

import pytest
from offline_wheels import PYTEST, pack

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError
from etude.rewards.validate import validate
from etude.tasks.difficulty import LEVELS, level_of
from etude.tasks.harbor import read_task
from etude.tasks.mined.environment import PLACE, Environment, Environments
from etude.tasks.packed import packed_names, unpack_tasks

MINED = Path(__file__).parents[2] / "benchmarks" / "mined"
SAMPLE = {
    "boltons": "mined-boltons-17374731bcc4", "cachetools": "mined-cachetools-e0b98aa418a0",
    "sqlparse": "mined-sqlparse-b72a8ff42f53", "toolz": "mined-toolz-5a7e078c941c",
}  # fmt: skip


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    base = tmp_path_factory.mktemp("mined")
    return [path for name, task in SAMPLE.items() for path in unpack_tasks(MINED / f"{name}.bundle", base, [task])]


def test_there_are_enough_of_them():
    names = {bundle.stem: packed_names(bundle) for bundle in sorted(MINED.glob("*.bundle"))}
    assert len(names) >= 3 and sum(map(len, names.values())) >= 60
    for repository, tasks in names.items():
        assert all(task.startswith(f"mined-{repository}-") for task in tasks)
        assert f"| {repository} | {len(tasks)} |" in (MINED / "README.md").read_text()
    with pytest.raises(ConfigError, match="holds no task mined-nothing"):
        unpack_tasks(MINED / "toolz.bundle", MINED, ["mined-nothing"])


def test_each_says_where_it_is_from_and_how_hard_it_is(sample):
    for task in map(read_task, sample):
        said = task.provenance
        assert (
            said["repository"] in SAMPLE and len(said["commit"]) == len(said["parent"]) == 40 and said["fail_to_pass"]
        )
        assert level_of(task) in LEVELS and said["committed"] < "2027"
        assert any("licen" in path.lower() for path in task.files), "the authors' licence stays with their files"


@pytest.mark.proof(11)
def test_the_solution_scores_one_and_doing_nothing_zero(sample, tmp_path, monkeypatch):
    """With the pytest that is installed here in place of the one they pin, as there may be no network."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(pack(tmp_path / "wheels", PYTEST)))
    tasks = [read_task(path) for path in sample]
    wanted = {task.provenance["environment"]: Environment.of_setup(task.setup[0]) for task in tasks}
    environments = Environments(tmp_path / "environments")

    async def scenario():
        for key, environment in wanted.items():
            assert environment is not None and environment.key == key
            pins = (f"pytest=={importlib.metadata.version('pytest')}",)
            await environments.restore(replace(environment, pins=pins))
        backend = NamespaceBackend(NamespaceConfig(binds={PLACE: environments.root}))
        try:
            for task in tasks:
                found = await validate(task, backend, runs=1)
                assert found.sound, (task.id, found.problems)
        finally:
            await backend.close()

    asyncio.run(scenario())
