"""TensorBoard over the same curves: its event file written by its own writer, its pages in the same browser.

It is installed from the registry into a virtual environment of its own, or found where `--tensorboard` says. It runs as
it does for whoever starts it: its data server that loads fast, its defaults, and its files on the same disk.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from studying.made import dumped

PACKAGES = ("tensorboard==2.21.0", "setuptools<81")  # it imports pkg_resources, which later ones lack
START_S = 120.0
WRITER = """
import json, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter(sys.argv[1])
for line in sys.stdin:
    step, figures = json.loads(line)
    values = [Summary.Value(tag="run/" + name, simple_value=value) for name, value in figures.items()]
    writer.add_event(Event(wall_time=1.79e9 + step, step=step, summary=Summary(value=values)))
writer.close()
"""


def installed(place: Path) -> Path:
    """The directory of its programs."""
    environment = place / "tensorboard"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    words = ["install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    subprocess.run([environment / "bin/python", "-m", "pip", *words], check=True)
    return environment / "bin"


def write_events(programs: Path, place: Path, steps: int) -> Path:
    logs = place / "tensorboard-logs"
    line = [programs / "python", "-c", WRITER, logs / "long"]
    subprocess.run(line, input=dumped(steps), text=True, check=True, timeout=600)
    return logs


@contextmanager
def tensorboard(programs: Path, logs: Path, names: int) -> Iterator[str]:
    """Its address, once it has read all curves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [programs / "tensorboard", "--logdir", logs, "--port", str(port), "--host", "127.0.0.1"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(f"{url}/data/plugin/scalars/tags", names, process)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(url: str, names: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            found = httpx2.get(url, timeout=10, trust_env=False).json()
            if sum(len(tags) for tags in found.values()) >= names:
                return
        except (httpx2.HTTPError, ValueError):
            pass
        time.sleep(0.2)
    raise SystemExit(f"TensorBoard has not read its {names} curves within {START_S:.0f} s")
