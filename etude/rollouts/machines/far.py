"""Answers on a machine of a cluster: `python -m etude.rollouts.machines.far`, a request on stdin, an answer on stdout.

Owns Ray's processes of that machine, from the start to the last one's end. They are known by a variable in their
environment, which names cluster and machine, and by whom they come from: so one that is no cluster's, or another's, is
never touched, as `ray stop` would do. Keeps nothing in memory, for each request is a process of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from etude import __version__
from etude.durable import write_private
from etude.errors import DeadlineExceeded, EtudeError
from etude.plain import say
from etude.rollouts.machines.config import RAY_VARIABLES
from etude.rollouts.machines.ssh import ANSWER
from etude.rollouts.machines.table import table_of

MARK = "ETUDE_CLUSTER"
"""The variable by which a process is known."""
TOKEN, LOG = "token", "start.log"
_TERM_S = 5.0
"""Ray's processes may take so long to end in order; then they are killed. The head's would wait for each other."""
_AGAIN_S = 0.1


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What came of a request."""
    verbs: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"look": look, "start": start, "stop": stop}
    return verbs[request["verb"]](request)


def look(request: Mapping[str, Any]) -> dict[str, Any]:
    """What is installed here, and which of the cluster's processes are there; with the head's, what Ray's table says
    of all machines.
    """
    names = [_name(each) for each in marked(request["mark"])]
    has_head = "gcs_server" in names
    return {
        "etude": __version__, "ray": metadata.version("ray"), "python": platform.python_version(),
        "processes": len(names), "raylet": "raylet" in names, "head": has_head,
        **(_table(request) if has_head else {}),
    }  # fmt: skip


def start(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start Ray here, unless it goes on, and the head that it joined with it; what is left of one is ended before."""
    for path, content in request["files"].items():
        _put(Path(path), base64.b64decode(content))
    found = look(request)
    if found["raylet"] and found["head"] == request["is_head"] and not request["anew"]:
        return {"began": False}
    stop(request)
    directory = _directory(request)
    _put(directory / TOKEN, f"{request['token']}\n".encode())
    env = {**os.environ, **request["env"], **_variables(request["mark"], directory)}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *request["options"]]
    with (directory / LOG).open("wb") as log:
        code = _finished(command, env, log, request["seconds"])
    if code != 0:
        stop(request)
        raise EtudeError(f"Ray did not start: {_last_line(directory / LOG)} (all of it is in {directory / LOG})")
    return {"began": True}


def _table(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's own table of machines, as the head has it: of each address whether it is alive, and what it gives away."""
    os.environ |= _variables(request["mark"], _directory(request))
    table = table_of(request["url"])
    return {"silent": f"Ray's head at {request['url']} does not answer"} if table is None else {"table": table}


def stop(request: Mapping[str, Any]) -> dict[str, Any]:
    """End all of the cluster's processes here. Raises DeadlineExceeded where one does not end."""
    known: dict[psutil.Process, None] = {}
    told: set[psutil.Process] = set()
    seconds = float(request["seconds"])
    began = time.monotonic()
    while True:
        known |= dict.fromkeys(marked(request["mark"]))
        left = [each for each in known if _lives(each)]
        if not left:
            return {"ended": len(known)}
        waited = time.monotonic() - began
        if waited > seconds:
            names = ", ".join(sorted({_name(each) for each in left}))
            raise DeadlineExceeded(f"processes of Ray to end ({names})", seconds)
        late = waited > min(_TERM_S, seconds / 2)
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if late:
                    each.kill()
                elif each not in told:  # a second one would cut short what it does about the first
                    each.terminate()
        told.update(left)
        time.sleep(_AGAIN_S)


def marked(mark: str) -> list[psutil.Process]:
    """The cluster's processes here, and all below them: some write over the environment that they were given."""
    found: dict[psutil.Process, None] = {}
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.environ().get(MARK) == mark:
                found |= dict.fromkeys([each, *each.children(recursive=True)])
    return [each for each in found if _lives(each)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return "one that has ended"


def _variables(mark: str, directory: Path) -> dict[str, str]:
    """Of every process of Ray. The token is the cluster's own, whatever the user has in their home."""
    return {
        MARK: mark, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(directory / TOKEN), **RAY_VARIABLES
    }  # fmt: skip


def _finished(command: Sequence[str], env: dict[str, str], log: Any, seconds: float) -> int:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/", start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise DeadlineExceeded("`ray start` to end", seconds) from None


def _directory(request: Mapping[str, Any]) -> Path:
    return Path(request["directory"]).expanduser()


def _put(path: Path, content: bytes) -> None:
    """A file that only its owner can read, whole or not there at all."""
    usual = os.umask(0o077)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, content)
    finally:
        os.umask(usual)


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def main() -> int:
    """Errors that can be named are an answer too."""
    request = json.load(sys.stdin)
    try:
        said = answer(request)
    except (EtudeError, OSError) as error:
        said = {"error": str(error)}
    say(ANSWER + json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
