"""`etude play [PROMPT]`: a checkpoint plays a task, or works on a copy of a directory, while you watch."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="with --dir: what to do there")
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: the newest trained one)")
    said = "a generated task (default: 3:0), the first of real:eval whose name has NAME, or a task directory"
    parser.add_argument("--task", default="3:0", metavar="RUNG:SEED|real:NAME|DIR", help=said)
    parser.add_argument("--dir", type=Path, help="work on a copy of this directory instead")
    parser.add_argument("--config", type=Path, help="a benchmark as TOML, to play as it plays: same limits and harness")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--expert-format", choices=("plain", "mxfp8", "nvfp4"), help="as the model was trained with")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.bench.play import Play, play_config, task_for

    task = task_for(options.task, options.dir, options.prompt)
    given = {"policy.path": options.model, "policy.temperature": options.temperature, "seed": options.seed}
    config = play_config(options.config, {**given, "policy.expert_format": options.expert_format})
    config.deadlines.apply()
    result = asyncio.run(Play(config, task, options.json).execute())
    if options.json:
        say(json.dumps(result))
    return 0 if result["solved"] in (True, None) else 1
