"""The loop's LSTM against torch's own cell, which multiplies at every step."""

import pytest
import torch
from torch import nn

from captioner.models.linear import missing_rows
from captioner.models.recurrence import Recurrence

IN, H, N, STEPS = 5, 4, 6, 7


def made(kind):
    torch.manual_seed(0)
    return kind(IN, H).double()


def cell_of(lstm):
    """torch's cell with the same weights."""
    cell = nn.LSTMCell(IN, H).double()
    for own, other in zip(cell.parameters(), lstm.parameters(), strict=True):
        own.data = other.data.clone()
    return cell


def given():
    torch.manual_seed(1)
    inputs = torch.randn(STEPS, N, IN, dtype=torch.double, requires_grad=True)
    memory = torch.randn(2, N, H, dtype=torch.double, requires_grad=True)
    return inputs, memory


def loop(update, inputs, memory):
    """All h, every step fed with the one before as attention does, and the last c."""
    hidden, cell = memory
    found = []
    for step in inputs:
        hidden, cell = update(step + hidden.sum(1, keepdim=True), hidden, cell)
        found.append(hidden)
    return torch.stack(found), cell


def gradients(found, given, weights):
    torch.manual_seed(2)
    loss = sum((part * torch.randn_like(part)).sum() for part in found)
    return torch.autograd.grad(loss, [*given, *weights])


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.LSTM])
def test_a_loop_equals_torchs_cell_and_so_do_its_gradients(kind):
    lstm = made(kind)
    cell = cell_of(lstm)
    own, other = given(), given()
    found = loop(Recurrence(lstm), *own)
    expected = loop(lambda x, h, c: cell(x, (h, c)), *other)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for one, two in zip(
        gradients(found, own, lstm.parameters()),
        gradients(expected, other, cell.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-11)


def test_rows_that_nobody_wants_are_left_out():
    """Fewer at every step; the others have numbers and gradients as if they had been there."""
    lstm = made(nn.LSTMCell)
    lasting = torch.tensor([7, 1, 3, 7, 0, 5])
    found = []
    for update in (Recurrence(lstm), None):
        inputs, memory = given()
        hidden, cell = memory
        kept = []
        for t, step in enumerate(inputs):
            wanted = t < lasting
            if update is None:
                hidden, cell = lstm(step, (hidden, cell))
            else:
                hidden, cell = update(step, hidden, cell, wanted)
                assert hidden.isfinite().all()
            kept.append(hidden[wanted])
        said = torch.cat(kept)
        found.append([said, *gradients([said], (inputs, memory), lstm.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_the_weights_gradient_is_one_product():
    """Not one of every step."""
    lstm = made(nn.LSTMCell)
    inputs, memory = given()
    hidden, cell = loop(Recurrence(lstm), inputs, memory)
    with torch.profiler.profile(record_shapes=True) as profile:
        (hidden.sum() + cell.sum()).backward()
    shapes = [event.input_shapes[:2] for event in profile.events() if event.name == "aten::mm"]
    rows = STEPS * N + missing_rows(STEPS * N)
    assert shapes.count([[4 * H, rows], [rows, IN + H]]) == 1
    assert len(shapes) == 1 + STEPS  # and the gradient of the rows of every step


def branched(update, inputs, memory):
    """Two continuations of one memory; the loss is of the second."""
    hidden, cell = update(inputs[0], *memory)
    update(inputs[1], hidden, cell)
    return update(inputs[2], hidden, cell)[0]


def cut(update, inputs, memory):
    """Truncated: nothing is learned of the steps before."""
    hidden, cell = update(inputs[0], *memory)
    hidden, cell = update(inputs[1], hidden.detach(), cell.detach())
    return update(inputs[2], hidden, cell)[0]


def begun_without_gradients(update, inputs, memory):
    with torch.no_grad():
        hidden, cell = update(inputs[0], *memory)
    return update(inputs[1], hidden, cell)[0]


def without_the_first(update, inputs, memory):
    """What the first update made is not in the loss."""
    update(inputs[0], *memory)
    return update(inputs[1], *memory)[0]


@pytest.mark.parametrize("made_of", [branched, cut, begun_without_gradients, without_the_first])
@pytest.mark.parametrize("frozen", [False, True])
def test_no_gradient_is_lost_whatever_the_graph(made_of, frozen):
    found = []
    for own in (True, False):
        lstm, (inputs, memory) = made(nn.LSTMCell), given()
        lstm.weight_ih.requires_grad_(not frozen)
        lstm.weight_hh.requires_grad_(not frozen)
        recurrence = Recurrence(lstm)
        update = recurrence if own else lambda x, h, c, cell=lstm: cell(x, (h, c))
        made_of(update, inputs, memory).square().sum().backward()
        if own:
            assert not recurrence.steps.rows
        found.append([p.grad for p in lstm.parameters()])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_graph_can_be_asked_twice_and_for_inputs_alone():
    """As Grad-CAM asks for one word after the other: nothing is multiplied, or kept, in vain."""
    lstm = made(nn.LSTMCell)
    inputs, memory = given()
    recurrence = Recurrence(lstm)
    hidden, _ = loop(recurrence, inputs, memory)
    weights = list(lstm.parameters())
    torch.autograd.grad(hidden[4].sum(), inputs, retain_graph=True)
    assert not recurrence.steps.rows
    asked = [torch.autograd.grad(h.sum(), weights, retain_graph=True) for h in hidden]
    whole = torch.autograd.grad(hidden.sum(), weights)
    for parts, of_all in zip(zip(*asked, strict=True), whole, strict=True):
        torch.testing.assert_close(sum(parts), of_all, rtol=0, atol=1e-11)


def test_in_bfloat16_it_is_near():
    lstm, (inputs, memory) = made(nn.LSTMCell).float(), given()
    inputs, memory = inputs.float(), memory.float()
    exact, _ = loop(Recurrence(lstm), inputs, memory)
    with torch.autocast("cpu", torch.bfloat16):
        near, _ = loop(Recurrence(lstm), inputs, memory)
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near.float(), exact, rtol=0, atol=0.03)
    for weights in (near.float(), exact):
        lstm.zero_grad()
        weights.sum().backward()
        gradients = [p.grad for p in lstm.parameters()]
        assert all(gradient.dtype == torch.float32 for gradient in gradients)
        if weights is not exact:
            rounded = gradients
    for one, other in zip(rounded, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.03 * float(other.abs().max()))


def test_elsewhere_it_is_torchs_own_kernel(monkeypatch):
    """No such device is at hand; where the weights say they are on one, its numbers are the cell's."""
    lstm, (inputs, memory) = made(nn.LSTMCell), given()
    monkeypatch.setattr(Recurrence, "on_cpu", False)
    found, _ = loop(Recurrence(lstm), inputs, memory)
    expected, _ = loop(lambda x, h, c: lstm(x, (h, c)), inputs, memory)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
