"""The engines that `benchmarks/engine.py` compares, behind one seam."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.errors import DeadlineExceeded
from etude.harness.sampler import Completion, SampleRequest
from etude.kernels.choice import choose
from etude.kernels.paged_attention import PAGE
from etude.models.decoder import Decoder

Prompts = list[list[int]]
START_S = 900.0
"""vLLM compiles first."""


class Patient(EngineConfig):
    request_s = 1200.0  # a batch of a benchmark is long


class Engine(Protocol):
    name: str

    def prepare(self) -> None:
        """Whatever is not part of generating, and forget what was generated before."""

    def generate(self, prompts: Prompts, new: int) -> None:
        """Exactly `new` tokens after each prompt, greedily."""

    def cpu_s(self) -> float:
        """CPU seconds spent so far."""
        ...


class InProcess:
    def prepare(self) -> None:
        pass

    def cpu_s(self) -> float:
        return time.process_time()


class Etude(InProcess):
    """A fresh engine each time, so that no prompt is cached."""

    name = "etude"

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.said = decoder, list[Completion]()

    def prepare(self) -> None:
        self.engine = TorchEngine(self.decoder, Patient(cache_tokens=PAGE * 1024))

    def generate(self, prompts: Prompts, new: int) -> None:
        async def everyone() -> list[Completion]:
            requests = (
                SampleRequest(f"s{n}", tuple(prompt), new, frozenset(), 0.0, n) for n, prompt in enumerate(prompts)
            )
            return await asyncio.gather(*map(self.engine.sample, requests))

        self.said = asyncio.run(everyone())
        self.engine.close()


class Inexact(Etude):
    """The same engine with exactness off: what torch has, in place of the kernels."""

    name = "inexact"

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(copy.deepcopy(decoder).place(choose("torch", "cpu")))


def transformers_engines(directory: Path) -> list[Engine]:
    """transformers' two ways to generate."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, experts_implementation="grouped_mm")
    model.eval()
    return [Transformers(model), TransformersBatching(model)]


class Transformers(InProcess):
    name = "transformers"

    def __init__(self, model: Any) -> None:
        self.model = model

    def config(self, new: int) -> Any:
        from transformers import GenerationConfig

        return GenerationConfig(
            max_new_tokens=new, min_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
        )

    def generate(self, prompts: Prompts, new: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=self.config(new))
        assert out.shape[1] == len(prompts[0]) + new


class TransformersBatching(Transformers):
    name = "transformers_cb"

    def generate(self, prompts: Prompts, new: int) -> None:
        from transformers.generation import ContinuousBatchingConfig

        pages = ContinuousBatchingConfig(page_size=64, num_blocks=7 * len(prompts) + 4, max_batch_tokens=256)
        out = self.model.generate_batch(
            prompts, generation_config=self.config(new), continuous_batching_config=pages
        )  # fmt: skip
        assert [len(each.generated_tokens) for each in out.values()] == [new] * len(prompts)


class Vllm:
    """In a process and an environment of its own; `benchmarks/engine_vllm.py` is its other end."""

    name = "vllm"

    def __init__(self, python: str, model: Path, context: int) -> None:
        self.log = model / "vllm.log"
        script = str(Path(__file__).with_name("engine_vllm.py"))
        quiet = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_NO_USAGE_STATS": "1"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, script, str(model), str(context)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | quiet | {"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip

    def __enter__(self) -> Self:
        self._answer(START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait(60)

    def _answer(self, deadline_s: float = 600.0) -> str:
        late = threading.Timer(deadline_s, self.process.kill)
        late.start()
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        late.cancel()
        if not line:
            raise DeadlineExceeded("an answer of vLLM", deadline_s, self.log.read_text()[-2000:])
        return line.strip()

    def prepare(self) -> None:
        pass

    def generate(self, prompts: Prompts, new: int) -> None:
        self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        assert int(self._answer()) == len(prompts) * new

    def cpu_s(self) -> float:
        """Of the process and all its descendants."""
        parents, spent = {}, {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(stat.parent.name)] = int(fields[1])
            spent[int(stat.parent.name)] = int(fields[11]) + int(fields[12])
        tree, grown = {self.process.pid}, True
        while grown:
            more = {child for child, parent in parents.items() if parent in tree} - tree
            grown = bool(more)
            tree |= more
        return sum(spent.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")
