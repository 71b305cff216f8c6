"""The commands that pages show: which there are, and whether they parse.

`commands_of` are the commands of a page's blocks of shell, with what the page shows of their output; they are played by
test_pages_played.py. `typed` are those of any block and `mentioned` those that its text names; `check` gives one to its
own parser, or looks its options up.
"""

import argparse
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

from etude.cli.parser import COMMANDS, parser_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCED = re.compile(r"^```[^\n]*\n.*?^```$", re.M | re.S)
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
_TOOL = r"(?:python3?|make|pip|etude)\b"
_LINE = re.compile(rf"^ *(?:[$#] )?((?:\w+=\S+ )*(?:\S+/)?{_TOOL} .*)$", re.M)
_CODE = re.compile(rf"`((?:\w+=\S+ )*(?:\S+/)?{_TOOL} [^`]+)`")
_MAKE = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
_EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()


def blocks(page: Path) -> list[tuple[str, str]]:
    """The languages and texts of a page's code blocks."""
    return _BLOCK.findall(page.read_text())


def typed(page: Path) -> list[str]:
    """The command lines that a page shows in its code blocks, to be typed as they stand. In a block with a prompt the
    other lines are what was printed."""
    text = "\n".join(_prompted(text) for _, text in blocks(page)).replace("\\\n", " ")
    return [re.split(r"\s(?:# |\|)", line)[0].strip() for line in _LINE.findall(text)]


def _prompted(text: str) -> str:
    lines = text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line for line in lines if line.startswith(("$ ", "# "))]
    return "\n".join(lines)


def mentioned(page: Path) -> list[str]:
    """The commands that a page's text speaks of, whole or in part."""
    return _CODE.findall(FENCED.sub("", page.read_text()))


def commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without what is before its program and behind its last argument."""
    split = shlex.shlex(line, posix=True, punctuation_chars=True)
    split.whitespace_split, split.commenters = True, ""
    found: list[list[str]] = [[]]
    for word in split:
        if set(word) <= set("&|;"):
            found.append([])
        else:
            found[-1].append(word)
    return [words[: words.index(">")] if ">" in words else words for words in found]


def check(line: str, whole: bool) -> None:
    """Raise ValueError where a command, an action, an option, a target or an extra is not there. `whole`: the command
    takes just these arguments."""
    for words in commands(line):
        programs = [at for at, word in enumerate(words) if re.fullmatch(rf"(\S+/)?{_TOOL}", word)]
        if not programs:
            continue
        name, rest = words[programs[0]].rpartition("/")[2], words[programs[0] + 1 :]
        problem = {"etude": _etude, "make": _make, "pip": _pip}.get(name, _python)(rest, whole)
        if problem:
            raise ValueError(f"{line}: {problem}")


def _etude(words: list[str], whole: bool) -> str:
    if not words or words[0].startswith("-") or words[0] in ("COMMAND", "…"):
        return ""
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]}"
    parser = parser_of(words[:1])
    if whole:
        try:
            parser.parse_args(words)
        except SystemExit:
            return "its parser refuses it"
        return ""
    at = 0
    while actions := [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]:
        if at >= len(words):
            break
        if not set(words[at].split("|")) <= set(actions[0].choices):
            return f"there is no {words[at]}"
        parser, at = actions[0].choices[words[at].split("|")[0]], at + 1
    flags = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    unknown = [flag for flag in flags if flag not in parser._option_string_actions]
    return f"no option {unknown}" if unknown else ""


def _make(words: list[str], whole: bool) -> str:
    targets = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    return "" if set(targets) <= _MAKE or not whole else f"no target {sorted(set(targets) - _MAKE)}"


def _pip(words: list[str], whole: bool) -> str:
    named = re.findall(r"(?:\.|etude)\[([\w,]+)\]", " ".join(words))
    unknown = {each for names in named for each in names.split(",")} - _EXTRAS
    return f"no extra {sorted(unknown)}" if unknown else ""


def _python(words: list[str], whole: bool) -> str:
    """A script of this repository must be there, and know the options."""
    if not words or not re.fullmatch(r"(tools|benchmarks|tests)/[\w/]+\.py", words[0]):
        return ""
    file = ROOT / words[0]
    if not file.exists():
        return f"there is no {words[0]}"
    ours = words[1 : words.index("--")] if "--" in words else words[1:]
    flags = {word.split("=")[0] for word in ours if re.match(r"--[a-z]", word)}
    near = "".join(each.read_text() for each in file.parent.glob("*.py"))
    unknown = {flag for flag in flags if f'"{flag}"' not in near}
    return f"no option {sorted(unknown)}" if unknown else ""


def is_shell(text: str) -> bool:
    """Whether bash can read it."""
    return subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).returncode == 0


def commands_of(page: Path) -> list[tuple[str, str]]:
    """Every command of a page's blocks of shell, without remarks and on one line, with what the page shows of its
    output."""
    found: list[tuple[str, str]] = []
    for language, text in blocks(page):
        text = re.sub(r" *\\\n *", " ", text)
        if language == "console":
            found += re.findall(r"^[$#] (.*)\n((?:(?![$#] ).*\n?)*)", text, re.M)
        elif language in ("sh", "bash"):
            found += [(line, "") for line in text.splitlines() if line.strip()]
    return [(re.sub(r"\s+# .*", "", line), shown) for line, shown in found]
