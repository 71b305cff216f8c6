"""`etude models import|check|export`: models that others made, brought in, held to `transformers`, and taken out."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    bring = actions.add_parser("import", help="make a checkpoint of a GGUF file or of a published model's directory")
    bring.add_argument("origin", type=Path, metavar="DIR|FILE.gguf", help="what to bring in")
    export = actions.add_parser("export", help="write a checkpoint as transformers and vLLM open it")
    export.add_argument("origin", type=Path, metavar="CHECKPOINT", help="a checkpoint, or a run's directory")
    held = actions.add_parser("check", help="hold a checkpoint to transformers: logits, answers, speed, memory")
    held.add_argument("origin", type=Path, metavar="DIR", help="a checkpoint")
    for action in (bring, export):
        action.add_argument("out", type=Path, metavar="OUT", help="the directory to make")
    for action in (bring, held, export):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.action == "check":
        return _check(options)
    from etude.cli.stopping import stoppable
    from etude.models.transfer import export_model, import_model

    with stoppable("stopped before the model was whole, and nothing of it is left; the same command begins anew"):
        written = (import_model if options.action == "import" else export_model)(options.origin, options.out)
    say(json.dumps(asdict(written)) if options.json else written.text())
    return 0


def _check(options: argparse.Namespace) -> int:
    from etude.engine.check.report import check
    from etude.errors import Exit

    report = check(options.origin)
    say(json.dumps(report.as_json()) if options.json else report.text())
    return Exit.DONE if report.ok else Exit.FAILED
