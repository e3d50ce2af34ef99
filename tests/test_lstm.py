"""The LSTM decoder against its equations, written out with numpy for one caption."""

from functools import partial

import numpy as np
import pytest
import torch

from captioner.models import Additive, Annotations, Attention, LSTMDecoder
from captioner.models.registry import build, names

B, R, T, L, D, V = 2, 3, 5, 6, 7, 9  # all different: a mixed-up axis cannot go unnoticed
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)

variants = pytest.mark.parametrize("gate", [True, False], ids=["gate", "no gate"])
outputs = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def make(gate: bool = True, tied: bool = True, distribution: str = "Soft") -> LSTMDecoder:
    """A small decoder, in eval mode and double precision, its parameters large enough to matter."""
    torch.manual_seed(4)
    law = partial(build, "distribution", {"class_path": distribution})
    attention = partial(Attention, score=partial(Additive, dim=4), distribution=law)
    decoder = LSTMDecoder(V, D, attention, hidden=8, embedding=3, gate=gate, tied=tied)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()


def seen(mask: torch.Tensor | None = MASK) -> Annotations:
    generator = torch.Generator().manual_seed(5)
    return Annotations(torch.randn(B, L, D, generator=generator, dtype=torch.double), (2, 3), mask)


def captions() -> torch.Tensor:
    return torch.randint(V, (B, R, T), generator=torch.Generator().manual_seed(6))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def stepped(decoder, annotations, tokens):
    """Word by word, as a search does it: logits (B, *R, T, V) and weights (B, *R, T, L)."""
    state = decoder.start(annotations)
    if tokens.ndim == 3:
        state = state.select(torch.zeros(tokens.shape[:2], dtype=torch.long))
    steps = []
    for word in tokens.unbind(-1):
        logits, weights, state = decoder.step(word, state)
        steps.append((logits, weights))
    return [torch.stack(parts, -2) for parts in zip(*steps, strict=True)]


def reference(decoder, vectors, tokens, gate, tied):
    """The docstring's equations for one picture and one caption."""
    p = {name: value.detach().numpy() for name, value in decoder.named_parameters()}
    if tied:
        p["output.weight"] = p["embedding.weight"]

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def linear(name, x):
        return p[f"{name}.weight"] @ x + p.get(f"{name}.bias", 0)

    a = vectors.numpy()
    h, c = (np.tanh(linear(f"start_{part}.0", a.mean(0))) for part in ("hidden", "cell"))
    logits, weights = [], []
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
        gates = p["lstm.weight_ih"] @ np.concatenate([word, z]) + p["lstm.bias_ih"]
        gates = gates + p["lstm.weight_hh"] @ h + p["lstm.bias_hh"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        deep = np.tanh(word + linear("output_hidden", h) + linear("output_context", z))
        logits.append(linear("output", deep))
        weights.append(alpha)
    return torch.tensor(np.array(logits)), torch.tensor(np.array(weights))


@variants
@outputs
def test_equals_the_equations(gate, tied):
    decoder, annotations, tokens = make(gate, tied), seen(mask=None), captions()
    decoded = decoder(annotations, tokens)
    for b in range(B):
        for r in range(R):
            logits, weights = reference(
                decoder, annotations.vectors[b], tokens[b, r], gate=gate, tied=tied
            )
            close(decoded.logits[b, r], logits)
            close(decoded.weights[b, r], weights)


@pytest.mark.parametrize("tokens", [captions()[:, 0], captions()], ids=["B T", "B R T"])
@pytest.mark.parametrize("distribution", names("distribution"))
def test_stepping_equals_teacher_forcing(distribution, tokens):
    decoder = make(distribution=distribution)
    decoded = decoder(seen(), tokens)
    logits, weights = stepped(decoder, seen(), tokens)
    assert logits.shape == (*tokens.shape, V)
    close(decoded.logits, logits)
    close(decoded.weights, weights)


def test_every_caption_of_a_picture_is_decoded_as_if_alone():
    decoder, annotations, tokens = make(), seen(), captions()
    together = decoder(annotations, tokens)
    for b in range(B):
        picture = Annotations(annotations.vectors[b : b + 1], (2, 3), MASK[b : b + 1])
        for r in range(R):
            alone = decoder(picture, tokens[b, r].unsqueeze(0))
            close(together.logits[b, r], alone.logits[0])
            close(together.weights[b, r], alone.weights[0])


@pytest.mark.parametrize("changed", range(1, T))
def test_a_later_word_changes_nothing_earlier(changed):
    decoder, tokens = make(), captions()
    other = tokens.clone()
    other[..., changed] = (other[..., changed] + 1) % V
    one, two = decoder(seen(), tokens), decoder(seen(), other)
    close(one.logits[..., :changed, :], two.logits[..., :changed, :])
    close(one.weights[..., : changed + 1, :], two.weights[..., : changed + 1, :])
    moved = (one.logits - two.logits).abs().amax(-1)
    assert (moved[..., changed:] > 1e-6).all()  # and everything later


def test_select_takes_the_memory_of_the_chosen_rows():
    decoder, tokens = make(), captions()
    state = decoder.start(seen()).select(torch.zeros(B, R, dtype=torch.long))
    for t in range(3):
        _, _, state = decoder.step(tokens[:, :, t], state)
    rows = torch.tensor([[2, 0, 0, 1], [1, 1, 2, 0]])
    word = torch.tensor([[5, 6, 7, 8], [8, 7, 6, 5]])
    logits, weights, _ = decoder.step(word, state.select(rows))
    history = tokens[:, :, :3].gather(1, rows.unsqueeze(-1).expand(-1, -1, 3))
    forced = decoder(seen(), torch.cat([history, word.unsqueeze(-1)], -1))
    close(logits, forced.logits[..., -1, :])
    close(weights, forced.weights[..., -1, :])


def test_what_is_masked_might_as_well_not_exist():
    decoder, tokens = make(), captions()
    vectors = seen().vectors
    hidden = torch.where(MASK.unsqueeze(-1), vectors, 1e3)
    decoded = decoder(Annotations(hidden, (2, 3), MASK), tokens)
    assert (decoded.weights[~MASK[:, None, None].expand_as(decoded.weights)] == 0).all()
    for b in range(B):
        rest = vectors[b : b + 1, MASK[b]]
        without = decoder(Annotations(rest, (1, rest.shape[1])), tokens[b : b + 1])
        close(decoded.logits[b], without.logits[0])
        close(decoded.weights[b][..., MASK[b]], without.weights[0])


@variants
@outputs
def test_gradient_reaches_every_parameter(gate, tied):
    decoder = make(gate, tied)
    decoder(seen(), captions()).logits.log_softmax(-1)[..., 0].sum().backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_tying_saves_the_output_matrix_and_starts_from_even_odds():
    sizes = [sum(p.numel() for p in make(tied=tied).parameters()) for tied in (False, True)]
    assert sizes[0] - sizes[1] == V * 3
    torch.manual_seed(7)
    fresh = LSTMDecoder(1000, D).eval()
    log_probs = fresh(Annotations(torch.randn(B, L, D), (2, 3)), captions()).logits.log_softmax(-1)
    assert log_probs.mean().item() == pytest.approx(-np.log(1000), abs=0.3)


def test_dropout_is_for_training_only():
    decoder, annotations, tokens = make(), seen(), captions()
    one, two = (decoder(annotations, tokens).logits for _ in range(2))
    assert torch.equal(one, two)
    decoder.train()
    one, two = (decoder(annotations, tokens).logits for _ in range(2))
    assert not torch.equal(one, two)
