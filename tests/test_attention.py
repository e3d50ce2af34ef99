"""What every score × distribution promises; a newly registered one is tested by existing."""

import math
from functools import partial

import pytest
import torch

from captioner.models import Additive, Annotations, Attention
from captioner.models.registry import build, names

B, T, L, WIDTH = 3, 4, 6, 5
GRID = [(score, law) for score in names("score") for law in names("distribution")]
every_pair = pytest.mark.parametrize(("score", "distribution"), GRID)


def attention(score: str, distribution: str) -> Attention:
    torch.manual_seed(1)
    options = {"score": {"class_path": score}, "distribution": {"class_path": distribution}}
    tree = {"class_path": "Attention", "init_args": options}
    return build("attention", tree, query_dim=WIDTH, memory_dim=WIDTH).eval()


@pytest.fixture
def given():
    """Queries, vectors and a mask with an open, a mixed and a fully masked row."""
    torch.manual_seed(2)
    mask = torch.tensor(
        [[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool
    )
    return 3 * torch.randn(B, T, WIDTH), 3 * torch.randn(B, L, WIDTH), mask


def ask(module, queries, vectors, mask=None, step=None):
    keys = module.prepare(Annotations(vectors, (1, vectors.shape[1]), mask))
    if step is None and queries.ndim == 3:
        step = torch.arange(queries.shape[1])
    return module(queries, keys, step=step)


def check_weights(weights, mask):
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    expected = mask.any(-1).to(weights.dtype)[:, None].expand(weights.shape[:2])
    torch.testing.assert_close(weights.sum(-1), expected)
    assert (weights[~mask[:, None].expand_as(weights)] == 0).all()


@every_pair
def test_weights_are_a_distribution_over_what_is_not_masked(score, distribution, given):
    queries, vectors, mask = given
    attended = ask(attention(score, distribution), queries, vectors, mask)
    check_weights(attended.weights, mask)
    assert (attended.context[2] == 0).all()  # nothing to look at


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_pair
def test_half_precision_stays_finite(score, distribution, dtype, given):
    queries, vectors, mask = given
    module = attention(score, distribution).to(dtype)
    attended = ask(module, queries.to(dtype), vectors.to(dtype), mask)
    check_weights(attended.weights, mask)
    assert attended.weights.dtype == torch.float32
    assert attended.context.dtype == dtype
    assert attended.context.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("distribution", names("distribution"))
def test_extreme_scores_stay_finite(distribution, dtype, given):
    limit = torch.finfo(dtype).max
    scores = torch.tensor([limit, -limit, 0, limit, -limit, 1], dtype=dtype).expand(B, T, L)
    law = build("distribution", {"class_path": distribution}).eval()
    check_weights(law(scores, given[2], torch.arange(T)).weights, given[2])


@every_pair
def test_a_batch_gives_what_its_pictures_give_alone(score, distribution, given):
    queries, vectors, mask = given
    module = attention(score, distribution)
    together = ask(module, queries, vectors, mask)
    for b in range(B):
        alone = ask(module, queries[b : b + 1], vectors[b : b + 1], mask[b : b + 1])
        torch.testing.assert_close(together.weights[b], alone.weights[0])
        torch.testing.assert_close(together.context[b], alone.context[0])


@every_pair
def test_all_queries_at_once_give_what_each_gives_alone(score, distribution, given):
    queries, vectors, mask = given
    module = attention(score, distribution)
    together = ask(module, queries, vectors, mask)
    for t in range(T):
        alone = ask(module, queries[:, t], vectors, mask, step=t)
        torch.testing.assert_close(together.weights[:, t], alone.weights)
        torch.testing.assert_close(together.context[:, t], alone.context)


@every_pair
def test_the_query_decides(score, distribution, given):
    # Summed outside the tanh, the query would shift all scores alike, and softmax would cancel it.
    queries, vectors, _ = given
    module = attention(score, distribution)
    one = ask(module, queries[:, 0], vectors, step=0).weights
    other = ask(module, queries[:, 1], vectors, step=0).weights
    assert ((one - other).abs().amax(-1) > 1e-3).all()


@every_pair
def test_permuted_annotations_permute_the_weights(score, distribution, given):
    queries, vectors, mask = given
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    module = attention(score, distribution)
    straight = ask(module, queries, vectors, mask)
    permuted = ask(module, queries, vectors[:, order], mask[:, order])
    torch.testing.assert_close(permuted.weights, straight.weights[..., order])
    torch.testing.assert_close(permuted.context, straight.context)


@every_pair
def test_gradient_reaches_every_parameter(score, distribution, given):
    queries, vectors, mask = given
    module = attention(score, distribution)
    ask(module, queries, vectors, mask).context.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@every_pair
def test_gradient_is_that_of_the_function(score, distribution, given):
    queries, vectors, mask = (x[1:, :3] for x in given)
    mask[0, 1] = True  # one mixed and one fully masked picture are left
    module = attention(score, distribution).double()
    inputs = [x.double().div(3).requires_grad_() for x in (queries, vectors)]

    def context_and_weights(queries, vectors):
        attended = ask(module, queries, vectors, mask)
        return attended.context, attended.weights

    assert torch.autograd.gradcheck(context_and_weights, inputs)


def test_additive_equals_the_formula_written_out():
    torch.manual_seed(3)
    pictures, regions, width, query_width, dim = 2, 3, 4, 5, 7
    module = Attention(query_width, width, score=partial(Additive, dim=dim)).double()
    query = torch.randn(pictures, query_width, dtype=torch.double)
    vectors = torch.randn(pictures, regions, width, dtype=torch.double)
    w, u, b, v = (
        parameter.tolist()
        for parameter in (
            module.score.query.weight,
            module.score.key.weight,
            module.score.key.bias,
            module.score.energy.weight[0],
        )
    )
    attended = ask(module, query, vectors)
    for picture in range(pictures):
        q, a = query[picture].tolist(), vectors[picture].tolist()
        energies = []
        for i in range(regions):
            energy = 0.0
            for j in range(dim):
                inside = b[j]
                inside += sum(w[j][k] * q[k] for k in range(query_width))
                inside += sum(u[j][k] * a[i][k] for k in range(width))
                energy += v[j] * math.tanh(inside)
            energies.append(energy)
        total = sum(math.exp(energy) for energy in energies)
        weights = [math.exp(energy) / total for energy in energies]
        context = [sum(weights[i] * a[i][k] for i in range(regions)) for k in range(width)]
        assert attended.weights[picture].tolist() == pytest.approx(weights, abs=1e-10)
        assert attended.context[picture].tolist() == pytest.approx(context, abs=1e-10)


def test_deterministic_attention_draws_nothing(given):
    attended = ask(attention("Additive", "Soft"), *given)
    assert attended.log_prob is None
    assert attended.entropy is None


def test_annotations_must_fill_their_grid():
    with pytest.raises(ValueError, match="6 annotation vectors do not fill a 2×2 grid"):
        Annotations(torch.zeros(1, 6, 3), (2, 2))


def test_mean_counts_only_what_may_be_attended(given):
    _, vectors, mask = given
    mean = Annotations(vectors, (2, 3), mask).mean()
    torch.testing.assert_close(mean[0], vectors[0].sum(0) / L)
    torch.testing.assert_close(mean[1], (vectors[1, 1] + vectors[1, 2] + vectors[1, 5]) / 3)
    assert (mean[2] == 0).all()
