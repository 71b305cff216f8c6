"""A world in which the commands of a page are played as its reader types them: one after another, with bash.

Owns a directory with a home of its own, what the lines before have changed (directory, variables, files), and the
servers that they have started, which run until the world ends. `World.play` raises AssertionError where a line fails,
or prints something else than the page shows. A port of a page stands for a free one of this machine; `smaller` holds
what else is played in another form, so that it is quick. It never plays a line outside its directory and looks at no
page itself: pages are read by page_commands.py, and page_scenes.py says which world each needs.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pseudo_terminal import CTRL_D, ENTER, Terminal

DEADLINE_S = 600
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude"
SERVERS = {"serve": 8450, "environments serve": 8460, "sessions serve": 8470, "weights relay": 8480, "studio": 8490}
"""The commands that stay until they are stopped, and the ports that they have where none is named."""
_SERVER = re.compile(r"etude (serve|environments serve|sessions serve|weights relay|studio)\b")
_INTERACTIVE = re.compile(r"etude agent(?: --(?:endpoint|model|set) \S+)*(?:\s+#.*)?$")
_PORT = re.compile(r"(?<=\d\.\d:)\d{4}\b|(?<=port[= ])\d{4}\b")
_FOREIGN = ("OPENAI_", "ANTHROPIC_", "ETUDE_", "XDG_", "OTEL_", "GIT_")
_SAME = doctest.OutputChecker()

Smaller = Mapping[str, str | Callable[["World"], str]]
"""By a pattern what stands in its place, or a function of the world that says it."""


class World:
    """`with world(…) as made:` makes one and ends its servers."""

    def __init__(self, root: Path, smaller: Smaller, ends: ExitStack) -> None:
        self.root, self.home, self.cwd = root, root / "home", root
        self._smaller, self._ends = smaller, ends
        self.ports: dict[str, int] = {}
        self._serving: list[tuple[str, subprocess.Popen[str]]] = []
        (self.home / ".cache/etude").mkdir(parents=True)
        for program in CACHE.glob("guest-*"):  # compiled once on a machine
            shutil.copy2(program, self.home / ".cache/etude")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ada = {"NAME": "Ada", "EMAIL": "ada@example.com", "DATE": "2026-01-01T00:00:00Z"}  # so that ids stay the same
        author = {f"GIT_{who}_{what}": said for who in ("AUTHOR", "COMMITTER") for what, said in ada.items()}
        self.env = {**kept, **author, "HOME": str(self.home), "PATH": path, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}

    def port(self, shown: str) -> str:
        """The free port that stands for a page's."""
        if shown not in self.ports:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.ports[shown] = free.getsockname()[1]
        return str(self.ports[shown])

    def as_played(self, line: str) -> str:
        """A line of a page in the form in which it is played here."""
        for pattern, instead in self._smaller.items():
            line = re.sub(pattern, lambda _, to=instead: to if isinstance(to, str) else to(self), line)
        if (server := _SERVER.match(line)) and not re.search("port[= ]", line):
            command, hash, remark = line.partition(" #")
            line = f"{command.rstrip()} --set port={SERVERS[server[1]]}{hash}{remark}"
        return _PORT.sub(lambda port: self.port(port[0]), line)

    def play(self, line: str, shown: str = "") -> None:
        """Type it and wait for its end; of a server, for the address that it says."""
        played = self.as_played(line)
        if _INTERACTIVE.match(played):
            return self._sit_before(played, re.findall(r"^› (.*)", shown, re.M))
        printed = self.printed(line)
        shown = _PORT.sub(lambda port: self.port(port[0]), shown).replace("/home/ada", str(self.home))
        assert same(shown, printed), f"{line}\nshown:\n{shown}\nprinted:\n{printed}"

    def printed(self, line: str) -> str:
        """What it prints where nobody sits before it; of a server, the line with its address."""
        played = self.as_played(line)
        return self._serve(played) if _SERVER.match(played) else self.run(played)

    def run(self, line: str) -> str:
        """What bash prints of it. The directory and the variables that it leaves are those of the next line."""
        left = self.root / ".left"
        script = f"{line}\nended=$?; env -0 > '{left}'; exit $ended"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.cwd, env=self.env, input="", capture_output=True, text=True,
            timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        self.env = dict(each.split("=", 1) for each in left.read_text().split("\0") if each)
        self.cwd = Path(self.env["PWD"])
        return done.stdout

    def _serve(self, line: str) -> str:
        [port] = re.findall(r"port[= ](\d+)", line)
        for other in [each for each in self._serving if re.search(rf"port[= ]{port}\b", each[0])]:
            self._serving.remove(other)
            self.stop(other[1], other[0])  # who starts another at its port has stopped it
        errors = self.root / ".errors"
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors.open("w"), text=True,
        )  # fmt: skip
        self._serving.append((line, process))
        late = threading.Timer(120, process.kill)
        late.start()
        assert process.stdout is not None
        said = process.stdout.readline()
        late.cancel()
        assert re.search(r"http://127\.0\.0\.1:\d+", said), (
            f"{line}: said no address\n{said}{errors.read_text()[-3000:]}"
        )
        return said

    def _sit_before(self, line: str, prompts: list[str]) -> None:
        """A person at a terminal, who types these prompts and leaves once each is answered."""
        argv = ["bash", "-c", f"cd '{self.cwd}' && {line}"]
        with Terminal(argv, self.env, columns=120) as terminal:
            for prompt in prompts:
                terminal.say(prompt)
                while "allow?" in terminal.see(r"allow\?$|turns? ·"):
                    terminal.type("y" + ENTER)
            terminal.see(r"› *$")
            terminal.type(CTRL_D)
            assert terminal.end() == 0, f"{line}\n{terminal.text}"

    def stop(self, process: subprocess.Popen, line: str, how: int = signal.SIGTERM) -> None:
        """It must end as it would for a user."""
        process.send_signal(how)
        try:
            code = process.wait(DEADLINE_S)
        finally:
            process.kill()
        assert code == 0, f"{line}: ended with {code} when it was stopped"

    def stop_servers(self) -> None:
        while self._serving:
            line, process = self._serving.pop()
            self.stop(process, line)

    def kill_servers(self) -> None:
        """What a failed play has left."""
        for _, process in self._serving:
            process.kill()
            process.wait(30)


@contextmanager
def world(smaller: Smaller, *prepared: Callable[[World, ExitStack], None]) -> Iterator[World]:
    """A world in which these have prepared what a page presumes. Not below /tmp, of which a sandbox has its own."""
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))
    try:
        with ExitStack() as ends:
            made = World(root, smaller, ends)
            ends.callback(made.kill_servers)
            for prepare in prepared:
                prepare(made, ends)
            yield made
            made.stop_servers()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def plain(text: str) -> str:
    """With every number the same, and spaces as one."""
    return re.sub(r"[-+]?\d+(\.\d+)?", "0", re.sub(r"[ \t]+", " ", text)).strip() + "\n"


def same(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed: `…` stands for anything, a number for any, nothing for all."""
    if not shown.strip():
        return True
    return _SAME.check_output(plain(shown.replace("…", "...")), plain(printed.replace("…", "...")), doctest.ELLIPSIS)
