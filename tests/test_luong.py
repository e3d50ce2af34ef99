"""Luong's decoder against its equations, written out with numpy for one caption."""

from functools import partial

import numpy as np
import pytest
import torch

from captioner.models import Annotations, Attention, LuongDecoder
from captioner.models.attention import General
from captioner.text import UNK

B, R, T, L, D, V = 2, 3, 5, 6, 7, 9
HIDDEN, EMBEDDING = 8, 3


def reference(decoder, vectors, tokens):
    """The docstring's equations for one picture and one caption."""
    p = {name: value.detach().numpy() for name, value in decoder.state_dict().items()}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    a = vectors.numpy()
    h, c = (
        np.tanh(p[f"start_{part}.0.weight"] @ a.mean(0) + p[f"start_{part}.0.bias"])
        for part in ("hidden", "cell")
    )
    fed = np.zeros(EMBEDDING)
    logits, weights = [], []
    for token in tokens.tolist():
        x = p["embedding.weight"][token]
        if decoder.input_feeding:
            x = np.concatenate([x, fed])
        gates = p["lstm.weight_ih_l0"] @ x + p["lstm.bias_ih_l0"]
        i, f, g, o = np.split(gates + p["lstm.weight_hh_l0"] @ h + p["lstm.bias_hh_l0"], 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        energy = np.array([h @ p["attention.score.key.weight"] @ a_i for a_i in a])
        alpha = np.exp(energy) / np.exp(energy).sum()
        fed = np.tanh(p["attentional.weight"] @ np.concatenate([alpha @ a, h]))
        logits.append(p["output.weight"] @ fed + p["output.bias"])
        weights.append(alpha)
    return torch.tensor(np.array(logits)), torch.tensor(np.array(weights))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("input_feeding", [True, False])
def test_equals_the_equations(input_feeding, tied):
    torch.manual_seed(4)
    attention = partial(Attention, score=General)
    decoder = LuongDecoder(
        V, D, attention, HIDDEN, EMBEDDING, input_feeding=input_feeding, tied=tied
    )
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    decoder = decoder.double().eval()
    annotations = Annotations(torch.randn(B, L, D, dtype=torch.double), (2, 3))
    tokens = torch.randint(UNK + 1, V, (B, R, T))
    decoded = decoder(annotations, tokens)
    for b in range(B):
        for r in range(R):
            logits, weights = reference(decoder, annotations.vectors[b], tokens[b, r])
            torch.testing.assert_close(decoded.logits[b, r], logits, rtol=0, atol=1e-10)
            torch.testing.assert_close(decoded.weights[b, r], weights, rtol=0, atol=1e-10)


def test_without_feeding_the_lstm_is_called_once(monkeypatch):
    """All words of all captions in one fused call, and one attention product."""
    decoder = LuongDecoder(V, D, hidden=HIDDEN, embedding=EMBEDDING, input_feeding=False)
    calls = []
    for part in (decoder.lstm, decoder.attention, decoder.output):
        part.register_forward_hook(lambda module, *_: calls.append(type(module).__name__))
    decoder(Annotations(torch.randn(B, L, D), (2, 3)), torch.randint(UNK + 1, V, (B, R, T)))
    assert calls == ["LSTM", "Attention", "Linear"]
