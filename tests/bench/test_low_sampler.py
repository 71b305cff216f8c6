"""benchmarks/low_sampler: a plug-in of an engine that samples in another format than its trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / "benchmarks" / "low_sampler"
SAMPLED = """
import asyncio, json, sys
from etude.engine.config import EngineConfig
from etude.engine.opening import PLUGINS, open_engine
from etude.harness.sampler import SampleRequest
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder

def logprobs(config):
    shape = dict(vocab_size=64, width=32, layers=1, heads=2, kv_heads=2, head_width=16, experts=4, expert_width=32)
    decoder = Decoder(ModelConfig(max_context=64, **shape))
    decoder.initialise(0)
    engine = open_engine(config, decoder)
    try:
        request = SampleRequest("s", tuple(range(8)), 1, frozenset(), prompt_logprobs=0, seed=0)
        return [each.logprob for each in asyncio.run(engine.sample(request)).prompt_scores]
    finally:
        engine.close()

print(json.dumps([logprobs(EngineConfig()), logprobs(PLUGINS["low"].config())]))
"""


def test_it_is_found_by_its_name_and_samples_from_another_distribution() -> None:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    said = subprocess.run([sys.executable, "-c", SAMPLED], env=environment, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    plain, low = json.loads(said.stdout)
    differences = [abs(ours - other) for ours, other in zip(plain, low, strict=True)]
    assert 0 < max(differences) < 0.5
