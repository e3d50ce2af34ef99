"""An LSTM's update in a loop over time, the gradient of whose weights is one product."""

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class Recurrence:
    """Updates of an LSTM's memory, each of what the one before made of it (Hochreiter et al. 1997).

    The numbers are ``nn.LSTMCell``'s. Its weights' gradient is a sum of products, one a step, each of a
    few rows and as large as the weights; on a CPU the rows of all steps are put together first, and
    multiplied once. That is for one loop, whose first update is differentiated last.

    Args:
        lstm: whose weights to use; an ``nn.LSTM`` has one layer.
    """

    def __init__(self, lstm: nn.LSTMCell | nn.LSTM) -> None:
        self.parts: list[Tensor] = list(lstm.parameters())  # of inputs and h; their biases
        self.steps = _Steps()

    @property
    def on_cpu(self) -> bool:
        """Where the products of few rows wait for the weights to come from memory."""
        return self.parts[0].device.type == "cpu"

    @cached_property
    def weights(self) -> tuple[Float[Tensor, "gates both"], Float[Tensor, " gates"]]:
        """Of inputs and h side by side, and the bias; in the precision that products have."""
        of_inputs, of_hidden, *biases = self.parts
        weight, bias = torch.cat([of_inputs, of_hidden], 1), biases[0] + biases[1]
        if torch.is_autocast_enabled("cpu"):
            kind = torch.get_autocast_dtype("cpu")
            return weight.to(kind), bias.to(kind)
        return weight, bias

    def __call__(
        self,
        inputs: Float[Tensor, "N i"],
        hidden: Float[Tensor, "N n"],
        cell: Float[Tensor, "N n"],
        wanted: Bool[Tensor, " N"] | None = None,
    ) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N n"]]:
        """The new (h, c), of the rows that are wanted; anything finite of the others."""
        if not self.on_cpu:  # one kernel
            return torch.lstm_cell(inputs, (hidden, cell), *self.parts)
        weight, bias = self.weights
        rows = torch.cat([inputs, hidden.to(inputs.dtype)], 1).to(weight.dtype)
        some = None if wanted is None else wanted.nonzero().squeeze(1)
        enter, keep, new, show = _Product.apply(rows, weight, bias, some, self.steps).chunk(4, 1)
        cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell


class _Steps:
    """What the steps of a loop multiplied, and the gradients of what they found."""

    def __init__(self) -> None:
        self.begun = False
        self.rows: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def read(self) -> tuple[Tensor, Tensor]:
        """Rows and gradients of all steps; it is empty then."""
        found = torch.cat(self.rows), torch.cat(self.gradients)
        self.rows, self.gradients = [], []
        return found


class _Product(torch.autograd.Function):
    """A linear map of some rows, zero for the others.

    Of several with the same ``steps``, the first has the gradients of weight and bias of all.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, some: Tensor | None, steps: _Steps
    ) -> Tensor:
        ctx.count, ctx.some = len(rows), some
        ctx.steps, ctx.first = steps, not steps.begun
        steps.begun = True
        rows = rows if some is None else rows.index_select(0, some)
        ctx.save_for_backward(rows, weight)
        return _placed(F.linear(rows, weight, bias), some, ctx.count)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        of_weight = of_bias = None
        if ctx.some is not None:
            gradient = gradient.index_select(0, ctx.some)
        if ctx.needs_input_grad[1]:
            ctx.steps.rows.append(rows)
            ctx.steps.gradients.append(gradient)
            if ctx.first:
                rows, gradients = ctx.steps.read()
                of_weight, of_bias = gradients.T @ rows, gradients.sum(0)
        of_rows = _placed(gradient @ weight, ctx.some, ctx.count)
        return of_rows, of_weight, of_bias, None, None


def _placed(found: Tensor, some: Tensor | None, count: int) -> Tensor:
    """What was found of some rows, at their places among ``count``."""
    if some is None:
        return found
    return found.new_zeros(count, found.shape[1]).index_copy_(0, some, found)
