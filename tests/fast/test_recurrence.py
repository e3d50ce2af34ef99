"""The LSTM decoders' faster recurrence against the plain decoders."""

import copy
from functools import partial

import pytest
import torch

from captioner.fast import accelerate
from captioner.language.vocabulary import END, PAD, UNK
from captioner.models import Additive, Annotations, Attention, LSTMDecoder, LuongDecoder
from captioner.models.packing import unfinished

pytestmark = pytest.mark.usefixtures("with_fast")

B, R, T, L, D, V = 2, 3, 6, 4, 5, 9
KINDS = [(LSTMDecoder, {}), (LSTMDecoder, {"intra": True}), (LuongDecoder, {})]
KINDS += [(LuongDecoder, {"sentinel": True})]
every_kind = pytest.mark.parametrize(
    ("kind", "options"), KINDS, ids=["lstm", "intra", "luong", "sentinel"]
)


def pair(kind, options=None):
    """A plain decoder, and a faster one with the same weights."""
    torch.manual_seed(0)
    made = partial(Attention, score=partial(Additive, dim=4))
    plain = kind(
        V, D, attention=made, hidden=4, embedding=3, dropout=0.0, **(options or {})
    ).double()
    fast = copy.deepcopy(plain)
    assert accelerate(fast)[""] is kind
    return plain, fast


def images():
    return Annotations(torch.randn(B, L, D, dtype=torch.double, requires_grad=True), (2, 2))


def captions():
    """Of different lengths, one without words."""
    tokens = torch.randint(UNK + 1, V, (B, R, T))
    for row, length in enumerate([6, 4, 0, 5, 5, 1]):
        tokens.view(B * R, T)[row, length:] = PAD
        tokens.view(B * R, T)[row, length : length + 1] = END
    return tokens


def defined(decoder, annotations, tokens):
    """Log-probabilities of the words after unfinished captions; other steps are undefined."""
    return decoder(annotations, tokens).logits[unfinished(tokens)].log_softmax(-1)


def loss(decoder, annotations, tokens):
    return defined(decoder, annotations, tokens)[:, 5].square().sum()


def close(one, other, atol=1e-11):
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("frozen", [False, True])
@every_kind
def test_results_and_gradients_are_those_of_the_plain_decoder(kind, options, frozen):
    annotations, tokens = images(), captions()
    found = []
    for decoder in pair(kind, options):
        decoder.lstm.requires_grad_(not frozen)
        value = loss(decoder, annotations, tokens)
        parameters = [p for p in decoder.parameters() if p.requires_grad]
        inputs = [annotations.vectors, *parameters]
        found.append([value, *torch.autograd.grad(value, inputs, allow_unused=True)])
    close(*found)


@every_kind
def test_steps_are_those_of_the_plain_decoder(kind, options):
    annotations, tokens = images(), captions()
    states = []
    for decoder in pair(kind, options):
        state = decoder.init_state(annotations, rows=R)
        for word in tokens.unbind(-1)[:3]:
            logits, weights, state = decoder.step(word, state)
        states.append([logits, weights, state.memory.hidden, state.memory.cell])
    close(*states)


def test_a_graph_can_be_used_twice_and_for_inputs_alone():
    """As Grad-CAM does, one word after the other."""
    annotations, tokens = images(), captions()
    found = []
    for decoder in pair(LSTMDecoder):
        weights = list(decoder.lstm.parameters())
        logits = defined(decoder, annotations, tokens)
        inputs = [torch.autograd.grad(logits[3, 5], annotations.vectors, retain_graph=True)[0]]
        once = torch.autograd.grad(logits[3, 5], weights, retain_graph=True)
        again = torch.autograd.grad(logits[3, 5], weights, retain_graph=True)
        close(once, again)
        found.append([*inputs, *once, *torch.autograd.grad(logits.sum(), weights)])
    close(*found)


def test_in_bfloat16_it_is_near():
    annotations, tokens = images(), captions()
    _, fast = pair(LSTMDecoder)
    fast = fast.float()
    annotations = annotations.map(lambda vectors: vectors.detach().float())
    exact = loss(fast, annotations, tokens)
    exact.backward()
    expected = fast.lstm.weight_ih.grad.clone()
    fast.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        near = loss(fast, annotations, tokens)
    near.backward()
    assert near != exact
    torch.testing.assert_close(near.float(), exact, rtol=0.03, atol=0)
    assert fast.lstm.weight_ih.grad.dtype == torch.float32
    scale = float(expected.abs().max())
    torch.testing.assert_close(fast.lstm.weight_ih.grad, expected, rtol=0, atol=0.05 * scale)
