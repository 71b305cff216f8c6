"""A trainer of several ranks: each a process with a share of the work, and of the weights in a mesh.

Owns how they meet, what each publishes, and how ranks share a step that hold all weights each (those of a mesh:
`mesh.together`): a batch's pieces are worked through in rounds, a piece a rank; every piece's gradients go to all ranks
and are added in the order of the pieces, as one rank would add them, so that the weights' bits do not depend on how
many ranks there are. That costs a broadcast of the gradients a piece, where an all-reduce would take one a round and
leave other bits. Lessons, which are few, each rank learns by itself. All ranks then take the same optimizer step.

Of every version a rank copies, encodes and uploads its own tensors in the background (`weights.shards`). Rank 0 is the
process that `open_ranks` is called in: it alone answers the controller, saves checkpoints, and goes back in the store.
The others `follow` it, on this machine or on others, and end with it. When one of them is gone, whatever all do next
raises RankLost: they can only start anew together, from a checkpoint. Talks to: followers, step, weights.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from etude.deadlines import scaled
from etude.errors import EtudeError
from etude.models.checkpoint import load_checkpoint
from etude.models.config import ExpertFormat
from etude.models.decoder import Decoder
from etude.models.expert_format import set_expert_format
from etude.records import BASE_VERSION, Batch, Version
from etude.trainer.config import TrainerConfig
from etude.trainer.feedback import HintExample
from etude.trainer.followers import START_S, Followers, Meeting, Start, obey
from etude.trainer.pieces import WHOLE
from etude.trainer.saving import Saving
from etude.trainer.step import Trainer
from etude.trainer.trained import Trained
from etude.weights.background import BackgroundPublisher, HandOver, Publication, Snapshot
from etude.weights.manifest import Bits
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig, PublishResult
from etude.weights.shards import Shard
from etude.weights.store import StoreConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from etude.trainer.mesh.together import Mesh

T = TypeVar("T")
_INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable that says which network interface gloo uses: the user's, where it is set."""
LOOPBACK = "127.0.0.1"
"""Of a rank whose others are all on its machine."""


@dataclass(frozen=True)
class Setup:
    """What a rank needs to know to be one."""

    model: Path
    expert_format: ExpertFormat
    trainer: TrainerConfig
    temperature: float
    store: str
    weight_store: StoreConfig
    publisher: PublisherConfig
    address: str = LOOPBACK
    """Of this rank, as the others reach it."""
    rank: int = 0
    attempt: str = ""
    rendezvous: tuple[str, int] = ("", 0)

    def join(self, store: dist.Store | None = None) -> None:
        """Meet the other ranks: at rank 0's store, whose own that is."""
        if _INTERFACE not in os.environ:
            os.environ[_INTERFACE] = interface_of(self.address)
        ranks, patience = self.trainer.processes, timedelta(seconds=scaled(START_S))
        if store is None:
            store = dist.TCPStore(*self.rendezvous, ranks, is_master=False, timeout=patience)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=ranks, timeout=patience)

    def enter(self, decoder: Decoder | None, store: dist.Store | None = None) -> tuple[Decoder, Ranks | Mesh]:
        """Meet the others, with a decoder that is whole where there is one; returns that which this rank trains, and
        how ranks share a step. Raises ConfigError for a mesh that does not fit the model.
        """
        if self.trainer.mesh is not None:
            from etude.trainer.mesh.opening import open_mesh

            self.join(store)
            mesh = open_mesh(self.trainer, self.model)
            return mesh.sharded.policy, mesh
        if decoder is None:
            decoder, _ = load_checkpoint(self.model)
            set_expert_format(decoder, self.expert_format)
        self.join(store)
        return decoder, Ranks(self.rank, self.trainer.processes)

    def publishing(self, trained: Trained) -> tuple[frozenset[str], BackgroundPublisher]:
        """The names of the tensors that this rank publishes, and what does it."""
        owned = tensors_of_ranks(trained.sizes(), self.trainer.processes)
        trained.owns(owned)
        shard = Shard(self.rank, len(owned), self.attempt, owned[self.rank])
        store = open_store(self.store, self.weight_store)
        return owned[self.rank], BackgroundPublisher(Publisher(store, self.publisher, shard=shard))


def interface_of(address: str) -> str:
    """The network interface of this machine that has an address, which may be given by a name. Raises EtudeError where
    none has.
    """
    meant = {address}
    with suppress(OSError):
        meant |= {str(each[4][0]) for each in socket.getaddrinfo(address, None)}
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address in meant for each in addresses):
            return name
    raise EtudeError(
        f"no network interface of this machine has the address {address}, by which Ray knows it; name the one by which "
        f"the others reach it in {_INTERFACE} (`ip addr` lists them), in [env] of the file of `etude cluster`"
    )


def _rendezvous(setup: Setup) -> tuple[Setup, dist.Store]:
    """Rank 0's setup, and the store in which ranks find each other's addresses; nobody else's network reaches it."""
    with socket.create_server((setup.address, 0)) as server:
        port, descriptor = server.getsockname()[1], server.detach()
    store = dist.TCPStore(
        setup.address, port, setup.trainer.processes, is_master=True, wait_for_workers=False,
        timeout=timedelta(seconds=scaled(START_S)), master_listen_fd=descriptor,
    )  # fmt: skip
    return replace(setup, attempt=secrets.token_hex(16), rendezvous=(setup.address, port)), store


def tensors_of_ranks(sizes: Mapping[str, int], ranks: int) -> list[frozenset[str]]:
    """The tensors that each rank publishes: the largest first, each to the rank that has the fewest bytes so far."""
    shares: list[set[str]] = [set() for _ in range(ranks)]
    taken = [0] * ranks
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = taken.index(min(taken))
        shares[least].add(name)
        taken[least] += sizes[name]
    return [frozenset(each) for each in shares]


class Ranks:
    """The ranks as one of them sees them, within a step. All make the same calls, and each has all weights."""

    context = WHOLE
    lesson_share = 1.0

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def trained(self, decoder: Decoder, config: TrainerConfig) -> Trained:
        return Trained(decoder, config)

    def run_pieces(self, pieces: Sequence[Batch], work: Callable[[Batch], T], parameters: Sequence[Tensor]) -> list[T]:
        """What `work` gives for every piece, whose gradients it leaves in `parameters`: there, their sum."""
        done: list[T] = []
        totals: list[Tensor | None] = [None] * len(parameters)
        for first in range(0, len(pieces), self.size):
            now = pieces[first : first + self.size]
            mine = work(now[self.rank]) if self.rank < len(now) else None
            own = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            gathered: list[Any] = [None] * self.size
            dist.all_gather_object(gathered, (mine, [grad is not None for grad in own]))
            for owner, (result, has) in enumerate(gathered[: len(now)]):
                done.append(result)
                self._add(totals, own, has, owner, parameters)
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = total
        return done

    def _add(
        self, totals: list[Tensor | None], own: list[Tensor | None], has: list[bool], owner: int, like: Sequence[Tensor]
    ) -> None:
        """Add one rank's gradients, which every rank gets."""
        for at, total in enumerate(totals):
            if has[at]:
                grad = own[at] if owner == self.rank else torch.empty_like(like[at])
                assert grad is not None
                grad = grad.contiguous()
                dist.broadcast(grad, owner)
                totals[at] = grad if total is None else total.add_(grad)


class _Follower:
    """A rank but the first: does what it is told (`followers.obey`)."""

    def __init__(self, setup: Setup) -> None:
        decoder, ranks = setup.enter(None)
        self.trainer = Trainer(decoder, setup.trainer, setup.temperature, ranks)
        self.saving = Saving(self.trainer)
        self.names, self.publishing = setup.publishing(self.trainer.trained)

    def load(self, state: Mapping[str, Any], directory: Path | None) -> None:
        self.trainer.load_state_dict(state, directory)

    def save(self, shards: Path) -> None:
        self.saving.put(shards)

    def save_model(self, directory: Path, like: Path) -> None:
        self.trainer.save_model(directory, None, like)

    def resume(self) -> None:
        self.publishing.resume(self.trainer.version)

    def step(self, batch: Batch, progress: float, hints: Sequence[HintExample]) -> Version:
        self.trainer.step(batch, progress, hints)
        return self.trainer.version

    def put(self) -> HandOver:
        return self.publishing.put(self.trainer.version, lambda into: self.trainer.trained.export(into, self.names))

    def close(self) -> None:
        self.saving.close()
        self.publishing.close()


class RankedTrainer(Trainer):
    """Rank 0 of several; use it like a trainer of one rank."""

    def __init__(self, decoder: Decoder | None, setup: Setup, store: dist.Store, followers: Followers) -> None:
        mine, ranks = setup.enter(decoder, store)
        super().__init__(mine, setup.trainer, setup.temperature, ranks)
        self.followers = followers
        self.names: frozenset[str] = frozenset()
        """The tensors that this rank publishes."""

    def step(self, batch: Batch, progress: float = 0.0, hints: Sequence[HintExample] = ()) -> dict[str, Any]:
        self.followers.send("step", batch, progress, hints)
        with self.followers.together():
            metrics = super().step(batch, progress, hints)
        versions = self.followers.receive("to end its step", scaled(START_S))
        if any(version != self.version for version in versions):
            raise EtudeError(f"rank 0 made version {self.version}, the others {versions}: they are out of step")
        return metrics

    def load_state_dict(self, state: Mapping[str, Any], directory: Path | None = None) -> None:
        self.followers.send("load", state, directory)
        with self.followers.together():
            super().load_state_dict(state, directory)
        self.followers.receive("to load the checkpoint", scaled(START_S))

    def copied(self, shards: Path | None) -> dict[str, Any]:
        """The others copy theirs too, and each writes its own beside the next step."""
        if self.config.mesh is None:
            return super().copied(shards)
        self.followers.send("save", shards)
        found = super().copied(shards)
        self.followers.receive("to copy its part of the checkpoint", scaled(START_S))
        return found

    def save_model(self, directory: Path, tokenizer: Tokenizer | None, like: Path) -> None:
        if self.config.mesh is not None:
            self.followers.send("save_model", directory, like)
        with self.followers.together():
            super().save_model(directory, tokenizer, like)
        if self.config.mesh is not None:
            self.followers.receive("to hand its part of the model over", scaled(START_S))

    def export(self, into: Bits | None = None) -> Bits:
        """A copy of this rank's tensors."""
        return self.trained.export(into, self.names)


class RankedPublishing:
    """All ranks' publishing, seen from rank 0, whose own this is besides."""

    def __init__(self, own: BackgroundPublisher, followers: Followers) -> None:
        self._own, self._followers = own, followers

    def resume(
        self, version: Version, published: Version | None = None, counted: Version = BASE_VERSION
    ) -> list[PublishResult]:
        found = self._own.resume(version, published, counted)
        self._followers.send("resume")
        self._followers.receive("to take up the chain", scaled(START_S))
        return found

    def put(self, version: Version, snapshot: Snapshot) -> HandOver:
        self._followers.send("put")
        with self._followers.together():
            own = self._own.put(version, snapshot)
        costs = [own, *self._followers.receive("to copy its tensors", self._own.deadline_s)]
        return HandOver(max(cost.snapshot_ms for cost in costs), max(cost.stall_ms for cost in costs))

    def published(self, version: Version) -> Publication:
        return self._own.published(version)

    @property
    def visible(self) -> Version | None:
        return self._own.visible

    @property
    def encoded_bytes(self) -> int:
        return self._own.encoded_bytes

    def close(self) -> None:
        """Publish what was handed over, then end the other ranks."""
        self._followers.send("close")
        self._own.close()
        self._followers.receive("to publish the last version", self._own.deadline_s)
        self._followers.close()
        dist.destroy_process_group()


def open_ranks(
    decoder: Decoder | None, setup: Setup, start: Start | None = None
) -> tuple[Trainer, BackgroundPublisher | RankedPublishing]:
    """A trainer with as many ranks as its config says, and what publishes its versions. `decoder` is rank 0's, loaded
    from the setup's model and set to its format; None for a mesh, each rank of which reads what it is to hold. `start`
    has the process of another rank `follow`. Raises RankLost if one ends before all have met, or EtudeError.
    """
    if setup.trainer.ranks == 1:
        assert decoder is not None
        publisher = Publisher(open_store(setup.store, setup.weight_store), setup.publisher)
        return Trainer(decoder, setup.trainer, setup.temperature), BackgroundPublisher(publisher)
    assert start is not None, "whoever has several ranks says where they run"
    setup, store = _rendezvous(setup)
    followers = Followers(setup.trainer.processes, setup.address, start)
    followers.begin(lambda rank: replace(setup, rank=rank))
    with followers.together():
        trainer = RankedTrainer(decoder, setup, store, followers)
        trainer.names, own = setup.publishing(trainer.trained)
    followers.receive("to start", scaled(START_S))
    return trainer, RankedPublishing(own, followers)


def follow(meeting: Meeting, rank: int, address: str = LOOPBACK) -> None:
    """Be this rank, in a process that the others reach by this address, for as long as rank 0 lives. Raises RankLost
    where another rank is gone, and EtudeError for what it has failed of itself.
    """
    obey(meeting, rank, lambda setup: _Follower(replace(setup, address=address)))
