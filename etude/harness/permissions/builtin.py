"""The rules that stand behind everybody's: what is harmless enough to be never asked about, and what is always asked.

They come after a user's own rules, and never loosen what these forbid. Safe commands read and print; an option that
names a file or a program (`git diff --output`, `rg --pre`) makes another command of them. Reading is not harmless
whatever is read: the paths among the words are judged as well.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from etude.harness.permissions.rules import Rule

ASK = tuple(
    Rule(text, "ask")
    for text in (
        "read(**/.env)", "read(**/.env.*)", "read(**/*.pem)", "read(**/*.key)", "read(**/id_rsa*)",
        "read(**/id_ed25519*)", "read(~/.ssh/**)", "read(~/.aws/**)", "read(~/.gnupg/**)", "read(~/.netrc)",
        "read(~/.config/gh/**)", "read(~/.config/gcloud/**)", "read(~/.kube/**)", "read(~/.docker/**)",
        "edit(.git/**)", "edit(**/.git/**)", "edit(.etude/**)", "edit(.vscode/**)", "edit(.idea/**)", "edit(**/.envrc)",
        "edit(**/.env)", "run(git push *)", "run(git config *)", "run(git reset --hard *)", "run(git clean *)",
        "run(rm -rf *)", "run(sudo *)", "run(doas *)", "run(ssh *)", "run(scp *)", "run(curl *)", "run(wget *)",
        "run(nc *)", "run(ncat *)", "run(socat *)", "run(dd *)", "run(mkfs* *)", "run(shutdown *)", "run(reboot *)",
        "run(kill *)", "run(pkill *)", "run(killall *)", "run(crontab *)", "run(systemctl *)", "run(docker *)",
        "run(npm publish *)", "run(twine *)", "run(gh *)",
    )
)  # fmt: skip
"""Where a default would otherwise allow it. A user's own `allow` is what they mean, and goes before these."""

_SAFE = {
    ":", "true", "false", "pwd", "cd", "ls", "cat", "head", "tail", "wc", "echo", "test", "[", "basename", "dirname",
    "realpath", "readlink", "stat", "which", "type", "cmp", "comm", "cut", "tr", "nl", "tac", "paste", "fold", "column",
    "diff", "grep", "egrep", "fgrep", "seq", "sleep", "du", "df", "id", "whoami", "uname", "date", "file", "exit",
    "return", "set", "shift", "break", "continue", "wait", "strings", "od", "hexdump", "md5sum", "sha1sum", "sha256sum",
    "export", "declare", "typeset", "readonly", "local", "unset",
}  # fmt: skip
_SAFE_GIT = {"status", "log", "diff", "show", "blame", "ls-files", "ls-tree", "rev-parse", "merge-base", "shortlog"}
_NOT_SAFE = {
    "date": r"-s.*|--s.*|-f.*|--file.*",
    "file": r"-C|--compile|-z.*|-m.*",
    "set": r".*",
    "test": r"-[vR]",
    "git": r"--output.*|-o.*|--ext-diff|--textconv|--no-index|-c.*|--exec.*|-O.*",
    "find": r"-delete|-fprint.*|-fls",
    "rg": r"--pre.*|-z.*|--search-zip|--hostname-bin.*",
    "jq": r"-L.*|--library-path.*",
}
"""Options that make of a reading command another."""


def is_safe(words: Sequence[str | None]) -> bool:
    """Whether a command only reads and prints, whatever else is in the world. Its paths are judged apart."""
    name = words[0]
    options = [word for word in words[1:] if word is not None]
    if name == "git":
        if len(words) < 2 or words[1] not in _SAFE_GIT or None in words:
            return False
    elif name == "command":
        return len(words) > 1 and words[1] in ("-v", "-V")
    elif name == "set":
        return bool(options) and all(re.fullmatch(r"[-+][euxo]+|pipefail", word) for word in options)
    elif name in ("find", "rg", "jq"):
        if None in words:
            return False
    elif name not in _SAFE:
        return False
    refused = _NOT_SAFE.get(name or "")
    return refused is None or not any(re.fullmatch(refused, word) for word in options)


_MANY_IN_ONE = {
    "git", "npm", "pnpm", "yarn", "bun", "cargo", "go", "uv", "pip", "poetry", "docker", "kubectl", "terraform", "make",
    "just", "dotnet", "gradle", "./gradlew", "mvn", "bundle", "rake", "mix", "composer", "apt", "apt-get", "brew", "gh",
}  # fmt: skip
"""Programs whose first word says what they do."""
_RUNS_ANYTHING = re.compile(
    r"(.*/)?(python[\d.]*|node|deno|ruby|perl|php|lua|osascript|g?awk|npx|bunx|uvx|pipx|env|source|\.|\w*sh|sudo|doas|find)"
)


def narrowest(words: Sequence[str | None]) -> str:
    """The rule that allows a command and its like; empty where those would be anything at all."""
    known = [word for word in words if word is not None]
    name = known[0]
    if _RUNS_ANYTHING.fullmatch(name) or any(mark in name for mark in "*?["):
        exact = len(known) == len(words) and not any(mark in word for word in known for mark in "*?[")
        return f"run({shlex.join(known)})" if exact else ""
    if name in _MANY_IN_ONE:
        plain = len(words) > 1 and words[1] is not None and re.fullmatch(r"[\w:-]+", words[1]) and words[1][0] != "-"
        return f"run({name} {words[1]} *)" if plain else ""
    return f"run({shlex.quote(name)} *)"
