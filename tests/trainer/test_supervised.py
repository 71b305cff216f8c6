"""Optimizers, documents, mid-training and the control."""

import json

import numpy as np
import pytest
import torch

from etude.errors import CheckpointError, ConfigError, EtudeError
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.trainer import activations
from etude.trainer.config import FinetuneConfig, OptimizerConfig
from etude.trainer.documents import (
    Document,
    Mixture,
    ShuffledSource,
    python_definitions,
    read_documents,
    write_documents,
)
from etude.trainer.finetune import finetune
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, Stage, pretrain
from etude.trainer.optimizers import newton_schulz
from etude.trainer.supervised import backward, supervised_loss

torch.set_num_threads(1)
MODEL = ModelConfig(
    vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16, max_context=32
)


def documents(count=40, seed=0):
    """Sequences that count upwards: what comes next is certain."""
    starts = np.random.default_rng(seed).integers(0, 30, count)
    return [Document(np.arange(s, s + 16, dtype=np.int32), np.arange(16) >= 4) for s in starts]


def config(**changes):
    settings = {
        "tokens_per_step": 128,
        "warmup_steps": 2,
        "checkpoint_every": 5,
        "stages": (Stage(tokens=2560, mixture={"a": 1.0}),),
    }
    return MidtrainingConfig(model=MODEL, **(settings | changes))


def test_newton_schulz_orthogonalises_stacks_as_it_does_single_matrices():
    stack = torch.randn(3, 8, 20)
    together = newton_schulz(stack, steps=8)
    for matrix, result in zip(stack, together, strict=True):
        torch.testing.assert_close(newton_schulz(matrix, steps=8), result, atol=1e-5, rtol=1e-4)
        singular = torch.linalg.svdvals(result)
        assert 0.6 < singular.min() < singular.max() < 1.3


def test_the_loss_ignores_first_tokens_and_other_documents():
    decoder = Decoder(MODEL)
    decoder.initialise(0)
    one, two = documents(2)
    alone = [supervised_loss(decoder, [d], 0.5, 0.0).total for d in (one, two)]
    together = supervised_loss(decoder, [one, two], 0.5, 0.0).total
    torch.testing.assert_close(together, (alone[0] + alone[1]) / 2)


def test_pieces_give_the_gradients_and_figures_of_the_whole_and_compute_no_block_twice(monkeypatch):
    shape = ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=16)
    drawn = [each._replace(source="ab"[at % 2]) for at, each in enumerate(documents(5))]
    drawn[4].sampled[:] = False
    found = []
    for most in (2**30, 2**17 + 2**15):
        monkeypatch.setattr(activations, "ALONE_BYTES", most)
        decoder = Decoder(shape)
        decoder.initialise(0)
        forward, sizes = decoder.forward, []

        def seen(ids, *rest, recompute, forward=forward, sizes=sizes):
            sizes.append(len(ids))
            assert not recompute
            return forward(ids, *rest, recompute=recompute)

        monkeypatch.setattr(decoder, "forward", seen)
        losses = backward(decoder, drawn, 0.0, 0.01)
        found.append((losses, [each.grad for each in decoder.parameters()], sizes))
    (whole, wanted, [total]), (some, grads, sizes) = found
    assert sizes == [32, 32] and total == 80, "a piece of which nothing is learned is left out"
    torch.testing.assert_close(grads, wanted)
    torch.testing.assert_close((some.total, some.next_token), (whole.total.detach(), whole.next_token))
    torch.testing.assert_close(some.by_source, whole.by_source)
    assert set(some.by_source) == {"a", "b"}


def test_balancing_asks_nothing_of_a_model_without_routers():
    decoder = Decoder(ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=16))
    decoder.initialise(0)
    losses = [supervised_loss(decoder, documents(2), 0.5, balance).total for balance in (0.0, 1.0)]
    assert torch.equal(*losses)


def test_midtraining_learns_and_resumes_as_if_it_had_never_stopped(tmp_path):
    source = {"a": ShuffledSource(documents(), 0)}
    straight = Midtraining(config(), source)
    losses = [straight.step()["said_loss"] for _ in range(20)]
    assert losses[-1] < 0.75 * losses[0]
    first = Midtraining(config(), {"a": ShuffledSource(documents(), 0)})
    for _ in range(7):
        first.step()
    first.save(tmp_path / "state.pt")
    second = Midtraining(config(), {"a": ShuffledSource(documents(), 0)})
    second.load(tmp_path / "state.pt")
    for _ in range(13):
        second.step()
    assert all(
        torch.equal(a, b) for a, b in zip(straight.decoder.parameters(), second.decoder.parameters(), strict=True)
    )
    assert second.clip.state_dict() == straight.clip.state_dict(), "13 of these 16 norms are of its own life"


def test_what_is_frozen_stays_and_the_rest_learns(tmp_path):
    run = Midtraining(config(frozen=("embeddings", ":1")), {"a": ShuffledSource(documents(), 0)})
    before = {name: each.detach().clone() for name, each in run.decoder.named_parameters()}
    losses = [run.step()["said_loss"] for _ in range(12)]
    moved = {name for name, each in run.decoder.named_parameters() if not torch.equal(each, before[name])}
    assert {name.partition(".")[0] for name in moved} == {"blocks", "norm"}
    assert not any(name.startswith("blocks.0.") for name in moved)
    assert losses[-1] < losses[0]
    run.save(tmp_path / "state.pt")
    again = Midtraining(config(frozen=("embeddings", ":1")), {"a": ShuffledSource(documents(), 0)})
    again.load(tmp_path / "state.pt")
    assert again.step() == run.step()


def test_in_bf16_blocks_compute_and_all_else_is_fp32():
    wide, narrow = (
        Midtraining(config(format=each), {"a": ShuffledSource(documents(), 0)}) for each in ("fp32", "bf16")
    )
    seen = []
    narrow.decoder.blocks[1].register_forward_hook(lambda module, given, said: seen.append(said[0].dtype))
    losses = [(wide.step()["said_loss"], narrow.step()["said_loss"]) for _ in range(12)]
    assert set(seen) == {torch.bfloat16}
    assert losses[0] != pytest.approx(losses[0][::-1], rel=1e-6), "or nothing was rounded"
    assert [narrow for _, narrow in losses] == pytest.approx([wide for wide, _ in losses], rel=0.02)
    assert losses[-1][1] < 0.9 * losses[0][1]
    assert {each.dtype for each in narrow.decoder.parameters()} == {torch.float32}
    assert narrow.decoder.logits(torch.zeros(1, MODEL.width, dtype=torch.bfloat16)).dtype == torch.float32


def test_pretrain_logs_and_a_torn_checkpoint_is_named(tmp_path):
    run = pretrain(config(), {"a": ShuffledSource(documents(), 0)}, tmp_path)
    assert run.tokens >= 2560
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == run.step_count
    state = tmp_path / "midtraining.pt"
    state.write_bytes(state.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"midtraining\.pt"):
        pretrain(config(), {"a": ShuffledSource(documents(), 0)}, tmp_path, resume=True)


def test_steps_that_nothing_can_be_learnt_from_leave_the_model_as_it_was_and_then_end_it(tmp_path):
    run = Midtraining(config(), {"a": ShuffledSource(documents(), 0)})
    run.decoder.norm.weight.data[0] = torch.nan
    before = [each.clone() for each in run.decoder.parameters()]
    run.step(), run.step()
    with pytest.raises(EtudeError, match="not finite 3 steps in a row"):
        run.step()
    now = [each.nan_to_num() for each in run.decoder.parameters()]
    assert all(torch.equal(a.nan_to_num(), b) for a, b in zip(before, now, strict=True))
    assert run.step_count == 2


def test_a_resumed_log_holds_every_step_once(tmp_path):
    source = {"a": ShuffledSource(documents(), 0)}
    half = config(stages=(Stage(tokens=1280, mixture={"a": 1.0}),))
    saved = pretrain(half, source, tmp_path).step_count
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write(f'{{"step": {saved + 1}, "loss": 9}}\n{{"step": {saved + 2}, "lo')
    end = pretrain(config(), source, tmp_path, resume=True).step_count
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, end + 1))
    assert all(line["loss"] < 9 for line in lines)


def test_stages_follow_each_other():
    stages = (Stage(tokens=300, mixture={"a": 1.0}), Stage(tokens=300, mixture={"b": 1.0}))
    run = Midtraining(
        config(stages=stages), {"a": ShuffledSource(documents(), 0), "b": ShuffledSource(documents(seed=1), 0)}
    )
    for _ in range(5):
        run.step()
    assert run.mixture.drawn["a"] > 0
    assert run.mixture.drawn["b"] > 0


def test_recorded_documents_survive_the_disk(tmp_path):
    path = tmp_path / "documents.npz"
    write_documents(path, documents())
    for before, after in zip(documents(), read_documents(path), strict=True):
        assert before.token_ids.tolist() == after.token_ids.tolist()
        assert before.sampled.tolist() == after.sampled.tolist()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="recorded anew"):
        read_documents(path)


def test_a_finite_source_shows_every_document_once_an_epoch():
    source = ShuffledSource([Document(np.array([i], np.int32), np.array([True])) for i in range(10)], 0)
    for epoch in range(3):
        assert sorted(int(source.document(10 * epoch + i).token_ids[0]) for i in range(10)) == list(range(10))
    with pytest.raises(CheckpointError, match="empty"):
        ShuffledSource([], 0)


def test_mixtures_draw_by_share():
    sources = {"a": ShuffledSource(documents(), 0), "b": ShuffledSource(documents(), 0)}
    mixture = Mixture(sources, 0)
    for step in range(40):
        mixture.draw({"a": 0.8, "b": 0.2}, step, 256, 1024)
    assert 0.7 < mixture.drawn["a"] / sum(mixture.drawn.values()) < 0.9


def test_real_python_is_found():
    texts = python_definitions(0, 20)
    assert len(texts) == 20
    assert all(text.lstrip("@").strip() for text in texts)


def test_the_control_learns_within_its_budget():
    decoder = Decoder(MODEL)
    decoder.initialise(0)
    settings = FinetuneConfig(tokens_per_step=128, threads=1, optimizer=OptimizerConfig(lr=0.02))
    losses = []
    metrics = finetune(
        decoder, documents(), settings, cpu_seconds=4.0, on_step=lambda line: losses.append(line["said_loss"])
    )
    assert losses[-1] < losses[0] / 2
    assert metrics["steps"] == len(losses)
    assert metrics["documents"] == 40, "each was seen"
    assert all(torch.equal(p, p.bfloat16().float()) for p in decoder.parameters())
    with pytest.raises(ConfigError, match="used up"):  # it would never end
        finetune(decoder, documents(), settings, cpu_seconds=0.0)


def test_the_token_after_the_next_is_predicted_from_its_own_document_alone():
    shape = MODEL.model_copy(update={"further_token": True})
    decoder = Decoder(shape)
    decoder.initialise(0)
    one, two = documents(2)
    alone = [supervised_loss(decoder, [d], 0.5, 0.0, 0.3) for d in (one, two)]
    together = supervised_loss(decoder, [one, two], 0.5, 0.0, 0.3)
    mean = float(alone[0].further + alone[1].further) / 2
    assert float(together.further) == pytest.approx(mean, rel=1e-5)
    without = supervised_loss(decoder, [one, two], 0.5, 0.0)
    assert float(together.total.detach()) == pytest.approx(
        float(without.total.detach() + 0.3 * together.further), rel=1e-5
    )
    together.total.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in decoder.further.parameters())
