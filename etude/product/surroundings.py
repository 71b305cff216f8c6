"""What the agent is told of where it works: system, date, git, what commands may do, and its limits.

Owns `surroundings`, the text that stands in the product's system prompt after the agent's name, and `branch_of`, for a
line of status. Sessions of training have none of it. It says what seldom changes in a session, since a prompt that has
changed is told again; and nothing that is written in the repository, since that is anybody's. Starts git as `host.git`
does, and nothing else.
"""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from etude.errors import EtudeError
from etude.host import beneath
from etude.host.git import GitContext, run_git_now
from etude.host.repository import PrivateGitDir, find
from etude.plain import plain_line
from etude.product.git_inside import lack_of_git

if TYPE_CHECKING:
    from etude.environments.local import WorkspaceConfig
    from etude.product.config import AgentConfig

_GIT_S = 10.0
_LONGEST_NAME = 100
_BRANCH, _HEAD_BYTES = "ref: refs/heads/", 4096
_UNDER_WAY = {
    "MERGE_HEAD": "a merge", "rebase-merge": "a rebase", "rebase-apply": "a rebase", "REVERT_HEAD": "a revert",
    "CHERRY_PICK_HEAD": "a cherry-pick", "BISECT_LOG": "a bisection",
}  # fmt: skip


def surroundings(directory: Path, config: AgentConfig) -> str:
    """A line a fact. Takes as long as git does, ten seconds at most."""
    facts = {
        "System": _system(),
        "Date": date.today().isoformat(),
        "Git": git_state(directory, config.workspace.sandbox == "on"),
        "Commands": _commands(config),
        "Network": _network(config.workspace),
        "Limits": f"{config.max_turns} turns for each request, a context of {config.context_tokens} tokens",
    }
    return "\n".join(f"{name}: {said}." for name, said in facts.items())


def git_state(directory: Path, sandboxed: bool) -> str:
    """Which branch, what is under way, and whether anything is not committed; and why git does not work in commands,
    where it does not."""
    try:
        found = find(directory)
        if found is None or found.top is None:
            return "the workspace is in no git repository"
        aside = PrivateGitDir(found)
        at = GitContext(aside.git_dir, found.top, aside.index)
        named = _ask("symbolic-ref", "--short", "-q", "HEAD", at=at).strip()
        lacking = lack_of_git(directory, sandboxed)
        said = [lacking.model] if lacking is not None else []
        said += [f"on branch {plain_line(named)[:_LONGEST_NAME]}" if named else "on no branch, at a commit"]
        said += [f"in the middle of {what}" for name, what in _UNDER_WAY.items() if beneath.lstat(found.git_dir, name)]
        changed = _ask("ls-files", "--modified", "--others", "--exclude-standard", "--directory", at=at)
        changed = changed or _ask("diff-index", "--cached", "--name-only", "--ignore-submodules=all", "HEAD", at=at)
        return ", ".join([*said, "with changes that are not committed" if changed else "everything is committed"])
    except (EtudeError, OSError):
        return "the workspace is in a git repository that cannot be read"


def branch_of(directory: Path) -> str:
    """The branch that is checked out, as it is now, or the beginning of the commit; empty without a repository. Starts
    no git."""
    try:
        found = find(directory)
        head = beneath.read(found.git_dir, "HEAD", _HEAD_BYTES).decode().strip() if found is not None else ""
    except (EtudeError, OSError, UnicodeDecodeError):
        return ""
    name = head.removeprefix(_BRANCH) if head.startswith(_BRANCH) else head[:8]
    return "" if name.startswith((".", "ref:")) else plain_line(name)[:_LONGEST_NAME]


def _ask(*words: str, at: GitContext) -> str:
    """Empty where git has nothing to say, as before the first commit."""
    return run_git_now(*words, at=at, deadline_s=_GIT_S).output.decode("utf-8", "replace")


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    cores = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{name or platform.system()} on {platform.machine()}, {cores} cores, Python {python}"


def _commands(config: AgentConfig) -> str:
    seconds = f"{config.harness.tool.command_timeout_s:g} s"
    late = "goes on in the background" if config.harness.tool.overlong == "background" else "is stopped"
    if config.workspace.sandbox == "off":
        return f"run as the user does, outside any sandbox; one that takes longer than {seconds} {late}"
    more = "".join(f", {path}" for path in config.workspace.writable)
    return f"run in a sandbox that may write /workspace and /tmp{more}; one that takes longer than {seconds} {late}"


def _network(config: WorkspaceConfig) -> str:
    match config.network:
        case "none":
            return "commands reach none, so nothing can be downloaded or installed from it"
        case "hosts":
            return f"commands reach these hosts and no others: {', '.join(config.egress.hosts)}"
        case _:
            return "commands reach what this machine reaches"
