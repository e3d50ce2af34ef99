"""Gradients as one vector, and a statistical test of their estimates."""

import torch


def gradient(value: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    """The gradient with respect to all trainable parameters, in one vector."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(
        value, parameters, allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return torch.cat([part.flatten() for part in gradients])


def is_unbiased(estimates: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the mean of (N, P) estimates is near (P,) ``exact``: within 3 and 4.5 standard errors.

    The first bound applies along the exact gradient, the second to each of a hundred parameters.
    """
    root = len(estimates) ** 0.5
    along = estimates @ exact / exact.norm()
    error = (estimates.mean(0) - exact).abs()
    # A gradient that never varies must be exact: its standard error counts as 1e-9.
    largest = (error / (estimates.std(0) / root).clamp(min=1e-9)).max()
    return bool((along.mean() - exact.norm()).abs() < 3 * along.std() / root and largest < 4.5)
