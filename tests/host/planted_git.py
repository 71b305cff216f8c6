"""Repositories that run a program when git looks at them, each in another way, and the plain git that falls for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from users_git import GIT, git

Plant = Callable[[Path, str], object]
HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "pre-commit", "post-commit", "pre-auto-gc")


@dataclass(frozen=True)
class Trap:
    """`plant` is given the repository and a program; `springs` is the git command of a user that would run it, and
    `where` the directory below the repository in which they would type it."""

    plant: Plant
    springs: tuple[str, ...] | None
    where: str = "."
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the process; `{program}` and `{root}` are put in."""


def config(**values: str) -> Plant:
    """`section_name` or `section__sub__name`, since keys have dots."""

    def plant(root: Path, program: str) -> None:
        for key, value in values.items():
            parts = key.split("__") if "__" in key else key.split("_", 1)
            git(root, "config", *(word.replace("PROGRAM", program) for word in (".".join(parts), value)))

    return plant


def attributes(line: str, more: Plant) -> Plant:
    def plant(root: Path, program: str) -> None:
        more(root, program)
        (root / ".gitattributes").write_text(f"{line}\n")
        (root / "sub" / ".gitattributes").write_text(f"{line}\n")
        (root / ".git" / "info" / "attributes").write_text(f"{line}\n")

    return plant


def hooks(root: Path, program: str, where: str = ".git/hooks") -> None:
    (root / where).mkdir(exist_ok=True)
    for name in HOOKS:
        (root / where / name).unlink(missing_ok=True)
        (root / where / name).symlink_to(program)


def hooks_elsewhere(root: Path, program: str) -> None:
    hooks(root, program, ".githooks")
    git(root, "config", "core.hooksPath", str(root / ".githooks"))


def included(root: Path, program: str, condition: str = "include.path") -> None:
    (root / "settings").write_text(f"[core]\nfsmonitor = {program}\n")
    git(root, "config", condition, str(root / "settings"))


def repository_within(root: Path, program: str) -> Path:
    inner = root / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "f").write_text("1\n")
    git(inner, "add", "f")
    git(inner, "commit", "-qm", "inner")
    git(inner, "config", "core.fsmonitor", program)
    return inner


def submodule(root: Path, program: str) -> None:
    inner = repository_within(root, program)
    head = git(inner, "rev-parse", "HEAD").strip()
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{head},inner")
    git(root, "commit", "-qm", "a gitlink")
    (inner / "f").write_text("2\n")


def submodule_filter(root: Path, program: str) -> None:
    """It has to ask the filter whether a file has changed that was only touched."""
    submodule(root, program)
    inner = root / "inner"
    git(inner, "config", "--unset", "core.fsmonitor")
    git(inner, "config", "filter.x.clean", program)
    (inner / ".git" / "info" / "attributes").write_text("* filter=x\n")
    os.utime(inner / "f", (1, 1))


def bare_within(root: Path, program: str) -> None:
    """As files of the project: HEAD, config, objects and refs of a directory that git takes for a repository."""
    git(root, "init", "-q", "--bare", "sub")
    for key, value in {"bare": "false", "worktree": str(root / "sub"), "fsmonitor": program}.items():
        git(root, "config", "--file", "sub/config", f"core.{key}", value)
    (root / "sub" / "refs" / "keep").touch()
    (root / "sub" / "objects" / "keep").touch()


def commondir(root: Path, program: str) -> None:
    git(root, "init", "-q", "--bare", "evil")
    git(root, "config", "--file", "evil/config", "core.fsmonitor", program)
    git(root, "config", "--file", "evil/config", "core.bare", "false")
    (root / ".git" / "commondir").write_text("../evil\n")


def worktree_config(root: Path, program: str) -> None:
    git(root, "config", "extensions.worktreeConfig", "true")
    git(root, "config", "--worktree", "core.fsmonitor", program)


def missing_object(root: Path, program: str) -> None:
    """A partial clone, which fetches by itself what is not there."""
    (root / "lost").write_text("lost\n")
    git(root, "add", "lost")
    git(root, "commit", "-qm", "lost")
    name = git(root, "rev-parse", "HEAD:lost").strip()
    (root / ".git" / "objects" / name[:2] / name[2:]).unlink()
    config(
        core_repositoryformatversion="1", extensions_partialClone="origin", remote__origin__promisor="true",
        remote__origin__url=str(root), remote__origin__uploadpack="PROGRAM #",
    )(root, program)  # fmt: skip


def program_in(place: str) -> Plant:
    def plant(root: Path, program: str) -> None:
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place / "git").symlink_to(program)

    return plant


def _nothing(root: Path, program: str) -> None: ...


def _remote(url: str, **more: str) -> Plant:
    return config(remote__origin__url=url, **more)


FETCH = ("fetch", "origin")
COMMIT = ("commit", "--allow-empty", "-m", "x")
TRAPS: dict[str, Trap] = {
    "fsmonitor": Trap(config(core_fsmonitor="PROGRAM"), ("status",)),
    "hooks": Trap(hooks, COMMIT),
    "hooksPath": Trap(hooks_elsewhere, COMMIT),
    "include": Trap(included, ("status",)),
    "includeIf": Trap(lambda root, program: included(root, program, "includeIf.gitdir:**.path"), ("status",)),
    "worktreeConfig": Trap(worktree_config, ("status",)),
    "clean": Trap(attributes("* filter=x", config(filter__x__clean="PROGRAM")), ("add", "-A")),
    "smudge": Trap(attributes("* filter=x", config(filter__x__smudge="PROGRAM")), ("checkout", "-f", "HEAD", "a.py")),
    "process": Trap(
        attributes("* filter=x", config(filter__x__process="PROGRAM", filter__x__required="true")), ("add", "-A")
    ),
    "textconv": Trap(attributes("* diff=x", config(diff__x__textconv="PROGRAM")), ("diff",)),
    "diff-command": Trap(attributes("* diff=x", config(diff__x__command="PROGRAM")), ("diff",)),
    "diff-external": Trap(config(diff_external="PROGRAM"), ("diff",)),
    "merge-driver": Trap(attributes("* merge=x", config(merge__x__driver="PROGRAM")), ("merge", "other")),
    "merge-default": Trap(config(merge_default="x", merge__x__driver="PROGRAM"), ("merge", "other")),
    "editor": Trap(config(core_editor="PROGRAM"), ("commit", "--allow-empty")),
    "sign": Trap(config(commit_gpgSign="true", gpg_program="PROGRAM"), COMMIT),
    "sign-ssh": Trap(
        config(commit_gpgSign="true", gpg_format="ssh", gpg__ssh__program="PROGRAM", user_signingKey="key::x"), COMMIT
    ),
    "pager": Trap(config(core_pager="PROGRAM", pager_log="PROGRAM"), None),
    "alias": Trap(config(alias_x="!PROGRAM", **{"alias_ls-files": "!PROGRAM"}), ("x",)),
    "credential": Trap(config(credential_helper="!PROGRAM"), ("credential", "fill")),
    "askpass": Trap(config(core_askPass="PROGRAM"), None),
    "ssh": Trap(_remote("ssh://host/x", core_sshCommand="PROGRAM"), FETCH),
    "proxy": Trap(_remote("git://host/x", core_gitProxy="PROGRAM"), FETCH),
    "uploadpack": Trap(_remote(".", remote__origin__uploadpack="PROGRAM"), FETCH),
    "ext": Trap(_remote("ext::PROGRAM", protocol__ext__allow="always"), FETCH),
    "insteadOf": Trap(
        _remote("x:y", **{"url__ext::PROGRAM __insteadOf": "x:"}, protocol_allow="always"), FETCH
    ),
    "lazy-fetch": Trap(missing_object, ("cat-file", "blob", "HEAD:lost")),
    "submodule": Trap(submodule, ("status",)),
    "submodule-filter": Trap(submodule_filter, ("status",)),
    "repository-within": Trap(repository_within, ("status",), "inner"),
    "bare-within": Trap(bare_within, ("status",), "sub"),
    "commondir": Trap(commondir, ("status",)),
    "variable-config": Trap(
        _nothing, ("status",),
        env={"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "{program}"},
    ),
    "variable-diff": Trap(_nothing, ("diff",), env={"GIT_EXTERNAL_DIFF": "{program}"}),
    "variable-template": Trap(
        lambda root, program: hooks(root, program, "template") or (root / "template").rename(root / "hooks"),
        None, env={"GIT_TEMPLATE_DIR": "{root}"},
    ),
    "variable-dir": Trap(
        lambda root, program: config(core_fsmonitor="PROGRAM")(repository_within(root, program), program),
        ("status",), env={"GIT_DIR": "{root}/inner/.git"},
    ),
    "path-relative": Trap(program_in("bin"), ("status",), env={"PATH": "bin:{path}"}),
    "path-empty": Trap(program_in("."), ("status",), env={"PATH": ":{path}"}),
    "path-environment": Trap(program_in(".venv/bin"), ("status",), env={"PATH": "{root}/.venv/bin:{path}"}),
}  # fmt: skip


class Planted:
    """A repository in the middle of somebody's work, with one trap in it."""

    def __init__(self, outer: Path, trap: Trap) -> None:
        self.root, self.canary, self.trap = outer / "project", outer / "canary", trap
        self.root.mkdir()
        program = outer / "program"
        program.write_text(f"#!/bin/sh\ntouch {self.canary}\n[ ! -p /dev/stdin ] || timeout 0.5 cat\n")
        program.chmod(0o755)
        git(self.root, "init", "-q")
        (self.root / "sub").mkdir()
        for name in ("a.py", "b.py", "sub/c.py"):
            (self.root / name).write_text("1\n2\n3\n4\n5\n6\n7\n8\n")
        git(self.root, "add", "-A")
        git(self.root, "commit", "-qm", "first")
        git(self.root, "checkout", "-qb", "other")
        (self.root / "b.py").write_text("0\n2\n3\n4\n5\n6\n7\n8\n")
        git(self.root, "commit", "-qam", "theirs")
        git(self.root, "checkout", "-q", "main")
        (self.root / "b.py").write_text("1\n2\n3\n4\n5\n6\n7\n9\n")
        git(self.root, "commit", "-qam", "ours")
        trap.plant(self.root, str(program))
        (self.root / "a.py").write_text("dirty\n")
        (self.root / "new.py").write_text("new\n")
        path = os.environ["PATH"]
        self.env = {name: value.format(program=program, root=self.root, path=path) for name, value in trap.env.items()}
        self.disarm()

    @property
    def sprung(self) -> bool:
        return self.canary.exists()

    def disarm(self) -> None:
        """Forget what planting may have set off."""
        self.canary.unlink(missing_ok=True)

    def as_a_user(self) -> None:
        """What the user would type."""
        assert self.trap.springs is not None
        env = {**os.environ, **self.env}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["sh", "-c", 'exec git "$@"', "sh", *GIT[1:], *self.trap.springs], cwd=self.root / self.trap.where,
                env=env, input=b"protocol=https\nhost=h\n\n", capture_output=True, timeout=20, check=False,
            )  # fmt: skip
