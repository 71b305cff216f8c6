"""Packing and the trainer's step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs import one_of_each

from etude.errors import ConfigError, EtudeError
from etude.models.attention import PackedAttention
from etude.models.config import LatentConfig, ModelConfig
from etude.models.decoder import Decoder
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer import checkpoint
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, GateConfig, KLConfig, LossConfig, OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch, segment_lengths, split
from etude.trainer.sampler_parity import SamplerParityCheck
from etude.trainer.step import Trainer

torch.set_num_threads(1)
CONFIG = ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16)
LATENT = ModelConfig(
    vocab_size=64, width=32, layers=2, heads=4, dense_layers=(0,), dense_width=32, experts=8, expert_width=16,
    router="sigmoid", expert_groups=2, groups_per_token=1, shared_width=16,
    latent=LatentConfig(query_rank=16, rank=12, plain_width=8, rope_width=4, value_width=6),
)  # fmt: skip
DENSE = ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=32)
TASK = Task("t", "do", {}, Verifier({}))


def segment(ids, sampled, version=0, logprob=-1.0, routes=True):
    length = len(ids)
    given_routes = (
        np.tile(np.array([0, 1], np.uint8), (length - 1, CONFIG.layers, 1)) if routes else np.zeros((0, 0, 0), np.uint8)
    )
    return Segment(
        np.asarray(ids, np.int32), np.asarray(sampled, bool), np.full(length, logprob, np.float32),
        np.full(length, version, np.int32), given_routes,
    )  # fmt: skip


def trajectory(name, outcome, *segments):
    return Trajectory(name, "t", "g", segments, (), outcome)


def test_packing_cuts_after_the_last_sampled_token_and_credits_every_segment():
    long = segment([1, 2, 3, 4, 5], [0, 0, 1, 1, 0], version=3)
    second = segment([6, 7], [0, 1], version=4, logprob=-2.0)
    group = Group(
        "g",
        TASK,
        (trajectory("a", Scored(1, {}), long, second), trajectory("b", Scored(0, {}), segment([8, 9], [0, 1]))),
    )
    batch = build_batch([group], [np.array([0.5, -0.5], np.float32)], Version(5))
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert batch.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0.5, 0, -0.5]
    assert batch.ages.tolist() == [0, 0, 2, 2, 0, 1, 0, 5]
    assert (batch.trajectory_of.tolist(), batch.group_of.tolist()) == ([0, 0, 1], [0, 0])
    assert segment_lengths(batch) == [4, 2, 2]


@settings(max_examples=50)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=12), st.integers(1, 100))
def test_pieces_conserve_tokens_and_credit(lengths, budget):
    members = tuple(
        trajectory(str(i), Scored(i, {}), segment(range(n), [0] + [1] * (n - 1))) for i, n in enumerate(lengths)
    )
    batch = build_batch([Group("g", TASK, members)], [np.arange(len(lengths), dtype=np.float32)], Version(0))
    pieces = list(split(batch, budget))
    assert np.concatenate([piece.token_ids for piece in pieces]).tolist() == batch.token_ids.tolist()
    assert np.concatenate([piece.advantages for piece in pieces]).tolist() == batch.advantages.tolist()
    assert [n for piece in pieces for n in segment_lengths(piece)] == lengths
    assert all(len(piece.token_ids) <= budget or len(segment_lengths(piece)) == 1 for piece in pieces)


def policy(shape=CONFIG, **changes):
    decoder = Decoder(shape)
    decoder.initialise(0)
    settings = {
        "router_replay": False,
        "optimizer": OptimizerConfig(name="adamw", lr=0.01),
    }
    return Trainer(decoder, TrainerConfig(**(settings | changes)))


@torch.no_grad()
def rollouts(trainer, rng, wanted):
    """Groups of one-token answers to one-token questions; the reward is for saying `wanted`."""
    groups = []
    for number in range(8):
        members = []
        ids = torch.tensor([[3, 4, last] for last in rng.integers(5, 9, 8)])
        output = trainer.policy(ids.flatten(), torch.arange(3).repeat(8), PackedAttention([3] * 8))
        logprobs = trainer.policy.logits(output.hidden_ND[2::3]).log_softmax(-1)
        routes = output.routing.experts_NLK.numpy().astype(np.uint8)
        for member, row in enumerate(logprobs):
            odds = row.double().exp().numpy()
            token = int(rng.choice(64, p=odds / odds.sum()))
            seg = Segment(
                np.array([*ids[member].tolist(), token], np.int32), np.array([0, 0, 0, 1], bool),
                np.array([0, 0, 0, row[token]], np.float32), np.full(4, trainer.version, np.int32),
                routes[3 * member : 3 * member + 3],
            )  # fmt: skip
            members.append(trajectory(f"{number}/{member}", Scored(float(token < wanted), {}), seg))
        groups.append(Group(str(number), TASK, tuple(members)))
    return groups


def train_on(trainer, rng, wanted=20, scale=1):
    groups = rollouts(trainer, rng, wanted)
    values = [group_advantages(group, AdvantageConfig()) * scale for group in groups]
    reward = np.mean([m.outcome.reward for g in groups for m in g.trajectories])
    return reward, trainer.step(build_batch(groups, values, trainer.version))


ADAMW, MUON = {"name": "adamw"}, {"name": "muon", "scalar_lr": 0.01}
WAYS = [(CONFIG, MUON), (LATENT, ADAMW), (CONFIG, ADAMW), (LATENT, MUON)]


@pytest.mark.parametrize(
    ("shape", "optimizer"),
    one_of_each(3, WAYS, lambda shape, optimizer: shape.latent),
    ids=lambda value: value["name"] if isinstance(value, dict) else "latent" if value.latent else "grouped",
)
def test_it_learns_what_is_rewarded(shape, optimizer):
    trainer = policy(shape, router_replay=True, optimizer=OptimizerConfig(lr=0.01, **optimizer))
    rng = np.random.default_rng(0)
    rewards, metrics = zip(*(train_on(trainer, rng) for _ in range(25)), strict=True)
    assert np.mean(rewards[:3]) < 0.5 < 0.85 < np.mean(rewards[-3:])
    assert trainer.version == 25
    assert metrics[-1]["routes_coverage"] >= 0.75  # the last token of each was never fed forward
    assert metrics[0]["max_abs_dlogp"] < 1e-4


def test_a_model_without_routers_learns_without_replay_and_refuses_it():
    trainer, rng = policy(DENSE), np.random.default_rng(0)
    rewards, metrics = zip(*(train_on(trainer, rng) for _ in range(25)), strict=True)
    assert np.mean(rewards[:3]) < 0.5 < 0.85 < np.mean(rewards[-3:])
    assert metrics[0]["max_abs_dlogp"] < 1e-4
    assert not policy(DENSE, router_replay=None).replays and policy(router_replay=None).replays
    with pytest.raises(ConfigError, match="router_replay"):
        policy(DENSE, router_replay=True)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (np.zeros((0, 0, 0)), "1 of 1 positions that predict a sampled token have no routes"),
        ([[[0, 1]]], r"routes are of \(1, 2\).*the model's of \(2, 2\)"),
        ([[[0, 1], [4, 2]]], "expert 4, the model has 4"),
        (np.zeros((1, 2, 2)), "2 routes name an expert twice"),
    ],
)
def test_routes_that_cannot_be_replayed_are_refused(routes, message):
    trainer = policy(router_replay=True)
    odd = replace(segment([1, 2], [0, 1]), routed_experts=np.asarray(routes, np.uint8))
    group = Group("g", TASK, (trajectory("a", Scored(1, {}), odd),))
    with pytest.raises(EtudeError, match=message + r".*router_replay"):
        trainer.step(build_batch([group], [np.ones(1, np.float32)], Version(0)))


def test_replay_is_counted_and_so_is_what_the_filter_replaced():
    """Two positions; the second predicts, the last is never fed forward."""
    group = Group("g", TASK, (trajectory("a", Scored(1, {}), segment([1, 2, 3], [0, 0, 1])),))
    batch = build_batch([group], [np.ones(1, np.float32)], Version(0))
    wide = policy(router_replay=True, replay_margin=float("inf")).step(batch)
    assert (wide["routes_given"], wide["experts_replaced_share"]) == (4, 0)
    assert wide["routes_coverage"] == pytest.approx(2 / 3)
    none = policy(router_replay=True, replay_margin=-1e9).step(batch)
    own = policy().policy(torch.tensor([1, 2, 3]), torch.arange(3), PackedAttention([3])).routing.experts_NLK[:2]
    assert none["experts_replaced_share"] == pytest.approx((own >= 2).sum().item() / 8)


def test_the_policy_is_always_bf16_and_the_masters_are_not():
    trainer = policy()
    train_on(trainer, np.random.default_rng(0))
    assert all(torch.equal(p, p.bfloat16().float()) for p in trainer.policy.parameters())
    assert any(not torch.equal(m, m.bfloat16().float()) for m in trainer.trained.masters.parameters())


def test_the_learning_rate_warms_up_and_falls_with_progress():
    trainer = policy(warmup_steps=2, final_lr_share=0.2, optimizer=OptimizerConfig(name="adamw", lr=0.01))
    group = Group("g", TASK, (trajectory("a", Scored(1, {}), segment([1, 2], [0, 1])),))
    rates = []
    for progress in (0.0, 0.0, 0.5, 1.0):
        trainer.step(build_batch([group], [np.ones(1, np.float32)], trainer.version), progress)
        rates.append(trainer.optimizer.optimizers[0].param_groups[0]["lr"])
    np.testing.assert_allclose(rates, [0.005, 0.01, 0.006, 0.002])


def test_a_policy_that_ran_ahead_of_its_samples_takes_smaller_steps():
    def scale_of(target, behind):
        trainer = policy(divergence_target=target)
        piece = rollouts(trainer, np.random.default_rng(2), 20)[0].trajectories[0].segments[0]
        moved = replace(piece, logprobs=piece.logprobs - np.float32(behind))  # the sampler found it less likely
        group = Group("g", TASK, (trajectory("a", Scored(1, {}), moved),))
        line = trainer.step(build_batch([group], [np.ones(1, np.float32)], trainer.version))
        return line["rate_scale"], line["mismatch_k3"]

    assert scale_of(0.01, 0.0)[0] == scale_of(None, 1.0)[0] == scale_of(0.8, 1.0)[0] == 1.0
    scale, k3 = scale_of(0.01, 1.0)
    assert k3 == pytest.approx(np.e - 2, abs=1e-3)
    assert scale == pytest.approx(0.01 / k3)


def test_one_token_far_away_does_not_stop_the_step():
    """Of 200, all others on policy; of three such tokens two are counted."""
    trainer = policy(divergence_target=0.001)
    rows = [row.segments[0] for seed in range(4) for group in rollouts(trainer, np.random.default_rng(seed), 20)
            for row in group.trajectories][:200]  # fmt: skip

    def line(far):
        odd = [replace(row, logprobs=row.logprobs - np.float32(10 * (at < far))) for at, row in enumerate(rows)]
        members = tuple(trajectory(str(at), Scored(1, {}), row) for at, row in enumerate(odd))
        batch = build_batch([Group("g", TASK, members)], [np.zeros(200, np.float32)], trainer.version)
        return trainer.step(batch)

    one, three = line(1), line(3)
    assert one["mismatch_k3"] == pytest.approx((np.exp(10) - 11) / 200, rel=1e-3)
    assert (one["rate_scale"], one["shortened"]) == (1.0, False) and one["divergence"] < 1e-6
    assert three["divergence"] == pytest.approx(2 * (np.exp(10) - 11) / 199, rel=1e-3)
    assert three["rate_scale"] == pytest.approx(0.001 / three["divergence"])


def test_the_gate_reports_what_it_rejects_and_ends_a_run_that_it_starves(monkeypatch):
    monkeypatch.setattr(GateConfig, "patience", 2)
    gate = GateConfig(band=(0.9, 1.1))
    trainer = policy(loss=LossConfig(gate=gate))
    rows = [member for group in rollouts(trainer, np.random.default_rng(5), 20) for member in group.trajectories]
    behind = [
        replace(row.segments[0], logprobs=row.segments[0].logprobs - np.float32(at % 2)) for at, row in enumerate(rows)
    ]
    members = tuple(trajectory(str(at), Scored(1, {}), each) for at, each in enumerate(behind))
    batch = build_batch([Group("g", TASK, members)], [np.ones(64, np.float32)], Version(0))
    line = trainer.step(batch)
    assert (line["gate_rejected_share"], line["gate_alarm"], line["used"]["gated_segments"]) == (0.5, True, 32)
    assert line["gate_p01"] == pytest.approx(1, abs=1e-3)
    assert line["gate_p99"] == pytest.approx(np.e, rel=1e-3)
    with pytest.raises(EtudeError, match=r"rejected more than 5% of the segments 2 steps in a row.*trainer.loss.gate"):
        trainer.step(batch)
    assert "gate_alarm" not in policy().step(batch)
    other = policy(loss=LossConfig(normaliser="prompt")).step(batch)
    assert (other["used"]["reshared_tokens"], line["used"]["reshared_tokens"]) == (64, 0)


@pytest.mark.parametrize(
    ("loss", "graph"), [(LossConfig(), False), (LossConfig(entropy_bonus=0.1), True)], ids=["off", "on"]
)
def test_entropies_have_a_graph_and_are_counted_only_where_a_bonus_trains_them(loss, graph):
    trainer, seen = policy(loss=loss), []
    formula = trainer.loss

    def watched(logps_S, entropies_S, *rest):
        seen.append(entropies_S.requires_grad)
        return formula(logps_S, entropies_S, *rest)

    trainer.loss = watched
    line = train_on(trainer, np.random.default_rng(0))[1]
    assert seen == [graph] and line["entropy"] > 0
    assert line["used"]["entropy_tokens"] == 64 * graph
    assert line["used"]["formula_tokens"] == 0, "the formula is Etude's own"


def test_the_reference_is_the_model_that_training_began_with():
    trainer = policy(loss=LossConfig(kl=KLConfig(weight=10.0, estimator="k2")), router_replay=True)
    free, rng = policy(router_replay=True), np.random.default_rng(6)
    first, free_rng = train_on(trainer, rng)[1], np.random.default_rng(6)
    train_on(free, free_rng)
    assert (first["reference_k1"], first["used"]["reference_tokens"]) == (0, 0)
    for _ in range(8):
        held, left = train_on(trainer, rng)[1], train_on(free, free_rng)
    assert held["used"]["reference_tokens"] > 0
    assert left[1]["reference_k1"] == 0  # there is none
    resumed = policy(loss=LossConfig(kl=KLConfig()), router_replay=True)
    resumed.load_state_dict(trainer.state_dict())
    group = rollouts(resumed, np.random.default_rng(7), 20)[:1]
    line = resumed.step(build_batch(group, [np.ones(8, np.float32)], resumed.version))
    assert line["used"]["reference_tokens"] == 8
    assert left[0] > train_on(trainer, rng)[0]  # held back, it has learnt less


def test_old_samples_are_compared_with_the_weights_that_sampled_them():
    rng = np.random.default_rng(3)
    trainer, blind = policy(router_replay=True), policy(router_replay=True, parity_tokens=0)
    old = rollouts(trainer, rng, 20)
    for each in (trainer, blind):
        train_on(each, np.random.default_rng(4))
    batch = build_batch(old, [group_advantages(group, AdvantageConfig()) for group in old], trainer.version)
    line = trainer.step(batch)
    assert line["parity_tokens"] == 64
    assert line["max_abs_dlogp"] == 0 < line["max_abs_drift"]
    assert blind.step(batch)["max_abs_dlogp"] is None

    wrong = replace(batch, behaviour_logprobs=batch.behaviour_logprobs + np.float32(0.01))
    line = trainer.step(replace(wrong, version=trainer.version, ages=np.where(batch.loss_mask, 2, 0)))
    assert line["max_abs_dlogp"] == pytest.approx(0.01, abs=1e-5)


def test_the_parity_check_takes_beginnings_of_one_older_version_in_the_order_of_the_batch():
    keeper = SamplerParityCheck(tokens=12, versions=2)
    for version in (3, 4, 5):
        keeper.remember(Version(version), policy().policy)

    def said(length, *versions):  # the last tokens are sampled, one by each of these versions
        row = segment(range(length), [0] * (length - len(versions)) + [1] * len(versions))
        return replace(row, versions=np.array([0] * (length - len(versions)) + list(versions), np.int32))

    rows = [said(7, 4, 4), said(9, 5, 5), said(5, 4, 5, 5), said(4, 3), said(30, 4)]
    group = Group("g", TASK, (trajectory("a", Scored(1, {}), *rows),))
    called = keeper.select(build_batch([group], [np.ones(1, np.float32)], Version(5)))
    assert called is not None
    piece, version = called
    assert version == 4  # 5 is the newest, 3 no longer kept
    assert segment_lengths(piece) == [
        7,
        3,
    ]  # the first, and the third as far as version 4 sampled; the last is too long
    assert piece.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_spike_moves_the_policy_no_further_than_its_clip_lets_it(optimizer):
    """The fifth batch has advantages a thousand times as large; what it leaves in the momentum is seen in the sixth."""

    def after(multiple, spike):
        trainer = policy(optimizer=OptimizerConfig(name=optimizer, lr=0.01), gradient_clip=multiple)
        used = [
            train_on(trainer, np.random.default_rng(step), scale=scale)[1]["used"]["clipped_steps"]
            for step, scale in enumerate([1, 1, 1, 1, spike, 1])
        ]
        return used[4], torch.cat([each.detach().flatten() for each in trainer.trained.masters.parameters()])

    (never, usual), (free, wild), (once, held) = after(4.0, 1), after(float("inf"), 1000), after(4.0, 1000)
    assert (never, free, once) == (0, 0, 1)
    assert (held - usual).norm() < 0.8 * (wild - usual).norm()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_adamws_eps_is_a_key(optimizer):
    """Beside Muon for all but the matrices."""
    moved = []
    for eps in (1e-8, 1.0):
        trainer = policy(optimizer=OptimizerConfig(name=optimizer, eps=eps))
        norm = trainer.trained.masters.norm
        before = norm.weight.detach().clone()
        train_on(trainer, np.random.default_rng(0))
        moved.append(float((norm.weight.detach() - before).norm()))
    assert moved[1] < moved[0] / 100


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_trainer_equals_one_that_never_stopped(tmp_path, optimizer):
    """The last batch is a spike, which is cut to the norms of the steps before: the resumed one must know them."""
    changes = {"optimizer": OptimizerConfig(name=optimizer, lr=0.01)}
    straight, first, second = policy(**changes), policy(**changes), policy(**changes)
    scales, rng = [1, 1, 1, 1, 1, 50], np.random.default_rng(1)
    expected = [train_on(straight, rng, scale=scale)[1] for scale in scales]
    rng = np.random.default_rng(1)
    found = [train_on(first, rng, scale=scale)[1] for scale in scales[:3]]
    checkpoint.save(tmp_path, first.version, {"trainer": first.state_dict()})
    second.load_state_dict(checkpoint.load_latest(tmp_path)["trainer"])
    found += [train_on(second, rng, scale=scale)[1] for scale in scales[3:]]
    for name in ("loss", "grad_norm", "divergence", "used"):
        assert [line[name] for line in found] == [line[name] for line in expected]
    assert [line["used"]["clipped_steps"] for line in found] == [0, 0, 0, 0, 0, 1]
    assert all(
        torch.equal(a, b)
        for a, b in zip(straight.trained.masters.parameters(), second.trained.masters.parameters(), strict=True)
    )
    assert straight.version == second.version == 6


def test_a_gradient_that_is_not_finite_skips_the_step_and_then_stops_the_run(monkeypatch):
    monkeypatch.setattr("etude.trainer.clipping.MAX_SKIPPED", 2)
    trainer = policy()
    group = Group("g", TASK, (trajectory("a", Scored(1, {}), segment([1, 2], [0, 1], logprob=-1.0)),))
    batch = build_batch([group], [np.array([np.inf], np.float32)], Version(0))
    before = [parameter.clone() for parameter in trainer.trained.masters.parameters()]
    trainer.step(batch)
    assert trainer.version == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.trained.masters.parameters(), strict=True))
    with pytest.raises(EtudeError, match="not finite"):
        trainer.step(batch)
