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


_PACKAGES = {"torch": "train", "ray": "train", "transformers": ""}
"""With the extra that brings each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.environments.doctor import diagnose, diagnose_workspace

    agent, model, findings = diagnose_workspace(), _model(), diagnose()
    facts = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{shutil.disk_usage('.').free / 2**30:.0f} GiB free here",
        **{name: _version(name, extra) for name, extra in _PACKAGES.items()},
        "grammars": _version("semble-grammars", "search"),
    }
    if options.json:
        say(
            json.dumps(
                {
                    **facts,
                    "agent": asdict(agent),
                    "model": asdict(model),
                    "environments": [asdict(finding) for finding in findings],
                }
            )
        )
    else:
        for name, value in facts.items():
            say(f"  {name}: {value}")
        say("For `etude agent`, `etude acp` and `etude sessions serve`:")
        _show([agent, model])
        say("For training and evaluation (`etude environments doctor` looks at every backend):")
        _show(findings)
    return 0 if all(finding.ok for finding in (agent, model, *findings)) else 1


def _model() -> Finding:
    """Whether the agent's model answers: asked by one short message, as `etude init` asks it."""
    import asyncio

    from etude.environments.plugin import Finding
    from etude.errors import ConfigError
    from etude.product.config import config_file, load_agent
    from etude.product.setup.trial import tried

    subject, file = "the agent's model", config_file()
    if not file.exists():
        return Finding(subject, False, f"none is named: there is no {file}", "etude init")
    try:
        trial = asyncio.run(tried(load_agent(None, ()).endpoint))
    except ConfigError as error:
        return Finding(subject, False, str(error), f"edit {file}, or have a new one written: etude init")
    return Finding(subject, not trial.error, trial.said, f"etude init, or edit [endpoint] in {file}")


def _show(findings: Sequence[Finding]) -> None:
    for finding in findings:
        say(f"{'✓' if finding.ok else '✗'} {finding.subject}: {finding.detail}")
        if finding.remedy and not finding.ok:
            say(f"    {finding.remedy}")


def _version(package: str, extra: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        wanted = install_command(extra) if extra else "`etude models check` compares with it: pip install transformers"
        return f"not installed ({wanted})"
