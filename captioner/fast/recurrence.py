"""LSTM decoders that compute the gradient of the LSTM's weights in one matrix product on a CPU.

The gradient is a sum over time of matrix products with few rows. On a CPU, one product over all steps
is faster (docs/speed.md). The steps also skip the rows of finished captions.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.fast.linear import linear, outer
from captioner.models import lstm, luong
from captioner.models.recurrent import Cell, Memory, RecurrentDecoder


class FastRecurrence(RecurrentDecoder, abstract=True):
    """Replaces the update of the LSTM on a CPU; numbers and gradients are those of ``nn.LSTMCell``."""

    def lstm_cell(self, inputs: Float[Tensor, "N i"], memory: Memory) -> Memory:
        """Update (h, c)."""
        if inputs.device.type != "cpu":
            return super().lstm_cell(inputs, memory)
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.parameters()
        gates = linear(inputs, input_weight, input_bias)
        gates = gates + linear(memory[0].to(inputs.dtype), hidden_weight, hidden_bias)
        return _update(gates, memory[1])

    def lstm_cells(self, active: Bool[Tensor, "B R T"], sizes: list[int]) -> Iterator[Cell]:
        """Return one cell per step. All steps share one product for the gradient of the weights."""
        if active.device.type != "cpu":
            yield from super().lstm_cells(active, sizes)
            return
        input_weight, hidden_weight, input_bias, hidden_bias = self.lstm.parameters()
        weight, bias = torch.cat([input_weight, hidden_weight], 1), input_bias + hidden_bias
        if torch.is_autocast_enabled("cpu"):  # cast once, not at every step
            dtype = torch.get_autocast_dtype("cpu")
            weight, bias = weight.to(dtype), bias.to(dtype)
        indices = [
            active[:, :size, t].flatten().nonzero().squeeze(1) for t, size in enumerate(sizes)
        ]
        inputs: list[Tensor] = []
        zeros = _WeightGradient.apply(weight, bias, inputs, [len(index) for index in indices])
        for index, zero in zip(indices, zeros, strict=True):
            yield partial(_active_cell, weight.detach(), bias.detach(), index, zero, inputs)


def _active_cell(
    weight: Tensor,
    bias: Tensor,
    index: Int[Tensor, " M"],
    zero: Float[Tensor, "M gates"],
    all_inputs: list[Tensor],
    inputs: Float[Tensor, "N i"],
    memory: Memory,
) -> Memory:
    """Update the rows at ``index``; the others become zero."""
    hidden, cell = memory
    rows = torch.cat([inputs, hidden.to(inputs.dtype)], 1).index_select(0, index).to(weight.dtype)
    all_inputs.append(rows.detach())
    gates = linear(rows, weight, bias) + zero  # the gradient of zero is that of the gates
    updated = _update(gates, cell.index_select(0, index))
    hidden, cell = (
        new.new_zeros(len(inputs), new.shape[1]).index_copy(0, index, new) for new in updated
    )
    return hidden, cell


def _update(gates: Float[Tensor, "N gates"], cell: Float[Tensor, "N n"]) -> Memory:
    """Apply the gates of ``nn.LSTMCell``: input, forget, cell, output."""
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


class _WeightGradient(torch.autograd.Function):
    """Zeros that are added to the gates of every step; their gradients yield that of the weights."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor, inputs: list[Tensor], sizes: list[int]
    ) -> tuple[Tensor, ...]:
        ctx.inputs = inputs
        ctx.set_materialize_grads(False)
        return tuple(weight.new_zeros(()).expand(size, len(bias)) for size in sizes)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = [p for p in zip(gradients, ctx.inputs, strict=False) if p[0] is not None]
        if not pairs:
            return None, None, None, None
        gradient, rows = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return outer(gradient, rows), gradient.sum(0), None, None


class LSTMDecoder(FastRecurrence, lstm.LSTMDecoder, abstract=True):
    """``captioner.models.LSTMDecoder``, faster on a CPU."""


class LuongDecoder(FastRecurrence, luong.LuongDecoder, abstract=True):
    """``captioner.models.LuongDecoder``, faster on a CPU."""
