"""Additive attention's energies against tanh itself."""

import pytest
import torch

from captioner.models.attention import energies as module
from captioner.models.attention.energies import exponential

B, T, L, A = 3, 4, 5, 6


def drawn(scale=1.0, dtype=torch.double):
    torch.manual_seed(0)
    sizes = ((B, T, A), (B, L, A), (A,))
    return tuple((scale * torch.randn(s, dtype=torch.double)).to(dtype) for s in sizes)


def energies(query, key, weight):
    return module.energies(query, exponential(key), weight)


def by_tanh(query, key, weight):
    return torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)) @ weight


@pytest.mark.parametrize("at_once", [1, 2 * T * L * A, 10**9])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
def test_equal_those_of_tanh_however_many_pictures_at_once(scale, at_once, monkeypatch):
    monkeypatch.setattr(module, "IN_CACHE", at_once)
    given = [part.requires_grad_() for part in drawn(scale)]
    found, expected = energies(*given), by_tanh(*given)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    direction = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, given, direction),
        torch.autograd.grad(expected, given, direction),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


def test_the_gradient_is_that_of_finite_differences():
    given = [part.requires_grad_() for part in drawn()]
    assert torch.autograd.gradcheck(energies, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saturated_pairs_are_plus_or_minus_one(dtype):
    """Where e^{2x} would overflow."""
    query = torch.tensor([[[1e4, -1e4, 30.0, -30.0, 60.0]]], dtype=dtype, requires_grad=True)
    key = torch.tensor([[[1e4, -1e4, 30.0, 30.0, -20.0]]], dtype=dtype, requires_grad=True)
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=dtype, requires_grad=True)
    found = energies(query, key, weight)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(1 - 2 + 4 + 0 + 16)
    gradients = torch.autograd.grad(found.sum(), (query, key, weight))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0][0, 0].tolist() == pytest.approx([0, 0, 0, 8, 0])


def test_nothing_of_the_size_of_all_pairs_is_kept():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        query, key, weight = (part.requires_grad_() for part in drawn())
        key = exponential(key)
        kept.clear()
        module.energies(query, key, weight)
    assert sum(kept) == B * T * A + B * L * A + A
