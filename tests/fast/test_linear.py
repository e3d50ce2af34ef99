"""Linear layers with oneDNN against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from captioner.fast import linear as module
from captioner.fast.linear import Linear, linear, outer

TIGHT = {"rtol": 2e-5, "atol": 2e-5}


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def onednn(monkeypatch):
    """The shape of an operand of every product that oneDNN computes."""
    calls, convert, convolve = [], torch.Tensor.to_mkldnn, F.conv2d
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(module, "NARROW", 0)
    monkeypatch.setattr(
        torch.Tensor, "to_mkldnn", lambda first: calls.append(first.shape) or convert(first)
    )
    monkeypatch.setattr(
        F, "conv2d", lambda images, *rest: calls.append(_pixels(images)) or convolve(images, *rest)
    )
    return calls


def _pixels(images):
    return len(images) * images.shape[2], images.shape[1]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 3, 2), (64, 300, 17), (300, 40, 17), (0, 4, 5)])
def test_values_and_gradients_equal_torch(shape, bias, onednn):
    m, k, n = shape
    parts = [random(m, k), random(n, k), random(n) if bias else None]
    gradient, results = random(m, n), []
    for function in (linear, F.linear):
        copies = [None if part is None else part.clone().requires_grad_() for part in parts]
        values = function(*copies)
        values.backward(gradient)
        results.append([values, *(part.grad for part in copies if part is not None)])
    assert bool(onednn) == (m > 0)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **TIGHT)


def test_onednn_is_used_unless_torch_compiles(onednn, monkeypatch):
    rows, weight = random(4, 3).requires_grad_(), random(2, 3).requires_grad_()
    linear(rows, weight).sum().backward()
    assert len(onednn) == 2  # the gradient of the rows needs no conversion
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    linear(rows, weight)
    monkeypatch.undo()
    assert len(onednn) == 2


@pytest.mark.parametrize("count", [1, 16, 17, 700, 4001])
def test_rows_are_padded_to_few_sizes(count, onednn):
    """oneDNN compiles a kernel for every size."""
    rows, weight = random(count, 3).requires_grad_(), random(2, 3).requires_grad_()
    linear(rows, weight).sum().backward()
    torch.testing.assert_close(weight.grad, rows.sum(0).expand(2, 3), rtol=1e-4, atol=1e-4)
    [size] = {max(shape) for shape in onednn}
    assert count <= size <= max(count + 15, count * 17 // 16)
    assert size % 16 == 0


def test_other_strides_and_precisions():
    rows, weight = random(7, 30).T, random(14, 9)[::2].T  # (30, 7), (9, 7)
    torch.testing.assert_close(linear(rows, weight), rows @ weight.T, **TIGHT)
    torch.testing.assert_close(
        outer(rows, weight[:1].expand(30, -1)), rows.T @ weight[:1].expand(30, -1), **TIGHT
    )
    rows, weight = random(6, 5).double(), random(4, 5).double()
    torch.testing.assert_close(linear(rows, weight), rows @ weight.T, rtol=1e-14, atol=1e-14)
    layer, rows = Linear(5, 4), random(2, 3, 5)
    torch.testing.assert_close(layer(rows), F.linear(rows, layer.weight, layer.bias), **TIGHT)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(rows).dtype == torch.bfloat16
