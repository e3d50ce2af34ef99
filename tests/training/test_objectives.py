"""Likelihood against torch's cross-entropy and the definition of the doubly stochastic term."""

import pytest
import torch
import torch.nn.functional as F

from captioner.language.vocabulary import END, PAD
from captioner.models import Decoded
from captioner.training import Likelihood

B, R, T, V, L = 2, 3, 5, 8, 4
# Words per caption; image 1 has one caption, its other rows are padding.
LENGTHS = torch.tensor([[5, 2, 3], [4, 0, 0]])
VALID = torch.arange(T) < LENGTHS.unsqueeze(-1)  # (B, R, T)


def targets() -> torch.Tensor:
    words = torch.randint(END, V, (B, R, T), generator=torch.Generator().manual_seed(1))
    return words.where(VALID, PAD)


def decoded(dtype=torch.double) -> Decoded:
    torch.manual_seed(2)
    logits, weights = 3 * torch.randn(B, R, T, V), torch.rand(B, R, T, L).softmax(-1)
    return Decoded(logits.to(dtype).requires_grad_(), weights.to(dtype).requires_grad_())


def doubly_stochastic_by_loops(weights: torch.Tensor) -> float:
    squares = []
    for b, r in LENGTHS.nonzero().tolist():
        for i in range(L):
            attended = sum(weights[b, r, t, i].item() for t in range(LENGTHS[b, r]))
            squares.append((1 - attended) ** 2)
    return sum(squares) / len(squares)


@pytest.mark.parametrize(("factor", "smoothing"), [(0.0, 0.0), (0.0, 0.1), (0.5, 0.0), (2.0, 0.5)])
def test_loss_and_gradient_equal_cross_entropy_and_the_definition(factor, smoothing):
    output = decoded()
    loss = Likelihood(factor, smoothing)(output, targets())
    logits = output.logits.detach().requires_grad_()
    flat = logits.flatten(0, -2), targets().flatten()
    expected = F.cross_entropy(*flat, ignore_index=PAD, label_smoothing=smoothing)
    terms = {"likelihood": expected.item()}
    if factor:
        terms["doubly_stochastic"] = factor * doubly_stochastic_by_loops(output.weights)
    assert {n: term.item() for n, term in loss.terms.items()} == pytest.approx(terms, rel=1e-5)
    assert loss.total.item() == pytest.approx(sum(terms.values()), rel=1e-5)
    nll = F.cross_entropy(*flat, ignore_index=PAD).item()
    assert loss.measures["nll"].item() == pytest.approx(nll, rel=1e-5)
    assert not loss.measures["nll"].requires_grad

    loss.total.backward()
    expected.backward()
    torch.testing.assert_close(output.logits.grad, logits.grad, rtol=1e-4, atol=1e-7)
    if factor:  # d/dα of λ · mean (1 - Σ_t α)²
        attended = (output.weights * VALID.unsqueeze(-1)).sum(2, keepdim=True)
        gradient = -2 * factor * (1 - attended) / ((LENGTHS > 0).sum() * L) * VALID.unsqueeze(-1)
        torch.testing.assert_close(output.weights.grad, gradient.detach())


def test_padding_does_not_count():
    output, padding = decoded(), ~VALID.unsqueeze(-1)
    noisy = Decoded(
        torch.where(padding, 100 * torch.randn(B, R, T, V), output.logits.detach()),
        torch.where(padding, torch.randn(B, R, T, L), output.weights.detach()),
    )
    rows = LENGTHS > 0
    without = Decoded(output.logits[rows].unsqueeze(0), output.weights[rows].unsqueeze(0))
    expected = Likelihood()(output, targets()).total.item()
    assert Likelihood()(noisy, targets()).total.item() == expected
    total = Likelihood()(without, targets()[rows].unsqueeze(0)).total.item()
    assert total == pytest.approx(expected, rel=1e-6)


def test_a_batch_of_padding_costs_nothing():
    output = decoded()
    loss = Likelihood()(output, torch.full((B, R, T), PAD))
    assert loss.total.item() == 0
    loss.total.backward()
    assert not output.logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    loss = Likelihood()(decoded(dtype), targets())
    assert loss.terms["likelihood"].dtype == torch.float32
    expected = Likelihood()(decoded(), targets()).total.item()
    assert loss.total.item() == pytest.approx(expected, rel=2e-2)
