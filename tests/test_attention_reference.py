"""Every attention against its equation, written with lists and loops, in float64; and against torch.

The equations are those of the papers, one function each. A newly registered mechanism without one
fails here.
"""

import math

import pytest
import torch

from captioner.models import Annotations, attention
from captioner.models.attention import Additive, Concat, MultiHead, ScaledDot, multihead
from captioner.models.attention.multihead import fused
from captioner.models.registry import names
from test_attention import COLUMNS, GRID, LAWS, ROWS, L, ask, make

B, T, WIDTH = 2, 3, 6
EXISTS = [[True] * L, [True, False, True, True, False, True]]


def times(matrix, vector):
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix.tolist()]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def bahdanau(score, q, k, _):
    inside = zip(
        times(score.query.weight, q),
        times(score.key.weight, k),
        score.key.bias.tolist(),
        strict=True,
    )
    return dot(score.energy.weight[0].tolist(), [math.tanh(w + u + b) for w, u, b in inside])


def luong_concat(score, q, k, _):
    inside = times(score.joint.weight, [*q, *k])
    return dot(score.energy.weight[0].tolist(), [math.tanh(x) for x in inside])


def vaswani(score, q, k, _):
    q, k = times(score.query.weight, q), times(score.key.weight, k)
    return dot(q, k) / math.sqrt(len(k))


def yin(score, q, k, _):
    q, k = times(score.query.weight, q), times(score.key.weight, k)
    return 1 / (1 + math.sqrt(sum((a - b) ** 2 for a, b in zip(q, k, strict=True))))


SCORES = {
    "Additive": bahdanau,
    "Concat": luong_concat,
    "Dot": lambda score, q, k, _: dot(q, k),
    "General": lambda score, q, k, _: dot(q, times(score.key.weight, k)),
    "ScaledDot": vaswani,
    "Location": lambda score, q, k, i: times(score.positions.weight, q)[i],
    "Distance": yin,
}


def softmax(e, where):
    total = sum(math.exp(e[i]) for i in where)
    return [math.exp(e[i]) / total if i in where else 0.0 for i in range(len(e))]


def argmax(law, e, there, q, t):
    best = max(there, key=lambda i: e[i])
    return [float(i == best) for i in range(len(e))]


def luong_m(law, e, there, q, t):
    center = min(t, len(there) - 1)
    return softmax(e, [i for s, i in enumerate(there) if abs(s - center) <= law.window])


def predicted(law, q):
    hidden = [math.tanh(x) for x in times(law.place[0].weight, q)]
    return [1 / (1 + math.exp(-x)) for x in times(law.place[2].weight, hidden)]


def luong_p(law, e, there, q, t):
    (place,) = predicted(law, q)
    center, sigma = len(there) * place, law.window / 2
    number = {i: s for s, i in enumerate(there)}
    weights = softmax(e, [i for i in there if abs(number[i] - center) <= law.window])
    return [
        w * math.exp(-((number[i] - center) ** 2) / (2 * sigma**2)) if w else 0.0
        for i, w in enumerate(weights)
    ]


def on_the_grid(law, e, there, q, t):
    row, column = predicted(law, q)
    row, column, sigma = ROWS * row, COLUMNS * column, law.window / 2

    def offset(i):
        return i // COLUMNS + 0.5 - row, i % COLUMNS + 0.5 - column

    weights = softmax(e, [i for i in there if max(map(abs, offset(i))) <= law.window])
    return [
        w * math.exp(-(offset(i)[0] ** 2 + offset(i)[1] ** 2) / (2 * sigma**2))
        for i, w in enumerate(weights)
    ]


def simplex(law, e, there, q, t):
    """By bisection: Σ max(e_i − τ, 0) falls with τ and is 1 at the solution."""
    low, high = min(e[i] for i in there) - 1, max(e[i] for i in there)
    for _ in range(200):
        middle = (low + high) / 2
        over = sum(max(e[i] - middle, 0) for i in there) > 1
        low, high = (middle, high) if over else (low, middle)
    return [max(e[i] - low, 0.0) if i in there else 0.0 for i in range(len(e))]


DISTRIBUTIONS = {
    "Soft": lambda law, e, there, q, t: softmax(e, there),
    "Sparsemax": simplex,
    "Hard": argmax,
    "LocalM": luong_m,
    "LocalP": luong_p,
    "LocalP2D": on_the_grid,
}


def test_every_part_has_its_equation_here():
    assert set(SCORES) == set(names("score"))
    assert set(DISTRIBUTIONS) == set(LAWS)
    assert {"Attention", "MultiHead"} == set(names("attention"))


def one_head(module, law, q, keys, values, there, t):
    energies = [
        SCORES[type(module.score).__name__](module.score, q, k, i) for i, k in enumerate(keys)
    ]
    weights = DISTRIBUTIONS[law](module.distribution, energies, there, q, t)
    return weights, [dot(weights, column) for column in zip(*values, strict=True)]


def several_heads(module, law, q, keys, values, there, t):
    width = module.query.out_features // module.heads
    q = times(module.query.weight, q)
    keys = [times(module.key.weight, k) for k in keys]
    values = [times(module.value.weight, v) for v in values]
    found, joined = [], []
    for head in range(module.heads):
        part = slice(head * width, (head + 1) * width)
        energies = [dot(q[part], k[part]) / math.sqrt(width) for k in keys]
        weights = DISTRIBUTIONS[law](module.distribution, energies, there, q[part], t)
        found.append(weights)
        joined += [dot(weights, column) for column in zip(*(v[part] for v in values), strict=True)]
    mean = [sum(column) / len(found) for column in zip(*found, strict=True)]
    return mean, times(module.output.weight, joined)


@pytest.mark.parametrize(("name", "score", "law"), GRID)
def test_equals_its_equation(name, score, law):
    module = make(name, score, law).double()
    torch.manual_seed(4)
    queries = torch.randn(B, T, WIDTH, dtype=torch.double)
    vectors = torch.randn(B, L, WIDTH, dtype=torch.double)
    attended = ask(module, queries, vectors, torch.tensor(EXISTS))
    plain = one_head if name == "Attention" else several_heads
    for b in range(B):
        there = [i for i in range(L) if EXISTS[b][i]]
        memory = vectors[b].tolist()
        for t in range(T):
            weights, context = plain(module, law, queries[b, t].tolist(), memory, memory, there, t)
            assert attended.weights[b, t].tolist() == pytest.approx(weights, abs=1e-10)
            assert attended.context[b, t].tolist() == pytest.approx(context, abs=1e-10)


@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_equals_torch(masked):
    torch.manual_seed(5)
    module = attention.Attention(WIDTH, 5, score=lambda **sizes: ScaledDot(**sizes, dim=8)).double()
    queries = torch.randn(B, T, WIDTH, dtype=torch.double)
    vectors = torch.randn(B, L, 5, dtype=torch.double)
    mask = torch.tensor(EXISTS) if masked else None
    ours = ask(module, queries, vectors, mask).context
    theirs = torch.nn.functional.scaled_dot_product_attention(
        module.score.query(queries),
        module.score.key(vectors),
        vectors,
        attn_mask=None if mask is None else mask.unsqueeze(1),
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_equals_torch(masked):
    torch.manual_seed(6)
    ours = MultiHead(8, 8, heads=4, dim=8).double()
    theirs = torch.nn.MultiheadAttention(8, 4, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([ours.query.weight, ours.key.weight, ours.value.weight])
        )
        theirs.out_proj.weight.copy_(ours.output.weight)
    queries = torch.randn(B, T, 8, dtype=torch.double)
    vectors = torch.randn(B, L, 8, dtype=torch.double)
    mask = torch.tensor(EXISTS) if masked else None
    attended = ask(ours, queries, vectors, mask)
    context, heads = theirs(
        queries,
        vectors,
        vectors,
        key_padding_mask=None if mask is None else ~mask,
        average_attn_weights=False,
    )
    torch.testing.assert_close(attended.context, context)
    torch.testing.assert_close(attended.heads, heads.transpose(1, 2))
    torch.testing.assert_close(attended.weights, heads.mean(1))


@pytest.mark.parametrize("small", [multihead.SMALL, 0])
@pytest.mark.parametrize("dtype", [torch.double, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", ["nowhere", "later words", "two cells", "all cells of one"])
def test_fused_attention_equals_its_equation(dtype, masked, small, monkeypatch):
    """On a CPU a gradient from few places goes through the parts, else torch's kernel is called."""
    monkeypatch.setattr(multihead, "SMALL", small)
    torch.manual_seed(8)
    query, key, value = (torch.randn(2, 3, n, 4, dtype=dtype) for n in (5, 7, 7))
    query[0] *= 40  # one place gets it all
    allowed = {
        "nowhere": None,
        "later words": torch.ones(1, 1, 5, 7, dtype=torch.bool).tril(),
        "two cells": (torch.arange(7) < 5).expand(2, 1, 1, 7),
        "all cells of one": torch.tensor([True, False]).view(2, 1, 1, 1).expand(2, 1, 1, 7),
    }[masked]
    exact = [part.double().clone().requires_grad_() for part in (query, key, value)]
    scores = exact[0] @ exact[1].mT / 2
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    expected = scores.softmax(-1) @ exact[2]
    if masked == "all cells of one":
        expected = torch.cat([expected[:1], torch.zeros_like(expected[1:])])
    expected[:1].sum().backward()
    own = [part.requires_grad_() for part in (query, key, value)]
    found = fused(*own, allowed, dropout=0.0)
    found.sum().backward()
    tolerance = {torch.double: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.02}[dtype]

    def close(ours, theirs):
        assert (ours.double() - theirs).norm() <= tolerance * (1 + theirs.norm())

    close(found, expected)
    with torch.no_grad():
        close(fused(*own, allowed, 0.0), expected)
    for ours, theirs in zip(own, exact, strict=True):
        close(ours.grad[:1], theirs.grad[:1])
        if masked == "all cells of one":
            assert not ours.grad[1].any()


def test_fused_attention_drops_weights_and_keeps_their_mean():
    torch.manual_seed(9)
    query, key = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 6, 4)
    value = torch.eye(6).view(1, 1, 6, 6).requires_grad_()
    weights = fused(query, key, value, None, 0.0)
    drawn = torch.cat([fused(query, key, value, None, 0.25) for _ in range(4000)])
    assert 0.24 < (drawn == 0).float().mean() < 0.26
    torch.testing.assert_close(drawn[drawn != 0].max(), weights.max() / 0.75)
    torch.testing.assert_close(drawn.mean(0), weights[0], rtol=0, atol=0.02)


def test_concat_equals_additive_with_its_two_matrices():
    torch.manual_seed(7)
    additive, concat = Additive(WIDTH, 5, dim=8), Concat(WIDTH, 5, dim=8)
    with torch.no_grad():
        additive.key.bias.zero_()
        concat.joint.weight.copy_(torch.cat([additive.query.weight, additive.key.weight], 1))
        concat.energy.weight.copy_(additive.energy.weight)
    queries, keys = torch.randn(B, T, WIDTH), torch.randn(B, L, 5)
    torch.testing.assert_close(
        concat(queries, concat.prepare(keys)), additive(queries, additive.prepare(keys))
    )


@pytest.mark.parametrize("scale", ["none", "sqrt", "learned"])
@pytest.mark.parametrize("name", ["Dot", "General", "ScaledDot"])
def test_scales(name, scale):
    """A scale multiplies the scores of the same parameters; the learned one starts at 1 and learns."""
    torch.manual_seed(8)
    made = getattr(attention, name)(WIDTH, WIDTH, scale=scale)
    plain = getattr(attention, name)(WIDTH, WIDTH, scale="none")
    plain.load_state_dict(made.state_dict(), strict=False)
    queries, keys = torch.randn(B, T, WIDTH), torch.randn(B, L, WIDTH)
    scores = made(queries, made.prepare(keys))
    width = 512 if name == "ScaledDot" else WIDTH
    factor = 1 / math.sqrt(width) if scale == "sqrt" else 1.0
    torch.testing.assert_close(scores, factor * plain(queries, plain.prepare(keys)))
    learned = [p for p in made.parameters() if p.ndim == 0]
    assert len(learned) == (scale == "learned")
    if learned:
        scores.sum().backward()
        assert learned[0].grad != 0


@pytest.mark.parametrize("name", ["Additive", "ScaledDot"])
def test_without_projections(name):
    """Keras' AdditiveAttention with its scale; and the bare scaled product."""
    torch.manual_seed(9)
    score = getattr(attention, name)(WIDTH, WIDTH, project=False)
    queries, keys = torch.randn(B, T, WIDTH), torch.randn(B, L, WIDTH)
    pairs = queries[:, :, None], keys[:, None]
    if name == "Additive":
        expected = (torch.tanh(pairs[0] + pairs[1]) * score.energy.weight[0]).sum(-1)
    else:
        expected = (pairs[0] * pairs[1]).sum(-1) / math.sqrt(WIDTH)
    torch.testing.assert_close(score(queries, score.prepare(keys)), expected)


def test_heads_draw_for_themselves():
    module = make("MultiHead", None, "Hard").train()
    torch.manual_seed(10)
    attended = ask(module, torch.randn(B, 50, WIDTH), torch.randn(B, L, WIDTH))
    assert attended.heads.shape == (B, 50, 2, L)
    assert (attended.heads.sum(-1) == 1).all()
    assert (attended.heads[:, :, 0] != attended.heads[:, :, 1]).any()
    keys = module.prepare(Annotations(torch.randn(B, L, WIDTH), (ROWS, COLUMNS)))
    single = module(torch.randn(B, WIDTH), keys, step=0)
    assert single.heads.shape == (B, 2, L)
    assert single.log_prob.shape == (B,)
