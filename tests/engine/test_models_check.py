"""`etude models check`: what it finds is so, also where the two sides differ, and the estimate is what was measured."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

from etude.cli.main import main
from etude.engine.cache_size import affordable, position_bytes
from etude.engine.check.memory import GIB, estimate
from etude.engine.check.parity import PROMPTS, Parity
from etude.engine.check.report import check
from etude.engine.check.speed import Workload, of_engine
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.errors import CheckpointError
from etude.models.checkpoint import load_checkpoint, save_checkpoint, shape_of
from etude.models.config import ModelConfig
from etude.models.shipped import shipped_model
from etude.models.size import parameters_of
from etude.models.transfer import export_model

pytest.importorskip("transformers", reason="parity needs the dev extra")
FEW = {"answer_tokens": 8, "load": Workload(512, batch=4, prompt_tokens=8, new_tokens=5)}
SMOLLM2 = ModelConfig(
    vocab_size=49152, width=576, layers=30, heads=9, kv_heads=3, head_width=64, head_norm=False, experts=0,
    dense_width=1536, max_context=8192, norm_eps=1e-5,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("check") / "tiny"
    export_model(shipped_model(), place)
    return place


def test_a_checkpoint_is_held_to_transformers(model):
    threads = torch.get_num_threads()
    report = check(model, **FEW)
    assert report.ok and report.parity is not None and report.peer is not None
    assert report.parity.same_answers == report.parity.same_prompts == report.parity.prompts == len(PROMPTS) == 20
    assert 0 < report.parity.logit_difference < 1e-4 < report.parity.logit_spread
    assert min(report.speed.prefill, report.speed.decode, report.peer.prefill, report.peer.decode) > 0
    assert report.parameter_count == parameters_of(shape_of(model))
    assert "greedy answers that are the same: 20 of 20" in report.text()
    assert torch.get_num_threads() == threads


def test_a_prompt_that_transformers_reads_otherwise_is_named(model, tmp_path):
    """By the class that a checkpoint names, which has a way of its own to split text."""
    shutil.copytree(model, tmp_path / "other")
    path = tmp_path / "other/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}))
    found = check(tmp_path / "other", **FEW)
    assert not found.ok and found.parity is not None and found.parity.logit_difference < 1e-4
    assert 0 < len(found.parity.unlike) == len(PROMPTS) - found.parity.same_prompts
    assert f"transformers reads {found.parity.unlike[0]!r} otherwise, by its Qwen2Tokenizer" in found.text()
    assert "so transformers does not compute this checkpoint as Etude does" in found.text()


class Cold(TorchEngine):
    """As an engine is whose kernels nobody has compiled yet."""

    asked = 0

    async def sample(self, request, heard=None):
        self.asked += 1
        until = time.process_time() + (0.5 if self.asked <= 2 else 0)
        while time.process_time() < until:
            pass
        return await super().sample(request, heard)


def test_what_is_compiled_first_is_not_the_models_speed(model):
    engine = Cold(load_checkpoint(model)[0], EngineConfig())
    try:
        speed = of_engine(engine, FEW["load"])
    finally:
        engine.close()
    assert engine.asked == 2 + 4 and speed.prefill > 4 * 8 / 0.5


def test_a_checkpoint_that_names_no_tokenizer_class_is_read_as_it_stands():
    """transformers would split text as the architecture's own tokenizer does, and 19 of 20 prompts would differ."""
    assert not (shipped_model() / "tokenizer_config.json").exists()
    parity = check(shipped_model(), **FEW).parity
    assert parity is not None and parity.ok and parity.same_prompts == 20


def test_a_template_that_no_server_takes_is_no_base_model(tmp_path):
    model = Path(shutil.copytree(shipped_model(), tmp_path / "model"))
    (model / "chat_template.jinja").write_text("{% for message in messages %}")
    with pytest.raises(CheckpointError, match="no Jinja template"):
        check(model, **FEW)


def test_logits_that_are_no_numbers_are_never_the_same(tmp_path):
    decoder, tokenizer = load_checkpoint(shipped_model())
    decoder.norm.weight.data.fill_(torch.nan)
    save_checkpoint(decoder, tmp_path / "nan", tokenizer)
    with pytest.raises(CheckpointError, match="logits by Etude are no numbers"):
        check(tmp_path / "nan", **FEW)


def test_logits_that_are_apart_fail_and_ties_do_not():
    same = {"prompts": 2, "prompt_tokens": 9, "answer_tokens": 9, "same_prompts": 2, "same_answers": 2}
    assert Parity(**same, logit_difference=9e-5, logit_spread=1.0).ok
    assert Parity(**same, logit_difference=5e-4, logit_spread=60.0).ok
    assert not Parity(**same, logit_difference=5e-4, logit_spread=40.0).ok
    assert not Parity(**{**same, "same_prompts": 1}, logit_difference=0.0, logit_spread=1.0).ok
    parted = {**same, "same_answers": 1, "logit_difference": 5e-5, "logit_spread": 1.0}
    assert Parity(**parted, gaps=(8e-5,)).ok
    assert not Parity(**parted, gaps=(8e-5, 2e-4)).ok


def test_an_answer_that_is_not_transformers_parts(model, monkeypatch):
    """Other weights on our side than on theirs: what a fault of either would be."""
    import etude.engine.check.report as report

    def other(directory: Path):
        decoder, tokenizer = load_checkpoint(directory)
        with torch.no_grad():
            decoder.norm.weight[::2] *= 0.2
        return decoder, tokenizer

    monkeypatch.setattr(report, "load_checkpoint", other)
    found = check(model, **FEW)
    assert not found.ok and found.parity is not None
    assert found.parity.logit_difference > 0.1 and found.parity.same_answers < 20
    assert len(found.parity.gaps) == 20 - found.parity.same_answers
    assert "where answers part" in found.text()


def test_without_transformers_the_rest_is_told(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = check(model, **FEW)
    assert report.parity is None and report.peer is None and report.ok
    assert "pip install transformers" in report.text() and report.as_json()["remarks"]
    assert report.speed.decode > 0


def test_a_context_too_short_for_the_workload_is_said(model, tmp_path, capsys):
    decoder, tokenizer = load_checkpoint(model)
    decoder.config = decoder.config.model_copy(update={"max_context": 16})
    save_checkpoint(decoder, tmp_path / "short", tokenizer)
    assert main(["models", "check", str(tmp_path / "short")]) == 42
    assert "a context of 16 tokens is too short" in capsys.readouterr().err


def test_the_estimate_of_the_model_that_was_measured_is_what_was_measured():
    """7.78 GiB in a whole run, of which 4.6 in the trainer and 2.1 in the engine: docs/results.md. The cache had room
    for one whole context then, and has for four."""
    found = estimate(SMOLLM2, 20 * GIB)
    since = 3 * SMOLLM2.max_context * position_bytes(SMOLLM2)
    assert abs((found.training["adamw"] - since) / GIB - 7.78) < 0.25
    assert abs((found.engine - since) / GIB - 2.1) < 0.15
    assert found.training["adamw"] - found.training["muon"] == 4 * parameters_of(SMOLLM2)


def test_what_fits_is_told_by_the_same_sum():
    for free in (4 * GIB, 64 * GIB):
        found = estimate(SMOLLM2, free)
        assert found.trains == dict.fromkeys(("adamw", "muon"), free > 16 * GIB)
        assert (found.most_parameters["adamw"] > parameters_of(SMOLLM2)) == found.trains["adamw"]
    cache = affordable(SMOLLM2, 64 * GIB) * position_bytes(SMOLLM2)
    assert estimate(SMOLLM2, 64 * GIB).engine > cache + 10 * parameters_of(SMOLLM2)
