"""Which tests may run at the same time: those of a file, of one Ray or of virtual machines stay with one process."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on CPU; read when Triton is first imported, by whomever

RAY = ("environments/cluster/", "e2e/")


@pytest.fixture
def outer() -> Iterator[Path]:
    """A directory not below /tmp, of which a sandbox over the user's own files has its own."""
    path = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


def pytest_collection_modifyitems(config, items):
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        path = item.path.relative_to(config.rootpath / "tests").as_posix()
        group = path  # what a file's fixtures start is started once
        if path.startswith(RAY):
            group = "ray"
        elif {"machines", "machine_config"} & set(item.fixturenames):
            group = "machines"  # an emulated machine takes a whole core, and its image is built once
        item.add_marker(pytest.mark.xdist_group(group))
