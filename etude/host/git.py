"""git on the host: the one place that starts it.

Owns `run_git`, for an event loop, and `run_git_now`, for a thread that may wait. git obeys what it reads: the config of
a repository names programs in some thirty keys, for filters, diffs, merges, monitors, pagers, signatures, transports,
and so do its hooks and the variables of a process that runs inside one. Here git reads none of it. It is told its git
directory and looks for none; that directory is Etude's own (`repository.PrivateGitDir` lends one the objects and refs
of a user's), so that neither config nor hooks are the user's repository's; the user's and the machine's config are left
out as well; no protocol is spoken; and it is never taken from the workspace, as a PATH with `./bin` or with the
project's virtual environment would have it. One thing is left to callers: `status`, `diff` and `add` of a working tree
run git in its submodules, by each one's own config. `ls-files` and `update-index` do not, and are used instead.
`listed_config` and `read_config` alone look at a repository's config, to know what it names, and `distrusts` lets git
itself say whether the user's own would believe it.

It runs in a process group of its own: Ctrl-C at the terminal is for us, who then end it. Where `setpriv` of util-linux
is installed the kernel ends it too when we are killed: git that lives on would hold locks, and fill the disk, in a
repository of the user's. What an exit code means is the caller's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import stat
import subprocess
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.errors import ConfigError, DeadlineExceeded, MissingDependency
from etude.host import beneath
from etude.host.programs import find_program

_OPTIONS = (
    "core.hooksPath=/dev/null", "core.quotePath=false", "core.logAllRefUpdates=false", "gc.auto=0",
    "init.defaultBranch=main", "user.name=Etude", "user.email=etude@localhost",
)  # fmt: skip
_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C",
}  # fmt: skip
_NOWHERE = f"{os.devnull}/no-repository"
DEADLINE_S = 300.0
_PATIENCE_S = 3.0
_READ_ANYWHERE = frozenset({".gitignore", ".gitattributes", ".gitmodules", ".mailmap"})
_DEPTH, _ENTRIES = 100, 4_000_000
_LISTED_S = 20.0


@dataclass(frozen=True)
class GitResult:
    """What git did: its exit code, what it printed, and what it said of errors."""

    code: int
    output: bytes
    stderr: bytes

    @property
    def reason(self) -> str:
        """The end of what it said; its exit code where that is nothing."""
        return self.stderr.decode("utf-8", "replace").strip()[-800:] or f"it ended with {self.code}"


@dataclass(frozen=True)
class GitContext:
    """Where git works: a git directory of Etude's own, or None for no repository, and the files it speaks of."""

    git_dir: Path | None = None
    work_tree: Path | None = None
    index: Path | None = None
    """Instead of the git directory's own."""
    cwd: Path | None = None
    """Instead of the working tree, or the git directory."""
    workspace: Path | None = None
    """The user's, where the working tree is another: no program is taken from there either."""

    @property
    def directory(self) -> Path:
        """Where it is started."""
        return self.cwd or self.work_tree or self.git_dir or Path("/")

    @property
    def variables(self) -> dict[str, str]:
        """That tell it so."""
        named = {"GIT_WORK_TREE": self.work_tree, "GIT_INDEX_FILE": self.index}
        there = {name: str(path) for name, path in named.items() if path is not None}
        return {"GIT_DIR": _NOWHERE if self.git_dir is None else str(self.git_dir), **there}


def find_git(*workspaces: Path) -> tuple[str, str]:
    """git's path, and the PATH it is run with. Raises MissingDependency."""
    program, path = find_program("git", workspaces)
    if program is None:
        raise MissingDependency("git is not installed outside the workspace: apt-get install -y git (2.38 or later)")
    return program, path


async def run_git(
    *words: str,
    at: GitContext,
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
    deadline_s: float = DEADLINE_S,
) -> GitResult:
    """Run git to its end; `given` is its stdin. Raises MissingDependency and DeadlineExceeded; whoever is cancelled
    leaves no process."""
    argv, variables = _command(words, at, env)
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv, cwd=at.directory, env=variables, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
    )  # fmt: skip
    told = asyncio.ensure_future(_told(starting, given))
    try:
        async with asyncio.timeout(deadline_s):
            if not (await asyncio.wait({told}, timeout=_PATIENCE_S))[0]:
                await asyncio.to_thread(_refuse_pipes, at)
            return await asyncio.shield(told)
    except TimeoutError:
        raise _late(words, at, deadline_s) from None
    finally:
        # Neither is cancelled: asyncio can wait for ever for a process whose start was given up (python/cpython#103847)
        # and for one that has more to say than a pipe holds and is not read any more.
        if not told.done():
            await asyncio.wait({starting})
            if starting.exception() is None:
                _kill(starting.result().pid)
            await asyncio.wait({told})


async def _told(starting: asyncio.Future[Process], given: bytes) -> GitResult:
    process = await starting
    output, said = await process.communicate(given)
    assert process.returncode is not None, "it has been waited for"
    return GitResult(process.returncode, output, said)


def run_git_now(
    *words: str,
    at: GitContext,
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
    deadline_s: float = DEADLINE_S,
) -> GitResult:
    """The same, of a thread that waits for it."""
    argv, variables = _command(words, at, env)
    with subprocess.Popen(
        argv, cwd=at.directory, env=variables, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            try:
                output, said = process.communicate(given, timeout=min(_PATIENCE_S, deadline_s))
            except subprocess.TimeoutExpired:
                _refuse_pipes(at)
                output, said = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise _late(words, at, deadline_s) from None
        finally:
            if process.poll() is None:
                _kill(process.pid)
    return GitResult(process.returncode, output, said)


def users_excludes(workspace: Path) -> str:
    """The file of what the user ignores everywhere, as their own config has it; empty where it names none."""
    at = GitContext(workspace=workspace)
    argv, variables = _command(("config", "--type=path", "--get", "core.excludesFile"), at, None)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        del variables[name]
    done = subprocess.run(argv, cwd=at.directory, env=variables, capture_output=True, timeout=DEADLINE_S, check=False)
    return os.fsdecode(done.stdout).rstrip("\n") if done.returncode == 0 else ""


def listed_config(workspace: Path) -> list[tuple[str, str, str]]:
    """(file, key, value) of all the config that the user's own git would obey in the workspace, its repository's too.
    Listing it starts nothing. Empty where git does not come to an end of it: an included file may have none."""
    done = _as_the_users("config", "--list", "--show-origin", "--null", workspace=workspace)
    if done is None:
        return []
    fields = os.fsdecode(done.stdout).split("\0")
    pairs = (
        (file.removeprefix("file:"), *each.partition("\n"))
        for file, each in zip(fields[::2], fields[1::2], strict=False)
    )
    return [(file, key, value) for file, key, _, value in pairs]


def distrusts(workspace: Path) -> bool:
    """Whether the user's own git refuses the repository there for its owner. It starts nothing: git looks at that
    first."""
    done = _as_the_users("rev-parse", "--git-dir", workspace=workspace)
    return done is not None and done.returncode != 0 and b"dubious ownership" in done.stderr


def _as_the_users(*words: str, workspace: Path) -> subprocess.CompletedProcess[bytes] | None:
    """A command that starts nothing, as the user's own git does it in the workspace; None where it does not end."""
    argv, variables = _command(words, GitContext(workspace=workspace), None)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_DIR"):
        del variables[name]
    plain = [*argv[: argv.index("--no-pager")], *words]
    try:
        return subprocess.run(plain, cwd=workspace, env=variables, capture_output=True, timeout=_LISTED_S, check=False)
    except subprocess.TimeoutExpired:
        return None


@functools.lru_cache(maxsize=256)
def read_config(text: bytes, workspace: Path) -> tuple[tuple[str, str], ...] | None:
    """(key, value) of all that one config file says, as git itself reads it, and of nothing that it includes. Sections
    and names are in small letters. None where git does not understand it, and so would not obey it either."""
    words = ("config", "--file", "-", "--no-includes", "--null", "--list")
    ran = run_git_now(*words, at=GitContext(workspace=workspace), given=text, deadline_s=_LISTED_S)
    if ran.code or b"\0" in text:
        return None
    pairs = (os.fsdecode(each).partition("\n") for each in ran.output.split(b"\0") if each)
    return tuple((key, value) for key, _, value in pairs)


def _command(words: tuple[str, ...], at: GitContext, env: Mapping[str, str] | None) -> tuple[list[str], dict[str, str]]:
    workspaces = [each for each in (at.work_tree, at.cwd, at.workspace) if each is not None]
    program, path = find_git(*workspaces)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    options = [part for option in _OPTIONS for part in ("-c", option)]
    argv = [*_ending_with_us(find_program("setpriv", workspaces)[0]), program, "--no-pager", *options, *words]
    return argv, {**inherited, "PATH": path, **_ENV, **at.variables, **(env or {})}


@functools.lru_cache(maxsize=16)
def _ending_with_us(setpriv: str | None) -> tuple[str, ...]:
    """What a command begins with that is to end when the thread that waits for it does; nothing where `setpriv` is
    lacking, or is another's that cannot do it. A `preexec_fn` would not do: it is not safe beside threads."""
    argv = (setpriv or "", "--pdeathsig", "KILL", "--")
    knows = setpriv and subprocess.run([*argv, setpriv, "--version"], capture_output=True, check=False).returncode == 0
    return argv if knows else ()


def _refuse_pipes(at: GitContext) -> None:
    """Raises ConfigError where git, which takes long, may be waiting for who writes a pipe: it opens what has the name
    of a file of its own whatever it is. To look before each run would cost more than most runs do."""
    lent = [at.git_dir / name for name in ("objects", "refs")] if at.git_dir is not None else []
    for top, wanted in ((at.work_tree, _READ_ANYWHERE), *((place.resolve(), None) for place in lent)):
        if top is None or not top.is_dir():
            continue
        for here, names in beneath.walk(top, depth=_DEPTH, most_entries=_ENTRIES, enter=lambda name: name != ".git"):
            for name in names if wanted is None else wanted.intersection(names):
                found = beneath.lstat(top, f"{here}/{name}".lstrip("/"))
                if found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                    raise ConfigError(f"{top / here / name} is no regular file, and git would read it: remove it")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _late(words: tuple[str, ...], at: GitContext, deadline_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"git {' '.join(words)[:80]} in {at.directory}", deadline_s)
