"""A quota that is used up under each place where Etude writes: a subvolume of btrfs with a limit, for root too."""

import subprocess

import pytest
from debian_packages import program
from outputs import OUTPUTS
from sick_disk import mounted
from test_sick_disks import said_by
from written import WRITTEN as KEPT

WRITTEN = KEPT | OUTPUTS
SIZES = {"k": 1 << 10, "m": 1 << 20}


def done(*words) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory):
    """A whole file system on a loop device, in memory."""
    program("mkfs.btrfs", "btrfs-progs")
    top = tmp_path_factory.mktemp("quota")
    with mounted(top / "under", "400m") as under:
        image, at = under.at / "image", top / "btrfs"
        with image.open("wb") as file:
            file.truncate(390 << 20)
        done("mkfs.btrfs", "-q", image)
        at.mkdir()
        if subprocess.run(["mount", "-o", "loop", image, at], timeout=60).returncode:
            pytest.skip("no loop device, or no btrfs, to have a quota on")
        try:
            done("btrfs", "quota", "enable", at)
            yield at
        finally:
            done("umount", "-l", at)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_quota_that_is_used_up(name, btrfs):
    row, place = WRITTEN[name], btrfs / str(list(WRITTEN).index(name)) / "disk"
    place.parent.mkdir()
    done("btrfs", "subvolume", "create", place)
    done("btrfs", "qgroup", "limit", 2 * int(row.disk[:-1]) * SIZES[row.disk[-1]], place)
    there = place / "there"
    there.mkdir()
    row.write(there, 0)
    full = None
    with (place / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    ballast.write(bytes(size))
            except OSError as error:
                full = error.errno
    assert full == 122, "it was to be EDQUOT"
    said = said_by(row, there, 1)
    (place / "ballast").unlink()
    done("btrfs", "filesystem", "sync", place)
    assert said is not None and str(place) in said and "\n" not in said.strip(), said
    assert any(word in said for word in ("room", "space", "quota")), said
    assert set(row.read(there)) - {1} == {0}
    row.write(there, 1)
    assert row.read(there) == [0, 1]
