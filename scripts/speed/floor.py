"""The floor: a model's matrix products, called bare, with nothing around them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from captioner.models import linear
from captioner.models.captioner import Captioner
from captioner.models.lstm import LSTMDecoder
from captioner.models.luong import LuongDecoder

# (batch, m, k, n): so many products of (m, k) and (k, n).
Product = tuple[int, int, int, int]


def by_torch(one: Tensor, other: Tensor, out: Tensor) -> None:
    """As torch multiplies."""
    torch.matmul(one, other, out=out)


def by_onednn(one: Tensor, other: Tensor, out: Tensor) -> None:
    """As the package's linear layers do; several matrices at once as torch."""
    if one.ndim == 2:
        linear.by_onednn(one, other.T, None)
    else:
        by_torch(one, other, out)


class Floor:
    """Matrix products called bare, at most as many operands in memory as there are shapes.

    Args:
        products: what to multiply, in order.
        dtype: of the operands.
        device: where.
        backward: whether each is followed by the two products of its gradient.
        multiply: by what.
    """

    def __init__(
        self,
        products: Sequence[Product],
        dtype: torch.dtype,
        device: str,
        backward: bool,
        multiply: Callable[[Tensor, Tensor, Tensor], None] = by_torch,
    ) -> None:
        self.multiply = multiply
        if backward:
            products = [
                each
                for b, m, k, n in products
                for each in ((b, m, k, n), (b, m, n, k), (b, k, m, n))
            ]
        made: dict[Product, tuple[Tensor, ...]] = {}
        for shape in products:
            b, m, k, n = shape
            if shape not in made:
                sizes = ((b, m, k), (b, k, n), (b, m, n))
                parts = [torch.randn(s if b > 1 else s[1:], device=device) for s in sizes]
                made[shape] = tuple(part.to(dtype) for part in parts)
        self.calls = [made[shape] for shape in products]
        self.flops = sum(2 * b * m * k * n for b, m, k, n in products)

    def __call__(self) -> None:
        """All of them."""
        for one, other, out in self.calls:
            self.multiply(one, other, out)


def products(captioner: Captioner, pictures: int, cells: int, rows: Sequence[int]) -> list[Product]:
    """What a model multiplies for so many pictures when ``rows[t]`` captions have a word t.

    Args:
        captioner: refiner and decoder.
        pictures: B.
        cells: L.
        rows: at every step.
    """
    decoder: Any = captioner.decoder
    found: list[Product] = []
    for module in captioner.refiner.modules():
        found += _linear(pictures * cells, module)
    if isinstance(decoder, LSTMDecoder | LuongDecoder):
        found += _recurrent(decoder, pictures, cells, rows)
    else:
        found += _transformer(decoder, pictures, cells, rows)
    return found + _linear(sum(rows), decoder.output)


def _linear(count: int, module: nn.Module) -> list[Product]:
    """Of so many rows; nothing for other modules."""
    if not isinstance(module, nn.Linear):
        return []
    return [(1, count, module.in_features, module.out_features)]


def _recurrent(decoder: Any, pictures: int, cells: int, rows: Sequence[int]) -> list[Product]:
    """Attention and LSTM, word by word where the wiring asks for it."""
    score, words = decoder.attention.score, sum(rows)
    found = [
        p for mlp in (decoder.start_hidden, decoder.start_cell) for p in _linear(pictures, mlp[0])
    ]
    found += _linear(pictures * cells, score.key)
    cell = hasattr(decoder.lstm, "weight_ih")
    four, inputs = (decoder.lstm.weight_ih if cell else decoder.lstm.weight_ih_l0).shape
    hidden, width = four // 4, decoder.attention.out_dim
    at_once = isinstance(decoder, LuongDecoder) and not decoder.input_feeding
    if at_once:
        found.append((1, words, inputs, four))
    for count in rows:
        if not at_once:
            found.append((1, count, inputs, four))
        found.append((1, count, hidden, four))
    for count in [words] if at_once else rows:
        found += _linear(count, score.query)
        each = -(-count // pictures)
        if hasattr(score, "energy"):
            found += _linear(count * cells, score.energy)
        else:
            found.append((pictures, each, hidden, cells))
        found.append((pictures, each, cells, width))
    for name in ("output_hidden", "output_context", "attentional"):
        found += _linear(words, getattr(decoder, name, nn.Identity()))
    return found


def _transformer(decoder: Any, pictures: int, cells: int, rows: Sequence[int]) -> list[Product]:
    """All words of a caption at once."""
    found = _linear(pictures * cells, decoder.memory)
    length, most, words = len(rows), rows[0], sum(rows)
    each = -(-words // pictures)
    for layer in decoder.layers:
        own, other = layer.self_attention, layer.attention
        for module in (own.query, own.key_value, own.output, other.query, other.output):
            found += _linear(words, module)
        for module in (other.key, other.value):
            found += _linear(pictures * cells, module)
        part = own.query.in_features // own.heads
        found.append((most * own.heads, length, part, length))
        found.append((most * own.heads, length, length, part))
        part = other.query.out_features // other.heads
        found.append((pictures * other.heads, each, part, cells))
        found.append((pictures * other.heads, each, cells, part))
        for module in layer.feed_forward:
            found += _linear(words, module)
    return found
