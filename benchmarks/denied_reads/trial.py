"""A home, a workspace with denied files in and around it, a judge over both, and a sandbox that hides nothing of them.

Owns `Trial`: `judge` decides by the rules alone, `opened` runs what was allowed in bash and dash and says which lines
opened a denied file. The sandbox is the product's own but for its list of hidden files, which is empty here.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etude.environments.base import WORKSPACE
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

RUNNER, TRACER = (Path(__file__).with_name(name) for name in ("runner.py", "tracer.py"))
SHARED = ("/etc/shadow",)
"""What is watched and is the machine's own."""
Hit = tuple[int, str, list[str]]
"""A line's number, the shell, and the files that were opened."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Trial:
    """Everything below one directory, which must not lie in /tmp: the sandbox has one of its own."""

    def __init__(self, top: Path) -> None:
        self.top, self.home, self.project = top, top / "home", top / "project"
        self.env = {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
        self.rules = PermissionConfig(
            deny=(
                "read(~/.codex/**)", "read(/etc/shadow)", "read(.env)", "read(infra/secrets/**)", "read(docs/own)",
                f"read({top}/vault/**)",
            )
        )  # fmt: skip
        self.judge = Judge(self.rules, WorkspacePaths(self.project), env=self.env)
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

    def lay_out(self) -> None:
        """The files afresh: lines may have changed them."""
        shutil.rmtree(self.top, ignore_errors=True)
        for name, text in self._files().items():
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
        for command in (["init", "-qb", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
            git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b", *command]
            subprocess.run(git, check=True, env=self.env)

    def _files(self) -> dict[str, bytes]:
        code, text = b"import os\n\n\ndef parse_line(text):\n    return text\n", b"a b\n"
        denied = [str(self.home / ".codex" / "auth.json"), "/etc/shadow", ".env", "infra/secrets/key"]
        codes = ("src/engine.py", "src/util.py", "src/deep/util.py", "tests/test_engine.py")
        texts = ("README.md", "Makefile", "build.log", "src/a.txt", "src/b.txt", "docs/guide.md", "infra/app.txt",
                 "odd/a .env b.txt", "odd/a ..", "odd/-f.env", "odd/--files0-from=list0", "num/x")  # fmt: skip
        project = {
            **dict.fromkeys(codes, code), **dict.fromkeys(texts, text),
            ".env": b"KEY=secret\n", "infra/secrets/key": b"secret\n", ".gitignore": b".env\nown\n",
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

    @property
    def watched(self) -> list[str]:
        """The denied files and the directories that hold nothing else, those that this user can read."""
        names = ("home/.codex", "home/.codex/auth.json", "project/.env", "project/infra/secrets",
                 "project/infra/secrets/key", "project/docs/own", "vault", "vault/token")  # fmt: skip
        paths = [*(self.top / name for name in names), *map(Path, SHARED)]
        return [str(path) for path in paths if os.access(path, os.R_OK)]

    def allowed(self, line: str) -> bool:
        return self.judge.judge("run_terminal_cmd", {"command": line}).verdict == "allow"

    def opened(self, lines: Sequence[str], own: bool = False) -> list[tuple[str, str]]:
        """The lines, and the shell, that opened what is denied.

        Other programs of the machine open files too: someone may search all there is. So where something was opened,
        everything is laid out afresh and all lines are run again, twice: what was opened each time counts. With `own`
        the machine's files are hidden from the lines, and all that was opened counts: for lines which are known to open
        such, and would disturb another trial that watches the same.
        """
        hits = self._hits(lines, own)
        for _ in range(2 if hits and not own else 0):
            self.lay_out()
            again = {(number, shell) for number, shell, _ in self._hits(lines, own)}
            hits = [hit for hit in hits if hit[:2] in again]
        return [(lines[number], shell) for number, shell, _ in hits]

    def traced(self, lines: Sequence[str]) -> list[str]:
        """What bash tells of each line with `set -x`."""
        return self._said(TRACER, {"lines": lines, "directory": WORKSPACE}, ())

    def _hits(self, lines: Sequence[str], own: bool) -> list[Hit]:
        hidden = SHARED if own else ()
        watched = [path for path in self.watched if path not in hidden]
        plan = {"lines": lines, "watched": watched, "directory": WORKSPACE}
        return [(number, shell, files) for number, shell, files in self._said(RUNNER, plan, hidden)]

    def _said(self, script: Path, plan: dict[str, Any], hidden: tuple[str, ...]) -> list[Any]:
        """What a script prints of a plan, in a sandbox of the product's."""
        file, copy = (self.top.with_name(f"{self.top.name}-{name}") for name in ("plan.json", script.name))
        file.write_text(json.dumps(plan))
        shutil.copy(script, copy)  # the sandbox has a /tmp of its own, where this may lie, and its environment too
        try:
            return asyncio.run(
                self._run(f"{os.path.realpath(sys.executable)} {copy} {file}", len(plan["lines"]), hidden)
            )
        finally:
            file.unlink()
            copy.unlink()

    async def _run(self, command: str, lines: int, hidden: tuple[str, ...]) -> list[Any]:
        config = WorkspaceConfig(hidden=hidden, shown=("~",), protected=(), env=self.env)
        workspace = await open_workspace(self.project, config)
        try:
            done = await workspace.exec(command, timeout_s=120 + 4.5 * lines, max_output_bytes=16_000_000)
        finally:
            await workspace.destroy()
        if done.exit_code:
            raise RuntimeError(done.output.decode(errors="replace")[-2000:])
        # not the last line: what the lines left running may print after it
        return json.loads(next(line for line in reversed(done.output.splitlines()) if line.startswith(b'{"hits"')))[
            "hits"
        ]
