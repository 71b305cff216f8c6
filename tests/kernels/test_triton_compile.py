"""The Triton kernels compile for the devices they are written for; that needs no device."""

import os
import subprocess
import sys

import pytest
from proofs import one_of_each

TARGET = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
capability = int(sys.argv[1])
"""
GROUPED = """
from etude.kernels import triton_grouped_gemm as gemm, triton_quantise as quantise

shape = {name: "i32" for name in ("K", "slots", "across", "width", "inputs", "outputs")}
pointers = {"first_T": "*i32", "stop_T": "*i32", "expert_T": "*i32", "tile_ends_E": "*i32", "out": "*fp32"}
bytes_ = {name: "*u8" for name in ("codes", "scales", "a", "b", "a_scales", "b_scales")}
floats = {name: "*fp32" for name in ("outer", "a_outer", "b_outer")}
known = shape | pointers | bytes_ | floats

def check(kernel, warps=4, **constants):
    signature = {}
    for name in kernel.arg_names:
        values = "*i16" if constants.get("BF16") else "*i32"
        signature[name] = "constexpr" if name in constants else values if name == "x" else known[name]
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    assert compiled.metadata.shared <= 227 * 1024, (kernel.__name__, compiled.metadata.shared)
    return compiled.asm["ptx"]

common = dict(BF16=True, SWIZZLED=True, TILE=128)
check(quantise.mxfp8_rows_kernel, ROWS=16, BLOCKS=8, **common)
check(quantise.mxfp8_columns_kernel, CHANNELS=64, **common)
ptx = check(quantise.nvfp4_rows_kernel, GIVEN=False, ROWS=4, BLOCKS=32, **common)
assert "div.rn.f32" in ptx and "div.full" not in ptx and "div.approx" not in ptx
native = capability >= 100
dots = dict(NATIVE=native, OPERAND=tl.bfloat16, TILE=128, COLUMNS=128)
texts = [check(gemm.rows_kernel, 8, FP4=fp4, DEPTH=128, **dots) for fp4 in (False, True)]
texts.append(check(gemm.weight_kernel, 8, ROWS=128, **dots))
for ptx in texts:
    assert ("tcgen05.mma" if native else "wgmma") in ptx
    assert ("block_scale" in ptx) == native
print("compiled")
"""
PLAIN = """
from etude.kernels import triton_invariant as invariant, triton_moe_decode as decode

def check_values(kernel, values, warps=4, **constants):
    # operands in bf16, stored as they are
    tables = ("sequence_T", "expert_T", "first_T", "stop_T", "query_ends_S", "key_ends_S", "seen_N")
    floats = ("sums", "tops", "totals", "inner", "gates")
    signature = {}
    for name in kernel.arg_names:
        kind = values.get(name, "*i32" if name in tables else "*fp32" if name in floats else "*bf16")
        number = name in ("rows", "width", "outputs", "hidden", "queries")
        kind = "i32" if number else "fp32" if name in ("eps", "scale") else kind
        signature[name] = "constexpr" if name in constants else kind
    source = ASTSource(kernel, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    assert compiled.metadata.shared <= 227 * 1024, (kernel.__name__, compiled.metadata.shared)

check_values(invariant.linear_kernel, {}, 8, ROWS=64, COLUMNS=128, DEPTH=64)
check_values(invariant.grouped_kernel, {}, 8, ROWS=64, COLUMNS=128, DEPTH=64)
check_values(invariant.rms_norm_kernel, {}, PIECE=1024)
heads = dict(H=32, C=128, WIDE=128, SPLIT=512)
check_values(invariant.split_kernel, {}, SHARED=8, QUERIES=64, BLOCK=64, **heads)
check_values(invariant.merge_kernel, {}, 1, **heads)
for form, kinds in enumerate(("*fp32", "*i16", "*u8")):
    types = {"x": "*i16", "out": "*fp32", "weight": kinds, "scales": kinds, "experts": "*i64"}
    tile = dict(K=8, X=1, W=form, NEURONS=decode.NEURONS, DEPTH=decode.DEPTH)
    check_values(decode.gate_up_kernel, types, decode.WARPS, **tile)
    check_values(decode.down_kernel, types | {"out": "*i16"}, decode.WARPS, **tile)

from etude.kernels import triton_deltas as deltas

of_deltas = {name: "*i32" for name in ("counts", "ends", "places", "steps")} | {"new": "*i16", "parent": "*i16"}
for kernel in (deltas.count_kernel, deltas.write_kernel):
    check_values(kernel, of_deltas | {"elements": "i32"}, BLOCK=4096)
print("compiled")
"""


def named(value):
    return {PLAIN: "plain", GROUPED: "grouped"}.get(value, str(value))


PARTS = [(program, capability) for program in (GROUPED, PLAIN) for capability in (90, 100)]


@pytest.mark.parametrize(("program", "capability"), one_of_each(8, PARTS), ids=named)
def test_kernels_compile_for_hopper_and_blackwell(program, capability, tmp_path):
    """No device is needed to compile: IEEE division is in the code, and so are the tensor cores that are meant."""
    pytest.importorskip("triton", reason="needs Triton: the dev extra")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", TARGET + program, str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout.endswith("compiled\n"), done.stderr[-3000:]
