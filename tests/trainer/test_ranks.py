"""Two ranks, each a process of its own: the weights of one rank, bit for bit, in one chain that both upload to."""

import copy
import dataclasses
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from etude.engine.served import export_served
from etude.errors import RankLost
from etude.models.checkpoint import load_checkpoint
from etude.models.tokenizer import load_tokenizer
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer.checkpoint import load_latest
from etude.trainer.config import OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch, split
from etude.trainer.ranks import Setup, open_ranks, tensors_of_ranks
from etude.trainer.saving import Checkpoints
from etude.trainer.step import Trainer
from etude.weights.chain import Chain
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.publisher import PublisherConfig
from etude.weights.store import StoreConfig
from etude.weights.subscriber import Subscriber

SHIPPED = Path(__file__).parents[2] / "models" / "etude-tiny"
CONFIG = TrainerConfig(
    optimizer=OptimizerConfig(name="adamw", lr=1e-4),
    router_replay=False,
    piece_tokens=40,
    ranks=2,
)


def batch_at(version, lengths=(30, 25, 28)):
    """Three segments, of which a piece holds one: two rounds of work for two ranks."""
    rng = np.random.default_rng(version)
    members = []
    for number, length in enumerate(lengths):
        said = Segment(
            rng.integers(3, 900, length).astype(np.int32), np.arange(length) >= 5, np.full(length, -2.0, np.float32),
            np.full(length, version, np.int32), np.zeros((0, 0, 0), np.uint8),
        )  # fmt: skip
        members.append(Trajectory(str(number), "t", "g", (said,), (), Scored(float(number % 2), {})))
    group = Group("g", Task("t", "do", {}, Verifier({})), tuple(members))
    return build_batch([group], [np.array([-0.5, 1.0, -0.5], np.float32)], Version(version))


def setup_at(directory):
    return Setup(SHIPPED, "plain", CONFIG, 1.0, str(directory / "store"), StoreConfig(), PublisherConfig())


class Others:
    """The processes of the other ranks, each started as whoever runs them would."""

    def __init__(self):
        self.processes = []

    def start(self, rank, meeting):
        program = f"from etude.trainer.ranks import *; follow({meeting}, {rank})"
        self.processes.append(subprocess.Popen([sys.executable, "-c", program]))


def ranks_at(directory, others, setup=None):
    decoder = load_checkpoint(SHIPPED)[0] if setup is None else None
    return open_ranks(decoder, setup or setup_at(directory), others.start)


@pytest.fixture
def others():
    """Of a test; they end with rank 0's part, which a test is to end."""
    others = Others()
    yield others
    for process in others.processes:
        process.wait(60)


@pytest.fixture(scope="module")
def alone():
    """Bits, roots and metrics of one rank, version by version."""
    torch.set_num_threads(1)
    trainer = Trainer(load_checkpoint(SHIPPED)[0], CONFIG)
    assert len(list(split(batch_at(0), CONFIG.piece_tokens))) == 3
    metrics = [trainer.step(batch_at(version)) for version in range(2)]
    return export_served(trainer.policy), metrics


def two_ranks_make_and_publish_them(directory, others, wanted, metrics):
    """Two ranks after two steps, and the state after the first of them."""
    trainer, publishing = ranks_at(directory, others)
    publishing.resume(trainer.version)
    states = []
    for version in range(3):
        assert publishing.put(trainer.version, trainer.export).snapshot_ms > 0
        if version < 2:
            found = trainer.step(batch_at(version))
            assert found == metrics[version]
            states.append(copy.deepcopy(trainer.state_dict()))
    publication = publishing.published(Version(2))
    assert publication.result.root == root_of(wanted)
    store = open_store(directory / "store")
    assert [len(Chain(store).manifest(Version(version)).packs) for version in range(3)] == [2, 2, 2]
    bits, _ = Subscriber(store).fetch(None, None, Version(2))
    assert all(np.array_equal(bits[name], wanted[name]) for name in wanted)
    return trainer, publishing, states[0]


def test_two_ranks_make_and_publish_the_weights_of_one(tmp_path, alone, others):
    trainer, _, _ = two_ranks_make_and_publish_them(tmp_path, others, *alone)
    a_rank_dies(trainer, others)


@pytest.mark.proof(12)
def test_two_ranks_go_on_from_the_first_step(tmp_path, alone, others):
    """What was published after the checkpoint goes, once; the same version comes again. Then a rank dies."""
    _, publishing, state = two_ranks_make_and_publish_them(tmp_path, others, *alone)
    publishing.close()
    trainer, publishing = ranks_at(tmp_path, others)
    trainer.load_state_dict(state)
    assert publishing.resume(trainer.version, published=Version(1), counted=Version(1)) == []
    assert Chain(open_store(tmp_path / "store")).versions() == [0, 1]
    trainer.step(batch_at(1))
    publishing.put(trainer.version, trainer.export)
    assert publishing.published(Version(2)).result.root == root_of(alone[0])
    a_rank_dies(trainer, others)


def a_rank_dies(trainer, others):
    others.processes[-1].kill()
    others.processes[-1].wait()
    with pytest.raises(RankLost, match="rank 1 of the trainer has ended"):
        trainer.step(batch_at(2))
    trainer.followers.close()
    torch.distributed.destroy_process_group()


def test_every_tensor_has_one_owner_and_the_bytes_are_shared_out():
    bits = export_served(load_checkpoint(SHIPPED)[0])
    shares = tensors_of_ranks({name: each.nbytes for name, each in bits.items()}, 3)
    assert sorted(name for share in shares for name in share) == sorted(bits)
    sizes = [sum(bits[name].nbytes for name in share) for share in shares]
    assert max(sizes) < 1.2 * min(sizes)


def test_a_mesh_of_two_publishes_saves_and_goes_on(tmp_path, others):
    """Each rank reads its own rows of the shipped model, and uploads its part; a run that was killed goes on alike."""
    mesh = CONFIG.model_copy(update={"ranks": {"ep": 2}, "router_replay": None})
    setup = dataclasses.replace(setup_at(tmp_path), trainer=mesh)
    trainer, publishing = ranks_at(tmp_path, others, setup)
    publishing.resume(trainer.version)
    publishing.put(trainer.version, trainer.export)
    saved = tmp_path / "checkpoints"
    checkpoints = Checkpoints(trainer, saved)
    assert checkpoints.save(0, {}) < 1
    first = trainer.step(routed_batch())
    checkpoints.wait()
    assert checkpoints.written == 1
    publishing.put(trainer.version, trainer.export)
    root = publishing.published(Version(1)).result.root
    trainer.save_model(tmp_path / "model", load_tokenizer(SHIPPED), SHIPPED)
    publishing.close()
    store = open_store(tmp_path / "store")
    bits, _ = Subscriber(store).fetch(None, None, Version(1))
    assert root_of(bits) == root and len(Chain(store).manifest(Version(1)).packs) == 2
    base = root_of(export_served(load_checkpoint(SHIPPED)[0]))
    assert root_of(Subscriber(store).fetch(None, None, Version(0))[0]) == base != root
    assert root_of(export_served(load_checkpoint(tmp_path / "model")[0])) == root, "what is written is what is served"
    trainer, publishing = ranks_at(tmp_path, others, setup)
    trainer.load_state_dict(load_latest(saved)["trainer"], saved)
    publishing.resume(trainer.version, published=Version(0))
    assert trainer.step(routed_batch()) == first
    publishing.put(trainer.version, trainer.export)
    assert publishing.published(Version(1)).result.root == root
    a_rank_dies_while_a_checkpoint_is_written(trainer, others, saved)


def a_rank_dies_while_a_checkpoint_is_written(trainer, others, saved):
    """Whoever waits for it hears that a rank is gone, and what was there before is whole."""
    before = load_latest(saved)["trainer"]["version"]
    checkpoints = Checkpoints(trainer, saved)
    checkpoints.save(1, {})
    others.processes[-1].send_signal(signal.SIGSTOP)  # it has copied its part, and not written it
    dying = threading.Timer(1.0, others.processes[-1].kill)
    dying.start()
    with pytest.raises(RankLost, match="a rank ended while it was written"):
        checkpoints.wait()
    dying.join()
    assert load_latest(saved)["trainer"]["version"] == before
    trainer.followers.close()
    torch.distributed.destroy_process_group()


def routed_batch():
    """With routes of the shipped model's shape."""
    config, rng = load_checkpoint(SHIPPED)[0].config, np.random.default_rng(0)
    batch = batch_at(0)
    odds = rng.random((len(batch.token_ids), len(config.moe_layers), config.experts))
    routes = odds.argsort(-1)[..., : config.experts_per_token].astype(np.uint8)
    return dataclasses.replace(batch, routed_experts=routes, routed_mask=np.ones(len(routes), bool))
