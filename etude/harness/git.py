"""The machine's own git, run on Etude's behalf.

Owns `run_git`. Git is run without hooks, prompts, signatures and file-system monitors, and in a process group of its
own: nothing that a repository's config names is started, and Ctrl-C at the terminal is for us, who then end it. What an
exit code means, and which repository is meant, is the caller's business; variables that point git elsewhere, as are set
inside a hook, are not passed on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.errors import DeadlineExceeded

_INERT = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false",
    "-c", "core.quotePath=false", "-c", "user.name=Etude", "-c", "user.email=etude@localhost",
)  # fmt: skip
_ENV = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


@dataclass(frozen=True)
class Ran:
    """What git did: its exit code, what it printed, and what it said of errors."""

    code: int
    output: bytes
    said: bytes

    @property
    def reason(self) -> str:
        """The end of what it said; its exit code where that is nothing."""
        return self.said.decode("utf-8", "replace").strip()[-800:] or f"it ended with {self.code}"


async def run_git(
    *words: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
    deadline_s: float = 300.0,
) -> Ran:
    """Run git to its end; `given` is its stdin. Raises DeadlineExceeded; whoever is cancelled leaves no process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    process = await asyncio.create_subprocess_exec(
        "git", *_INERT, *words, cwd=cwd, env={**inherited, **_ENV, **(env or {})}, start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(deadline_s):
            output, said = await process.communicate(given)
    except TimeoutError:
        raise DeadlineExceeded(f"git {' '.join(words)[:80]} in {cwd}", deadline_s) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None, "it has been waited for"
    return Ran(process.returncode, output, said)
