"""A server whose wall clock is set days forwards and backwards, on a disk that takes its time: nobody notices."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

DAYS_S = 10 * 86_400


@pytest.fixture
def clocked(tmp_path):
    """A server in a process of its own, the file that sets its clock, and a client."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    library, offset, config = tmp_path / "set_clock.so", tmp_path / "offset", tmp_path / "server.toml"
    source = Path(__file__).with_name("set_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True, timeout=60)
    offset.write_text("0")
    config.write_text(
        f'port = 0\n[node]\nstate_dir = "{tmp_path / "state"}"\n'
        f'[[node.backends]]\nkind = "namespace"\nstate_dir = "{tmp_path / "boxes"}"\n'
    )
    env = {**os.environ, "LD_PRELOAD": str(library), "SET_CLOCK": str(offset), "SLOW_MS": "300"}
    command = [sys.executable, "-m", "etude.cli.main", "environments", "serve", str(config)]
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://[\w.:]+", server.stdout.readline())[0]
        token = (tmp_path / "state" / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
            yield http, offset
    finally:
        server.terminate()
        assert server.wait(60) == 0


def test_no_deadline_and_no_memory_goes_by_the_wall_clock(clocked):
    http, offset = clocked
    keyed = {"headers": {"Idempotency-Key": "kept"}, "json": {"ttl_s": 3600}}
    made = http.post("/sandboxes", **keyed).json()["id"]
    brief = http.post("/sandboxes", json={"ttl_s": 3}).json()["id"]
    for days in (DAYS_S, -DAYS_S):
        offset.write_text(str(days))
        for number in range(300 if days > 0 else 3):  # so many answers that the journal looks which it need not keep
            assert http.delete(f"/snapshots/none-{number}").status_code == 404
        assert http.post("/sandboxes", **keyed).json()["id"] == made  # it is remembered, and not made again
        done = http.post(f"/sandboxes/{made}/exec", json={"command": "sleep 0.2; echo on", "timeout_s": 30}).json()
        assert done["exit_code"] == 0 and not done["timed_out"]
    end = time.monotonic() + 60
    while [each["id"] for each in http.get("/sandboxes").json()] != [made]:  # the other's time has run out all the same
        assert time.monotonic() < end
        time.sleep(0.05)
    assert http.get(f"/sandboxes/{brief}").json()["error"]["kind"] == "expired"
    lived = json.loads(http.get(f"/sandboxes/{made}").text)
    assert lived["ending"] is None
