"""The rules that stand behind everybody's: what is always asked about.

They come after a user's own rules, and never loosen what these forbid. Which commands only read and print is in
`permissions.reading`, which files hold secrets in `permissions.secret_files`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from etude.harness.permissions.rules import Rule
from etude.harness.permissions.secret_files import SECRETS

ASK = (*SECRETS, *(
    Rule(text, "ask")
    for text in (
        "edit(.git/**)", "edit(**/.git/**)", "edit(.etude/**)", "edit(.vscode/**)", "edit(.idea/**)", "edit(**/.envrc)",
        "edit(**/.env)", "run(git push *)", "run(git config *)", "run(git reset --hard *)", "run(git clean *)",
        "run(rm -rf *)", "run(sudo *)", "run(doas *)", "run(ssh *)", "run(scp *)", "run(curl *)", "run(wget *)",
        "run(nc *)", "run(ncat *)", "run(socat *)", "run(dd *)", "run(mkfs* *)", "run(shutdown *)", "run(reboot *)",
        "run(kill *)", "run(pkill *)", "run(killall *)", "run(crontab *)", "run(systemctl *)", "run(docker *)",
        "run(npm publish *)", "run(twine *)", "run(gh *)",
    )
))  # fmt: skip
"""Where a default would otherwise allow it. A user's own `allow` is what they mean, and goes before these."""

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
