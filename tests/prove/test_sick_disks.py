"""A disk that is full, read-only or failing, or descriptors that are used up, under each place where Etude writes.

Each next write is one that fails, until one has room enough. What fails says in one line which path it was about and
what to do; what was there before is there afterwards; and when the disk is well again the next write goes on.
"""

import contextlib
import os
import resource
import subprocess
from pathlib import Path

import pytest
from outputs import OUTPUTS
from sick_disk import mounted
from test_writers import TRIED
from written import WRITTEN as KEPT
from written import Written, leftover_files

from etude.cli.main import os_error_line
from etude.errors import EtudeError

TRIES = 40
WRITTEN = KEPT | OUTPUTS


def said_by(row: Written, at: Path, number: int) -> str | None:
    """What a user is told of a write that fails; None where it does not. What would be a traceback is raised."""
    try:
        row.write(at, number)
    except EtudeError as error:
        return str(error)
    except OSError as error:
        line = os_error_line(error)
        if line is None:
            raise
        return line
    return None


def test_the_rows_that_modules_name_are_there():
    assert set(TRIED.values()) <= WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_no_room_at_each_write_in_turn(name, tmp_path):
    row, place = WRITTEN[name], tmp_path / "disk"
    with mounted(place, row.disk) as disk:
        (place / "there").mkdir()
        row.write(place / "there", 0)
        failed = 0
        for turn in range(TRIES):
            disk.fill(leave=turn * row.step)
            said = said_by(row, place / "there", 1)
            disk.clear()
            assert set(row.read(place / "there")) - {1} == {0}, f"turn {turn}"
            if said is None:
                break
            failed += 1
            assert str(place) in said and "\n" not in said.strip(), said
            assert any(word in said for word in ("room", "space")), said
        else:
            pytest.fail(f"{TRIES} times more room was never enough")
        assert failed, "no write failed: the step is too large"
        row.write(place / "there", 2)
        assert row.read(place / "there") == [0, 1, 2] and leftover_files(place / "there") == set()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_disk_that_is_read_only_from_one_moment_on(name, tmp_path):
    row, place = WRITTEN[name], tmp_path / "disk"
    with mounted(place, row.disk) as disk:
        (place / "there").mkdir()
        row.write(place / "there", 0)
        disk.remount("ro")
        said = said_by(row, place / "there", 1)
        disk.remount("rw")
        assert said is not None and str(place) in said and "\n" not in said.strip(), said
        assert row.read(place / "there") == [0]
        row.write(place / "there", 1)
        assert row.read(place / "there") == [0, 1]


@pytest.mark.parametrize("name", WRITTEN)
def test_no_files_left_to_make(name, tmp_path):
    """As many files as there may be: what is only made longer goes on."""
    row, place = WRITTEN[name], tmp_path / "disk"
    with mounted(place, row.disk, files=4000) as disk:
        (place / "there").mkdir()
        row.write(place / "there", 0)
        (place / "many").mkdir()
        with contextlib.suppress(OSError):
            for number in range(4001):
                (place / "many" / str(number)).touch()
        said = said_by(row, place / "there", 1)
        for path in (place / "many").iterdir():
            path.unlink()
        assert disk.at and (said is None or (str(place) in said and any(word in said for word in ("room", "space"))))
        if said is not None:
            assert set(row.read(place / "there")) - {1} == {0}
            row.write(place / "there", 1)
        assert row.read(place / "there") == [0, 1]


@contextlib.contextmanager
def no_descriptors():
    """None is left to open: what a leaking program, or a limit that is too low, comes to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("name", WRITTEN)
def test_no_descriptor_left(name, tmp_path):
    row, there = WRITTEN[name], tmp_path / "disk" / "there"
    there.mkdir(parents=True)
    row.write(there, 0)
    with no_descriptors():
        said = said_by(row, there, 1)
    assert said is not None and "ulimit -n" in said and "\n" not in said.strip(), said
    assert row.read(there) == [0]
    row.write(there, 1)
    assert row.read(there) == [0, 1]


@contextlib.contextmanager
def failing(at: Path, tmp: Path):
    """A disk of which every block not yet written fails: ext4 on a loop device, whose file has no room to grow."""
    with mounted(tmp / "under", "64m") as under:
        image = under.at / "image"
        with image.open("wb") as file:
            file.truncate(200 << 20)
        made = subprocess.run(
            ["mkfs.ext4", "-q", "-E", "lazy_itable_init=1", str(image)], capture_output=True, timeout=60
        )
        at.mkdir()
        if made.returncode or subprocess.run(["mount", "-o", "loop,errors=continue", str(image), str(at)]).returncode:
            pytest.skip("no loop device, or no ext4, to fail")
        try:
            yield under
        finally:
            under.clear()
            subprocess.run(["umount", "-l", str(at)], check=True, timeout=60)


DURABLE = ("a session's log", "a run's reports and summaries", "a run's ledger", "a run's checkpoints")
"""What waits for the disk, and so hears of it when it fails."""


@pytest.mark.parametrize("name", DURABLE)
def test_a_disk_that_fails(name, tmp_path):
    row, place = WRITTEN[name], tmp_path / "disk"
    with failing(place, tmp_path) as under:
        row.write(place, 0)
        os.sync()
        under.fill()
        said = said_by(row, place, 1)
        assert said is not None and str(place) in said, said
        assert any(word in said for word in ("Input/output error", "disk is full", "No space left")), said
