"""Which files there are to be searched: those git would keep, or where there is no git, all but its own.

Owns the listing, how files are named to a command, and the form of a glob, for grep, glob, codebase_search and
read_lints alike, so that all of them look at the same files. It is always made the same way, whatever programs the
machine has.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence

from etude.environments.base import Sandbox
from etude.harness.tools.base import ToolConfig, ToolError, overdue, relative

GIT = r"GIT_NO_LAZY_FETCH=1 git -c safe.directory=\* -c core.fsmonitor=false -c core.hooksPath=/dev/null"
"""The workspace may belong to another user than the agent's; and nobody is asked, so no program runs that its config
names."""


_WORD_BYTES, _MOST_WORDS = 100_000, 8
_PLAIN = re.compile(r"[\w./+][\w./+-]*", re.ASCII)


def listing(path: str, glob: str | None = None) -> str:
    """Shell that prints the files below a path, sorted, a NUL after each; exits with 3 where there is no such path.

    A glob without a slash is matched with file names, another with whole paths; `**` stands for directories.
    """
    inside = relative(path)
    where = shlex.quote(f"./{inside}" if inside.startswith("-") else inside)
    kept = f" | LC_ALL=C grep -zE -e {shlex.quote(expression(glob, inside))}" if glob else ""
    return (
        f"[ -e {where} ] || exit 3; "
        f"{{ {GIT} --literal-pathspecs ls-files -coz --exclude-standard -- {where} 2>/dev/null | LC_ALL=C grep -z . "
        f"|| find {where} -name .git -prune -o -type f -print0 2>/dev/null | sed -z 's|^\\./||'; }}"
        f" | LC_ALL=C sort -zu{kept}"
    )


async def files(sandbox: Sandbox, config: ToolConfig, path: str, glob: str | None = None) -> list[str]:
    """The same as a list; files that git knows and that are gone are in it. Raises ToolError where it cannot be had."""
    done = await sandbox.exec(
        listing(path, glob), timeout_s=config.command_timeout_s, max_output_bytes=8 * config.max_file_bytes
    )
    if done.exit_code == 3:
        raise ToolError(f"no such file or directory: {path}")
    if done.timed_out:
        overdue()
    if done.timed_out or done.log_path:
        raise ToolError("there are too many files; name a directory")
    return [name for name in done.output.decode("utf-8", "surrogateescape").split("\0") if name]


def naming(paths: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """Shell, with its environment, that prints these paths, a NUL after each; None where they are too many, or one is
    no text. A directory is named once for the files that follow each other in it, and Linux takes 128 KiB in one word
    of an environment: so there is room for thousands."""
    words, size = [[""]], 0
    for folder, names in itertools.groupby(paths, key=lambda path: path.rpartition("/")[0]):
        inside = f"{folder}/" if folder and _PLAIN.fullmatch(folder) else ""
        for number, name in enumerate(names):
            if size > _WORD_BYTES:
                words.append([])
                size, number = 0, 0
            word = ("" if number else f"\nprintf '{inside}%s\\0'") + " " + shlex.quote(name.removeprefix(inside))
            words[-1].append(word)
            size += len(word.encode("utf-8", "replace"))
    env = {f"etude_{number}": "".join(each).lstrip() for number, each in enumerate(words)}
    if len(env) > _MOST_WORDS or not all(map(is_text, env.values())):
        return None
    return "; ".join(f'eval "${name}"' for name in env), env


def is_text(word: str) -> bool:
    """Whether a command can hold it: a name may be of bytes that are none."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def expression(glob: str, path: str = ".") -> str:
    """A glob for what is below a path as an extended regular expression for whole paths."""
    if "/" not in glob:
        glob = f"**/{glob}"
    elif path == "." or relative(glob).startswith(f"{path}/"):
        glob = relative(glob)
    else:
        glob = f"{path}/{glob}"
    parts, at = [], 0
    while at < len(glob):
        rest = glob[at:]
        if rest.startswith("**/"):
            parts.append("(.*/)?")
            at += 3
        elif rest.startswith("**"):
            parts.append(".*")
            at += 2
        elif found := re.match(r"\[!?[^]]+\]", rest):
            parts.append(found.group().replace("[!", "[^", 1))
            at += found.end()
        elif found := re.match(r"\{[^{}]*,[^{}]*\}", rest):
            parts.append("(" + "|".join(_plain(each) for each in found.group()[1:-1].split(",")) + ")")
            at += found.end()
        else:
            parts.append(_plain(rest[0]))
            at += 1
    return f"^{''.join(parts)}$"


def pattern_of(glob: str, path: str = ".") -> re.Pattern[bytes] | None:
    """The same for names of files that are at hand; None for brackets, which POSIX reads in its own way."""
    if "[" in glob:
        return None
    inner = expression(glob, path).removeprefix("^").removesuffix("$")
    return re.compile(inner.encode("utf-8", "surrogateescape") + rb"\Z", re.DOTALL)


def _plain(text: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(char, _literal(char)) for char in text)


def _literal(char: str) -> str:
    return f"\\{char}" if char in ".^$+()[]{}|\\" else char
