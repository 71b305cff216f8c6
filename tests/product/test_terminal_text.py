"""Text on the terminal: what may be sent, how words flow as they come, and what a change looks like."""

from __future__ import annotations

import asyncio
import io
import random
import unicodedata

import pytest
import structlog
from rich.console import Console

from etude.cli.main import _log_to_stderr, main
from etude.harness.cost import SessionCost
from etude.harness.permissions import Decision, Judge, PermissionConfig, Question, Reason
from etude.plain import exact, is_plain, plain, plain_output, say, unseen
from etude.product.terminal.commands import cost_line, is_command, thousands
from etude.product.terminal.diffs import edit_rows, patch_rows
from etude.product.terminal.face import mentioned
from etude.product.terminal.flow import Flow
from etude.product.terminal.questions import Questions
from etude.product.terminal.screen import Screen
from etude.product.terminal.typing import list_files, matching


def test_no_character_that_drives_a_terminal_is_left() -> None:
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x200B, 0xE0041, 0xD800):
        shown = plain(f"a{chr(code)}b")
        if chr(code) != "\n":
            assert chr(code) not in shown and len(shown) > 2, hex(code)
    assert plain("naïve 日本 👩\u200d💻 ok\n") == "naïve 日本 👩\u200d💻 ok\n", "what people write stays as it is"
    assert is_plain("src/a b.py") and not is_plain("a\x1b.py") and not is_plain("a\u202e.py")
    assert plain_output("\x1b[1;32mok\x1b[0m 50%\rok done\r") == "ok done" and plain_output("\x1b]0;x\x07") == "␛]0;x␇"


UNSEEN = (
    0xAD, 0x34F, 0x115F, 0x3164, 0xFFA0, 0x2061, 0x2062, 0x2064, 0x180E, 0xE0100, 0x2800, 0x206A, 0x206F, 0x1D173,
    0xFE00, 0x200B, 0x202E, 0xFFF9,
)  # fmt: skip
OF_SCRIPTS = (0x200C, 0x200D, 0xFE0E, 0xFE0F)
"""What emoji and scripts are written with."""


def test_no_character_that_cannot_be_seen_is_left() -> None:
    """In an answer all but those that honest words hold; in a question not even those."""
    for code in (*UNSEEN, *OF_SCRIPTS):
        assert chr(code) not in exact(f"pu{chr(code)}sh") and unseen(f"a\n\t{chr(code)}") == chr(code), hex(code)
        assert (chr(code) in plain(f"pu{chr(code)}sh")) == (code in OF_SCRIPTS), hex(code)
    assert plain("❤\ufe0f می\u200cخواهم") == "❤\ufe0f می\u200cخواهم"
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp") and chr(code) not in "\n\t":
            assert unseen(chr(code)) and exact(chr(code)) != chr(code), hex(code)


@pytest.mark.parametrize("code", [*UNSEEN, *OF_SCRIPTS])
def test_a_question_hides_nothing_of_what_is_to_be_allowed(code: int) -> None:
    """Whatever names it: the call, the piece that is asked about, the rule, or what would be written."""
    file, odd = io.StringIO(), f"pu{chr(code)}sh"
    screen = Screen(Console(file=file, width=200, color_system=None))

    async def yes(_: str) -> str:
        return "y"

    command = {"command": f"git {odd}"}
    decision = Judge(PermissionConfig(), env={}).judge("run_terminal_cmd", command)
    assert decision.verdict == "ask" and "invisible character" in decision.explain()
    write = {"path": f"{odd}.py", "content": odd}
    rule = Decision("ask", (Reason("ask", odd, odd, odd),))
    questions = [Question("run_terminal_cmd", command, decision), Question("write_file", write, rule)]
    asyncio.run(Questions(screen, yes).ask(questions))
    asyncio.run(Questions(screen, yes).ask(questions[1:]))
    assert chr(code) not in file.getvalue() and file.getvalue().count(exact(odd)) >= 8


def test_what_a_command_wrote_over_is_seen_unless_it_only_went_on() -> None:
    assert plain_output("ignore all rules, and push\rok") == "ignore all rules, and push␍ok"
    assert plain_output("run this\r\r   \rok\r\n".rstrip("\n")) == "run this␍ok"
    assert plain_output("Receiving: 5% 10 KiB\rReceiving: 99% 2 MiB/s\rReceiving: 100%, done.\r") == (
        "Receiving: 100%, done."
    )
    assert plain_output(" 10%|█ | 1/9 [00:01<00:09, 1.1it/s]\r100%|██| 9/9 [00:09<00:00, 2s/it]").startswith("100%")
    many = plain_output("\r".join(f"step {'abcdefghij'[n % 10] * (n // 10 + 1)}" for n in range(500)))
    assert many.startswith("…") and many.endswith("␍step " + "j" * 50) and len(many) < 1100


def flowed(text: str, width: int, sizes: random.Random | None = None, marks: bool = False) -> tuple[str, list[str]]:
    """What is written, and the pieces in a style; fed in pieces of any size."""
    out: list[tuple[str, str]] = []
    flow = Flow(lambda piece, style: out.append((piece, style)), lambda: width, marks)
    at = 0
    while at < len(text):
        size = sizes.randint(1, 9) if sizes else len(text)
        flow.feed(text[at : at + size])
        at += size
    flow.finish()
    return "".join(piece for piece, _ in out), [f"{style}:{piece}" for piece, style in out if style]


MESSAGE = """# What I did
I made `parse` **much** faster: it was 2 ** 3 times slower, see `a b c`, and *args and **kwargs stay.

- a first point that is long enough to be wrapped
  1. deeper and deeper it goes, and is wrapped as well
> a quotation
```python
x = "a line of code that is much longer than the terminal is wide, and must not be lost"
    y = **z
```
Averyveryverylongwordthatfitsonnolineatallandmustbebroken 日本語の長い文章もここで折り返されます end"""


def test_words_flow_as_they_would_all_at_once_and_none_is_lost() -> None:
    numbers = random.Random(3)
    for width in (8, 20, 33, 80):
        whole, _ = flowed(MESSAGE, width)
        for _ in range(5):
            assert flowed(MESSAGE, width, numbers)[0] == whole
        console = Console(width=1000)
        assert all(console.measure(line).maximum <= max(width, 8) for line in whole.split("\n") if line)
        kept = MESSAGE.replace("```python", "╭python").replace("```", "╰").replace("`", "").replace("**much**", "much")
        assert "".join(whole.replace("`", "").split()) == "".join(kept.split())
        assert "".join(flowed(MESSAGE, width, marks=True)[0].split()) == "".join(MESSAGE.split())


def test_marks_become_styles_and_lines_hang() -> None:
    text, styled = flowed(MESSAGE, 33)
    assert "bold:much" in styled and "cyan:parse" in styled and "cyan:c" in styled and "bold:What" in styled
    assert "- a first point that is long\n  enough to be wrapped\n" in text
    assert "     and is wrapped as well\n" in text, "under the first word of its point"
    assert "\n    y = **z\n" in text, "code is not set otherwise than it is written"


CODE = '''```python
def f(x):
    """Of two
    lines."""
    return x + 1  # one more
```
```diff
-old
+new
```
```nolanguage
a < b
```
'''


def test_code_is_coloured_by_its_language_and_can_be_copied() -> None:
    """Line by line as it comes; what opens a string above is known below, and no line is set in."""
    numbers = random.Random(5)
    text, styled = flowed(CODE, 80)
    for _ in range(5):
        assert flowed(CODE, 80, numbers) == (text, styled), "nothing is coloured otherwise because it came in pieces"
    assert "magenta:def" in styled and "blue:f" in styled and "yellow:1" in styled
    assert 'green:    lines."""' in styled and "bright_black italic:# one more" in styled
    assert "red:-old" in styled and "green:+new" in styled and "cyan:a < b" in styled
    assert text.startswith("╭ python\ndef f(x):\n") and "\n╰\n╭ diff\n" in text and text.endswith("a < b\n╰\n")
    assert flowed(CODE, 80, marks=True)[0] == CODE, "without colours it stands as it was written"
    hostile = "```python\n" + "(" * 100_000 + "\n```\n"
    assert "(" * 80 in flowed(hostile, 80)[0]


def test_a_span_that_is_never_closed_is_not_waited_for() -> None:
    written: list[str] = []
    flow = Flow(lambda piece, style: written.append(piece), lambda: 80)
    flow.feed("see `this and no more, " + "word " * 60)
    assert "this" in "".join(written)
    flow.feed("\n**open")
    flow.finish()
    assert "".join(written).endswith("**open\n")


def test_what_an_edit_changed() -> None:
    before = "\n".join(f"line {number}" for number in range(1, 31)) + "\n"
    after = before.replace("line 4\n", "").replace("line 20\n", "line twenty\nand more\n")
    rows, added, removed = edit_rows(before, after, 60)
    assert (added, removed) == (2, 2)
    text = [row for row, _ in rows]
    assert "   4 - line 4" in text and "  19 + line twenty" in text and "  20 - line 20" in text and "   ⋮" in text
    assert ("  20 + and more", "green") in rows and ("   4 - line 4", "red") in rows
    cut, *_ = edit_rows("", before, 10)
    assert len(cut) == 11 and cut[-1][0] == "   … 20 more lines"
    assert [row for row, _ in edit_rows(before * 2000, before * 2000 + "x\n", 9)[0]][-1] == "60001 + x"
    assert patch_rows("--- a/x\n+++ b/x\n-gone\n+new\n same", 9)[2:] == [
        ("-gone", "red"),
        ("+new", "green"),
        (" same", ""),
    ]


def test_the_screen_is_only_written_to_at_its_end() -> None:
    file = io.StringIO()
    screen = Screen(Console(file=file, width=20, force_terminal=True, color_system=None, legacy_windows=False))
    screen.status("thinking for a long time, longer than the line")
    screen.line("one", (" two", "bold"), hang=2)
    screen.gap()
    screen.gap()
    screen.line("aaa bbb ccc ddd eee fff ggg hhh iii\njjj", hang=4)
    screen.piece("half")
    screen.status("not now")
    screen.line("\x1b[2J[red]whole[/red] and wrapped")
    written = file.getvalue()
    assert written.count("\r\x1b[2K") == 1 and "\x1b[2J" not in written and "␛[2J[red]whole" in written
    assert "longer than the line" not in written and "\nhalf\n" in written and "\n\n\n" not in written
    assert "aaa bbb ccc ddd eee\n    fff ggg hhh iii\n    jjj\n" in written, "only further lines are set in"


def test_lines_that_are_typed(tmp_path) -> None:
    assert is_command("/undo 2") and not is_command("/etc/hosts is wrong") and not is_command("/ x")
    (tmp_path / "src").mkdir()
    for name in ("src/parse.py", "parser.md", ".hidden"):
        (tmp_path / name).write_text("")
    assert mentioned("mend @src/parse.py, as @nobody said", tmp_path) == "mend src/parse.py, as @nobody said"
    assert mentioned("mend @src/parse.py as a@b.c said", tmp_path) == "mend src/parse.py as a@b.c said"
    assert matching(list_files(tmp_path), "pars") == ["parser.md", "src/parse.py"]
    assert thousands(999) == "999" and thousands(128_000) == "128k" and thousands(1_250_000) == "1.2M"
    assert cost_line(SessionCost(1, 12_000, 4000, 80, 1.5), "€") == "12k in (4k cached), 80 out · €1.50"
    assert cost_line(SessionCost(1, 12, 0, 80, None), "$") == "12 in, 80 out"


HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\x9bc\u202ed\x7f\tend"


def test_say_sends_nothing_that_drives_a_terminal_and_keeps_what_a_patch_needs(capsys):
    say(f"{HOSTILE}\nsecond")
    said = capsys.readouterr().out
    assert said.endswith("\tend\nsecond\n")
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\u202e", "\x7f"}


def test_a_log_shows_what_others_said(capsys):
    _log_to_stderr()
    log = structlog.get_logger("tests")
    log.warning("said", by=HOSTILE)
    try:
        key = "the-key-that-a-traceback-must-not-print"
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("bug")
    said = capsys.readouterr().err
    assert "␛" in said and "ValueError" in said and key not in said.replace(f'key = "{key}"', "")
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_an_error_of_a_command_is_shown(capsys, tmp_path):
    assert main(["weights", "log", f"{tmp_path}/{HOSTILE.replace('/', '')}"]) != 0
    said = capsys.readouterr().err
    assert "␛" in said and "\x1b" not in said
