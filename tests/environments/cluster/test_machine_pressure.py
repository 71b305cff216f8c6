"""What a machine says of its load: read from PSI and /proc, and from what there is instead where there is no PSI."""

from pathlib import Path

import pytest

from etude.environments import cgroups
from etude.environments.accounts import psi
from etude.environments.cluster import pressure
from etude.environments.cluster.pressure import Gauge, capacity, memory_in_use

PROCESSORS = 2


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A /proc of a machine with two processors, whose files a test writes."""
    monkeypatch.setattr("os.cpu_count", lambda: PROCESSORS)
    monkeypatch.setattr(pressure, "memory_in_use", lambda: None)
    (tmp_path / "pressure").mkdir()
    write(tmp_path, "meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\nHugePages_Total: 0\n")
    write(tmp_path, "stat", "cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1\n")
    write(tmp_path, "loadavg", "0.1 0.2 0.3 8/900 1234\n")
    for resource, some, full in (("cpu", 12.5, 0.0), ("memory", 3.0, 1.5), ("io", 40.0, 20.25)):
        lines = (
            f"{kind} avg10={share} avg60=9.00 avg300=9.00 total=1" for kind, share in (("some", some), ("full", full))
        )
        write(tmp_path, f"pressure/{resource}", "\n".join(lines) + "\n")
    return tmp_path


def write(proc, name, text):
    (proc / name).write_text(text)


def test_what_the_kernel_says(proc):
    gauge = Gauge(proc, cpus=1.0, proc=proc)
    write(proc, "stat", "cpu 160 0 120 810 110 0 0 0 0 0\n")  # of 200 ticks 80 were work, 10 waiting for a disk
    read = gauge.read()
    assert read.cpu == pytest.approx(0.4 * PROCESSORS / 1.0)
    assert read.memory == pytest.approx(0.75)
    assert 0 < read.disk <= 1
    assert (read.cpu_some, read.memory_some, read.memory_full) == (12.5, 3.0, 1.5)
    assert (read.io_some, read.io_full) == (40.0, 20.25)


def test_a_kernel_without_psi(proc):
    for resource in ("cpu", "memory", "io"):
        (proc / "pressure" / resource).unlink()
    gauge = Gauge(proc, cpus=2.0, proc=proc)
    write(proc, "stat", "cpu 160 0 120 810 110 0 0 0 0 0\n")
    read = gauge.read()
    assert read.cpu_some == pytest.approx(100 * 6 / 8)  # eight want to run, two can
    assert read.io_some == pytest.approx(5.0)
    assert (read.memory_some, read.memory_full, read.io_full) == (0.0, 0.0, 0.0)
    assert psi("cpu", proc) == {}


def test_this_machine():
    gauge = Gauge(Path("/dev/shm/etude-not-there"), cpus=1.0)
    read = gauge.read()
    assert 0 < read.memory < 1 and 0 <= read.disk <= 1 and read.cpu >= 0
    whole = capacity(Path("/"))
    assert whole.memory_mb > 256 and whole.cpus >= 1 and whole.disk_mb > 0


@pytest.mark.parametrize(("version", "files"), [
    (1, ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")),
    (2, ("memory.current", "memory.max", "inactive_file")),
])  # fmt: skip
def test_the_limit_of_a_group_counts_where_it_is_fuller(tmp_path, monkeypatch, version, files):
    current, limit, cache = files
    outer, own = tmp_path / "g", tmp_path / "g" / "own"
    own.mkdir(parents=True)
    for group, used, most in ((outer, 900, "1000"), (own, 500, "max" if version == 2 else str(2**63 - 4096))):
        write(group, current, str(used))
        write(group, limit, most)
        write(group, "memory.stat", f"cache 1\n{cache} 100\n")
    mounted = cgroups.Mounted(version, {"memory": own})
    monkeypatch.setattr(cgroups, "find", lambda: mounted)
    assert memory_in_use() == (800, 1000)
    assert Gauge(tmp_path, cpus=1.0).read().memory >= 0.8
