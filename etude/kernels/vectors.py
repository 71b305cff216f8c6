"""Vectors of sixteen floats for numba kernels, and the one loop that products and attention are made of.

Owns what pins down the arithmetic. Each operation here is one instruction of LLVM without any fast-math flag, so the
compiler may neither reorder nor fuse nor split what a kernel says: an element of a tile is the sum over its k, in
order, one fused multiply-add each, whatever rows and columns are cut into, and on whatever machine. Never allocates;
indices are in elements of the flat array and unchecked.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16
ROWS = 6
"""Rows of the largest tile."""
VECTORS = 4 if llvm.get_host_cpu_features().get("avx512f") else 1
"""Vectors of its columns: with its rows, what the registers hold. It changes the speed, never a bit."""
TERMS = 64
"""Terms that an element adds up before they join the others: that rounds less than one long sum, and is a part of its
bits."""

_FLOAT, _INT, _HALF = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


vector = _Vector()


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


# --- LLVM ------------------------------------------------------------------------------------------------------------


def _data(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


def _load(builder: Any, data: Any, at: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), _FLOATS.as_pointer()), align=4)


def _load_halves(builder: Any, data: Any, at: Any) -> Any:
    """Of bf16: its bits are the upper half of a float's."""
    halves = builder.bitcast(builder.gep(data, [at]), ir.VectorType(_HALF, LANES).as_pointer())
    bits = builder.zext(builder.load(halves, align=2), _INTS)
    return builder.bitcast(builder.shl(bits, ir.Constant(_INTS, [16] * LANES)), _FLOATS)


def _store(builder: Any, value: Any, data: Any, at: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(data, [at]), _FLOATS.as_pointer()), align=4)


def _fetch(builder: Any, place: Any) -> Any:
    """Ask for what is at a place to be brought into the nearest cache, to be read soon."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    return builder.call(function, [builder.bitcast(place, byte), _INT(0), _INT(3), _INT(1)])


def _splat(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _all(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * LANES)


def _call(builder: Any, name: str, *values: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(values))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, values)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, "fma", a, b, c)


def _exp(builder: Any, x: Any) -> Any:
    """For x <= 0, to about 2 ulp; 0 below -87. 2^whole is written as the bits of a float."""
    low = builder.fcmp_ordered("<", x, _all(-87.0))
    y = builder.fmul(builder.select(low, _all(-87.0), x), _all(1.4426950216293335))
    floor = _call(builder, "floor", y)
    f = builder.fsub(y, floor)
    p = _all(1.8775766948238015e-03)
    for term in (8.9893396943807602e-03, 5.5826317518949509e-02, 2.4015361070632935e-01, 6.9315308332443237e-01):
        p = _fma(builder, p, f, _all(term))
    p = _fma(builder, p, f, _all(0.99999994039535522))
    whole = builder.add(builder.fptosi(floor, _INTS), ir.Constant(_INTS, [127] * LANES))
    power = builder.bitcast(builder.shl(whole, ir.Constant(_INTS, [23] * LANES)), _FLOATS)
    return builder.select(low, _all(0.0), builder.fmul(p, power))


def _sigmoid(builder: Any, x: Any) -> Any:
    """1 / (1 + e) or e / (1 + e), with e = exp(-|x|)."""
    positive = builder.fcmp_ordered(">=", x, _all(0.0))
    e = _exp(builder, builder.select(positive, builder.fneg(x), x))
    return builder.fdiv(builder.select(positive, _all(1.0), e), builder.fadd(_all(1.0), e))


def _reduce(builder: Any, x: Any, operation: Any) -> Any:
    """All lanes in one, by halves."""
    width = LANES
    while width > 1:
        width //= 2
        lanes = [width + lane if lane < width else lane for lane in range(LANES)]
        x = operation(x, builder.shuffle_vector(x, x, ir.Constant(_INTS, lanes)))
    return builder.extract_element(x, _INT(0))


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


# --- for kernels -----------------------------------------------------------------------------------------------------


def _instruction(definition: Any) -> Any:
    """What kernels call in place of a function; typed as anything, for its Python side takes other arguments."""
    return intrinsic(definition)


@_instruction
def load(typingctx: Any, array: Any, at: Any) -> Any:
    """array[at : at + LANES], of floats, or of the bits of bf16."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _data(context, builder, signature.args[0], args[0])
        return (_load if array.dtype == types.float32 else _load_halves)(builder, data, args[1])

    return vector(array, types.intp), build


@_instruction
def store(typingctx: Any, value: Any, array: Any, at: Any) -> Any:
    """array[at : at + LANES] = value"""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[0], _data(context, builder, signature.args[1], args[1]), args[2])
        return context.get_dummy_value()

    return types.void(vector, array, types.intp), build


def _lanewise(result: Any, arguments: list[Any], operation: Any) -> Any:
    """An intrinsic of so many vectors or floats."""

    def of(*given: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return operation(builder, *args)

        return result(*arguments), build

    shapes = {
        1: lambda typingctx, a: of(a),
        2: lambda typingctx, a, b: of(a, b),
    }
    return _instruction(shapes[len(arguments)])


splat = _lanewise(vector, [types.float32], _splat)
add = _lanewise(vector, [vector] * 2, lambda builder, a, b: builder.fadd(a, b))
subtract = _lanewise(vector, [vector] * 2, lambda builder, a, b: builder.fsub(a, b))
times = _lanewise(vector, [vector] * 2, lambda builder, a, b: builder.fmul(a, b))
larger = _lanewise(vector, [vector] * 2, _larger)
exp = _lanewise(vector, [vector], _exp)
sigmoid = _lanewise(vector, [vector], _sigmoid)
total = _lanewise(types.float32, [vector], lambda builder, x: _reduce(builder, x, builder.fadd))
highest = _lanewise(
    types.float32, [vector], lambda builder, x: _reduce(builder, x, lambda a, b: _larger(builder, a, b))
)


@_instruction
def multiply(
    typingctx: Any, x: Any, x_at: Any, x_row: Any, x_step: Any, w: Any, w_at: Any, w_step: Any, out: Any, out_at: Any,
    out_row: Any, depth: Any, rows: Any, vectors: Any, onto: Any, ahead: Any
) -> Any:  # fmt: skip
    """out[r, :] = sum over k < depth of x[r, k] * w[k, :], every TERMS of which are added `onto` what is there or 0.

    One tile: rows <= ROWS, and columns of vectors <= VECTORS. w holds floats, or the bits of bf16. x[r, k] is at
    x_at + r * x_row + k * x_step, w[k, c] at w_at + k * w_step + c, out[r, c] at out_at + r * out_row + c. What lies
    `ahead` of each w[k, c] is fetched meanwhile; 0 if what comes next is near, for memory guesses that by itself.
    """
    at = types.intp
    kinds = types.void(x, at, at, at, w, at, at, out, at, at, at, at, at, types.boolean, at)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, w, out = (builder.gep(_data(context, builder, signature.args[i], args[i]), [args[i + 1]]) for i in (0, 4, 7))
        x_row, x_step, w_step, out_row, depth, rows, vectors = (args[i] for i in (2, 3, 6, 9, 10, 11, 12))
        onto = builder.icmp_unsigned("!=", args[13], args[13].type(0))
        given = (x, x_row, x_step, w, w_step, out, out_row, depth, onto, args[14])
        halves = signature.args[4].dtype == types.uint16
        end = builder.append_basic_block("tile.end")
        switch = builder.switch(builder.add(builder.mul(rows, rows.type(VECTORS + 1)), vectors), end)
        for r in range(1, ROWS + 1):
            for v in range(1, VECTORS + 1):
                block = builder.append_basic_block(f"tile.{r}.{v}")
                switch.add_case(rows.type(r * (VECTORS + 1) + v), block)
                builder.position_at_end(block)
                builder.call(_tile(builder.module, r, v, halves), given)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return kinds, build


def _tile(module: Any, rows: int, vectors: int, halves: bool) -> Any:
    """The function that computes a tile of this shape, one of each in a module however often it is called."""
    name = f"etude_tile_{rows}_{vectors}{'_bf16' * halves}"
    whole, floats = cgutils.intp_t, _FLOAT.as_pointer()
    weights, widened = (_HALF.as_pointer(), _load_halves) if halves else (floats, _load)
    if name in module.globals:
        return module.globals[name]
    takes = [floats, whole, whole, weights, whole, floats, whole, whole, ir.IntType(1), whole]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), takes), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    x, x_row, x_step, w, w_step, out, out_row, depth, onto, ahead = function.args
    x_rows = [builder.gep(x, [builder.mul(x_row, whole(r))]) for r in range(rows)]
    places = [
        (builder.gep(out, [builder.mul(out_row, whole(r))]), whole(v * LANES))
        for r in range(rows)
        for v in range(vectors)
    ]
    sums, totals = ([cgutils.alloca_once(builder, _FLOATS) for _ in places] for _ in range(2))
    for held, place in zip(totals, places, strict=True):
        builder.store(builder.select(onto, _load(builder, *place), _all(0.0)), held)
    with cgutils.for_range_slice(builder, whole(0), depth, whole(TERMS), inc=True) as (start, _):
        for held in sums:
            builder.store(_all(0.0), held)
        stop = builder.add(start, whole(TERMS))
        stop = builder.select(builder.icmp_signed("<", stop, depth), stop, depth)
        with cgutils.for_range_slice(builder, start, stop, whole(1), inc=True) as (k, _):
            row = builder.gep(w, [builder.mul(k, w_step)])
            for v in range(vectors):
                _fetch(builder, builder.gep(row, [builder.add(ahead, whole(v * LANES))]))
            columns = [widened(builder, row, whole(v * LANES)) for v in range(vectors)]
            step = builder.mul(k, x_step)
            for r, x_row_r in enumerate(x_rows):
                factor = _splat(builder, builder.load(builder.gep(x_row_r, [step])))
                for v, column in enumerate(columns):
                    held = sums[r * vectors + v]
                    builder.store(_fma(builder, factor, column, builder.load(held)), held)
        for held, whole_sum in zip(sums, totals, strict=True):
            builder.store(builder.fadd(builder.load(whole_sum), builder.load(held)), whole_sum)
    for held, place in zip(totals, places, strict=True):
        _store(builder, builder.load(held), *place)
    builder.ret_void()
    return function


kernel = numba.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
"""How kernels are compiled: without fast-math. What is compiled is kept beside each file until that file changes, so
after a change here the compiled kernels (`__pycache__/*.nb?`) must be deleted."""
part = numba.njit(inline="always", error_model="numpy", boundscheck=False)
"""How what kernels have in common is compiled: as if it were written there, for each compilation takes a second."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "kernels")


def in_parallel(count: int, block: int, call: Callable[[slice], None], least: int = 2) -> None:
    """`call` for all of range(count), in slices of whole blocks if torch may use several threads; each thread gets so
    many blocks at `least`, or about as many."""
    threads = min(torch.get_num_threads(), count // (least * block))
    if threads <= 1:
        call(slice(0, count))
        return
    step = -(-count // threads // block) * block
    list(_pool(threads).map(call, [slice(at, min(at + step, count)) for at in range(0, count, step)]))
