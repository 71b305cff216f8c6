"""A running PostgreSQL survives the fork of its machine, with its connections, their state and its data.

Makes a Debian image and runs a database on an emulated processor: minutes. Opt in with ETUDE_SLOW_TESTS=1.
"""

import asyncio
import os
import shutil
import subprocess

import pytest

from etude.environments.base import Resources, SandboxSpec
from etude.environments.images.store import Described, ImageStore
from etude.environments.qemu.backend import QemuBackend

pytestmark = [
    pytest.mark.skipif(not os.environ.get("ETUDE_SLOW_TESTS"), reason="takes minutes: set ETUDE_SLOW_TESTS=1"),
    pytest.mark.timeout(1800),
]
START = """
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
initdb -D /workspace/db -N -U postgres >/tmp/log &&
  pg_ctl -D /workspace/db -w -t 200 -o "-k /tmp -h ''" -l /tmp/log start
psql -q -h /tmp -c "create table kept (n int); insert into kept values (1)"
mkfifo to
(exec 3<>to; psql -q -At -h /tmp <&3 >answers 2>&1 &)
"""


@pytest.fixture
def image(machine_config, tmp_path):
    if shutil.which("mmdebstrap") is None:
        pytest.skip("this needs mmdebstrap: apt-get install -y mmdebstrap")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=postgresql", "stable", str(tmp_path / "root")]
    subprocess.run(command, check=True, timeout=900)
    store = ImageStore(machine_config.images)
    store.add_directory(tmp_path / "root", Described(user="postgres"), name="postgres")
    return "postgres"


async def ask(box, query, lines):
    """In the one connection that has been open since the start; `lines` it has answered in all."""
    await box.exec(f"echo '{query}' > to")
    for _ in range(300):
        said = (await box.read_file("/workspace/answers")).decode().split()
        if len(said) >= lines:
            return said[-1]
        await asyncio.sleep(0.1)
    raise AssertionError(said)


def test_a_running_database_survives_a_fork(machine_config, image):
    async def scenario():
        backend = QemuBackend(machine_config)
        try:
            spec = SandboxSpec(image=image, resources=Resources(disk_mb=256))
            box = await backend.create(spec)
            started = await box.exec(START, timeout_s=600)
            assert started.exit_code == 0, started.output.decode()
            await ask(box, "create temp table mine as select 7 as n; begin; insert into kept values (2);", 0)
            assert await ask(box, "select sum(n) from kept;", 1) == "3"
            forks = await box.fork(2)
            for number, fork in enumerate(forks, 10):  # the same transaction goes on in each, apart from the others
                assert await ask(fork, "select n from mine;", 2) == "7"
                assert await ask(
                    fork, f"insert into kept values ({number}); commit; select sum(n) from kept;", 3
                ) == str(3 + number)
                whole = await fork.exec('psql -At -h /tmp -c "select sum(n) from kept"', timeout_s=60)
                assert whole.output.strip() == str(3 + number).encode()
            assert await ask(box, "rollback; select sum(n) from kept;", 2) == "1"
        finally:
            await backend.close()

    asyncio.run(scenario())
