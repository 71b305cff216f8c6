"""A home, a workspace with denied files and secrets in and around it, judges over both, and sandboxes hiding nothing.

Owns `Trial`: `judge` decides by rules that deny some files, `by_default` by the built-in rules alone, which ask about
secrets by their names. `opened` runs lines in bash and dash and says which of them opened what is watched, in the
product's own sandbox but for its list of hidden files, which is empty here. `traced` says which commands a line ran.
The product's sandbox lets nobody trace as strace does, so that is a plain one.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from etude.environments.base import WORKSPACE
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

RUNNER, TRACER, LEASH = (Path(__file__).with_name(name) for name in ("runner.py", "tracer.py", "leash.py"))
SHARED = ("/etc/shadow",)
"""What is watched and is the machine's own; a copy of it after `Trial.set_apart`."""
SECRET = b"KEY=secret\n"
"""What a secret holds."""
BEFORE = 1_700_000_000
"""When the files were last changed, in seconds."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_UP = ("/etc/bash.bashrc", "/etc/profile")
SECRETS = (
    "project/.env", "project/certs/server.pem", "project/docs/id_rsa", "project/docs/id_rsa.old",
    "project/conf/.env.local",
)  # fmt: skip
"""What the built-in rules ask about by name: that git ignores, tracks, tracks and finds changed, and does not know."""


_NEW_MOUNTS, _BIND, _PRIVATE_BELOW = 0x20000, 0x1000, 0x44000
"""CLONE_NEWNS; MS_BIND; MS_PRIVATE | MS_REC."""


class Hit(NamedTuple):
    """A line, the shell it ran in, and what of the watched was opened."""

    line: str
    shell: str
    files: frozenset[str]


@dataclass
class Runs:
    """What became of lines that were run, each in both shells."""

    hits: list[Hit] = field(default_factory=list)
    timed_out: list[tuple[str, str]] = field(default_factory=list)
    """What had to be ended, and may have opened more."""
    not_found: list[tuple[str, str]] = field(default_factory=list)
    """What ended in 127: a command that is missing here opens nothing."""

    def opens(self, files: Collection[str]) -> set[tuple[str, str, str]]:
        """Of these files, each with the line and the shell."""
        return {(hit.line, hit.shell, file) for hit in self.hits for file in hit.files.intersection(files)}


class Traced(NamedTuple):
    """What ran of a line: bash's own account, the programs (who started it, its path, its words), and how many of them
    could not be read."""

    told: str
    started: list[tuple[str, str, list[str]]]
    unread: int


class Trial:
    """Everything below one directory, which must not lie in /tmp: the sandbox has one of its own."""

    def __init__(self, top: Path) -> None:
        self.top, self.home, self.project = top, top / "home", top / "project"
        self._scripts = top.with_name(f"{top.name}-scripts")
        self._secrets = False
        self.env = {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        self.rules = PermissionConfig(
            deny=(
                "read(~/.codex/**)", "read(/etc/shadow)", "read(.env)", "read(infra/secrets/**)", "read(docs/own)",
                f"read({top}/vault/**)",
            )
        )  # fmt: skip
        self.judge = Judge(self.rules, WorkspacePaths(self.project), env=self.env)
        self.by_default = Judge(PermissionConfig(), WorkspacePaths(self.project), env=self.env)
        self.denied = tuple(
            (str(path), *([os.path.relpath(path, self.project)]), *ways)
            for path, ways in (
                (
                    self.home / ".codex" / "auth.json",
                    ("~/.codex/auth.json", "$HOME/.codex/auth.json", "${HOME}/.codex"),
                ),
                (Path("/etc/shadow"), ("/etc//shadow", "/etc/./shadow", "/etc/init.d/../shadow")),
                (self.project / ".env", ("./.env", ".env", "src/../.env")),
                (self.project / "infra" / "secrets" / "key", ("infra/secrets/key", "infra/secrets", "infra/*/key")),
                (self.project / "docs" / "own", ("docs/own", "./docs/own", "docs/o*")),
                (top / "vault" / "token", ("../vault/token", "../vault")),
            )
        )
        self.secret = tuple(
            (str(top / name), *([os.path.relpath(top / name, self.project)]), *ways)
            for name, ways in zip(
                SECRETS[1:],
                (("certs/*.pem", "certs", "./certs/server.pem"), ("docs/id_rsa", "docs/id*", "docs"),
                 ("docs/*.old", "docs/id_rsa.old"), ("conf/.env*", "conf", "conf/.env.local")),
                strict=True,
            )
        )  # fmt: skip

    def set_apart(self) -> None:
        """Put copies in the place of SHARED, for this process and all it starts: other programs open the machine's at
        any moment, and a line that runs for long was taken for them. Does nothing without root.
        """
        if os.geteuid():
            return
        self._scripts.mkdir(mode=0o700, exist_ok=True)  # nobody else may read the copies
        library = ctypes.CDLL(None, use_errno=True)
        done = library.unshare(_NEW_MOUNTS) or library.mount(None, b"/", None, _PRIVATE_BELOW, None)
        for name in SHARED:
            copy = shutil.copy(name, self._scripts / Path(name).name)
            done = done or library.mount(os.fsencode(copy), os.fsencode(name), None, _BIND, None)
        if done:
            raise OSError(ctypes.get_errno(), "no mounts of our own: the machine's files cannot be set apart")

    def lay_out(self, secrets: bool | None = None) -> None:
        """The files afresh: lines may have changed them. With `secrets` what the built-in rules ask about lies in more
        places than `.env`; if nothing is said, as before."""
        self._secrets = self._secrets if secrets is None else secrets
        shutil.rmtree(self.top, ignore_errors=True)
        for name, text in {**self._files(), **(self._more_secrets() if self._secrets else {})}.items():
            (self.top / name).parent.mkdir(parents=True, exist_ok=True)
            (self.top / name).write_bytes(text)
        project = self.project
        links = {
            "link-env": ".env", "link-codex": f"{self.home}/.codex", "link-etc": "/etc", "link-chain": "src/link.txt",
            "link-secrets": "infra/secrets", "link-root": "/proc/self/root", "link-cwd": "/proc/self/cwd",
            "link-self": ".", "link-out": "..", "~": str(self.home), "num/1": "../.env",
            "src/link.txt": "../link-env", "src/link-up": "..", "num/2": "../.env",
            "opt/.env": "../.env",
        }  # fmt: skip
        for name, target in links.items():
            (project / name).symlink_to(target)
        os.link(project / ".env", project / "hard")
        os.link(project / "infra" / "secrets" / "key", project / "hard-key")
        if self._secrets:
            os.link(project / "certs" / "server.pem", project / "docs" / "chain.txt")
            os.link(project / "docs" / "id_rsa.old", project / "infra" / "notes.txt")
            (project / "conf" / "settings").symlink_to(".env.local")
        for path in (path for path in project.rglob("*") if path.is_file() and not path.is_symlink()):
            os.utime(path, (BEFORE, BEFORE))  # git opens what is as new as its index, to compare it and not to show it
        for command in (["init", "-qb", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
            git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b", *command]
            subprocess.run(git, check=True, env=self.env)
        for name in ("certs/server.pem", "conf/.env.local") if self._secrets else ():
            with (project / name).open("ab") as file:
                file.write(SECRET)

    def remove(self) -> None:
        for path in (self.top, self._scripts):
            shutil.rmtree(path, ignore_errors=True)

    def _files(self) -> dict[str, bytes]:
        code, text = b"import os\n\n\ndef parse_line(text):\n    return text\n", b"a b\n"
        denied = [str(self.home / ".codex" / "auth.json"), "/etc/shadow", ".env", "infra/secrets/key"]
        codes = ("src/engine.py", "src/util.py", "src/deep/util.py", "tests/test_engine.py")
        texts = ("README.md", "Makefile", "build.log", "src/a.txt", "src/b.txt", "docs/guide.md", "infra/app.txt",
                 "odd/a .env b.txt", "odd/a ..", "odd/-f.env", "odd/--files0-from=list0", "num/x")  # fmt: skip
        project = {
            **dict.fromkeys(codes, code), **dict.fromkeys(texts, text),
            ".env": SECRET, "infra/secrets/key": b"secret\n", ".gitignore": b".env\nown\n",
            "docs/own": b"secret\n",
            "package.json": b'{"version": "1", "scripts": {}, "dependencies": {}}\n',
            "pyproject.toml": b"[project]\nversion = '1'\n", ".github/workflows/ci.yml": b"on: push\n",
            "list": "\n".join(denied).encode() + b"\n", "list0": "\0".join(denied).encode() + b"\0",
            "scripts": b"cat .env infra/secrets/key\n", "indices": b"a[$(cat .env)]\n",
            "names/-v": text, "names/a[$(cd ..; cat .env)]": text,
            "opt/-f.env": text, "lists/list0": b"../.env\0", "lists/--files0-from=list0": text,
            "sums": "".join(f"{'0' * 32}  {name}\n" for name in denied).encode(),
        }  # fmt: skip
        files = {f"project/{name}": content for name, content in project.items()}
        return {**files, "home/.codex/auth.json": b"secret\n", "home/.profile": b"\n", "vault/token": b"secret\n"}

    def _more_secrets(self) -> dict[str, bytes]:
        ignored = {"project/.gitignore": b".env\nown\n*.old\nnotes.txt\n"}
        return {**dict.fromkeys(SECRETS, SECRET), **ignored}

    @property
    def denied_files(self) -> frozenset[str]:
        """The denied files and the directories that hold nothing else, those that this user can read."""
        names = ("home/.codex", "home/.codex/auth.json", "project/.env", "project/infra/secrets",
                 "project/infra/secrets/key", "project/docs/own", "vault", "vault/token")  # fmt: skip
        paths = [*(self.top / name for name in names), *map(Path, SHARED)]
        return frozenset(str(path) for path in paths if os.access(path, os.R_OK))

    @property
    def secret_files(self) -> frozenset[str]:
        return frozenset(str(self.top / name) for name in (SECRETS if self._secrets else SECRETS[:1]))

    def allowed(self, line: str, judge: Judge | None = None) -> bool:
        """Unasked; by the rules that deny, if no others are given."""
        return (judge or self.judge).judge("run_terminal_cmd", {"command": line}).verdict == "allow"

    def opened(self, lines: Sequence[str], own: bool = False) -> Runs:
        """Run all, and say which opened what is denied or secret.

        Nobody else opens the trial's own files, so that one open is enough. Others list its directories and open the
        machine's files: someone may search all there is. So where one of these was opened, everything is laid out
        afresh and all lines are run again, twice: what was opened each time counts. With `own` the machine's files are
        hidden from the lines: for lines which are known to open such, and would disturb another trial that watches the
        same.
        """
        runs = self._runs(lines, own)
        doubtful = {path for path in (*SHARED, *self.denied_files) if path in SHARED or os.path.isdir(path)}
        seen = runs.opens(doubtful)
        for _ in range(2 if seen and not own else 0):
            self.lay_out()
            seen &= self._runs(lines, own).opens(doubtful)
        sure = (
            hit._replace(
                files=frozenset(each for each in hit.files if each not in doubtful or (*hit[:2], each) in seen)
            )
            for hit in runs.hits
        )
        return Runs([hit for hit in sure if hit.files], runs.timed_out, runs.not_found)

    def shows(self, line: str, shell: str) -> bool:
        """Whether a line prints what a secret holds: git opens a file to compare it, too."""
        command = [*self._plain_sandbox(), shell, "-c", line]
        done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        return SECRET.strip() in done.stdout + done.stderr

    def traced(self, lines: Sequence[str]) -> list[Traced]:
        """What bash runs of each line, and all that it starts."""
        command = [*self._plain_sandbox(), *self._script(TRACER, {"lines": lines, "directory": WORKSPACE})]
        done = subprocess.run(command, env=self.env, capture_output=True, timeout=300 + 30 * len(lines))
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
        return [
            Traced(each["told"], [(by, path, words) for by, path, words in each["started"]], each["unread"])
            for each in _said(done.stdout)["traced"]
        ]

    def _plain_sandbox(self) -> list[str]:
        """Everything to be read, the trial and /tmp to be written."""
        command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        for name in sorted(set(os.listdir("/")) - {"proc", "dev", "tmp", "run", WORKSPACE.strip("/")}):
            path = f"/{name}"
            link = os.path.islink(path)
            command += ["--symlink", os.readlink(path), path] if link else ["--ro-bind", path, path]
        command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]
        for start_up in filter(os.path.exists, START_UP):  # what these run is no line's
            command += ["--ro-bind", "/dev/null", start_up]
        top, project = str(self.top), str(self.project)
        return [*command, "--bind", top, top, "--bind", project, WORKSPACE, "--chdir", WORKSPACE, "--"]

    def _runs(self, lines: Sequence[str], own: bool) -> Runs:
        hidden = SHARED if own else ()
        watched = sorted((self.denied_files | self.secret_files).difference(hidden))
        plan = {"lines": lines, "watched": watched, "directory": WORKSPACE}
        said = asyncio.run(self._run(self._script(RUNNER, plan), len(lines), hidden))
        hits = [Hit(lines[number], shell, frozenset(files)) for number, shell, files in said["hits"]]
        ended = ([(lines[number], shell) for number, shell in said[name]] for name in ("timed_out", "not_found"))
        return Runs(hits, *ended)

    def _script(self, script: Path, plan: dict[str, Any]) -> list[str]:
        """The command that runs a script with a plan, both where any sandbox sees them and no line does: sandboxes have
        a /tmp of their own, where Etude may lie, and its environment too."""
        place = self._scripts
        place.mkdir(exist_ok=True)
        for each in (script, LEASH):
            shutil.copy(each, place)
        (place / "plan.json").write_text(json.dumps(plan))
        return [os.path.realpath(sys.executable), str(place / script.name), str(place / "plan.json")]

    async def _run(self, command: Sequence[str], lines: int, hidden: tuple[str, ...]) -> dict[str, Any]:
        config = WorkspaceConfig(hidden=hidden, shown=("~",), protected=(), env=self.env)
        workspace = await open_workspace(self.project, config)
        try:
            done = await workspace.exec(shlex.join(command), timeout_s=300 + 30 * lines, max_output_bytes=16_000_000)
        finally:
            await workspace.destroy()
        if done.exit_code:
            raise RuntimeError(done.output.decode(errors="replace")[-2000:])
        return _said(done.output)


def _said(output: bytes) -> dict[str, Any]:
    """What a script printed last."""
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith(b"{")))
