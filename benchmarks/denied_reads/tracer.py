"""Runs lines in bash and says which commands it ran, word by word. Alone in a sandbox, without Etude.

    python tracer.py PLAN    # {"lines": […], "directory": …}

bash tells each simple command before it runs it (`set -x`), with its words as they came out.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

LINE_S = 2.0
MOST = 64 << 10


def main() -> None:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    os.chdir(plan["directory"])
    print("\n" + json.dumps({"hits": [traced(line) for line in plan["lines"]]}))


def traced(line: str) -> str:
    with tempfile.TemporaryFile() as told:
        env = {**os.environ, "BASH_XTRACEFD": str(told.fileno()), "PS4": "+ "}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            process = subprocess.Popen(
                ["bash", "-x", "-c", line], start_new_session=True, env=env, pass_fds=[told.fileno()], **quiet
            )
        except (ValueError, OSError):
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LINE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        told.seek(0)
        return told.read(MOST).decode(errors="surrogateescape")


main()
