"""The experts of a mixture, on CPU: tokens sorted by expert, through both products, and weighted together again.

Owns the kernels, forward and backward. A token's result has the same bits whichever tokens share its experts: its
products are those of `kernels.rows`, and its experts are added in the order in which it named them. fp32 throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from etude.kernels.pointwise import gated, gated_slopes
from etude.kernels.rows import BLOCK, DEPTH, PANEL, Panels, packed, times_panels
from etude.kernels.vectors import kernel

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def run_experts(x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor) -> Tensor:
    """Each token's experts' SwiGLU of it, weighted by the gates; the weights are parameters."""
    given = (x_ND.float(), experts_NK, gates_NK.float(), gate_up_EDF, down_EFD)
    out_ND = _Experts.apply(*given) if torch.is_grad_enabled() else _forward(*given)[0]
    return out_ND.to(x_ND.dtype)


def _forward(
    x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor
) -> tuple[Tensor, ...]:
    """The result, and of every choice of an expert, sorted by expert: its number among the choices, where each expert's
    begin, and its token, projections, activation and result.
    """
    count, (experts, inner, width) = experts_NK.numel(), down_EFD.shape
    out_ND = torch.empty(len(x_ND), width)
    order_S, starts_E = torch.empty(count, dtype=torch.int64), torch.empty(experts + 1, dtype=torch.int64)
    x_SD, said_SD, hidden_SF, active_SF = (torch.empty(count, w) for w in (width, width, 2 * inner, inner))
    sort_by_expert(experts_NK.contiguous().numpy(), order_S.numpy(), starts_E.numpy())
    through_experts(
        x_ND.contiguous().numpy(), order_S.numpy(), starts_E.numpy(), experts_NK.shape[1],
        packed(gate_up_EDF, gate_up_EDF), packed(down_EFD, down_EFD),
        x_SD.numpy(), hidden_SF.numpy(), active_SF.numpy(), said_SD.numpy(),
    )  # fmt: skip
    add_weighted(said_SD.numpy(), order_S.numpy(), gates_NK.contiguous().numpy(), out_ND.numpy())
    return out_ND, order_S, starts_E, x_SD, hidden_SF, active_SF, said_SD


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        _, _, gates_NK, gate_up_EDF, down_EFD = given
        out_ND, *kept = _forward(*given)
        ctx.save_for_backward(gates_NK, gate_up_EDF, down_EFD, *kept)
        return out_ND

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gates_NK, gate_up_EDF, down_EFD, order_S, starts_E, x_SD, hidden_SF, active_SF, said_SD = ctx.saved_tensors
        gate_up_EDF, down_EFD = gate_up_EDF.float(), down_EFD.float()
        d_said_SD = grads[0][order_S // gates_NK.shape[1]]
        dgates_N_K = torch.empty(len(order_S))
        dgates_N_K[order_S] = (d_said_SD * said_SD).sum(-1)
        d_said_SD *= gates_NK.flatten()[order_S, None]
        d_up, d_down = torch.empty_like(gate_up_EDF), torch.empty_like(down_EFD)
        d_hidden_SF, d_active_SF, dx_SD = (torch.empty_like(x) for x in (hidden_SF, active_SF, x_SD))
        parts = [slice(*pair) for pair in zip(starts_E[:-1].tolist(), starts_E[1:].tolist(), strict=True)]
        for e, its in enumerate(parts):
            torch.mm(d_said_SD[its], down_EFD[e].mT, out=d_active_SF[its])
            torch.mm(active_SF[its].mT, d_said_SD[its], out=d_down[e])
        gated_slopes(hidden_SF.numpy(), d_active_SF.numpy(), d_hidden_SF.numpy())
        for e, its in enumerate(parts):
            torch.mm(d_hidden_SF[its], gate_up_EDF[e].mT, out=dx_SD[its])
            torch.mm(x_SD[its].mT, d_hidden_SF[its], out=d_up[e])
        dx_ND = torch.empty(len(gates_NK), x_SD.shape[1])
        add_weighted(dx_SD.numpy(), order_S.numpy(), np.ones(gates_NK.shape, np.float32), dx_ND.numpy())
        return dx_ND, None, dgates_N_K.view(gates_NK.shape), d_up, d_down


# --- kernels ---------------------------------------------------------------------------------------------------------


@kernel
def sort_by_expert(experts: Ints, order: Ints, starts: Ints) -> None:
    """order = the choices n * K + k, sorted by expert, stably; those of expert e are starts[e] to starts[e + 1]."""
    flat = experts.reshape(-1)
    starts[:] = 0
    for expert in flat:
        starts[expert + 1] += 1
    for e in range(len(starts) - 1):
        starts[e + 1] += starts[e]
    at = starts.copy()
    for choice in range(len(flat)):
        order[at[flat[choice]]] = choice
        at[flat[choice]] += 1


@kernel
def through_experts(
    x: Array, order: Ints, starts: Ints, top_k: int, gate_up: Panels, down: Panels, sorted_x: Array, hidden: Array,
    active: Array, said: Array,
) -> None:  # fmt: skip
    """said[s] = the expert of choice order[s], of its token; the others hold what lies between."""
    width, inner = x.shape[1], active.shape[1]
    aside = np.empty((BLOCK + DEPTH) * PANEL, np.float32)
    for e in range(len(starts) - 1):
        for start in range(starts[e], starts[e + 1], BLOCK):
            count = min(BLOCK, starts[e + 1] - start)
            for s in range(start, start + count):
                sorted_x[s] = x[order[s] // top_k]
            times_panels(
                sorted_x, start * width, width, count, gate_up, e, width, aside,
                hidden, start * 2 * inner, 2 * inner, 2 * inner,
            )  # fmt: skip
            gated(hidden, start, start + count, active)
            times_panels(active, start * inner, inner, count, down, e, inner, aside, said, start * width, width, width)


@kernel
def add_weighted(said: Array, order: Ints, gates: Array, out: Array) -> None:
    """out[n] = the results of its choices times their gates, added in the order of the choices."""
    top_k, place = gates.shape[1], np.empty_like(order)
    for s in range(len(order)):
        place[order[s]] = s
    for n in range(len(out)):
        for c in range(out.shape[1]):
            out[n, c] = said[place[n * top_k], c] * gates[n, 0]
        for k in range(1, top_k):
            row, gate = said[place[n * top_k + k]], gates[n, k]
            for c in range(out.shape[1]):
                out[n, c] += row[c] * gate
