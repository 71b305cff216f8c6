"""`etude doctor`: the machine, the versions, and the sandboxes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from etude.extras import install_command
from etude.plain import say

if TYPE_CHECKING:
    from etude.environments.plugin import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.environments.doctor import diagnose, diagnose_workspace

    agent, findings = diagnose_workspace(), diagnose()
    facts = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{shutil.disk_usage('.').free / 2**30:.0f} GiB free here",
        **{name: _version(name) for name in ("torch", "ray", "transformers")},
    }
    if options.json:
        say(json.dumps({**facts, "agent": asdict(agent), "environments": [asdict(finding) for finding in findings]}))
    else:
        for name, value in facts.items():
            say(f"  {name}: {value}")
        say("For `etude agent`, `etude acp` and `etude sessions serve`:")
        _show([agent])
        say("For training and evaluation (`etude environments doctor` looks at every backend):")
        _show(findings)
    return 0 if agent.ok and all(finding.ok for finding in findings) else 1


def _show(findings: Sequence[Finding]) -> None:
    for finding in findings:
        say(f"{'✓' if finding.ok else '✗'} {finding.subject}: {finding.detail}")
        if finding.remedy and not finding.ok:
            say(f"    {finding.remedy}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return f"not installed ({'tests only' if package == 'transformers' else install_command('train')})"
