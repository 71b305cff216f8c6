"""How fast the engine generates on one CPU core, next to others on the same small MoE, and what its exactness costs.

    ETUDE_VLLM_PYTHON=... python benchmarks/engine.py [--prompt 128] [--new 128] [--repeats 3] [--sessions 40]

Every engine decodes greedily with one thread for its arithmetic, from the same weights (bf16 values) and prompts, by
turns; a figure is the median of generated tokens per CPU-second of all the engine's processes, prefill included.
`transformers` is `generate` in fp32 with grouped experts, `transformers_cb` its continuous batching with pages and a
budget that fit the load, `vllm` is vLLM in bf16, compiled, in the environment that ETUDE_VLLM_PYTHON names
(docs/engines.md says how to make one). Ours computes in fp32.

    tok_per_cpu_s    engine -> batch -> tokens per CPU-second
    first_token_ms   engine -> CPU milliseconds to one token after one prompt
    skipped          engine -> why it has no figures
    invariance_cost  CPU time of the engine over that of the same with exactness off (torch's products, norms,
                     activations and attention of chunks in place of the kernels), less 1, at batch 16
    lookup_speedup   CPU time of decoding without prompt lookup over that with it: the shipped model's replies that
                     edit a file, in its own sessions with tasks of the ladder, prompts prefilled, one after the other
    max_abs_dlogp    of the engine's tokens at batch 64, against one packed forward as the trainer does it

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from engines import Engine, Etude, Inexact, Vllm, transformers_engines  # beside this file, which runs as a script

from etude.config import load_recipe
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.environments.backends import open_backend
from etude.harness.sampler import Completion, SampleRequest
from etude.models.attention import PackedAttention
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.state import round_to_bf16
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play
from etude.tasks.ladder import ladder_task

MODEL = ModelConfig(
    vocab_size=4096, width=256, layers=4, heads=4, kv_heads=2, head_width=64, experts=8, expert_width=256,
    max_context=2048,
)  # fmt: skip
BATCHES = (1, 16, 64)
ROOT = Path(__file__).resolve().parent.parent
Prompts = list[list[int]]


# --- against others --------------------------------------------------------------------------------------------------


def medians(engines: list[Engine], prompts: Prompts, new: int, repeats: int) -> dict[str, float]:
    """CPU seconds of each engine, by turns, so that all meet the same machine."""
    took: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for engine in engines:
        engine.prepare()
        engine.generate(prompts, 2)
    for _ in range(repeats):
        for engine in engines:
            engine.prepare()
            began = engine.cpu_s()
            engine.generate(prompts, new)
            took[engine.name].append(engine.cpu_s() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


@torch.inference_mode()
def largest_difference(decoder: Decoder, prompts: Prompts, said: list[Completion]) -> float:
    """Of the engine's log-probabilities from those of one packed forward."""
    whole = [[*prompt, *done.token_ids] for prompt, done in zip(prompts, said, strict=True)]
    ids = torch.tensor([token for each in whole for token in each])
    lengths = [len(each) for each in whole]
    output = decoder(ids, torch.cat([torch.arange(length) for length in lengths]), PackedAttention(lengths))
    logprobs = decoder.logits(output.hidden_ND).log_softmax(-1)[:-1].gather(1, ids[1:, None]).squeeze(1)
    largest, end = 0.0, 0
    for length, done in zip(lengths, said, strict=True):
        end += length
        mine = torch.tensor(done.logprobs)
        largest = max(largest, float((logprobs[end - len(mine) - 1 : end - 1] - mine).abs().max()))
    return largest


def compare(decoder: Decoder, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {"tok_per_cpu_s": {}, "skipped": {}}
    rng = random.Random(0)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="etude-engine-")))
        save_checkpoint(decoder, directory, dtype=torch.float32)
        etude = Etude(decoder)
        engines = [etude, *transformers_engines(directory)]
        if python := os.environ.get("ETUDE_VLLM_PYTHON"):
            engines.append(stack.enter_context(Vllm(python, directory, MODEL.max_context)))
        else:
            figures["skipped"]["vllm"] = "ETUDE_VLLM_PYTHON names no Python that has vLLM"
            figures["tok_per_cpu_s"]["vllm"] = None
        prompts: Prompts = []
        for batch in BATCHES:
            prompts = [[rng.randrange(MODEL.vocab_size) for _ in range(options.prompt)] for _ in range(batch)]
            for name, seconds in medians(engines, prompts, options.new, options.repeats).items():
                rate = round(batch * options.new / seconds, 1)
                figures["tok_per_cpu_s"].setdefault(name, {})[str(batch)] = rate
                print(f"{name:16} batch {batch:3}  {rate:8} tokens a CPU-second", flush=True)
        figures["max_abs_dlogp"] = largest_difference(decoder, prompts, etude.said)
        first = medians(engines, prompts[:1], 1, options.repeats)
        figures["first_token_ms"] = {name: round(1000 * seconds, 1) for name, seconds in first.items()}
    both = medians([Etude(decoder), Inexact(decoder)], prompts[:16], options.new, options.repeats)
    figures["invariance_cost"] = round(both["etude"] / both["inexact"] - 1, 3)
    return figures


# --- prompt lookup ---------------------------------------------------------------------------------------------------


class Recording:
    """A sampler that keeps what was asked of it, and answered."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine, self.turns = engine, list[tuple[SampleRequest, Completion]]()

    async def sample(self, request: SampleRequest) -> Completion:
        done = await self.engine.sample(request)
        self.turns.append((request, done))
        return done


async def sessions(sampler: Recording, chat: ChatRenderer, config: RunConfig, count: int) -> None:
    backend = open_backend(config.environment)
    try:
        async with config.rewards.judges() as judges:
            for number in range(count):
                task = ladder_task(1 + number % 5, "eval", 5000 + number)
                await play(RolloutRequest(task.id, "lookup", task, 1, 1.0), config, backend, sampler, chat, judges)
    finally:
        await backend.close()


async def decode(engine: TorchEngine, turns: list[tuple[SampleRequest, Completion]]) -> float:
    """CPU seconds to say each reply again after its first token, and check that it is the same."""
    spent = 0.0
    for number, (request, done) in enumerate(turns):
        opening = SampleRequest(
            f"turn {number}", request.prompt_ids, 1, request.stop_ids, request.temperature, request.seed
        )
        await engine.sample(opening)
        rest = SampleRequest(
            opening.session_id, (*request.prompt_ids, done.token_ids[0]), len(done.token_ids) - 1, request.stop_ids,
            request.temperature, request.seed,
        )  # fmt: skip
        began = time.process_time()
        again = await engine.sample(rest)
        spent += time.process_time() - began
        assert again.token_ids == done.token_ids[1:], "the reply is another than it was"
    return spent


def lookup(options: argparse.Namespace) -> dict[str, float]:
    decoder, tokenizer = load_checkpoint(ROOT / "models" / "etude-tiny")
    config, chat = load_recipe(ROOT / "recipes" / "quickstart.toml", RunConfig), ChatRenderer(tokenizer)
    engine = TorchEngine(decoder, config.engine)
    recording = Recording(engine)
    asyncio.run(sessions(recording, chat, config, options.sessions))
    engine.close()
    edits = [turn for turn in recording.turns if "edit" in chat.decode(turn[1].token_ids) and turn[1].finish == "stop"]
    took: dict[int, list[float]] = {0: [], 16: []}
    counters: dict[int, Any] = {}
    for _ in range(options.repeats):
        for most, seconds in took.items():
            engine = TorchEngine(decoder, EngineConfig(lookup_tokens=most))
            seconds.append(asyncio.run(decode(engine, edits)))
            engine.close()
            counters[most] = engine.counters
    return {
        "lookup_speedup": round(statistics.median(took[0]) / statistics.median(took[16]), 3),
        "lookup_replies": len(edits),
        "lookup_right": round(counters[16]["guessed_right"] / counters[16]["guessed_tokens"], 3),
        "lookup_steps": round(counters[16]["steps"] / counters[0]["steps"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    decoder = Decoder(MODEL)
    decoder.initialise(0)
    round_to_bf16(decoder)
    figures = compare(decoder, options)
    figures |= lookup(options)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
