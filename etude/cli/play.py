"""`etude play [PROMPT]`: a checkpoint plays a generated task, or works on a copy of a directory, while you watch."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="with --dir: what to do there")
    parser.add_argument("--model", type=Path, help="checkpoint directory (default: the newest trained one)")
    parser.add_argument(
        "--task", default="3:0", metavar="RUNG:SEED|DIR", help="a generated task (default: 3:0), or a task directory"
    )
    parser.add_argument("--dir", type=Path, help="work on a copy of this directory instead")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--expert-format", choices=("plain", "mxfp8", "nvfp4"), default="plain", help="as the model was trained with"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.bench.config import CheckpointPolicy
    from etude.bench.play import Play, find_model, task_for
    from etude.engine.config import EngineConfig

    task = task_for(options.task, options.dir, options.prompt)
    policy = CheckpointPolicy(
        path=find_model(options.model), expert_format=options.expert_format, temperature=options.temperature,
        engine=EngineConfig(cache_tokens=16_384),
    )  # fmt: skip
    result = asyncio.run(Play(policy, task, options.seed, options.json).execute())
    if options.json:
        say(json.dumps(result))
    return 0 if result["solved"] in (True, None) else 1
