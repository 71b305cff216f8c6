"""Python run as a user who is not root, with our packages and nothing else of ours."""

import os
import subprocess
import tempfile
from pathlib import Path

import pydantic
from second_user import python_for

NOBODY = 65534


def as_nobody(program, deadline_s=200):
    """What `program` prints, given a directory of its own."""
    python = python_for(NOBODY)
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
