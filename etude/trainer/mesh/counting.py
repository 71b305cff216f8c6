"""What operations hold, compute, touch and send, counted while they are played without values.

Owns `Counting`, a dispatch mode that sees every operation below autograd, those of a backward and of FSDP too. Memory
is counted by storages, from the operation that makes one until nobody holds it, so that a view costs nothing, and a
gathered block that FSDP frees is gone. Traffic is what a rank sends, by the kind of the exchange and the ranks that it
is among. Reads no value, and so may be entered around `torch._subclasses.FakeTensorMode`. Knows nothing of recipes.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from etude.trainer.mesh.sharding import here

GATHERED, GRADIENTS, LOGITS, ROUTES, ACTIVATIONS = "gathered", "gradients", "logits", "routes", "activations"
_FACTORS = 2
"""What is multiplied comes first of what an operation is given. The rest may have another format: a backward of
attention in bf16 is given the sums that its softmax divided by, in fp32."""


class Link(NamedTuple):
    """What is exchanged, among which ranks."""

    kind: str
    ranks: tuple[int, ...]


class Traffic(NamedTuple):
    """What one rank sends over a link."""

    bytes: int
    calls: int


class Work(NamedTuple):
    """What one rank computes and sends within a stretch."""

    flops: float
    touched: float
    """Bytes that operations read and write, one after the other, as they are not fused."""
    calls: int
    """Operations that are asked for."""
    links: Mapping[Link, Traffic]
    fp32_flops: float = 0.0
    """Those of `flops` whose operands are fp32: what is slower on a device that has fast products for bf16."""


def added(*works: Work) -> Work:
    """One after the other."""
    links: dict[Link, Traffic] = {}
    for link, (sent, calls) in (each for work in works for each in work.links.items()):
        before = links.get(link, Traffic(0, 0))
        links[link] = Traffic(before.bytes + sent, before.calls + calls)
    flops, touched = sum(work.flops for work in works), sum(work.touched for work in works)
    fp32_flops = sum(work.fp32_flops for work in works)
    return Work(flops, touched, sum(work.calls for work in works), links, fp32_flops)


class Counting(TorchDispatchMode):
    """Counts while it is entered."""

    def __init__(self, ep_ranks: tuple[int, ...], vocab_size: int, routes: tuple[int, int]) -> None:
        """`ep_ranks` are those that have the other experts; `routes` the layers and choices of one token's."""
        super().__init__()
        self._ep_ranks, self._vocab_size, self._routes = ep_ranks, vocab_size, routes
        self._sizes: dict[int, tuple[str, int]] = {}
        """Of storages that are alive, their kind and bytes."""
        self.held: Counter[str] = Counter()
        self.fullest: dict[str, int] = {}
        """What was held when most was, by kind, since `begin`."""
        self.most: dict[str, int] = {}
        """Of each kind by itself, since then."""
        self.begin()

    def begin(self) -> None:
        """Count a new stretch: what is held stays."""
        self._flops, self._fp32_flops, self._touched, self._calls = 0.0, 0.0, 0.0, 0
        self._links: dict[Link, list[int]] = {}
        self.fullest, self.most = dict(self.held), dict(self.held)

    @property
    def work(self) -> Work:
        """Of the stretch."""
        links = {key: Traffic(*each) for key, each in self._links.items()}
        return Work(self._flops, self._touched, self._calls, links, self._fp32_flops)

    def __enter__(self) -> Self:
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:  # how FSDP frees and takes back a block that it has gathered
            done = resize(storage, size)
            self._add(storage, GATHERED)
            return done

        self._resize: Callable[..., Any] = resize
        torch.UntypedStorage.resize_ = resized  # ty: ignore[invalid-assignment]
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # ty: ignore[invalid-assignment]
        super().__exit__(exc_type, exc_val, exc_tb)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # what it does to this rank's part is seen next
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        fused = "fused_adamw" in func.__name__  # torch has it for tensors with values alone
        out = None if fused else func(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _tensors(out)
        for tensor in made:
            self._add(tensor.untyped_storage(), self._kind_of(tensor))
        self._calls += not func.is_view
        if func.namespace in ("c10d", "_c10d_functional"):
            self._exchanged(func, args, given, made)
        elif not func.is_view:
            self._touched += sum(each.numel() * each.element_size() for each in (*given, *made))
            flops = _flops(func, args, kwargs, out)
            self._flops += flops
            self._fp32_flops += flops * any(each.dtype == torch.float32 for each in given[:_FACTORS])
        if func.namespace == "fsdp":
            self.tag(GATHERED, (*made, *_tensors(kwargs.get("out"))))
        return out

    # --- memory -------------------------------------------------------------------------------------------------------

    def tag(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Say what these are."""
        for tensor in tensors:
            self._add(here(tensor).untyped_storage(), kind, known=True)

    def _kind_of(self, tensor: Tensor) -> str:
        if tensor.dim() == 3 and tuple(tensor.shape[1:]) == self._routes:
            return ROUTES
        return LOGITS if tensor.dim() > 1 and tensor.shape[-1] == self._vocab_size else ACTIVATIONS

    def _add(self, storage: Any, kind: str, known: bool = False) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            former, before = self._sizes[key]
            if size == before and not known:
                return
            kind = kind if known else former
            self.held[former] -= before
        else:
            weakref.finalize(storage, self._gone, key).atexit = False
        self._sizes[key] = kind, size
        self.held[kind] += size
        self.most[kind] = max(self.most.get(kind, 0), self.held[kind])
        if self.held.total() > sum(self.fullest.values()):
            self.fullest = dict(self.held)

    def _gone(self, key: int) -> None:
        kind, size = self._sizes.pop(key)
        self.held[kind] -= size

    # --- traffic ------------------------------------------------------------------------------------------------------

    def _exchanged(self, function: Any, args: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        group = next((found for each in args if (found := _group(each)) is not None), None)
        if group is None:
            return  # a wait for an exchange that is counted
        ranks = tuple(dist.get_process_group_ranks(group))
        kind, times = self._kind_of_exchange(function, given, ranks)
        largest = max((each.numel() * each.element_size() for each in (*given, *made)), default=0)
        before = self._links.setdefault(Link(kind, ranks), [0, 0])
        before[0] += times * largest * (len(ranks) - 1) // len(ranks)
        before[1] += 1

    def _kind_of_exchange(self, function: Any, given: Sequence[Tensor], ranks: tuple[int, ...]) -> tuple[str, int]:
        """And how often the whole of it is sent. Two groups of the same ranks may be one, so that it is told by what is
        exchanged: FSDP's tensors are known by then.
        """
        name = function.__name__
        if "alltoall_base" in name:
            return ("directions" if given[0].is_floating_point() else "experts"), 1  # how many tokens will come
        if "all_to_all" in name:
            return ("experts" if ranks == self._ep_ranks else "context"), 1
        if "allgather" in name:
            if self._kind(given[0]) == GATHERED:
                return "gathers", 1
            return ("figures" if given[0].dtype == torch.float64 else "context"), 1
        if "reduce_scatter" in name:
            if self._kind(given[1]) != GATHERED:
                return "context", 1
            self.tag(GRADIENTS, given[:1])
            return "reduce-scatters", 1
        return ("replicas" if self._kind(given[0]) == GRADIENTS else "figures"), 2

    def _kind(self, tensor: Tensor) -> str:
        return self._sizes.get(tensor.untyped_storage()._cdata, ("", 0))[0]


def _tensors(of: Any) -> list[Tensor]:
    return [each for each in tree_leaves(of) if isinstance(each, Tensor)]


def _group(argument: Any) -> Any:
    """The process group that an argument is or names."""
    if isinstance(argument, str):
        return _resolve_process_group(argument)
    if isinstance(argument, torch.ScriptObject):
        try:
            return dist.ProcessGroup.unbox(argument)
        except RuntimeError:
            return None  # an option of another kind
    return None


def _flops(function: Any, args: Any, kwargs: Any, out: Any) -> float:
    packet = function._overloadpacket
    if "scaled_dot_product" in packet.__name__:
        return _attention_flops(packet.__name__, args)
    count = flop_registry.get(packet)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


def _attention_flops(name: str, args: Any) -> float:
    """Of causal attention, whose kernels skip the half that is masked: two products, and five in a backward."""
    backward = name.endswith("backward")
    query, key, value = args[1:4] if backward else args[:3]
    batch, heads, length, width = query.shape
    pairs = batch * heads * length * key.shape[2] / 2
    forward = 2 * pairs * (width + value.shape[3])
    return 2.5 * forward if backward else forward
