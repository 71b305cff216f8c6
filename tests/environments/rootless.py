"""A real environment server of a user who is not root: sandboxes by user namespaces, limited by process."""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pydantic
from nobody import NOBODY
from second_user import SOURCE, python_for

from etude.environments.build import default_cache_dir, guest_program
from etude.environments.client import RemoteBackend
from etude.environments.remote import RemoteConfig

_STOP_S = 60
_SERVE = """
import asyncio, json, sys
from etude.config import parse
from etude.environments.server.app import ServerConfig, serve
config = parse(json.loads(sys.argv[1]), ServerConfig, "test")
asyncio.run(serve(config, lambda url: print(url, config.token_path, flush=True)))
"""


@contextmanager
def server_without_root():
    """Makes clients of it, as long as it runs."""
    place = Path(tempfile.mkdtemp(prefix="etude-rootless-"))  # pytest's own are for their user alone
    try:
        (place / "etude").mkdir()
        shutil.copy(guest_program(default_cache_dir()), place / "etude")
        sandboxes = {"kind": "namespace", "limits": "rlimit", "state_dir": str(place / "s")}
        node = {"state_dir": str(place / "state"), "backends": [sandboxes]}
        for path in (place, *place.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        packages = f"{SOURCE}:{Path(pydantic.__file__).parents[1]}"
        process = subprocess.Popen(
            [python_for(NOBODY), "-B", "-c", _SERVE, json.dumps({"port": 0, "node": node})],
            env={"PYTHONPATH": packages, "PATH": os.environ["PATH"], "HOME": str(place), "XDG_CACHE_HOME": str(place)},
            user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            url, token = process.stdout.readline().split()
            yield lambda: RemoteBackend(RemoteConfig(url=url, token_file=Path(token)))
        finally:
            process.terminate()
            process.communicate(timeout=_STOP_S)
    finally:
        shutil.rmtree(place)
