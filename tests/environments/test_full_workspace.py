"""A file of the user's on a disk that is full: what was in it stands, with a sandbox and without."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from guarded_workspace import within

OLD, NEW = b"old\n" * 2000, b"new\n" * 6000


@pytest.fixture
def small(outer: Path):
    """A directory on a disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = outer / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "etude-small", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("config", [{}, {"sandbox": "off", "network": "full"}], ids=["sandbox", "none"])
def test_what_was_in_a_file_stands_where_there_is_no_room_for_more(small, config):
    file = small / "src.py"
    file.write_bytes(OLD)
    os.link(file, small / "other-name")

    async def scenario(workspace):
        subprocess.run(["dd", "if=/dev/zero", f"of={small}/filler", "bs=4096"], capture_output=True, check=False)
        with pytest.raises(OSError, match="No space") as refused:
            await workspace.write_file("/workspace/src.py", NEW)
        assert refused.value.errno == errno.ENOSPC
        assert file.read_bytes() == OLD
        (small / "filler").unlink()
        for text in (NEW, OLD[:100], b""):
            await workspace.write_file("/workspace/src.py", text)
            assert file.read_bytes() == text == (small / "other-name").read_bytes()

    within(small, scenario, **config)
