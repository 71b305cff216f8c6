"""Records the terminal for the docs: `python tools/record_terminal.py docs/terminal.svg`.

What is recorded is the real command on a real pseudo-terminal, in a real project below the OS sandbox; only the model
is a script, so that the picture can be made again. `pyte` renders what was written, `rich` draws it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "harness"), str(ROOT / "tests" / "product")]

from pseudo_terminal import CTRL_D, ENTER, Terminal  # noqa: E402
from pyte.screens import Char  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.style import Style  # noqa: E402
from rich.terminal_theme import TerminalTheme  # noqa: E402
from rich.text import Text  # noqa: E402
from scripted_openai import Reply, ScriptedServer  # noqa: E402

COLUMNS = 96
PROGRAM = '''"""Roman numerals."""

VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def parse(text):
    total = 0
    for char in text:
        total += VALUES[char]
    return total
'''
TEST = """import unittest

from roman import parse


class Roman(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(parse("XVI"), 16)

    def test_subtracts(self):
        self.assertEqual(parse("XIV"), 14)


unittest.main()
"""


def todos(first: str, second: str) -> tuple[str, dict[str, Any]]:
    items = [("let a smaller numeral before a larger one count as negative", first), ("run the tests", second)]
    return "todo_write", {"todos": [{"content": content, "status": status} for content, status in items]}


def replies() -> Iterator[Reply]:
    """What the model says, with the tokens that a session of this kind takes."""
    loop = "    for char in text:\n        total += VALUES[char]\n"
    mended = (
        "    for char, following in zip(text, [*text[1:], None]):\n"
        "        smaller = following is not None and VALUES[char] < VALUES[following]\n"
        "        total += -VALUES[char] if smaller else VALUES[char]\n"
    )
    yield Reply(
        "I look at the parser and its tests first.",
        [*(("read_file", {"path": path}) for path in ("roman.py", "test_roman.py")), ("grep", {"pattern": "parse\\("})],
        prompt_tokens=2310, completion_tokens=96,
    )  # fmt: skip
    yield Reply(
        "`parse` only ever adds, so in **XIV** the `I` counts as one and not as minus one.",
        [todos("in_progress", "pending"), ("edit_file", {"path": "roman.py", "old": loop, "new": mended})],
        prompt_tokens=2790, cached_tokens=2304, completion_tokens=241,
    )  # fmt: skip
    yield Reply(
        "", [("run_terminal_cmd", {"command": "python3 test_roman.py -v"})],
        prompt_tokens=3080, cached_tokens=2688, completion_tokens=38,
    )  # fmt: skip
    yield Reply(
        'Both tests pass:\n\n```python\nassert parse("XIV") == 14  # 16 before\n```\n'
        "The rule is now in one place:\n\n"
        "- a numeral **smaller than the next** is subtracted, as the `I` of XIV;\n"
        "- every other one is added, and so is the last.",
        [todos("completed", "completed")], prompt_tokens=3350, cached_tokens=3072, completion_tokens=84,
    )  # fmt: skip
    yield Reply("", prompt_tokens=3480, cached_tokens=3328, completion_tokens=4)


def record(project: Path, home: Path) -> list[list[Char]]:
    """Play it; what stood on the screen before it was left, and what had scrolled off it."""
    (project / "roman.py").write_text(PROGRAM)
    (project / "test_roman.py").write_text(TEST)
    env = {**os.environ, "ETUDE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home), "HOME": str(project.parent)}
    env |= {"PYTHONPATH": str(ROOT), "COLORTERM": "truecolor"}
    env.pop("NO_COLOR", None)
    with ScriptedServer(replies()) as server:
        argv = [sys.executable, "-m", "etude.cli.main", "agent", "--endpoint", server.url, "--model", "qwen3-coder"]
        argv += ["--set", "prices.qwen3-coder={input=0.30, cached=0.06, output=1.20}", "--dir", str(project)]
        with Terminal(argv, env, COLUMNS, 30) as terminal:
            terminal.say("parse gets XIV wrong. Mend it in @roman.py")
            terminal.see(r"allow\?$")
            terminal.type("s" + ENTER)
            terminal.see(r"turns ·")
            terminal.say("/undo")
            terminal.see("/redo brings it back")
            terminal.see("mode ask$")
            shown = terminal.rows()
            terminal.type(CTRL_D)
            terminal.end()
            return shown


INK, PAPER = (212, 216, 222), (22, 24, 29)
COLOURS = [(240, 113, 120), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194)]
THEME = TerminalTheme(PAPER, INK, [PAPER, *COLOURS, INK], [(122, 130, 142), *COLOURS, (255, 255, 255)])
_NAMES = {"brown": "yellow", "brightblack": "bright_black"}


def drawn(rows: list[list[Char]]) -> str:
    """As an SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for row in rows:
        text = Text()
        for cell in row:
            colour = None if cell.fg == "default" else _NAMES.get(cell.fg, cell.fg)
            if colour and len(colour) == 6 and all(char in "0123456789abcdef" for char in colour):
                colour = f"#{colour}"
            text.append(cell.data, Style(color=colour, bold=cell.bold, italic=cell.italics, reverse=cell.reverse))
        text.rstrip()
        console.print(text, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title="etude agent", theme=THEME)
    face, rest = svg.split("@font-face", 1)[0], svg.rsplit("@font-face", 1)[1].split("}", 1)[1]
    return (face + rest).replace("Fira Code", "ui-monospace, DejaVu Sans Mono, Menlo, Consolas")


def main(file: str) -> None:
    with tempfile.TemporaryDirectory(prefix="etude-record-", dir="/var/tmp") as directory:
        project = Path(directory) / "roman"
        project.mkdir()
        subprocess.run(["git", "init", "-q", "-b", "main", str(project)], check=True)
        Path(file).write_text(drawn(record(project, Path(directory) / "home")))


if __name__ == "__main__":
    main(*sys.argv[1:])
