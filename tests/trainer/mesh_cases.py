"""What the ranks of `mesh_world` do, and what one process does in their place."""

import hashlib
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import scale
from mesh_world import World

from etude.errors import CheckpointError
from etude.kernels.choice import choose
from etude.models.config import LatentConfig, ModelConfig
from etude.trainer import activations, checkpoint
from etude.trainer.config import GateConfig, KLConfig, LossConfig, OptimizerConfig, TrainerConfig
from etude.trainer.feedback import HintExample
from etude.trainer.losses import shares_of
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sharding import Sharded, from_checkpoint, from_decoder
from etude.trainer.mesh.together import Mesh
from etude.trainer.packing import split
from etude.trainer.ranks import tensors_of_ranks
from etude.trainer.saving import Saving
from etude.trainer.step import Trainer

SHAPES = {  # rows of the second are not cut evenly
    "experts": ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16),
    "latent": ModelConfig(
        vocab_size=97, width=32, layers=2, heads=4, dense_layers=(0,), dense_width=32, experts=8, expert_width=16,
        router="sigmoid", expert_groups=2, groups_per_token=1, shared_width=16, tie_embeddings=False,
        further_token=True, latent=LatentConfig(query_rank=18, rank=12, plain_width=8, rope_width=4, value_width=6),
    ),
    "dense": ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=32),
}  # fmt: skip
LORA = {"experts": {"attention": 4, "experts": 4}, "latent": {"attention": 4}, "dense": {"attention": 4, "dense": 4}}
LOSS = LossConfig(kl=KLConfig(estimator="k3"), entropy_bonus=0.01, gate=GateConfig(band=(0.01, 100)))
PIECES = 80
"""Tokens of a piece: four pieces, so that of three rounds with two ranks the last is not full."""


HINT = HintExample(np.arange(9, dtype=np.int32), np.arange(12, dtype=np.int32), 4)


def ranks_at_work():
    """A fixture's four ranks. What a case sets in this process too, as `trainer_of` does, is not for other tests."""
    kept = activations.VOCABULARY_BYTES, activations.BLOCKS_BYTES
    found = World(4, "mesh_cases")
    yield found
    found.close()
    activations.VOCABULARY_BYTES, activations.BLOCKS_BYTES = kept


def config_for(shape, optimizer, lora, axes=1, **more):
    """Everything is on that changes a loss."""
    rates = {"lr": 0.01} | ({"eps": 1e-3} if not (lora and optimizer == "muon") else {})
    settings = {
        "loss": LOSS, "divergence_target": 0.001, "piece_tokens": PIECES, "parity_tokens": 64, "ranks": axes,
        "optimizer": OptimizerConfig(name=optimizer, **rates), "lora": LORA[shape] if lora else None,
        "credit": {"feedback": {}},
    }  # fmt: skip
    return TrainerConfig(**(settings | more))


def batch_for(shape, version=0):
    """Segments of all lengths, with routes; some are a version old."""
    model = SHAPES[shape].model_copy(update={"max_context": 64})
    return scale.batch_for(model, 300, version, version, min(version, 1))


def trainer_of(shape, config, files=None):
    """One of a process alone where the config names no mesh. `files` is a checkpoint to read in place of a decoder."""
    activations.VOCABULARY_BYTES = 4 * 96 * 7  # logits of seven tokens at once
    activations.BLOCKS_BYTES = 2**30
    while config.optimizer.name == "muon" and not activations.recomputes_blocks(SHAPES[shape], 60):
        activations.BLOCKS_BYTES *= 0.9  # blocks of long pieces are computed twice, and of short ones not
    base = scale.base_for(SHAPES[shape])
    if config.mesh is None:
        return Trainer(base.place(choose("torch", "cpu")), config)
    layout = Layout(config.mesh)
    with nullcontext(from_decoder(base)) if files is None else from_checkpoint(files) as source:
        sharded = Sharded(SHAPES[shape], layout, torch.device("cpu"), config.format).fill(source)
    return Trainer(sharded.policy, config, ranks=Mesh(layout, sharded, config))


def whole(trainer, tensors):
    """Whole tensors, by name, from rows of what is trained."""
    if trainer.config.mesh is None:
        return {name: each.detach().numpy().copy() for name, each in tensors.items()}
    spread = {name: trainer.trained.spread(name, each.detach()) for name, each in tensors.items()}
    return {name: _full(trainer, name, each) for name, each in spread.items()}


def _full(trainer, name, tensor):
    """Put together by hand, by what each rank says of its rows."""
    layout, rows = trainer.ranks.layout, rows_of(trainer, name)
    told = [None] * layout.sizes.world
    dist.all_gather_object(told, (rows, trainer.trained.here(tensor).numpy()))
    full = np.full(tensor.shape, np.nan, np.float32)
    for (start, stop), part in told:
        assert np.isnan(full[start:stop]).all() or np.array_equal(full[start:stop], part), "replicas agree"
        full[start:stop] = part
    assert not np.isnan(full).any()
    return full


def rows_of(trainer, name):
    if trainer.trained.replicated(name):
        return 0, trainer.trained.shapes[name][0]
    return tuple(trainer.trained.sharded.rows(name.removesuffix(".lora_a").removesuffix(".lora_b")))


def gradients(trainer, batch):
    """Of a whole batch, by name, and the loss."""
    shares = torch.from_numpy(shares_of(batch, trainer.config.loss))
    pieces = [piece for piece in split(batch, PIECES) if piece.loss_mask.any()]
    loss = sum(float(result.sums["loss"]) for result in trainer.forward_backward(pieces, shares))
    trainer.trained.take_gradients()
    trained = trainer.trained.trained
    found = whole(trainer, {name: each.grad for name, each in trained.items() if each.grad is not None})
    trainer.optimizer.zero_grad()
    return found | {"loss": np.float64(loss)}


def one_step(shape, optimizer, lora, axes=1):
    """Gradients, how far a step has moved what is trained, what it says, and what it has seen of each token."""
    trainer = trainer_of(shape, config_for(shape, optimizer, lora, axes))
    found = gradients(trainer, batch_for(shape))
    before = {name: each.detach().clone() for name, each in trainer.trained.trained.items()}
    told = trainer.step(batch_for(shape), 0.0, [HINT])
    moved = whole(trainer, {name: each - before[name] for name, each in trainer.trained.trained.items()})
    return found, moved, told, trainer.seen


def bf16_gradients(shape, axes, form):
    """Of a trainer that gathers its weights in this format."""
    return gradients(trainer_of(shape, config_for(shape, "adamw", False, axes, format=form)), batch_for(shape))


def steps(shape, optimizer, lora, axes, count):
    """How far so many steps have moved what is trained, and what each said."""
    trainer = trainer_of(shape, config_for(shape, optimizer, lora, axes, divergence_target=None))
    before = {name: each.detach().clone() for name, each in trainer.trained.trained.items()}
    told = [trainer.step(batch_for(shape, number)) for number in range(count)]
    return whole(trainer, {name: each - before[name] for name, each in trainer.trained.trained.items()}), told


def looks(shape, axes, recomputed):
    """How many pieces this rank has in a step, and its looks at values, by name."""
    config = config_for(shape, "adamw", False, axes, parity_tokens=0, loss=LossConfig(), credit={})
    trainer, batch = trainer_of(shape, config), batch_for(shape)
    activations.BLOCKS_BYTES = 0 if recomputed else 2**30
    pieces = sum(bool(piece.loss_mask.any()) for piece in split(batch, PIECES))
    return -(-pieces // trainer.ranks.layout.sizes.data), dict(scale.syncs(trainer, batch))


def published(shape, lora, axes):
    """After a step: this rank's arrays, and what is trained, whole. The second export writes over the first."""
    trainer = trainer_of(shape, config_for(shape, "adamw", lora, axes, frozen=() if lora else ("embeddings",)))
    owned = tensors_of_ranks(trainer.trained.sizes(), dist.get_world_size())
    trainer.trained.owns(owned)
    first = trainer.trained.export(None, owned[dist.get_rank()])
    trainer.step(batch_for(shape))
    bits = trainer.trained.export(first, owned[dist.get_rank()])
    assert all(bits[name] is array for name, array in first.items() if name != "adapted.root"), "in their old places"
    return bits, whole(trainer, trainer.trained.trained)


def moments(trainer):
    """Of all that is trained, whole, by name and kind."""
    found = {}
    for name, parameter in trainer.trained.trained.items():
        for optimizer in trainer.optimizer.optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                if value.shape == parameter.shape:
                    found[f"{name} {key}"] = whole(trainer, {name: value.float()})[name]
    return found


def goes_on(shape, optimizer, lora, axes, form, directory, take, save):
    """From a checkpoint, if told so, by a step, into another; returns what is trained, before that step and after."""
    config = config_for(shape, optimizer, lora, axes)
    config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"format": form})})
    trainer = trainer_of(shape, config)
    if take:
        state = checkpoint.load(directory / take)
        trainer.load_state_dict(state["trainer"], directory)
    before = whole(trainer, trainer.trained.trained) | moments(trainer)
    trainer.step(batch_for(shape, int(trainer.version)))
    if save:
        begin_to_save(saving := Saving(trainer), directory)
        saving.wait()
    return before, whole(trainer, trainer.trained.trained) | moments(trainer)


def begin_to_save(saving, directory, keep=2):
    """As the ranks of a trainer do: each writes its own, rank 0 the checkpoint's file."""
    version, shards = saving.trainer.version, [checkpoint.shards_path(directory, saving.trainer.version)]
    dist.broadcast_object_list(shards, 0)

    def finish(state):
        if dist.get_rank() == 0:
            checkpoint.save(directory, version, {"trainer": state}, keep, shards[0])

    saving.put(shards[0], finish)


def cannot_write(directory):
    """Each rank's error when rank 1 cannot write its shards: what should be a directory is a file there."""
    trainer = trainer_of("experts", config_for("experts", "adamw", False, {"ep": 2}))
    (directory / "file").touch()
    saving = Saving(trainer)
    saving.put(directory / ("file" if dist.get_rank() == 1 else "directory") / "step-00000001.shards-0")
    try:
        saving.wait()
    except CheckpointError as error:
        return str(error)


def written(shape, lora, axes, base, directory):
    """A model read from files, adapted or not, and written to others without a step in between."""
    trainer = trainer_of(shape, config_for(shape, "adamw", lora, axes), files=base)
    trainer.save_model(directory / "model", None, base)


def saves(axes, directory, upto, who=None, event=0):
    """Goes on from the newest checkpoint, if there is one, with a save a step, each beside the next step. Rank `who`
    kills itself at an event of its last save: when it opens, makes, renames or removes something there. Returns what is
    trained, by version, and how many events there were.
    """
    trainer = trainer_of("experts", config_for("experts", "adamw", False, axes))
    if (state := checkpoint.load_latest(directory)) is not None:
        trainer.load_state_dict(state["trainer"], directory)
    found, events = {int(trainer.version): digest(trainer)}, [-1]

    def watch(name, given):
        if events[0] < 0 or not name.startswith(("open", "os.", "shutil.")) or str(directory) not in str(given[:1]):
            return
        events[0] += 1
        if dist.get_rank() == who and events[0] == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    saving = Saving(trainer)
    try:
        while trainer.version < upto:
            trainer.step(batch_for("experts", int(trainer.version)))
            found[int(trainer.version)] = digest(trainer)
            saving.wait()  # what is counted and killed is the last one
            events[0] = 0 if trainer.version == upto else -1
            begin_to_save(saving, directory, keep=1)
        trainer.step(batch_for("experts", upto))
        saving.wait()
    finally:
        saving.close()
        seen, events[0] = events[0], -1
    return found, seen


def threads():
    """Of this rank, those of its present group among them."""
    dist.barrier()  # who is done leaves the group, and one that has not met all others yet would wait for it
    return len(os.listdir("/proc/self/task"))


def digest(trainer):
    """Of all that is trained, and its moments."""
    state = whole(trainer, trainer.trained.trained) | moments(trainer)
    return hashlib.blake2b(b"".join(name.encode() + state[name].tobytes() for name in sorted(state))).hexdigest()
