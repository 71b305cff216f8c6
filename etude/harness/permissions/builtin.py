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
_GROUPS = {
    "git": {"submodule", "remote", "stash", "worktree", "notes", "bisect", "reflog", "lfs", "config"},
    "docker": {"compose", "container", "image", "volume", "network", "system"}, "kubectl": {"config", "rollout"},
    "gh": {"pr", "issue", "repo", "run", "release", "workflow"}, "go": {"mod", "work"}, "uv": {"pip", "tool"},
    "npm": {"run"}, "pnpm": {"run"}, "yarn": {"run"}, "bun": {"run"}, "pip": {"cache", "config"},
}  # fmt: skip
"""And words of theirs behind which the next one does."""
_STARTS = {
    ("uv", "run"), ("poetry", "run"), ("bundle", "exec"), ("npm", "exec"), ("pnpm", "exec"), ("pnpm", "dlx"),
    ("yarn", "exec"), ("yarn", "dlx"), ("bun", "x"), ("docker", "run"), ("docker", "exec"), ("mix", "run"),
    ("deno", "run"), ("kubectl", "exec"),
}  # fmt: skip
"""Words behind which any program may stand."""
_MODULES = {"pytest", "unittest", "mypy", "ruff", "black", "isort", "flake8", "pylint", "pyright", "json.tool", "venv"}
"""What `python -m` runs that does one thing."""
_RUNS_ANYTHING = re.compile(
    r"(.*/)?(python[\d.]*|node|deno|ruby|perl|php|lua|osascript|g?awk|npx|bunx|uvx|pipx|env|source|\.|\w*sh|sudo|doas|find)"
)


def narrowest(words: Sequence[str | None]) -> str:
    """The rule that allows a command and its like; empty where those would be anything at all."""
    name = words[0] or ""
    if _RUNS_ANYTHING.fullmatch(name) or any(mark in name for mark in "*?["):
        module = name.startswith("python") and words[1:2] == ["-m"] and words[2:3] and words[2] in _MODULES
        return f"run({name} -m {words[2]} *)" if module else exactly(words)
    if name not in _MANY_IN_ONE:
        return f"run({shlex.quote(name)} *)"
    if tuple(words[:2]) in _STARTS:
        return exactly(words)
    wanted = 3 if len(words) > 1 and words[1] in _GROUPS.get(name, ()) else 2
    says = words[:wanted]
    plain = len(says) == wanted and all(word is not None and re.fullmatch(r"\w[\w:.-]*", word) for word in says[1:])
    return f"run({' '.join(map(str, says))} *)" if plain else exactly(words)


def exactly(words: Sequence[str | None]) -> str:
    """The rule that allows these words alone; empty where one of them is not known, or would be a pattern."""
    known = [word for word in words if word is not None]
    exact = len(known) == len(words) and not any(mark in word for word in known for mark in "*?[")
    return f"run({shlex.join(known)})" if exact else ""
