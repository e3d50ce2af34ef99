"""Contract tests of every score × distribution and every attention in the registry."""

import pytest
import torch
import torch.nn.functional as F

from captioner.errors import ModelError, UsageError
from captioner.models import Annotations
from captioner.models.distributions import Hard, QueryContext, Sampling
from captioner.models.registry import arguments, build, find, names

B, T, ROWS, COLUMNS, WIDTH = 3, 4, 2, 3, 6
L = ROWS * COLUMNS
# Values of the options of small parts, and a window that excludes some positions.
SMALL = {"positions": L, "window": 1, "dim": 8, "heads": 2}
# The Gaussian follows the softmax: weights sum to at most 1.
BELOW_ONE = {"LocalP", "LocalP2D"}

DISTRIBUTIONS = names("distribution")
# Every score with Soft, every distribution with Additive, every other attention with every distribution.
GRID = [("Attention", score, "Soft") for score in names("score")]
GRID += [("Attention", "Additive", p) for p in DISTRIBUTIONS if p != "Soft"]
GRID += [(a, None, p) for a in names("attention") if a != "Attention" for p in DISTRIBUTIONS]
every_pair = pytest.mark.parametrize(("name", "score", "distribution"), GRID)


def tree(name: str, **options) -> dict:
    kind = next(kind for kind in ("attention", "score", "distribution") if name in names(kind))
    known = arguments(find(kind, name))
    if kind == "attention" and "attention" in known and "distribution" in options:
        options = {"attention": tree("MultiHead", **options)}
    small = {option: value for option, value in SMALL.items() if option in known}
    return {"class_path": name, "init_args": {**small, **options}}


def make(name: str, score: str | None, distribution: str, **options):
    torch.manual_seed(1)
    parts = {"distribution": tree(distribution, **options)}
    if score is not None:
        parts["score"] = tree(score)
    return build("attention", tree(name, **parts), query_dim=WIDTH, key_dim=WIDTH).eval()


@pytest.fixture
def inputs():
    """Queries, vectors and a mask with an open, a mixed and a fully masked row."""
    torch.manual_seed(2)
    mask = torch.tensor(
        [[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool
    )
    return 3 * torch.randn(B, T, WIDTH), 3 * torch.randn(B, L, WIDTH), mask


def attend(module, queries, vectors, mask=None, step=None, sampling=None):
    keys = module.prepare(Annotations(vectors, (ROWS, COLUMNS), mask), sampling=sampling)
    if step is None and queries.ndim == 3:
        step = torch.arange(queries.shape[1])
    return module(queries, keys, step=step)


def context_of(queries: int, images: int = 1, **options) -> QueryContext:
    return QueryContext(torch.zeros(images, queries, 1), (1, L), None, **options)


def check_weights(weights, mask, exact=True):
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    sums = weights.sum(-1)
    expected = mask.any(-1).to(weights.dtype)[:, None].expand(weights.shape[:2])
    if exact:
        torch.testing.assert_close(sums, expected)
    else:
        assert (sums <= expected + 1e-6).all()
        assert (sums[:1] > 0).all()
    assert (weights[~mask[:, None].expand_as(weights)] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@every_pair
def test_weights_are_a_distribution_over_unmasked_positions(
    name, score, distribution, dtype, inputs
):
    queries, vectors, mask = inputs
    module = make(name, score, distribution).to(dtype)
    output = attend(module, queries.to(dtype), vectors.to(dtype), mask)
    check_weights(output.weights, mask, distribution not in BELOW_ONE)
    assert output.weights.dtype == torch.float32
    assert output.context.dtype == dtype
    assert output.context.isfinite().all()
    nothing = attend(module, queries.to(dtype), torch.zeros_like(vectors).to(dtype), mask)
    assert torch.equal(output.context[2], nothing.context[2])  # every position is masked


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_extreme_scores_stay_finite(distribution, dtype, inputs):
    limit = torch.finfo(dtype).max
    scores = torch.tensor([limit, -limit, 0, limit, -limit, 1], dtype=dtype).expand(B, T, L)
    module = build("distribution", tree(distribution), query_dim=WIDTH).eval()
    context = QueryContext(inputs[0], (ROWS, COLUMNS), torch.arange(T))
    weights = module(scores, inputs[2].unsqueeze(1), context).weights
    check_weights(weights, inputs[2], distribution not in BELOW_ONE)


@pytest.mark.parametrize(
    ("name", "score", "distribution"),
    [parts for parts in GRID if parts[2] != "Uniform"],  # which ignores the scores
)
def test_gradient_reaches_every_parameter(name, score, distribution, inputs):
    queries, vectors, mask = inputs
    module = make(name, score, distribution)
    output = attend(module, (queries / 3).requires_grad_(), vectors / 3, mask)
    loss = output.context.square().sum()
    if output.choice is not None:
        loss = loss + output.choice.log_prob.square().sum()
    loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    ("name", "score"),
    [("Attention", score) for score in names("score") if score != "Location"]
    + [(name, None) for name in names("attention") if name != "Attention"],
)
def test_a_sentinel_competes_like_one_more_region(name, score, inputs):
    queries, vectors, mask = inputs
    module, sentinels = make(name, score, "Soft"), torch.randn(B, T, WIDTH)
    keys = module.prepare(Annotations(vectors, (ROWS, COLUMNS), mask))
    output = module(queries, keys, sentinel=sentinels)
    for t in range(T):
        longer = torch.cat([vectors, sentinels[:, t : t + 1]], 1)
        keys = module.prepare(Annotations(longer, (1, L + 1), F.pad(mask, (0, 1), value=True)))
        expected = module(queries[:, t], keys)
        torch.testing.assert_close(output.context[:, t], expected.context)
        torch.testing.assert_close(output.weights[:, t], expected.weights[:, :L])


@pytest.mark.parametrize("gradient", [None, "score_function", "gumbel_softmax"])
@pytest.mark.parametrize("mode", ["argmax", "sample", "expectation"])
def test_modes_of_hard_attention(mode, gradient):
    scores = torch.tensor([0.5, 2.0, -1.0, 1.0]).log_softmax(0).expand(2, 3000, 4)
    torch.manual_seed(0)
    if gradient:  # in training mode, Sampling overrides the gradient's own mode
        hard, context = Hard(1, gradient=gradient), context_of(3000, 2, sampling=Sampling(mode))
        result = hard.train()(scores, None, context)
    else:
        result = Hard(1, mode).eval()(scores, None, context_of(3000, 2))
    probs = scores[0, 0].exp()
    entropy = -(probs * scores[0, 0]).sum()
    torch.testing.assert_close(result.choice.entropy, entropy.expand(2, 3000))
    mean = result.weights.mean((0, 1))
    if mode == "expectation":
        torch.testing.assert_close(result.weights, scores.exp())
        assert result.choice.log_prob is None
        return
    assert ((result.weights == 0) | (result.weights == 1)).all()
    assert (result.weights.sum(-1) == 1).all()
    torch.testing.assert_close(result.choice.log_prob, (result.weights * scores).sum(-1))
    if mode == "argmax":
        assert mean.tolist() == [0, 1, 0, 0]
    else:  # 6,000 draws: within 4 standard errors
        errors = (probs * (1 - probs) / 6000).sqrt()
        assert ((mean - probs).abs() < 4 * errors).all()


@pytest.mark.parametrize("name", ["Attention", "MultiHead"])
def test_sampling_reaches_hard_attention(name, inputs):
    """The sampler given to ``prepare`` decides the position."""
    queries, vectors, _ = inputs
    module = make(name, "Dot" if name == "Attention" else None, "Hard", test_time="sample")
    shapes = []

    def last(probs):
        shapes.append(probs.shape)
        return torch.full_like(probs[..., :1], L - 1, dtype=torch.long)

    output = attend(module, queries, vectors, sampling=Sampling(sampler=last))
    assert (output.weights[..., L - 1] == 1).all()
    [shape] = shapes
    assert shape[-2:] == (T, L)


@pytest.mark.parametrize(
    ("score", "options", "message"),
    [
        ("Dot", {}, "equal width, got 6 and 5"),
        ("Location", {"init_args": {"positions": 4}}, "has 4 positions and the grid 6 cells"),
    ],
)
def test_scores_that_do_not_fit_are_refused(score, options, message):
    part = {"class_path": "Attention", "init_args": {"score": {"class_path": score, **options}}}
    with pytest.raises(ModelError, match=message):
        attend(
            build("attention", part, query_dim=6, key_dim=5),
            torch.zeros(1, 1, 6),
            torch.zeros(1, L, 5),
        )


def test_monotonic_attention_needs_the_step(inputs):
    module = make("Attention", "Dot", "LocalM")
    keys = module.prepare(Annotations(inputs[1], (ROWS, COLUMNS)))
    with pytest.raises(UsageError, match="step=t"):
        module(inputs[0], keys)


def test_mean_annotation_ignores_masked_regions(inputs):
    _, vectors, mask = inputs
    mean = Annotations(vectors, (2, 3), mask).mean()
    torch.testing.assert_close(mean[0], vectors[0].sum(0) / L)
    torch.testing.assert_close(mean[1], (vectors[1, 1] + vectors[1, 2] + vectors[1, 5]) / 3)
    assert (mean[2] == 0).all()
