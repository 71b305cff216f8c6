"""A project and a home for `etude agent`, and the terminal that it is started on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pseudo_terminal import Terminal
from scripted_openai import ScriptedServer

_ABOUT_TERMINALS = ("TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")
"""What would tell the command of another terminal than the one it is given."""


class Setting:
    """A project, a home for sessions, and a terminal with `etude agent` in both."""

    def __init__(self, root: Path) -> None:
        self.root, self.project = root, root / "project"
        self.project.mkdir()
        (self.project / "a.py").write_text("def f(x):\n    return x - 1\n")

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _ABOUT_TERMINALS}
        return {**kept, "ETUDE_HOME": str(self.root / "home"), "XDG_CONFIG_HOME": str(self.root / "config")}

    def argv(self, server: ScriptedServer, *more: str) -> list[str]:
        given = ["--endpoint", server.url, "--model", "m", "--dir", str(self.project), *more]
        return [sys.executable, "-m", "etude.cli.main", "agent", *given]

    def terminal(
        self, server: ScriptedServer, *more: str, env: Mapping[str, str] | None = None, columns: int = 80
    ) -> Terminal:
        return Terminal(self.argv(server, *more), {**self.env, **(env or {})}, columns)
