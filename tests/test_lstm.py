"""The LSTM decoder against its equations, written out with numpy for one caption."""

from functools import partial

import numpy as np
import pytest
import torch

from captioner.models import Additive, Annotations, Attention, LSTMDecoder
from captioner.text import UNK

B, R, T, L, D, V = 2, 3, 5, 6, 7, 9  # all different: a mixed-up axis cannot go unnoticed
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)

variants = pytest.mark.parametrize("gate", [True, False], ids=["gate", "no gate"])
outputs = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def make(gate: bool = True, tied: bool = True, intra: bool = False) -> LSTMDecoder:
    """A small decoder, in eval mode and double precision, its parameters large enough to matter."""
    torch.manual_seed(4)
    attention = partial(Attention, score=partial(Additive, dim=4))
    decoder = LSTMDecoder(V, D, attention, hidden=8, embedding=3, gate=gate, tied=tied, intra=intra)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()


def seen(mask: torch.Tensor | None = MASK) -> Annotations:
    generator = torch.Generator().manual_seed(5)
    return Annotations(torch.randn(B, L, D, generator=generator, dtype=torch.double), (2, 3), mask)


def captions() -> torch.Tensor:
    return torch.randint(UNK + 1, V, (B, R, T), generator=torch.Generator().manual_seed(6))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def reference(decoder, vectors, tokens, gate, tied, intra=False):
    """The docstring's equations for one picture and one caption; those of the LSTMN if ``intra``."""
    p = {name: value.detach().numpy() for name, value in decoder.named_parameters()}
    if tied:
        p["output.weight"] = p["embedding.weight"]

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def linear(name, x):
        return p[f"{name}.weight"] @ x + p.get(f"{name}.bias", 0)

    a = vectors.numpy()
    h, c = (np.tanh(linear(f"start_{part}.0", a.mean(0))) for part in ("hidden", "cell"))
    logits, weights, tape, looks = [], [], [], []
    read = h
    for token in tokens.tolist():
        query = p["attention.score.query.weight"] @ h
        energy = np.array(
            [
                p["attention.score.energy.weight"][0]
                @ np.tanh(query + linear("attention.score.key", a_i))
                for a_i in a
            ]
        )
        alpha = np.exp(energy) / np.exp(energy).sum()
        z = sum(alpha_i * a_i for alpha_i, a_i in zip(alpha, a, strict=True))
        if gate:
            z = sigmoid(linear("gate.0", h)) * z
        word = p["embedding.weight"][token]
        x = np.concatenate([word, z])
        look = np.zeros(len(tokens))
        if tape:
            w_x, w_read = np.split(p["intra.attention.score.query.weight"], [len(x)], axis=1)
            energy = [
                p["intra.attention.score.energy.weight"][0]
                @ np.tanh(linear("intra.attention.score.key", h_i) + w_x @ x + w_read @ read)
                for h_i, _ in tape
            ]
            s = np.exp(energy) / np.exp(energy).sum()
            h = sum(s_i * h_i for s_i, (h_i, _) in zip(s, tape, strict=True))
            c = sum(s_i * c_i for s_i, (_, c_i) in zip(s, tape, strict=True))
            look[: len(tape)] = s
        read = h
        looks.append(look)
        gates = p["lstm.weight_ih"] @ x + p["lstm.bias_ih"]
        gates = gates + p["lstm.weight_hh"] @ h + p["lstm.bias_hh"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        if intra:
            tape.append((h, c))
        deep = np.tanh(word + linear("output_hidden", h) + linear("output_context", z))
        logits.append(linear("output", deep))
        weights.append(alpha)
    return tuple(torch.tensor(np.array(found)) for found in (logits, weights, looks))


@pytest.mark.parametrize("intra", [False, True], ids=["one memory", "all memories"])
@variants
@outputs
def test_equals_the_equations(gate, tied, intra):
    decoder, annotations, tokens = make(gate, tied, intra), seen(mask=None), captions()
    decoded = decoder(annotations, tokens, "all")
    for b in range(B):
        for r in range(R):
            logits, weights, looks = reference(
                decoder, annotations.vectors[b], tokens[b, r], gate, tied, intra
            )
            close(decoded.logits[b, r], logits)
            close(decoded.weights[b, r], weights)
            if intra:
                close(decoded.past[b, r, :, 0, 0], looks)


def test_tying_saves_the_output_matrix():
    sizes = [sum(p.numel() for p in make(tied=tied).parameters()) for tied in (False, True)]
    assert sizes[0] - sizes[1] == V * 3
