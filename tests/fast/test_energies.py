"""The fast energies of additive attention against tanh itself."""

import pytest
import torch

from captioner.fast import energies as module
from captioner.fast.energies import exponential

B, T, L, A = 3, 4, 5, 6


def inputs(scale=1.0):
    torch.manual_seed(0)
    shapes = ((B, T, A), (B, L, A), (A,))
    return tuple((scale * torch.randn(s, dtype=torch.double)).requires_grad_() for s in shapes)


def energies(query, key, weight):
    return module.energies(query, exponential(key), weight)


@pytest.mark.parametrize(
    ("scale", "chunk"), [(1e-3, 10**9), (1.0, 1), (1.0, 2 * T * L * A), (10.0, 10**9)]
)
def test_values_and_gradients_equal_those_of_tanh(scale, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    query, key, weight = inputs(scale)
    ours = energies(query, key, weight)
    expected = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)) @ weight
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)
    direction = torch.randn_like(ours)
    gradients = (torch.autograd.grad(e, (query, key, weight), direction) for e in (ours, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_saturated_pairs_are_plus_or_minus_one(dtype):
    """e^{2x} of these numbers would overflow."""
    query = torch.tensor([[[1e4, -1e4, 30.0, -30.0, 60.0]]], dtype=dtype, requires_grad=True)
    key = torch.tensor([[[1e4, -1e4, 30.0, 30.0, -20.0]]], dtype=dtype, requires_grad=True)
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=dtype, requires_grad=True)
    total = energies(query, key, weight)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(1 - 2 + 4 + 0 + 16)
    gradients = torch.autograd.grad(total.sum(), (query, key, weight))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0][0, 0].tolist() == pytest.approx([0, 0, 0, 8, 0])


def test_backward_keeps_no_tensor_of_all_pairs():
    kept = []
    query, key, weight = inputs()
    key = exponential(key)
    pack = lambda t: kept.append(t.numel()) or t  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module.energies(query, key, weight)
    assert sum(kept) == B * T * A + B * L * A + A
