"""The recipes: which format each pass uses, gradients through autograd, and a tiny model that learns in them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from etude.errors import ConfigError
from etude.kernels import grouped_gemm
from etude.kernels.low_precision import ExpertLinear

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]


def operands(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 64, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(3, 64, 32, generator=generator, dtype=dtype, requires_grad=True)
    return x, weight, torch.tensor([20, 0, 30]), torch.randn(50, 32, generator=generator, dtype=dtype)


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_forward_is_the_recipes_and_gradients_are_mxfp8(recipe):
    x, weight, counts, grad = operands()
    product, ends = ExpertLinear(recipe), counts.cumsum(0)
    y = product(x, weight, counts)
    y.backward(grad)
    assert torch.equal(y, grouped_gemm.forward(x.detach(), weight.detach(), ends, recipe))
    assert torch.equal(x.grad, grouped_gemm.data_gradient(grad, weight.detach(), ends))
    assert torch.equal(weight.grad, grouped_gemm.weight_gradient(x.detach(), grad, ends))
    exact = torch.autograd.grad(
        torch.cat([x[:20] @ weight[0], x[20:] @ weight[2]]), (x, weight), grad
    )  # near the gradients of the unquantised product
    for low, high in zip((x.grad, weight.grad), exact, strict=True):
        assert 0.001 < (low - high).norm() / high.norm() < 0.06
    assert product.rows == 50


def test_recipes_differ_and_keep_the_rows_dtype():
    x, weight, counts, grad = operands(torch.bfloat16)
    outputs = [ExpertLinear(recipe)(x, weight, counts) for recipe in ("mxfp8", "nvfp4")]
    assert not torch.equal(*outputs)
    outputs[1].backward(grad)
    assert {t.dtype for t in (*outputs, x.grad, weight.grad)} == {torch.bfloat16}


def test_triton_kernels_under_autograd_give_the_references_gradients():
    kernels = pytest.importorskip("etude.kernels.triton_grouped_gemm", reason="needs Triton: the dev extra")
    results = []
    for chosen in (kernels, grouped_gemm):
        x, weight, counts, grad = operands()
        y = ExpertLinear("nvfp4", chosen)(x, weight, counts)
        y.backward(grad)
        results.append((y.detach(), x.grad, weight.grad))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)


def test_a_width_that_is_not_whole_blocks_is_refused():
    with pytest.raises(ConfigError, match="40 is not a multiple of 32"):
        ExpertLinear("mxfp8")(torch.zeros(1, 40), torch.zeros(1, 40, 32), torch.tensor([1]))


def test_a_tiny_mixture_of_experts_learns_in_each_recipe(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("low_precision_loss")
    read, unread = benchmark.corpus()
    found = []
    for recipe in ("mxfp8", "nvfp4"):  # one batch of our own source, which changes
        product = ExpertLinear(recipe)
        found.append(benchmark.train(product, 30, 0, (read, unread[:1000])))
        assert found[-1]["train"] < found[-1]["first"] - 0.7 and product.rows
    assert found[0]["train"] != found[1]["train"]


@pytest.mark.proof(15)
def test_the_benchmark_finds_that_each_recipe_learns_as_bf16_does():
    """Thirty steps of the benchmark; docs/results.md has its 2,000."""
    command = [sys.executable, str(ROOT / "benchmarks" / "low_precision_loss.py"), "--steps", "30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bf16"]["train"] < result["bf16"]["first"] - 0.7
    for recipe in ("mxfp8", "nvfp4"):
        assert result[f"{recipe}_over_bf16"] == pytest.approx(1.0, abs=0.05)
        assert result[recipe]["train"] != result["bf16"]["train"]
