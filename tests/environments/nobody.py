"""Python run as a user who is not root, with our packages and nothing else of ours."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pydantic
import pytest

NOBODY = 65534


def as_nobody(program, deadline_s=60):
    """What `program` prints, given a directory of its own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = next((path for path in (sys.executable, shutil.which(version, path="/usr/bin")) if _runs(path)), None)
    if python is None:
        pytest.skip(f"no {version} that user {NOBODY} may run")
    here, packages = Path(__file__).parent, Path(pydantic.__file__).parents[1]
    path = ":".join(map(str, (here.parents[1], here, packages)))
    with tempfile.TemporaryDirectory(prefix="etude-nobody-") as place:  # pytest's own are for their user alone
        os.chown(place, NOBODY, NOBODY)
        done = subprocess.run(
            [python, "-B", "-c", program, place],
            env={"PYTHONPATH": path, "PATH": os.environ["PATH"], "HOME": place},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=deadline_s,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _runs(python):
    if python is None:
        return False
    try:
        return subprocess.run([python, "-c", ""], user=NOBODY, group=NOBODY, cwd="/", timeout=30).returncode == 0
    except PermissionError:
        return False
