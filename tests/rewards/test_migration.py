"""Database tasks, in sandboxes with a running PostgreSQL: sound on every level, and blind to nothing asked for."""

import glob

import pytest
from debian_packages import install
from proofs import one_of_each

from etude.cli.main import main
from etude.environments.base import SandboxSpec
from etude.rewards.validate import validate
from etude.rewards.verifier import verify
from etude.tasks.difficulty import level_of
from etude.tasks.generate.migration import NEXT, migration_task
from etude.tasks.harbor import read_task


@pytest.fixture(scope="module", autouse=True)
def installed():
    if not glob.glob("/usr/lib/postgresql/*/bin/initdb"):
        install("postgresql")


@pytest.mark.parametrize("level", one_of_each(1.5, [5, 1, 2, 3, 4]))
def test_every_level_is_sound_and_the_same_again(run, level):
    async def scenario(backend):
        task = migration_task(level, seed=7)
        one = await validate(task, backend, runs=1)
        assert one.sound, one.problems
        assert task == migration_task(level, seed=7) != migration_task(level, seed=8) and level_of(task) == level

    run(scenario)


TRIES = {
    "balances not summed": lambda right: right.replace("sum(other.balance)", "min(other.balance)"),
    "no index": lambda right: right.replace("create unique index", "create index"),
    "notes deleted": lambda right: right + "truncate notes;\n",
    "a mistake at the end": lambda right: right + "selec 1;\n",
    "commits before it": lambda right: "commit;\n" + right.replace("update notes", "-- update notes"),
}


@pytest.mark.parametrize("name", one_of_each(1.5, TRIES))
def test_what_loses_or_leaves_something_scores_nothing(run, name):
    async def scenario(backend):
        task = migration_task(5, seed=7)
        right = task.solution[NEXT].decode()
        verdict = await verify(task, {**task.files, NEXT: TRIES[name](right).encode()}, backend)
        assert verdict.reward == 0.0, verdict

    run(scenario)


def test_what_other_files_of_the_agent_say_changes_nothing(run):
    async def scenario(backend):
        task = migration_task(5, seed=7)
        right = task.solution[NEXT].decode()
        old = task.files["migrations/001_start.sql"]
        other_name = {"migrations/900_later.sql": right.encode(), "migrations/001_start.sql": b"drop table x"}
        assert (await verify(task, {**task.files, **other_name}, backend)).reward == 1.0, old

    run(scenario)


def test_the_agent_has_a_database_that_runs_on(run):
    async def scenario(backend):
        task = migration_task(1, seed=7)
        box = await backend.create(SandboxSpec({**task.files, **task.solution}))
        try:
            started = await box.exec("sh start.sh", timeout_s=60)
            assert started.exit_code == 0, started.output
            table = task.files["migrations/001_start.sql"].split()[2].decode()
            asked = await box.exec(f'psql -h /tmp/database -U postgres -At -c "select count(*) from {table}"')
            assert asked.output.strip() == b"6"
        finally:
            await box.destroy()

    run(scenario)


def test_the_command_writes_them(tmp_path, capsys):
    words = ["tasks", "generate", "--kind", "migration", "--level", "2", "--seed", "3", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "migration-2-3")
    assert read_task(tmp_path / "out" / "migration-2-3") == migration_task(2, 3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kind", "bug"], "--kind bug: made of a repository; name one"),
        (["--rung", "2", "--level", "2"], "--level: an option of other kinds"),
        (["--kind", "migration", "--split", "eval"], "--split: an option of the ladder"),
        (["--jobs", "2"], "--jobs: an option of a repository's tasks"),
        ([".", "--rung", "2"], "--rung: an option of the ladder"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path, capsys, words, says):
    assert main(["tasks", "generate", *words, "--out", str(tmp_path)]) != 0
    assert says in capsys.readouterr().err
