"""The agent's read_lints: what linters find in the files it changed, and did not find before.

Owns the comparison. Each file is linted as it is and as it was in git at `lint_base`; a finding is new where the same
words about the same line of text were not said before, wherever that line stands now. A project full of old warnings
so says nothing about a clean change. Without git, or for a new file, everything found counts.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.schema import Parameter
from etude.harness.tools.agent.linters import LINTERS, Finding, Linter, findings, language
from etude.harness.tools.agent.listing import GIT, files
from etude.harness.tools.base import Tool, ToolConfig, ToolError, absolute, cut_lines, relative

_MAX_FILES = 100
_MARK = "\x1e"
_COPY = '"$file"'
_AT_ONCE = 4
_MAX_OUTPUT_BYTES = 1_000_000


async def _read_lints(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    path = arguments.get("path")
    chosen = await (_below(sandbox, config, path) if path else _changed(sandbox, config))
    known = [name for name in chosen if language(name) in LINTERS]
    if len(known) > _MAX_FILES:
        raise ToolError(f"{len(known)} files are too many; name a path with at most {_MAX_FILES}")
    linters = await _available(sandbox, config, {language(name) for name in known})
    used = [name for name in known if language(name) in linters]
    some = asyncio.Semaphore(_AT_ONCE)

    async def rows_of(name: str) -> list[str]:
        async with some:
            new = await _new_findings(sandbox, config, name, linters[language(name)])
        return [f"{name}:{finding.line}: {finding.text}" for finding in new]

    rows = [row for each in await asyncio.gather(*map(rows_of, used)) for row in each]
    asked = ", ".join(sorted({linters[language(name)].name for name in used}))
    if not chosen:
        return "no file has changed"
    if not used:
        return f"no linter here for {', '.join(sorted(chosen)[:5])}"
    if not rows:
        return f"nothing new in {len(used)} file{'s' if len(used) > 1 else ''} ({asked})"
    fits = cut_lines(rows, config.max_observation_bytes)
    return "\n".join(rows[:fits] if fits == len(rows) else [*rows[:fits], f"[{len(rows) - fits} more]"])


async def _below(sandbox: Sandbox, config: ToolConfig, path: str) -> list[str]:
    return await files(sandbox, config, relative(path))


async def _changed(sandbox: Sandbox, config: ToolConfig) -> list[str]:
    """What differs from the base, new files included; raises ToolError where there is no git to tell."""
    base = shlex.quote(config.lint_base)
    command = (
        f"{GIT} rev-parse --git-dir >/dev/null 2>&1 || exit 3; "
        f"{GIT} diff --name-only --relative --diff-filter=d -z {base} -- 2>/dev/null; "
        f"{GIT} ls-files -oz --exclude-standard"
    )
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES)
    if done.exit_code == 3:
        raise ToolError("this is no git repository, so what changed is not known; name a path")
    return sorted({name for name in done.output.decode("utf-8", "surrogateescape").split("\0") if name})


async def _available(sandbox: Sandbox, config: ToolConfig, languages: set[str]) -> dict[str, Linter]:
    """The first linter of each language that the machine has."""
    candidates = list(dict.fromkeys(linter for each in sorted(languages) for linter in LINTERS[each]))
    if not candidates:
        return {}
    probes = "; ".join(f"{{ {linter.probe}; }} && echo {linter.name}" for linter in candidates)
    done = await sandbox.exec(f"{probes}; true", timeout_s=config.command_timeout_s)
    there = set(done.output.decode("utf-8", "replace").split())
    found = {each: next((linter for linter in LINTERS[each] if linter.name in there), None) for each in languages}
    return {each: linter for each, linter in found.items() if linter is not None}


async def _new_findings(sandbox: Sandbox, config: ToolConfig, name: str, linter: Linter) -> list[Finding]:
    """Both versions are linted in one command, from copies with the file's own name."""
    now = (await sandbox.read_file(absolute(name), config.max_file_bytes)).decode("utf-8", "replace")
    base, inside = shlex.quote(f"{config.lint_base}:./{relative(name)}"), shlex.quote(absolute(name))
    ask = f"{{ {linter.on(_COPY, name)}; }} 2>&1"
    command = (
        f'dir=$(mktemp -d) && file="$dir"/copy.{language(name)}; '
        f'cp {inside} "$file"; {ask}; printf "{_MARK}"; '
        f'if {GIT} show {base} > "$file" 2>/dev/null; then cat "$file"; printf "{_MARK}"; {ask}; fi; '
        'rm -rf "$dir"'
    )
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES)
    if done.timed_out:
        raise ToolError(f"{linter.name} took longer than {config.command_timeout_s:g} s over {name}")
    said, *before = done.output.decode("utf-8", "replace").split(_MARK)
    return _only_new(findings(said, now), findings(before[1], before[0]) if len(before) == 2 else [])


def _only_new(now: Sequence[Finding], before: Sequence[Finding]) -> list[Finding]:
    """As many times as something was said before, it is not new."""
    known = Counter(finding.identity for finding in before)
    new = []
    for finding in now:
        if known[finding.identity] > 0:
            known[finding.identity] -= 1
        else:
            new.append(finding)
    return new


READ_LINTS = Tool(
    "read_lints",
    "What linters find in the files you changed that they did not find before.",
    (
        Parameter(
            "path",
            "File or directory to look at; all files changed since the last commit if not given.",
            required=False,
        ),
    ),
    reads_only=True,
    run=_read_lints,
)
