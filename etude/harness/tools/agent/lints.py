"""The agent's read_lints: what linters find in the files it changed, and did not find before.

Owns the comparison. Each file is linted as it is and as it was before: when the session began, of which its snapshots
know, or in git at `lint_base`. A finding is new where the same words about the same line of text were not said before,
wherever that line stands now. A project full of old warnings so says nothing about a clean change, nor do faults that
the user had not committed yet, and what the agent commits is still its own. Without either, or for a new file,
everything found counts.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.environments.base import Sandbox
from etude.errors import CheckpointError, DeadlineExceeded
from etude.harness.schema import Parameter
from etude.harness.tools.agent.linters import LINTERS, Finding, Linter, findings, language
from etude.harness.tools.agent.listing import GIT, files
from etude.harness.tools.base import (
    BASELINE,
    Baseline,
    Tool,
    ToolConfig,
    ToolError,
    absolute,
    cut_lines,
    overdue,
    relative,
)

_MAX_FILES = 100
_MARK = "\x1e"
_COPY = '"$file"'
_GIVEN = "/tmp/etude/linted"
"""Where a file lies for a moment as it was, with a name of its own behind."""
_AT_ONCE = 4
_MAX_OUTPUT_BYTES = 1_000_000


@dataclass(frozen=True)
class LintRun:
    """What linters said of `chosen`, the files looked at; `asked` are the linters that there were for some of them."""

    files: tuple[str, ...]
    used: tuple[str, ...]
    available: tuple[str, ...]
    findings: tuple[tuple[str, Finding], ...]
    """With the file of each, in order."""


async def new_lints(sandbox: Sandbox, config: ToolConfig, path: str | None) -> LintRun:
    """What is found below a path, or in all changed files, and was not before. Raises ToolError."""
    chosen = await (_below(sandbox, config, path) if path else _changed(sandbox, config))
    known = [name for name in chosen if language(name) in LINTERS]
    if len(known) > _MAX_FILES:
        raise ToolError(f"{len(known)} files are too many; name a path with at most {_MAX_FILES}")
    linters = await _available(sandbox, config, {language(name) for name in known})
    used = [name for name in known if language(name) in linters]
    some = asyncio.Semaphore(_AT_ONCE)

    async def found_in(name: str) -> list[tuple[str, Finding]]:
        async with some:
            new = await _new_findings(sandbox, config, name, linters[language(name)])
        return [(name, finding) for finding in new]

    found = [each for some_found in await asyncio.gather(*map(found_in, used)) for each in some_found]
    asked = sorted({linters[language(name)].name for name in used})
    return LintRun(tuple(chosen), tuple(used), tuple(asked), tuple(found))


async def _read_lints(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    linted = await new_lints(sandbox, config, arguments.get("path"))
    rows = [f"{name}:{finding.line}: {finding.text}" for name, finding in linted.findings]
    if not linted.files:
        return "no file has changed"
    if not linted.used:
        return f"no linter here for {', '.join(sorted(linted.files)[:5])}"
    if not rows:
        files_said = f"{len(linted.used)} file{'s' if len(linted.used) > 1 else ''}"
        return f"nothing new in {files_said} ({', '.join(linted.available)})"
    fits = cut_lines(rows, config.max_observation_bytes)
    return "\n".join(rows[:fits] if fits == len(rows) else [*rows[:fits], f"[{len(rows) - fits} more]"])


async def _below(sandbox: Sandbox, config: ToolConfig, path: str) -> list[str]:
    return await files(sandbox, config, relative(path))


async def _changed(sandbox: Sandbox, config: ToolConfig) -> list[str]:
    """What differs from the base, new files included; raises ToolError where there is nothing to tell."""
    beginning = _beginning(config)
    if beginning is not None:
        try:
            return sorted(await beginning.changed())
        except (CheckpointError, DeadlineExceeded) as error:
            raise ToolError(f"what changed is not known ({error}); name a path") from None
    base = shlex.quote(_revision(config))
    compare = 'diff --name-only --relative --diff-filter=d --ignore-submodules --no-ext-diff -z "$0" --'
    command = (
        f"{GIT} rev-parse --git-dir >/dev/null 2>&1 || exit 3; "
        # each filter of its config is emptied: git compares by them, and nobody is asked
        f"{GIT} config -z --name-only --get-regexp '^filter[.]' | sed -z 's/.*/--config-env=&=EMPTY/' | "
        f"EMPTY= xargs -0 -x -n 100000 sh -c '{GIT} \"$@\" {compare}' {base} 2>/dev/null; "
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


def _beginning(config: ToolConfig) -> Baseline | None:
    """A revision that is named goes before snapshots."""
    return None if config.lint_base else BASELINE.get()


def _revision(config: ToolConfig) -> str:
    return config.lint_base or "HEAD"


async def _earlier(sandbox: Sandbox, config: ToolConfig, name: str) -> str:
    """Shell that puts the file as it was into the copy, and fails where it was not there."""
    beginning = _beginning(config)
    if beginning is None:
        return f'{GIT} show {shlex.quote(f"{_revision(config)}:./{relative(name)}")} > "$file" 2>/dev/null'
    try:
        data = await beginning.read(relative(name))
    except (CheckpointError, DeadlineExceeded) as error:
        raise ToolError(f"{name} as it was cannot be had: {error}") from None
    if data is None:
        return "false"
    given = f"{_GIVEN}-{secrets.token_hex(8)}"  # two calls of one turn may look at the same file
    await sandbox.write_file(given, data)
    return f'cat {given} > "$file"; rm -f {given}'


async def _new_findings(sandbox: Sandbox, config: ToolConfig, name: str, linter: Linter) -> list[Finding]:
    """Both versions are linted in one command, from copies with the file's own name."""
    now = (await sandbox.read_file(absolute(name), config.max_file_bytes)).decode("utf-8", "replace")
    inside, earlier = shlex.quote(absolute(name)), await _earlier(sandbox, config, name)
    ask = f"{{ {linter.on(_COPY, name)}; }} 2>&1"
    command = (
        f'dir=$(mktemp -d) && file="$dir"/copy.{language(name)}; '
        f'cp {inside} "$file"; {ask}; printf "{_MARK}"; '
        f'if {earlier}; then cat "$file"; printf "{_MARK}"; {ask}; fi; '
        'rm -rf "$dir"'
    )
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_MAX_OUTPUT_BYTES)
    if done.timed_out:
        overdue()
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
            "File or directory to look at; all changed files if not given.",
            required=False,
        ),
    ),
    reads_only=True,
    run=_read_lints,
)
