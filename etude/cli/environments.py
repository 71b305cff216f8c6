"""`etude environments doctor`: what sandboxes this machine can make, and how to get the rest."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["doctor"], help="boot a real sandbox and say what works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.environments.doctor import diagnose

    findings = diagnose()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{'✓' if finding.ok else '✗'} {finding.subject}: {finding.said}")
            if finding.remedy and not finding.ok:
                print(f"    {finding.remedy}")
    return 0 if all(finding.ok for finding in findings) else 1
