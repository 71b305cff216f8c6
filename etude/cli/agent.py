"""`etude agent [PROMPT]`: a model works in a sandbox while you watch."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="what to do (default: the task's own instruction)")
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: the newest trained one)")
    parser.add_argument("--task", default="3:0", metavar="RUNG:SEED", help="a generated repository (default: 3:0)")
    parser.add_argument("--dir", type=Path, help="work on a copy of this directory instead; needs a PROMPT")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.rollouts.agent import AgentRun, find_model, task_for

    task = task_for(options.task, options.dir, options.prompt)
    agent = AgentRun(find_model(options.model), task, options.temperature, options.seed, quiet=options.json)
    result = asyncio.run(agent.execute())
    if options.json:
        print(json.dumps(result))
    return 0 if result["solved"] in (True, None) else 1
