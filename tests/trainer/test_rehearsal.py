"""A rank's step without values: its bytes and its traffic beside arithmetic, and beside real ranks."""

import math
import warnings
from pathlib import Path

import pytest
import torch

from etude.errors import ConfigError
from etude.models.checkpoint import shape_of
from etude.models.config import ModelConfig
from etude.models.size import parameters_of
from etude.trainer.config import KLConfig, LossConfig, OptimizerConfig, TrainerConfig
from etude.trainer.mesh.rehearsal import rehearse, state_of

RECIPES, HERE = Path(__file__).parents[2] / "recipes", Path(__file__).parent
SMALL = ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16)
PUBLISHED = {
    "Qwen3-30B-A3B": (RECIPES / "shapes/Qwen3-30B-A3B", 30_532_122_624, {"ep": 8}),
    "DeepSeek-V3": (RECIPES / "shapes/DeepSeek-V3", 671_026_404_352, {"fsdp": 4, "ep": 32, "cp": 2}),
    "Kimi-K2": (HERE / "shapes/Kimi-K2", 1_026_408_209_408, {"replicate": 2, "fsdp": 2, "ep": 64}),
}


def config_for(axes, **more):
    settings = {"optimizer": OptimizerConfig(name="adamw", lr=1e-3), "parity_tokens": 0, "piece_tokens": 64}
    return TrainerConfig(**(settings | {"ranks": axes} | more))


def numbers_of_first_rank(model, axes):
    """By hand, from the config alone: every matrix's first axis over all ranks of a replica, and a stack's experts
    first over `ep`, then each stack over what is left."""
    ep, rest = axes.get("ep", 1), axes.get("fsdp", 1) * axes.get("cp", 1)
    ranks, width, latent = ep * rest, model.width, model.latent
    if latent is None:
        side = model.heads * model.head_width, model.kv_heads * model.head_width
        attention = [(side[0], width), (side[1], width), (side[1], width), (width, side[0])]
        norms = [model.head_width] * 2
    else:
        channels = latent.plain_width + latent.rope_width
        attention = [
            (latent.query_rank, width), (model.heads * channels, latent.query_rank),
            (latent.rank + latent.rope_width, width),
            (model.heads * (latent.plain_width + latent.value_width), latent.rank),
            (width, model.heads * latent.value_width),
        ]  # fmt: skip
        norms = [latent.query_rank, latent.rank]
    moe = [(model.experts, width)]
    if model.shared_width:
        moe += [(2 * model.shared_width, width), (width, model.shared_width)]
    dense = [(2 * model.dense_width, width), (width, model.dense_width)]

    def rows(count, parts=ranks):
        return math.ceil(count / parts)

    def block(matrices):
        return sum(rows(out) * into for out, into in (*attention, *matrices)) + sum(map(rows, (*norms, width, width)))

    experts = rows(model.experts // ep, rest) * 3 * width * model.expert_width
    mixtures = model.layers - len(model.dense_layers)
    ends = (2 - model.tie_embeddings) * rows(model.vocab_size) * width + rows(width)
    return mixtures * (block(moe) + experts) + len(model.dense_layers) * block(dense) + ends


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_shape_is_cut_into_the_bytes_that_arithmetic_says(name):
    """Parameters, masters and AdamW's moments of the first of up to 256 ranks; nothing of it is in memory."""
    directory, parameters, axes = PUBLISHED[name]
    model = shape_of(directory)
    assert parameters_of(model) == parameters
    held = state_of(config_for(axes, format="bf16", optimizer=OptimizerConfig(name="adamw", format="bf16")), model)
    wanted = 4 * numbers_of_first_rank(model, axes)
    buffers = 4 * model.experts * len(model.moe_layers) if model.router == "sigmoid" else 0
    assert held["masters"] == wanted
    assert held["parameters"] == wanted + buffers
    tensors = 10**5  # AdamW counts the steps of each parameter
    assert wanted <= held["moments"] < wanted + tensors


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"fsdp": 2, "ep": 2}, {"ep": 4}, {"cp": 2}, {"replicate": 2, "fsdp": 2}])
def test_what_travels_is_what_the_cut_says(axes):
    """A block is gathered for its forward and for its backward, and its gradients are added once, in fp32."""
    played = rehearse(config_for(axes), SMALL)
    ranks, ep = math.prod(axes.values()) // axes.get("replicate", 1), axes.get("ep", 1)
    sent = {}
    for link, traffic in played.piece.links.items():
        sent[link.kind] = sent.get(link.kind, 0) + traffic.bytes
    stacks = 4 * SMALL.layers * SMALL.experts * 3 * SMALL.width * SMALL.expert_width
    rest = 4 * parameters_of(SMALL) - stacks
    once = (rest * (ranks - 1) + stacks / ep * (ranks / ep - 1) * ep) / ranks
    assert sent["reduce-scatters"] == pytest.approx(once, rel=0.02)
    assert once < sent["gathers"] <= 2.02 * once
    assert ("experts" in sent, "context" in sent) == (ep > 1, "cp" in axes)
    if ep > 1:  # each token to two experts and back, forward and backward, in each layer; half of them stay
        rows = 64 * SMALL.experts_per_token * SMALL.width * 4
        assert sent["experts"] == pytest.approx(4 * SMALL.layers * rows * (ep - 1) / ep, rel=0.05)
    assert ("replicas" in sent) == ("replicate" in axes)


@pytest.mark.parametrize("axes", [{"fsdp": 4}, {"fsdp": 2, "ep": 2}, {"cp": 2}])
def test_gradients_and_gathered_blocks_are_those_that_arithmetic_says(axes):
    """Of its rows a rank has gradients when the optimizer steps; of blocks it has no more than three at once."""
    model = SMALL.model_copy(update={"layers": 8})
    played = rehearse(config_for(axes), model)
    assert played.in_optimizer["gradients"] == 4 * numbers_of_first_rank(model, axes)
    here = model.model_copy(update={"experts": model.experts // axes.get("ep", 1)})
    ends = model.vocab_size * model.width + model.width
    block = (parameters_of(here) - ends) / model.layers + (model.experts - here.experts) * model.width  # all its router
    assert 4 * block < played.most["gathered"] <= 4 * (3 * block + ends) < 4 * parameters_of(here)


def test_the_kinds_of_bytes_follow_what_the_recipe_asks_for():
    plain = rehearse(config_for({"fsdp": 2}), SMALL)
    numbers = plain.held["masters"] // 4
    assert plain.in_optimizer["gradients"] == pytest.approx(4 * numbers, rel=0.05)
    kl = rehearse(config_for({"fsdp": 2}, loss=LossConfig(kl=KLConfig())), SMALL)
    assert kl.held["reference"] == kl.held["parameters"]
    parity = rehearse(config_for({"fsdp": 2}, parity_tokens=64), SMALL)
    assert parity.held["newest version"] == 2 * numbers and parity.held["older versions"] == 5 * 2 * numbers
    adapted = rehearse(config_for({"fsdp": 2}, lora={"attention": 2}), SMALL)
    assert adapted.held["masters"] < numbers and adapted.version_bytes < plain.version_bytes / 4
    longer = rehearse(config_for({"fsdp": 2}, piece_tokens=256), SMALL)
    assert longer.in_pieces["activations"] > 3 * plain.in_pieces["activations"]
    assert longer.piece.flops > 4 * plain.piece.flops and longer.held == plain.held


def test_ranks_with_all_weights_each_are_rehearsed_too():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # whoever asks for a dry run reads none of torch's
        played = rehearse(config_for(2), SMALL)
    assert played.held["masters"] == played.held["parameters"] == 4 * parameters_of(SMALL)
    assert played.pieces_at_once == 2 and not torch.distributed.is_initialized()


def test_a_mesh_that_does_not_fit_the_shape_is_refused():
    with pytest.raises(ConfigError, match="ep = 3 does not divide the model's 4 experts"):
        rehearse(config_for({"ep": 3}), SMALL)
