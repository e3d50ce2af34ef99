"""Every attention against its equation, written with lists and loops in float64, and against torch.

Each equation is one function, as in the paper. A newly registered part without one is skipped here.
"""

import itertools
import math

import pytest
import torch
from torch.func import functional_call

from captioner import fast
from captioner.models.distributions import Entmax, Soft, Sparsemax
from captioner.models.multihead import MultiHead
from captioner.models.registry import find
from captioner.models.scores import Additive
from tests.models.test_attention import COLUMNS, GRID, ROWS, L, attend, context_of, make

B, T, WIDTH = 2, 3, 6
MASK = [[True] * L, [True, False, True, True, False, True]]


def times(matrix, vector):
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix.tolist()]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def bahdanau(score, q, k, _):
    terms = times(score.query.weight, q), times(score.key.weight, k), score.key.bias.tolist()
    return dot(
        score.energy.weight[0].tolist(), [math.tanh(sum(t)) for t in zip(*terms, strict=True)]
    )


def luong_concat(score, q, k, _):
    hidden = times(score.joint.weight, [*q, *k])
    return dot(score.energy.weight[0].tolist(), [math.tanh(x) for x in hidden])


def vaswani(score, q, k, _):
    q, k = times(score.query.weight, q), times(score.key.weight, k)
    return dot(q, k) / math.sqrt(len(k))


def yin(score, q, k, _):
    return 1 / (1 + math.dist(times(score.query.weight, q), times(score.key.weight, k)))


def henry(score, q, k, _):
    q, k = times(score.query.weight, q), times(score.key.weight, k)
    return score.temperature.item() * dot(q, k) / (math.hypot(*q) * math.hypot(*k))


SCORES = {
    "Additive": bahdanau,
    "Concat": luong_concat,
    "Dot": lambda score, q, k, _: dot(q, k),
    "General": lambda score, q, k, _: dot(q, times(score.key.weight, k)),
    "ScaledDot": vaswani,
    "Location": lambda score, q, k, i: times(score.positions.weight, q)[i],
    "Distance": yin,
    "Cosine": henry,
}


# Distributions: scores e, the unmasked positions, the query and its step -> weights.


def softmax(e, positions):
    total = sum(math.exp(e[i]) for i in positions)
    return [math.exp(e[i]) / total if i in positions else 0.0 for i in range(len(e))]


def argmax(p, e, valid, q, t):
    best = max(valid, key=lambda i: e[i])
    return [float(i == best) for i in range(len(e))]


def luong_m(p, e, valid, q, t):
    center = min(t, len(valid) - 1)
    return softmax(e, [i for s, i in enumerate(valid) if abs(s - center) <= p.window])


def predicted(p, q):
    hidden = [math.tanh(x) for x in times(p.place[0].weight, q)]
    return [1 / (1 + math.exp(-x)) for x in times(p.place[2].weight, hidden)]


def luong_p(p, e, valid, q, t):
    (place,) = predicted(p, q)
    center, sigma = len(valid) * place, p.window / 2
    number = {i: s for s, i in enumerate(valid)}
    weights = softmax(e, [i for i in valid if abs(number[i] - center) <= p.window])
    return [
        w * math.exp(-((number[i] - center) ** 2) / (2 * sigma**2)) if w else 0.0
        for i, w in enumerate(weights)
    ]


def local_on_grid(p, e, valid, q, t):
    row, column = predicted(p, q)
    row, column, sigma = ROWS * row, COLUMNS * column, p.window / 2

    def offset(i):
        return i // COLUMNS + 0.5 - row, i % COLUMNS + 0.5 - column

    weights = softmax(e, [i for i in valid if max(map(abs, offset(i))) <= p.window])
    return [
        w * math.exp(-(offset(i)[0] ** 2 + offset(i)[1] ** 2) / (2 * sigma**2))
        for i, w in enumerate(weights)
    ]


def thresholded(e, valid, factor, power):
    """[factor · e_i − τ]₊^power for the τ, found by bisection, at which the weights sum to 1."""

    def weights(tau):
        return [max(factor * x - tau, 0.0) ** power if i in valid else 0.0 for i, x in enumerate(e)]

    high = factor * max(e[i] for i in valid)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
    return weights(low)


DISTRIBUTIONS = {
    "Soft": lambda p, e, valid, q, t: softmax(e, valid),
    "Uniform": lambda p, e, valid, q, t: [float(i in valid) / len(valid) for i in range(len(e))],
    "Sparsemax": lambda p, e, valid, q, t: thresholded(e, valid, 1, 1),
    "Entmax": lambda p, e, valid, q, t: thresholded(e, valid, 1 / 2, 2),
    "Hard": argmax,
    "LocalM": luong_m,
    "LocalP": luong_p,
    "LocalP2D": local_on_grid,
}


def one_head(module, p, q, memory, valid, t):
    score = SCORES[type(module.score).__name__]
    e = [score(module.score, q, k, i) for i, k in enumerate(memory)]
    weights = p(module.distribution, e, valid, q, t)
    return weights, [dot(weights, column) for column in zip(*memory, strict=True)]


def several_heads(module, p, q, memory, valid, t):
    width = module.query.out_features // module.heads
    q = times(module.query.weight, q)
    keys = [times(module.key.weight, k) for k in memory]
    values = [times(module.value.weight, v) for v in memory]
    all_weights, joined = [], []
    for head in range(module.heads):
        part = slice(head * width, (head + 1) * width)
        e = [dot(q[part], k[part]) / math.sqrt(width) for k in keys]
        weights = p(module.distribution, e, valid, q[part], t)
        all_weights.append(weights)
        joined += [dot(weights, column) for column in zip(*(v[part] for v in values), strict=True)]
    mean = [sum(column) / module.heads for column in zip(*all_weights, strict=True)]
    return mean, times(module.output.weight, joined)


def on_attention(module, p, q, memory, valid, t):
    weights, context = several_heads(module.attention, p, q, memory, valid, t)
    both = module.gate.both
    rows = zip(times(both.weight, [*q, *context]), both.bias.tolist(), strict=True)
    rows = [product + bias for product, bias in rows]
    pairs = zip(rows[:WIDTH], rows[WIDTH:], strict=True)
    return weights, [information / (1 + math.exp(-gate)) for information, gate in pairs]


ATTENTIONS = {
    "Attention": one_head,
    "MultiHead": several_heads,
    "AttentionOnAttention": on_attention,
}


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize(("name", "score", "distribution"), GRID)
def test_equals_its_equation(name, score, distribution, accelerated):
    if name not in ATTENTIONS or score not in {None, *SCORES} or distribution not in DISTRIBUTIONS:
        pytest.skip("NO REFERENCE: write its equation in this file")
    module = make(name, score, distribution).double()
    if accelerated:
        fast.accelerate(module)
    torch.manual_seed(4)
    queries = torch.randn(B, T, WIDTH, dtype=torch.double)
    vectors = torch.randn(B, L, WIDTH, dtype=torch.double)
    output = attend(module, queries, vectors, torch.tensor(MASK))
    for b in range(B):
        valid = [i for i in range(L) if MASK[b][i]]
        for t in range(T):
            weights, context = ATTENTIONS[name](
                module,
                DISTRIBUTIONS[distribution],
                queries[b, t].tolist(),
                vectors[b].tolist(),
                valid,
                t,
            )
            assert output.weights[b, t].tolist() == pytest.approx(weights, abs=1e-10)
            assert output.context[b, t].tolist() == pytest.approx(context, abs=1e-10)


@pytest.mark.parametrize("scale", ["none", "sqrt", "learned"])
@pytest.mark.parametrize("name", ["Dot", "General", "ScaledDot"])
def test_scales(name, scale):
    """A scale multiplies the scores; the learned one starts at 1 and has a gradient."""
    torch.manual_seed(8)
    scaled = find("score", name)(WIDTH, WIDTH, scale=scale)
    plain = find("score", name)(WIDTH, WIDTH, scale="none")
    plain.load_state_dict(scaled.state_dict(), strict=False)
    queries, keys = torch.randn(B, T, WIDTH), torch.randn(B, L, WIDTH)
    scores = scaled(queries, scaled.prepare(keys))
    width = 512 if name == "ScaledDot" else WIDTH
    factor = 1 / math.sqrt(width) if scale == "sqrt" else 1.0
    torch.testing.assert_close(scores, factor * plain(queries, plain.prepare(keys)))
    learned = [p for p in scaled.parameters() if p.ndim == 0]
    assert len(learned) == (scale == "learned")
    if learned:
        scores.sum().backward()
        assert learned[0].grad != 0


@pytest.mark.parametrize("logit", [-3.0, 0.0, 3.0])
def test_the_gradients_of_entmax_equal_differences(logit):
    """By the scores and by the learned α, which is 1 + σ(logit)."""
    torch.manual_seed(10)
    scores = 2 * torch.randn(B, T, L, dtype=torch.double)
    mask = torch.tensor(MASK)[:, None]
    entmax = Entmax(1, "learned").double()

    def weights(scores, logit):
        return functional_call(entmax, {"logit": logit}, (scores, mask, context_of(T))).weights

    logit = torch.tensor(logit, dtype=torch.double)
    assert torch.autograd.gradcheck(weights, (scores.requires_grad_(), logit.requires_grad_()))


def test_every_head_learns_its_own_alpha():
    """Against bisection, and the gradient of each α against differences."""
    torch.manual_seed(12)
    module = MultiHead(
        WIDTH, WIDTH, heads=3, dim=WIDTH, distribution=lambda dim: Entmax(dim, "learned")
    )
    entmax, logits = module.distribution.double(), torch.tensor([-2.0, 0.0, 2.0]).double()
    assert entmax.logit.shape == (3, 1, 1)
    scores = 2 * torch.randn(B, 3, T, L, dtype=torch.double)
    mask = torch.tensor(MASK)[:, None, None]
    context = context_of(T)

    def weights(scores, logits):
        parameters = {"logit": logits.view(3, 1, 1)}
        return functional_call(entmax, parameters, (scores, mask, context)).weights

    found = weights(scores, logits)
    for b, h, t in itertools.product(range(B), range(3), range(T)):
        alpha = 1 + logits[h].sigmoid().item()
        valid = [i for i in range(L) if MASK[b][i]]
        expected = thresholded(scores[b, h, t].tolist(), valid, alpha - 1, 1 / (alpha - 1))
        assert found[b, h, t].tolist() == pytest.approx(expected, abs=1e-10)
    assert torch.autograd.gradcheck(weights, (scores.requires_grad_(), logits.requires_grad_()))


def test_entmax_lies_between_softmax_and_sparsemax():
    torch.manual_seed(11)
    scores, context = torch.randn(B, T, 196), context_of(T)
    for ours, theirs in ((Entmax(1, 1 + 1e-6), Soft(1)), (Entmax(1, 2.0), Sparsemax(1))):
        torch.testing.assert_close(
            ours(scores, None, context).weights, theirs(scores, None, context).weights
        )


def test_additive_attention_without_projections_is_that_of_keras():
    torch.manual_seed(9)
    score = Additive(WIDTH, WIDTH, project=False)
    queries, keys = torch.randn(B, T, WIDTH), torch.randn(B, L, WIDTH)
    energy = torch.tanh(queries[:, :, None] + keys[:, None]) * score.energy.weight[0]
    torch.testing.assert_close(score(queries, score.prepare(keys)), energy.sum(-1))
