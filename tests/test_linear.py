"""Linear maps against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from captioner import models
from captioner.models.linear import Linear, linear, missing_rows, outer, product

SHAPES = [(1, 3, 2), (5, 8, 1), (64, 300, 17), (3, 1, 40), (0, 4, 5)]
TIGHT = {"rtol": 2e-5, "atol": 2e-5}


def made(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_torch_s(shape, bias):
    m, k, n = shape
    parts = [made(m, k), made(n, k), made(n) if bias else None]
    gradient, found = made(m, n), []
    for function in (linear, F.linear):
        own = [None if part is None else part.clone().requires_grad_() for part in parts]
        values = function(*own)
        values.backward(gradient)
        found.append([values, *(part.grad for part in own if part is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **TIGHT)
    torch.testing.assert_close(product(*parts), F.linear(*parts), **TIGHT)


def test_the_faster_library_is_asked_where_it_is_there(monkeypatch):
    asked, by_onednn = [], models.linear.by_onednn
    monkeypatch.setattr(models.linear, "by_onednn", lambda *a: asked.append(a) or by_onednn(*a))
    monkeypatch.setattr(models.linear, "ONEDNN", False)
    linear(made(4, 3), made(2, 3))
    assert not asked
    monkeypatch.setattr(models.linear, "ONEDNN", models.linear._onednn())
    asked.clear()
    rows, weight = made(4, 3).requires_grad_(), made(2, 3).requires_grad_()
    linear(rows, weight).sum().backward()
    assert len(asked) == (3 if models.linear.ONEDNN else 0)
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of GPUs
    try:
        linear(made(4, 3), made(2, 3))
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert len(asked) == (3 if models.linear.ONEDNN else 0)


def test_a_compiled_layer_is_torch_s(monkeypatch):
    """torch.compile would refuse the call, of weights that learn."""
    monkeypatch.setattr(models.linear, "ONEDNN", True)
    monkeypatch.setattr(models.linear, "by_onednn", None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layer, rows = Linear(3, 2), made(4, 3)
    torch.testing.assert_close(layer(rows), F.linear(rows, layer.weight, layer.bias))


@pytest.mark.parametrize("part", [slice(0, 5), slice(5, 12)])
def test_a_part_of_a_matrix_is_multiplied_dense(part, monkeypatch):
    """oneDNN's fast kernels want it so; ``Concat`` has such parts."""
    asked, by_onednn = [], models.linear.by_onednn
    monkeypatch.setattr(models.linear, "by_onednn", lambda *a: asked.append(a[1]) or by_onednn(*a))
    joint = made(6, 12).requires_grad_()
    rows = made(4, part.stop - part.start)
    linear(rows, joint[:, part]).sum().backward()
    expected = torch.zeros(6, 12)
    expected[:, part] = rows.sum(0)
    torch.testing.assert_close(joint.grad, expected, **TIGHT)
    assert all(weight.is_contiguous() or weight.T.is_contiguous() for weight in asked)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 127, 128, 131, 700, 4001])
def test_few_sizes_are_asked_for(count, monkeypatch):
    """oneDNN writes a program for each."""
    sizes = set()

    def by_onednn(rows, weight, bias):
        sizes.add((tuple(rows.shape), tuple(weight.shape)))
        return F.linear(rows, weight, bias)

    monkeypatch.setattr(models.linear, "by_onednn", by_onednn)
    monkeypatch.setattr(models.linear, "ONEDNN", True)
    rows, weight = made(count, 3).requires_grad_(), made(2, 3).requires_grad_()
    linear(rows, weight).sum().backward()
    torch.testing.assert_close(weight.grad, rows.sum(0).expand(2, 3), rtol=1e-4, atol=1e-4)
    [around] = {max(a, b) for (a, _), (b, _) in sizes if max(a, b) > 3} or {16}
    assert count <= around <= max(count + 15, count * 17 // 16)
    assert around % 16 == 0


@pytest.mark.parametrize("count", [1, 17, 131, 4001])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_few_sizes_are_asked_for_in_other_precisions(precision, count):
    """Where torch asks oneDNN itself."""
    rows, weight, gradient = (made(*s).to(precision) for s in ((count, 3), (2, 3), (count, 2)))
    with _Products() as products:
        found = product(rows, weight), outer(gradient, rows)
    assert len(products.sizes) == 2
    for sizes in products.sizes:
        assert missing_rows(max(*sizes, 16)) == 0
    expected = rows @ weight.T, gradient.T @ rows
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == precision
        assert (one - other).abs().max() <= 2**-6 * max(1, other.abs().max())


class _Products(TorchDispatchMode):
    """Watches matrices being multiplied."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.sizes.append({*args[0].shape, *args[1].shape})
        return func(*args, **(kwargs or {}))


def test_only_what_learns_has_a_gradient():
    rows, weight = made(4, 3).requires_grad_(), made(2, 3)
    linear(rows, weight).sum().backward()
    torch.testing.assert_close(rows.grad, weight.sum(0).expand(4, 3), **TIGHT)
    assert weight.grad is None


@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (2, 0, 3)])
def test_any_axes_before_the_last(lead):
    layer, rows = Linear(5, 4), made(*lead, 5)
    assert layer(rows).shape == (*lead, 4)
    torch.testing.assert_close(layer(rows), F.linear(rows, layer.weight, layer.bias), **TIGHT)


def test_strides_are_what_they_are():
    rows, weight = made(7, 30).T, made(14, 9)[::2].T  # (30, 7), (9, 7)
    torch.testing.assert_close(linear(rows, weight), rows @ weight.T, **TIGHT)
    torch.testing.assert_close(product(rows, weight), rows @ weight.T, **TIGHT)


def test_doubles_are_doubles():
    rows, weight = made(6, 5).double(), made(4, 5).double()
    torch.testing.assert_close(linear(rows, weight), rows @ weight.T, rtol=1e-14, atol=1e-14)


def test_autocast_is_obeyed():
    layer = Linear(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(made(6, 5)).dtype == torch.bfloat16
    assert layer(made(6, 5)).dtype == torch.float32


def test_it_is_stored_as_torch_s_is():
    assert Linear(5, 4).state_dict().keys() == torch.nn.Linear(5, 4).state_dict().keys()
