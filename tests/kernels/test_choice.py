"""The one choice of kernels and device, and that what is chosen computes the same."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from etude.errors import ConfigError
from etude.kernels import choice
from etude.kernels.choice import choose, of_process
from etude.kernels.exact import EXACT
from etude.kernels.groups import Groups
from etude.kernels.padded import PaddedSegments
from etude.kernels.torch_kernels import TORCH, Choices
from etude.models.checkpoint import load_checkpoint

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
ASKS_A_TENSOR_WHERE_IT_LIES = re.compile(r"\bis_cpu\b|\bis_cuda\b|device\.type|device_type\b|get_device_capability")
ASKS_A_DEVICE = re.compile(r"kernels\.devices import (?!put$)", re.MULTILINE)
"""Who puts something on a device need not know which it is."""


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_one_module_asks_where_a_tensor_lies():
    asking = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "etude").rglob("*.py")
        if ASKS_A_TENSOR_WHERE_IT_LIES.search(path.read_text())
    }
    assert asking == {"etude/kernels/devices.py"}
    using = {path.stem for path in (ROOT / "etude").rglob("*.py") if ASKS_A_DEVICE.search(path.read_text())}
    assert using == {"choice", "triton_grouped_gemm", "offload", "preflight"}  # the last remarks on idle GPUs


def test_the_default_follows_the_device(monkeypatch):
    assert choose() == choose("exact") == choose(device="cpu") == (EXACT, torch.device("cpu"))
    assert choose("torch") == (TORCH, torch.device("cpu"))
    assert choose(device="meta") == (TORCH, torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose() == choose("torch") == choose(device="cuda") == (TORCH, torch.device("cuda"))
    assert choose("exact") == (EXACT, torch.device("cpu"))


def test_a_process_is_told_by_a_variable(monkeypatch):
    assert of_process() == choice.HOST
    monkeypatch.setenv("ETUDE_KERNELS", "torch")
    assert of_process() == choose("torch")
    assert load_checkpoint(ROOT / "models/etude-tiny")[0].placement == choose("torch")
    monkeypatch.setenv("ETUDE_KERNELS", "cuda")
    with pytest.raises(ConfigError, match="ETUDE_KERNELS=cuda: there are no such kernels; set it to exact, torch"):
        load_checkpoint(ROOT / "models/etude-tiny")


def test_what_does_not_go_together_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match='"exact" compute on a CPU, not on cuda'):
        choose("exact", "cuda")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match='"triton" need a GPU'):
        choose("triton", "cpu")


def test_a_missing_triton_is_named(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "etude.kernels.triton_kernels", None)
    with pytest.raises(choice.MissingDependency, match="pip install triton"):
        choose("triton", "cpu")


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3], [64, 1, 33, 32, 31, 7], [5] * 40])
def test_padded_segments_attend_as_each_would_alone(lengths):
    tokens = sum(lengths)
    q, k, v = drawn(0, tokens, 4, 8), drawn(1, tokens, 2, 8), drawn(2, tokens, 2, 6)
    segments = PaddedSegments(lengths, torch.device("cpu"))
    alone = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in each), is_causal=True, enable_gqa=True)[0]
        for each in zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    ]
    torch.testing.assert_close(segments.attend(q, k, v, 8**-0.5), torch.cat(alone, 1).transpose(0, 1))
    padded = sum(len(token) for token, _ in segments.batches)
    assert padded < 2 * tokens
    assert len(segments.batches) <= 1 + max(lengths).bit_length(), "a call for each power of two, not for each segment"


@pytest.mark.parametrize("experts", [1, 5, 64])
def test_tiles_hold_each_row_once_and_are_as_many_whatever_the_choices_are(experts):
    slots = set()
    for seed in range(5):
        chosen = torch.randint(0, experts, (40, 2), generator=torch.Generator().manual_seed(seed)) // (1 + seed)
        choices = Choices.of(chosen, experts)
        assert torch.equal(choices.expert_S, chosen.flatten()[choices.order_S])
        assert torch.equal(choices.order_S[choices.place_S], torch.arange(80))
        groups = Groups.of(choices.ends_E, 80, 16)
        slot_S = groups.slots_of(choices.expert_S, choices.ends_E)
        assert len(set(slot_S.tolist())) == 80
        assert torch.equal(groups.expert_T.long()[slot_S // 16], choices.expert_S)
        assert torch.equal(groups.pad(torch.arange(80.0)[:, None])[slot_S, 0], torch.arange(80.0))
        slots.add(groups.slots)
    assert len(slots) == 1


@pytest.mark.parametrize(("stack", "rank"), [(1, 1), (3, 8), (4, 33)])
def test_low_rank_products_have_the_same_bits_by_all_kernels(stack, rank):
    left, right = drawn(0, stack, 37, rank).bfloat16().float(), drawn(1, stack, rank, 50).bfloat16()
    exact = EXACT.low_rank(left, right)
    assert torch.equal(TORCH.low_rank(left, right), exact)
    torch.testing.assert_close(exact, left @ right.float(), rtol=1e-4, atol=1e-5)
