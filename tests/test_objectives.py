"""Likelihood against torch's cross-entropy and loops; what is padded counts nowhere."""

import pytest
import torch
import torch.nn.functional as F

from captioner.models import Decoded
from captioner.text import END, PAD
from captioner.training.objectives import Likelihood

B, R, T, V, L = 2, 3, 5, 8, 4
# Words per caption; picture 1 has but one caption, its other rows are padding.
LENGTHS = torch.tensor([[5, 2, 3], [4, 0, 0]])
THERE = torch.arange(T) < LENGTHS.unsqueeze(-1)  # (B, R, T)


def targets() -> torch.Tensor:
    words = torch.randint(END, V, (B, R, T), generator=torch.Generator().manual_seed(1))
    return words.where(THERE, PAD)


def decoded(dtype=torch.double) -> Decoded:
    torch.manual_seed(2)
    logits, weights = 3 * torch.randn(B, R, T, V), torch.rand(B, R, T, L).softmax(-1)
    return Decoded(logits.to(dtype).requires_grad_(), weights.to(dtype).requires_grad_())


def by_loops(weights: torch.Tensor) -> float:
    """The doubly stochastic term, from the definition."""
    squares = []
    for b in range(B):
        for r in range(R):
            for i in range(L):
                if LENGTHS[b, r]:
                    looked = sum(weights[b, r, t, i].item() for t in range(LENGTHS[b, r]))
                    squares.append((1 - looked) ** 2)
    return sum(squares) / len(squares)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_equals_cross_entropy_and_the_definition(smoothing, factor):
    given = decoded()
    loss = Likelihood(factor, smoothing)(given, targets())
    flat = given.logits.flatten(0, -2), targets().flatten()
    smoothed = F.cross_entropy(*flat, ignore_index=PAD, label_smoothing=smoothing)
    exact = {"likelihood": smoothed.item()}
    if factor:
        exact["doubly_stochastic"] = factor * by_loops(given.weights)
    # The likelihood is summed in single precision whatever the decoder's.
    assert {name: term.item() for name, term in loss.terms.items()} == pytest.approx(
        exact, rel=1e-5
    )
    assert loss.total.item() == pytest.approx(sum(exact.values()), rel=1e-5)
    nll = F.cross_entropy(*flat, ignore_index=PAD).item()
    assert loss.measures["nll"].item() == pytest.approx(nll, rel=1e-5)
    assert not loss.measures["nll"].requires_grad


def test_padding_counts_nowhere():
    given, gone = decoded(), ~THERE.unsqueeze(-1)
    other = Decoded(
        torch.where(gone, 100 * torch.randn(B, R, T, V), given.logits.detach()),
        torch.where(gone, torch.randn(B, R, T, L), given.weights.detach()),
    )
    one, two = Likelihood()(given, targets()), Likelihood()(other, targets())
    assert one.total.item() == two.total.item()
    one.total.backward()
    for gradient in (given.logits.grad, given.weights.grad):
        assert not gradient[~THERE].any()
        assert gradient[THERE].any(-1).all()


def test_empty_captions_count_nowhere():
    given = decoded()
    rows = LENGTHS > 0
    only = Decoded(given.logits[rows].unsqueeze(0), given.weights[rows].unsqueeze(0))
    one, two = Likelihood()(given, targets()), Likelihood()(only, targets()[rows].unsqueeze(0))
    assert one.total.item() == pytest.approx(two.total.item(), rel=1e-6)


def test_nothing_but_padding_costs_nothing():
    given = decoded()
    loss = Likelihood()(given, torch.full((B, R, T), PAD))
    assert loss.total.item() == 0
    loss.total.backward()
    assert not given.logits.grad.any()


def test_gradient_is_that_of_cross_entropy_plus_the_penalty():
    given = decoded()
    Likelihood(0.5, 0.1)(given, targets()).total.backward()
    logits = given.logits.detach().requires_grad_()
    F.cross_entropy(
        logits.flatten(0, -2), targets().flatten(), ignore_index=PAD, label_smoothing=0.1
    ).backward()
    torch.testing.assert_close(given.logits.grad, logits.grad, rtol=1e-4, atol=1e-7)
    # d/dα of λ · mean (1 - Σ_t α)²
    looked = (given.weights * THERE.unsqueeze(-1)).sum(2, keepdim=True)
    expected = -0.5 * 2 * (1 - looked) / ((LENGTHS > 0).sum() * L) * THERE.unsqueeze(-1)
    torch.testing.assert_close(given.weights.grad, expected.detach())


def test_looking_at_every_region_once_in_all_costs_least():
    even = torch.full((1, 1, T, L), 1 / T, dtype=torch.double)
    words = torch.full((1, 1, T), END)
    logits = torch.zeros(1, 1, T, V, dtype=torch.double)
    assert Likelihood(1.0)(Decoded(logits, even), words).terms["doubly_stochastic"] < 1e-12
    stare = torch.eye(L, dtype=torch.double)[0].expand(1, 1, T, L)
    cost = Likelihood(1.0)(Decoded(logits, stare), words).terms["doubly_stochastic"].item()
    assert cost == pytest.approx(((1 - T) ** 2 + (L - 1)) / L)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_single(dtype):
    half, full = decoded(dtype), decoded()
    loss = Likelihood()(half, targets())
    assert loss.terms["likelihood"].dtype == torch.float32
    assert loss.total.item() == pytest.approx(Likelihood()(full, targets()).total.item(), rel=2e-2)
