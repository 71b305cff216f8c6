"""The rules that stand behind everybody's: what is always asked about.

They come after a user's own rules, and never loosen what these forbid. Which commands only read and print is in
`permissions.reading`.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Sequence

from etude.harness.permissions.rules import Rule

NO_SECRETS = tuple(
    Rule(f"read(**/.env.{name})", "allow") for name in ("example", "sample", "template", "dist", "defaults")
)
"""What the rules below do not mean: it is written to be copied, and committed."""
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

SECRETS = re.compile(
    "|".join(
        fnmatch.translate([part for part in (rule.pattern or "").split("/") if part != "**"][-1])
        for rule in ASK if rule.names("read_file")
    )
)  # fmt: skip
"""The names of files and directories that rules on reading could mean, for a walk to stop at."""
PACKAGES = {"node_modules", "site-packages", ".git"}
"""Where a walk does not look for them: what comes with packages is nobody's secret, and git's own files hold none."""
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
