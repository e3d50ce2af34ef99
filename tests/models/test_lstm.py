"""The LSTM decoders against their equations, written out with numpy for one caption."""

from functools import partial

import numpy as np
import pytest
import torch

from captioner.errors import ModelError
from captioner.language.vocabulary import UNK
from captioner.models import (
    Additive,
    Annotations,
    Attention,
    LSTMDecoder,
    LuongDecoder,
    TopDownDecoder,
)
from captioner.models.scores import General, Location

B, R, T, L, D, V = 2, 3, 5, 6, 7, 9  # all different, so that mixed-up axes are found
SIZES = {"hidden": 8, "embedding": 3}
SMALL = partial(Additive, dim=4)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(energy):
    return np.exp(energy) / np.exp(energy).sum()


class Equations:
    """A decoder's parameters, and the equations that both decoders share."""

    def __init__(self, decoder, vectors):
        self.p = {name: value.detach().numpy() for name, value in decoder.state_dict().items()}
        self.a = vectors.numpy()
        self.h, self.c = (
            np.tanh(self.linear(f"start_{part}.0", self.a.mean(0))) for part in ("hidden", "cell")
        )

    def linear(self, name, x):
        return self.p[f"{name}.weight"] @ x + self.p.get(f"{name}.bias", 0)

    def lstm(self, x, layer=""):
        gates = self.p[f"lstm.weight_ih{layer}"] @ x + self.p[f"lstm.bias_ih{layer}"]
        gates = gates + self.p[f"lstm.weight_hh{layer}"] @ self.h + self.p[f"lstm.bias_hh{layer}"]
        i, f, g, o = np.split(gates, 4)
        self.c = sigmoid(f) * self.c + sigmoid(i) * np.tanh(g)
        self.h = sigmoid(o) * np.tanh(self.c)


def show_attend_and_tell(decoder, vectors, tokens):
    """Attend, then update; with the memory of the LSTMN if the decoder has ``intra``."""
    m = Equations(decoder, vectors)
    logits, weights, tape, past = [], [], [], []
    summary = m.h
    for token in tokens.tolist():
        query = m.p["attention.score.query.weight"] @ m.h
        v = m.p["attention.score.energy.weight"][0]
        keys = [m.linear("attention.score.key", a_i) for a_i in m.a]
        alpha = softmax(np.array([v @ np.tanh(query + key) for key in keys]))
        z = alpha @ m.a
        if decoder.gate is not None:
            z = sigmoid(m.linear("gate.0", m.h)) * z
        word = m.p["embedding.weight"][token]
        x, s_t = np.concatenate([word, z]), np.zeros(len(tokens))
        if tape:
            w_x, w_summary = np.split(m.p["intra.attention.score.query.weight"], [len(x)], axis=1)
            v, query = m.p["intra.attention.score.energy.weight"][0], w_x @ x + w_summary @ summary
            keys = [m.linear("intra.attention.score.key", h_i) for h_i, _ in tape]
            s = softmax(np.array([v @ np.tanh(key + query) for key in keys]))
            m.h = sum(s_i * h_i for s_i, (h_i, _) in zip(s, tape, strict=True))
            m.c = sum(s_i * c_i for s_i, (_, c_i) in zip(s, tape, strict=True))
            s_t[: len(tape)] = s
        summary = m.h
        past.append(s_t)
        m.lstm(x)
        if decoder.intra is not None:
            tape.append((m.h, m.c))
        deep = np.tanh(word + m.linear("output_hidden", m.h) + m.linear("output_context", z))
        logits.append(m.linear("output", deep))
        weights.append(alpha)
    return logits, weights, past


def luong(decoder, vectors, tokens):
    """Update, then attend."""
    m = Equations(decoder, vectors)
    fed, logits, weights = np.zeros(SIZES["embedding"]), [], []
    for token in tokens.tolist():
        x = m.p["embedding.weight"][token]
        x = np.concatenate([x, vectors.numpy().mean(0)]) if decoder.global_feature else x
        x = np.concatenate([x, fed]) if decoder.input_feeding else x
        if decoder.sentinel is not None:
            g = sigmoid(m.linear("sentinel.input", x) + m.linear("sentinel.hidden", m.h))
        m.lstm(x, "_l0")
        if decoder.sentinel is not None:  # Lu et al. 2017: one more vector beside the regions
            m.a = np.concatenate(
                [vectors.numpy(), m.linear("sentinel.output", g * np.tanh(m.c))[None]]
            )
        alpha = softmax(np.array([m.h @ m.p["attention.score.key.weight"] @ a_i for a_i in m.a]))
        fed = np.tanh(m.p["attentional.weight"] @ np.concatenate([alpha @ m.a, m.h]))
        alpha = alpha[: len(vectors)]
        logits.append(m.linear("output", fed))
        weights.append(alpha)
    return logits, weights, None


def top_down(decoder, vectors, tokens):
    """Two LSTMs, with attention between them."""
    m, language = Equations(decoder, vectors), Equations(decoder, vectors)
    language.p = {k.replace("language", "lstm"): p for k, p in m.p.items() if k[:5] != "lstm."}
    language.h, language.c = np.zeros_like(m.h), np.zeros_like(m.c)
    logits, weights = [], []
    for token in tokens.tolist():
        m.lstm(np.concatenate([language.h, m.p["embedding.weight"][token], m.a.mean(0)]))
        alpha = softmax(np.array([m.h @ m.p["attention.score.key.weight"] @ a_i for a_i in m.a]))
        language.lstm(np.concatenate([alpha @ m.a, m.h]))
        logits.append(m.linear("output", m.linear("output_hidden", language.h)))
        weights.append(alpha)
    return logits, weights, None


@pytest.mark.parametrize(
    ("kind", "score", "equations", "options"),
    [
        (LSTMDecoder, SMALL, show_attend_and_tell, {}),
        (LSTMDecoder, SMALL, show_attend_and_tell, {"gate": False, "tied": False}),
        (LSTMDecoder, SMALL, show_attend_and_tell, {"intra": True}),
        (LuongDecoder, General, luong, {"tied": False}),
        (LuongDecoder, General, luong, {"input_feeding": False}),
        (LuongDecoder, General, luong, {"sentinel": True}),
        (LuongDecoder, General, luong, {"input_feeding": False, "global_feature": True}),
        (TopDownDecoder, General, top_down, {}),
    ],
)
def test_equals_the_equations(kind, score, equations, options):
    torch.manual_seed(4)
    decoder = kind(V, D, attention=partial(Attention, score=score), **SIZES, **options)
    for parameter in decoder.parameters():  # large enough to matter
        torch.nn.init.normal_(parameter, std=0.6)
    decoder = decoder.double().eval()
    vectors = torch.randn(B, L, D, dtype=torch.double)
    tokens = torch.randint(UNK + 1, V, (B, R, T))
    decoded = decoder(Annotations(vectors, (2, 3)), tokens, details=True)
    past_weights = None if decoded.past_weights is None else decoded.past_weights[..., 0, 0, :]
    for b in range(B):
        for r in range(R):
            found = decoded.logits[b, r], decoded.weights[b, r]
            *expected, past = equations(decoder, vectors[b], tokens[b, r])
            if past_weights is not None:
                found, expected = (*found, past_weights[b, r]), [*expected, past]
            for one, other in zip(found, expected, strict=True):
                other = torch.tensor(np.array(other))
                torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_sentinel_is_refused_with_a_score_that_reads_no_keys():
    with pytest.raises(ModelError, match="needs a score that reads keys"):
        LuongDecoder(V, D, sentinel=True, attention=partial(Attention, score=Location))
