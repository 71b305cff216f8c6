"""Which variables, set for a command, make it run or obey something else. Owns `rules_others`, and `named`, which says
what variables a word of a command that sets some could name; judges no command."""

from __future__ import annotations

import re

SETS_BY_NAME = {
    "read", "mapfile", "readarray", "getopts", "printf", "wait", "unset", "local", "declare", "typeset",
}  # fmt: skip
"""Commands whose words name variables that they set or take away."""
_RULING = re.compile(
    r"PATH|LD_.*|DYLD_.*|GIT_.*|BASH.*|ENV|IFS|SHELLOPTS|PS\d|PROMPT_.*|CDPATH|HIST.*|INPUTRC|MAILPATH|FCEDIT|EXECIGNORE|"
    r"LANG|LANGUAGE|LC_.*|TEXTDOMAIN.*|OPENSSL_.*|MALLOC_TRACE|HOSTALIASES|_POSIX2_VERSION|TERM|PYTHON(HOME|STARTUP|"
    r"INSPECT|BREAKPOINT)|PERL5?(LIB|OPT|DB)|RUBY(OPT|LIB)|NODE_OPTIONS|NODE_PATH|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|"
    r".*PAGER|.*EDITOR|VISUAL|BROWSER|SSH_ASKPASS|HOME|XDG_.*|GCONV_PATH|.*_PROXY|.*_proxy|LESSOPEN|MANPATH|GLOBIGNORE|"
    r"RIPGREP_CONFIG_PATH|GREP_OPTIONS|LOCPATH|TZ|TZDIR|NLSPATH|TERMINFO.*|MAGIC|AWKPATH|AWKLIBPATH|FPATH|POSIXLY_CORRECT"
)
"""By their names."""
_HARMLESS = re.compile(
    r"(GIT_|GIT_SEQUENCE_)?EDITOR=(true|:)|(GIT_)?PAGER=(cat)?|TZ=(?!/)[\w+/-]+|TERM=[\w+-]*|"
    r"(LANG|LC_\w+)=((C|POSIX|[a-z]{2}_[A-Z]{2})(\.(UTF|utf)-?8)?)?|LANGUAGE=([a-z]{2}(_[A-Z]{2})?)?|"
    r"GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)=.*",
    re.ASCII | re.DOTALL,
)
"""With the values that usual work gives them. A zone is a name below the system's own, which holds no `..`; a language
of another form could be a path to a catalogue of messages, and its alphabet one in which bash reads other words."""


def rules_others(name: str, value: str | None) -> bool:
    """Whether this variable with this value can; None is a value that only a run would tell."""
    return bool(_RULING.fullmatch(name)) and (value is None or not _HARMLESS.fullmatch(f"{name}={value}"))


def named(word: str) -> list[str]:
    """The variables that a word could name: behind an option's letters too, as in `-vPATH`."""
    return [word[at:] for at in range(2, len(word))] if word.startswith("-") else [word]
