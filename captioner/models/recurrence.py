"""An LSTM's update in a loop over time, the gradient of whose weights is one product."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.models.linear import outer, product
from captioner.models.packing import placed


class Recurrence:
    """Updates of an LSTM's memory, one after the other (Hochreiter, Schmidhuber 1997).

    The numbers and gradients are ``nn.LSTMCell``'s. The gradient of its weights is a sum of products,
    one a step, each of a few rows and as large as the weights; on a CPU the rows of all steps are put
    together first, and multiplied once, for which they are kept until then.

    Args:
        lstm: whose weights to use; an ``nn.LSTM`` has one layer.
    """

    def __init__(self, lstm: nn.LSTMCell | nn.LSTM) -> None:
        self.parts: list[Tensor] = list(lstm.parameters())  # of inputs and h; their biases
        self.steps = _Steps()
        self._weights: dict[bool, tuple[Tensor, Tensor]] = {}

    @property
    def on_cpu(self) -> bool:
        """Whether it runs where products of few rows wait for the weights to come from memory."""
        return self.parts[0].device.type == "cpu"

    @property
    def weights(self) -> tuple[Float[Tensor, "gates both"], Float[Tensor, " gates"]]:
        """Of inputs and h side by side, and the bias; in the precision that products have."""
        graded = torch.is_grad_enabled()
        if graded not in self._weights:
            of_inputs, of_hidden, *biases = self.parts
            weight, bias = torch.cat([of_inputs, of_hidden], 1), biases[0] + biases[1]
            if torch.is_autocast_enabled("cpu"):
                kind = torch.get_autocast_dtype("cpu")
                weight, bias = weight.to(kind), bias.to(kind)
            self._weights[graded] = _Gathered.apply(weight, bias, self.steps)
        return self._weights[graded]

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
        self.rows: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def read(self) -> tuple[Tensor, Tensor] | None:
        """Rows and gradients of all steps, None without any; it is empty then."""
        rows, gradients, self.rows, self.gradients = self.rows, self.gradients, [], []
        return (torch.cat(rows), torch.cat(gradients)) if rows else None


class _Gathered(torch.autograd.Function):
    """Weight and bias as they are; their gradient is that of all the products they went into."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, steps: _Steps) -> tuple[Tensor, Tensor]:
        ctx.steps = steps
        ctx.set_materialize_grads(False)
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, Tensor | None, None]:
        # Autograd comes here when it has been to all products.
        found = ctx.steps.read()
        if found is None:
            return None, None, None
        rows, gradients = found
        return outer(gradients, rows), gradients.sum(0), None


class _Product(torch.autograd.Function):
    """A linear map of some rows, zero for the others, whose weights are ``_Gathered``."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, some: Tensor | None, steps: _Steps
    ) -> Tensor:
        ctx.count, ctx.steps = len(rows), steps
        rows = rows if some is None else rows.index_select(0, some)
        ctx.save_for_backward(rows, weight, some)
        return placed(product(rows, weight, bias), some, ctx.count)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        rows, weight, some = ctx.saved_tensors
        if some is not None:
            gradient = gradient.index_select(0, some)
        gathered, _ = ctx.next_functions[1]
        # Not where somebody asks for other gradients alone, as Grad-CAM does.
        if gathered is not None and torch._C._will_engine_execute_node(gathered):
            ctx.steps.rows.append(rows)
            ctx.steps.gradients.append(gradient)
        return placed(product(gradient, weight.T), some, ctx.count), None, None, None, None
