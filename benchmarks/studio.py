"""What the studio costs, and what a person waits for in it.

    python benchmarks/studio.py [--parts size,paint,curves,filter,open,stream,memory,cost] [--rounds 10]

    size      first_js_kb_gz, all_js_kb_gz: script of the first page and of all, as it is sent, gzipped
    paint     first_paint_ms: the first paint with content, in a tab that has nothing cached
    curves    curves_ms: 10,000 steps in 12 charts, from the navigation to the frame in which all are drawn;
              curves_tensorboard_ms: the same numbers in TensorBoard's page, in the same browser, by turns
    filter    filter_ms: of 100,000 trajectories, until the first rows that a filter finds are in the page: of many
              filters the slowest; filter_answered_ms is what the server takes of it, filter_counted_ms what it takes to
              count all that are found and to spread their rewards, which the page shows later
    open      open_trajectory_ms: of 100,000 tokens, until its tokens are in the page; open_trajectory_first_ms: of the
              first, with the page's code and the run's tokenizer
    stream    stream_cpu_share: of one core, what the server takes to stream the words of 8 agents at work, above what
              the agents take in it while nobody listens
    memory    memory_mb: the server's after an hour of the quickstart's events (22,320 rollouts, 504 steps) while a tab
              follows; tab_memory_mb: of that tab's scripts
    cost      run_cost_share: CPU-seconds of archiving over those of a whole training of the quickstart at small size

Figures are medians of --rounds. Times are taken by the page itself, at the frame that shows what was asked for.
TensorBoard is installed from the registry, or found by --tensorboard DIR, where its `python` and `tensorboard` are.
Needs the extras `dev` and `train`, and chromium. The last line is one JSON object; `missed` names the aims that were.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), *(str(ROOT / "tests" / room) for room in ("studio", "e2e", "harness"))]
from browser import Chromium  # noqa: E402
from made_run import make_run, studio  # noqa: E402
from studying import cost, pages, serving  # noqa: E402

PARTS = ("size", "paint", "curves", "filter", "open", "stream", "memory", "cost")
MOST = {
    "first_js_kb_gz": 60, "all_js_kb_gz": 250, "filter_ms": 100, "stream_cpu_share": 0.1, "run_cost_share": 0.01,
}  # fmt: skip
LEAST = {"curves_sooner": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="apart by commas")
    parser.add_argument("--rounds", type=int, default=10, help="times that something is opened")
    parser.add_argument("--trajectories", type=int, default=100_000, help="of the archive that is filtered")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the trajectory that is opened")
    parser.add_argument("--tensorboard", type=Path, help="the directory of its programs; else it is installed")
    parser.add_argument("--cost-rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1.0, help="of training, in each run of `cost`")
    options = parser.parse_args()
    chosen = options.parts.split(",")
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for part in chosen:
        home = "/var/tmp" if part == "stream" else None  # a sandbox has a /tmp of its own
        with tempfile.TemporaryDirectory(prefix="etude-", dir=home) as place:
            told = measured(part, Path(place), options)
        print(json.dumps({part: told}), file=sys.stderr, flush=True)
        found |= told
    found["missed"] = [name for name, most in MOST.items() if found.get(name, most) > most]
    found["missed"] += [name for name, least in LEAST.items() if found.get(name, least) < least]
    print(json.dumps(found | {"load_after": os.getloadavg()[0]}))
    sys.exit(bool(found["missed"]))


def measured(part: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    if part == "cost":
        return cost.run_cost(place, options.cost_rounds, options.minutes)
    chromium = Chromium()
    try:
        match part:
            case "size" | "paint":
                make_run(place / "runs/one", 20, "one", summary=True)
                with studio(place / "home", place / "runs") as served:
                    if part == "size":
                        return pages.sizes(chromium.browser, served)
                    return pages.first_paint(chromium.browser, served, options.rounds)
            case "curves":
                return pages.curves(chromium.browser, place, options.rounds, options.tensorboard)
            case "filter":
                return pages.filters(chromium, place, options.trajectories, options.rounds)
            case "open":
                return pages.long_trajectory(chromium, place, options.tokens, options.rounds)
            case "stream":
                return serving.stream(chromium, place, 15, 4)
            case _:
                return serving.memory(chromium, place)
    finally:
        chromium.close()


if __name__ == "__main__":
    main()
