"""What every score × distribution promises; a newly registered one is tested by existing."""

import inspect

import pytest
import torch

from captioner.errors import ModelError
from captioner.models import Annotations, attention
from captioner.models.attention import Asked, Hard, LocalM
from captioner.models.registry import build, names

B, T, ROWS, COLUMNS, WIDTH = 3, 4, 2, 3, 6
L = ROWS * COLUMNS
# What options a part takes here, if it has them: small, and a window that leaves something out.
SMALL = {"positions": L, "window": 1, "dim": 8, "heads": 2}
# Luong multiplies by a Gaussian after the softmax: at most 1, unless renormalised.
BELOW_ONE = {"LocalP", "LocalP2D"}

LAWS = names("distribution")
# Every score with every distribution, and every attention that has its own way to score.
GRID = [("Attention", score, law) for score in names("score") for law in LAWS]
GRID += [(name, None, law) for name in names("attention") if name != "Attention" for law in LAWS]


def positional(score: str | None, law: str) -> bool:
    return getattr(attention, law).positional or score == "Location"


def each(grid):
    return pytest.mark.parametrize(("name", "score", "law"), grid)


every_pair = each(GRID)


def tree(name: str, **options) -> dict:
    known = inspect.signature(getattr(attention, name)).parameters
    small = {option: value for option, value in SMALL.items() if option in known}
    return {"class_path": name, "init_args": {**small, **options}}


def make(name: str, score: str | None, law: str, **of_law):
    torch.manual_seed(1)
    parts = {"distribution": tree(law, **of_law)}
    if score is not None:
        parts["score"] = tree(score)
    return build("attention", tree(name, **parts), query_dim=WIDTH, memory_dim=WIDTH).eval()


@pytest.fixture
def given():
    """Queries, vectors and a mask with an open, a mixed and a fully masked row."""
    torch.manual_seed(2)
    mask = torch.tensor(
        [[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool
    )
    return 3 * torch.randn(B, T, WIDTH), 3 * torch.randn(B, L, WIDTH), mask


def ask(module, queries, vectors, mask=None, step=None):
    keys = module.prepare(Annotations(vectors, (ROWS, COLUMNS), mask))
    if step is None and queries.ndim == 3:
        step = torch.arange(queries.shape[1])
    return module(queries, keys, step=step)


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


@every_pair
def test_weights_are_a_distribution_over_what_is_not_masked(name, score, law, given):
    queries, vectors, mask = given
    attended = ask(make(name, score, law), queries, vectors, mask)
    check_weights(attended.weights, mask, law not in BELOW_ONE)
    assert (attended.context[2] == 0).all()  # nothing to look at


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_pair
def test_half_precision_stays_finite(name, score, law, dtype, given):
    queries, vectors, mask = given
    module = make(name, score, law).to(dtype)
    attended = ask(module, queries.to(dtype), vectors.to(dtype), mask)
    check_weights(attended.weights, mask, law not in BELOW_ONE)
    assert attended.weights.dtype == torch.float32
    assert attended.context.dtype == dtype
    assert attended.context.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("law", LAWS)
def test_extreme_scores_stay_finite(law, dtype, given):
    limit = torch.finfo(dtype).max
    scores = torch.tensor([limit, -limit, 0, limit, -limit, 1], dtype=dtype).expand(B, T, L)
    module = build("distribution", tree(law), query_dim=WIDTH).eval()
    asked = Asked(given[0], (ROWS, COLUMNS), torch.arange(T))
    check_weights(
        module(scores, given[2].unsqueeze(1), asked).weights, given[2], law not in BELOW_ONE
    )


@pytest.mark.parametrize("law", sorted(BELOW_ONE))
def test_renormalised_weights_sum_to_one(law, given):
    attended = ask(make("Attention", "Dot", law, renormalise=True), *given)
    check_weights(attended.weights[:1], given[2][:1])


@every_pair
def test_a_batch_gives_what_its_pictures_give_alone(name, score, law, given):
    queries, vectors, mask = given
    module = make(name, score, law)
    together = ask(module, queries, vectors, mask)
    for b in range(B):
        alone = ask(module, queries[b : b + 1], vectors[b : b + 1], mask[b : b + 1])
        torch.testing.assert_close(together.weights[b], alone.weights[0])
        torch.testing.assert_close(together.context[b], alone.context[0])


@every_pair
def test_all_queries_at_once_give_what_each_gives_alone(name, score, law, given):
    queries, vectors, mask = given
    module = make(name, score, law)
    together = ask(module, queries, vectors, mask)
    for t in range(T):
        alone = ask(module, queries[:, t], vectors, mask, step=t)
        torch.testing.assert_close(together.weights[:, t], alone.weights)
        torch.testing.assert_close(together.context[:, t], alone.context)


@every_pair
def test_the_query_decides(name, score, law, given):
    # Summed outside the tanh, the query would shift all scores alike, and softmax would cancel it.
    _, vectors, _ = given
    module = make(name, score, law)
    queries = torch.randn(B, 40, WIDTH)
    step = torch.zeros(40, dtype=torch.long)
    weights = ask(module, queries, vectors / 3, step=step).weights
    changed = (weights[:, 1:] - weights[:, :1]).abs().amax(-1) > 1e-3
    # A choice of one or a few positions may be the same for two queries, but not for all.
    few = law in ("Hard", "Sparsemax", "LocalM", "LocalP", "LocalP2D")
    assert changed.float().mean() > (0.1 if few else 0.95)


@each([pair for pair in GRID if not positional(*pair[1:])])
def test_permuted_annotations_permute_the_weights(name, score, law, given):
    queries, vectors, mask = given
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    module = make(name, score, law)
    straight = ask(module, queries, vectors, mask)
    permuted = ask(module, queries, vectors[:, order], mask[:, order])
    torch.testing.assert_close(permuted.weights, straight.weights[..., order])
    torch.testing.assert_close(permuted.context, straight.context)


@every_pair
def test_gradient_reaches_every_parameter(name, score, law, given):
    queries, vectors, mask = given
    module = make(name, score, law)
    attended = ask(module, (queries / 3).requires_grad_(), vectors / 3, mask)
    loss = attended.context.square().sum()
    if attended.log_prob is not None:
        loss = loss + attended.log_prob.square().sum()
    loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@each([pair for pair in GRID if pair[2] != "Hard"])  # a choice has no gradient
def test_gradient_is_that_of_the_function(name, score, law, given):
    queries, vectors, mask = given[0][1:, :2], given[1][1:], given[2][1:]
    module = make(name, score, law).double()
    inputs = [x.double().div(3).requires_grad_() for x in (queries, vectors)]

    def context_and_weights(queries, vectors):
        attended = ask(module, queries, vectors, mask)
        return attended.context, attended.weights

    assert torch.autograd.gradcheck(context_and_weights, inputs, fast_mode=True)


def test_deterministic_attention_draws_nothing(given):
    attended = ask(make("Attention", "Additive", "Soft"), *given)
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


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises((ValueError, TypeError), match="mask"):  # here jaxtyping sees it first
        Annotations(torch.zeros(1, 6, 3), (2, 3), torch.ones(1, 5, dtype=torch.bool))


def test_values_of_their_own():
    """Keys say where, values say what."""
    torch.manual_seed(0)
    module = make("Attention", "Dot", "Soft")
    keys, values, query = torch.randn(2, L, WIDTH), torch.randn(2, L, 9), torch.randn(2, WIDTH)
    prepared = module.prepare(Annotations(keys, (ROWS, COLUMNS)), values)
    attended = module(query, prepared)
    for b in range(2):
        weights = torch.softmax(keys[b] @ query[b], 0)
        torch.testing.assert_close(attended.context[b], weights @ values[b])


@pytest.mark.parametrize("test_time", ["argmax", "sample", "expectation"])
def test_hard_attention_at_test_time(test_time):
    scores = torch.tensor([0.5, 2.0, -1.0, 1.0]).log_softmax(0).expand(2, 3000, 4)
    asked = Asked(torch.zeros(2, 3000, 1), (2, 2), None)
    torch.manual_seed(0)
    found = Hard(1, test_time).eval()(scores, None, asked)
    probabilities = scores[0, 0].exp()
    entropy = -(probabilities * scores[0, 0]).sum()
    torch.testing.assert_close(found.entropy, entropy.expand(2, 3000))
    mean = found.weights.mean((0, 1))
    if test_time == "expectation":
        torch.testing.assert_close(found.weights, scores.exp())
        assert found.log_prob is None
        return
    assert ((found.weights == 0) | (found.weights == 1)).all()
    assert (found.weights.sum(-1) == 1).all()
    torch.testing.assert_close(found.log_prob, (found.weights * scores).sum(-1))
    if test_time == "argmax":
        assert mean.tolist() == [0, 1, 0, 0]
    else:  # 6,000 draws: within 4 standard errors
        errors = (probabilities * (1 - probabilities) / 6000).sqrt()
        assert ((mean - probabilities).abs() < 4 * errors).all()


def test_hard_attention_samples_while_training():
    scores = torch.zeros(1, 1000, 4)
    drawn = Hard(1, "argmax").train()(scores, None, Asked(torch.zeros(1, 1000, 1), (2, 2), None))
    assert (drawn.weights.sum((0, 1)) > 150).all()


@pytest.mark.parametrize(
    ("kind", "part", "said"),
    [
        ("score", {"class_path": "Dot"}, "equally wide, got 6 and 5"),
        ("score", {"class_path": "Dott"}, "known: Dot"),
        ("score", {"class_path": "Dot", "init_args": {"scale": "sqr"}}, "sqr"),
        ("distribution", {"class_path": "LocalM", "init_args": {"window": 0}}, "got 0"),
        ("distribution", {"class_path": "Hard", "init_args": {"test_time": "max"}}, "max"),
        ("attention", {"class_path": "MultiHead", "init_args": {"heads": 7}}, "7 heads"),
    ],
)
def test_impossible_parts_are_refused(kind, part, said):
    sizes = {
        "score": {"query_dim": 6, "key_dim": 5},
        "distribution": {"query_dim": 6},
        "attention": {"query_dim": 6, "memory_dim": 5},
    }
    with pytest.raises(ModelError, match=said):
        build(kind, part, **sizes[kind])


def test_location_is_made_for_its_grid():
    module = make("Attention", "Location", "Soft")
    with pytest.raises(ModelError, match="made for 6 positions and got 4"):
        module.prepare(Annotations(torch.zeros(1, 4, WIDTH), (2, 2)))


def test_monotonic_attention_must_be_told_the_step(given):
    module = make("Attention", "Dot", "LocalM")
    keys = module.prepare(Annotations(given[1], (ROWS, COLUMNS)))
    with pytest.raises(Exception, match="step=t"):
        module(given[0], keys)


def test_monotonic_window_moves_and_stops_at_the_end():
    module = LocalM(1, window=1)
    scores = torch.zeros(1, 8, L)
    weights = module(scores, None, Asked(torch.zeros(1, 8, 1), (1, L), torch.arange(8))).weights[0]
    for t in range(8):
        center = min(t, L - 1)
        seen = [s for s in range(L) if abs(s - center) <= 1]
        assert weights[t].nonzero().flatten().tolist() == seen
        assert weights[t, seen].tolist() == pytest.approx([1 / len(seen)] * len(seen))
