"""What every refiner promises, found from the registry, and each against its equations."""

import inspect
import math

import pytest
import torch
from torch import nn

from captioner import models
from captioner.errors import ModelError
from captioner.models import (
    SAGAN,
    Annotations,
    Blind,
    Convolutional,
    Local2D,
    Projection,
    TransformerRefiner,
)
from captioner.models.positions import grid_cosines, grid_sinusoids
from captioner.models.registry import build, names

B, ROWS, COLUMNS, D, DIM, HEADS = 2, 3, 4, 6, 16, 4
L = ROWS * COLUMNS
MASK = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) < 0.6
SMALL = {"dim": DIM, "heads": HEADS, "feed_forward": 5, "layers": 2}
every_refiner = pytest.mark.parametrize("name", names("refiner"))
related = pytest.mark.parametrize(
    "name", sorted(set(names("refiner")) - {"Identity", "Projection", "Blind"})
)


def make(name, **options):
    """In eval mode and double precision, parameters large enough to matter."""
    torch.manual_seed(2)
    known = inspect.signature(getattr(models, name)).parameters
    small = {option: value for option, value in SMALL.items() if option in known}
    tree = {"class_path": name, "init_args": {**small, **options}}
    refiner = build("refiner", tree, in_dim=D)
    for parameter in refiner.parameters():
        nn.init.normal_(parameter, std=0.5)
    return refiner.double().eval()


def seen(mask=None, grid=(ROWS, COLUMNS)):
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(B, grid[0] * grid[1], D, generator=generator, dtype=torch.double)
    return Annotations(vectors, grid, mask)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@every_refiner
def test_describes_the_same_regions_in_its_own_width(name):
    refiner = make(name)
    refined = refiner(seen(MASK))
    assert refined.vectors.shape == (B, L, refiner.out_dim)
    assert refined.grid == (ROWS, COLUMNS)
    assert refined.mask is MASK


@every_refiner
def test_a_batch_gives_what_its_pictures_give_alone(name):
    refiner, given = make(name), seen(MASK)
    together = refiner(given).vectors
    for b in range(B):
        alone = Annotations(given.vectors[b : b + 1], given.grid, MASK[b : b + 1])
        close(together[b], refiner(alone).vectors[0])


@every_refiner
def test_what_is_masked_changes_nothing_that_is_not(name):
    refiner, given = make(name), seen(MASK)
    other = torch.where(MASK.unsqueeze(-1), given.vectors, torch.randn(B, L, D).double())
    one, two = refiner(given), refiner(Annotations(other, given.grid, MASK))
    close(one.vectors[MASK], two.vectors[MASK])
    assert one.vectors.isfinite().all()


@every_refiner
def test_nothing_to_look_at_gives_no_nan(name):
    nothing = torch.zeros(B, L, dtype=torch.bool)
    assert make(name)(seen(nothing)).vectors.isfinite().all()


@every_refiner
def test_gradient_reaches_every_parameter(name):
    refiner = make(name).train()  # Blind learns its mean
    refined = refiner(seen()).vectors.square().sum()
    if refined.requires_grad:  # Identity has nothing to learn
        refined.backward()
    for parameter_name, parameter in refiner.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@related
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite(name, dtype):
    refined = make(name).to(dtype)(seen(MASK).with_vectors(seen().vectors.to(dtype)))
    assert refined.vectors.dtype == dtype
    assert refined.vectors.isfinite().all()


@related
def test_regions_learn_of_others(name):
    """Changing one region changes more than itself."""
    refiner, given = make(name), seen()
    other = given.vectors.clone()
    other[:, 5] = other[:, 5].flip(-1)
    moved = (refiner(given).vectors - refiner(given.with_vectors(other)).vectors).abs().amax(-1)
    assert (moved[:, 6] > 1e-6).all()


def projected(refiner, given):
    """What the first step of all of them makes of the annotations."""
    return refiner.layers(given.vectors)


def test_grid_positions_are_sines_of_row_and_column():
    found = grid_sinusoids((ROWS, COLUMNS), DIM, torch.zeros((), dtype=torch.double))
    for cell in range(L):
        for axis, place in enumerate(divmod(cell, COLUMNS)):
            for i in range(DIM // 4):
                angle = place / 10_000 ** (2 * i / (DIM // 2))
                at = axis * DIM // 2 + 2 * i
                assert found[cell, at].item() == pytest.approx(math.sin(angle), abs=1e-12)
                assert found[cell, at + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def torchs_layer(layer):
    """torch's own encoder layer with the parameters of ours."""
    own = nn.TransformerEncoderLayer(
        DIM, HEADS, SMALL["feed_forward"], dropout=0.0, norm_first=True, batch_first=True
    ).double()
    with torch.no_grad():
        attention = layer.attention
        own.self_attn.in_proj_weight.copy_(
            torch.cat([attention.query.weight, attention.key_value.weight])
        )
        own.self_attn.in_proj_bias.zero_()
        own.self_attn.out_proj.weight.copy_(attention.output.weight)
        own.self_attn.out_proj.bias.zero_()
    own.linear1.load_state_dict(layer.feed_forward[0].state_dict())
    own.linear2.load_state_dict(layer.feed_forward[3].state_dict())
    own.norm1.load_state_dict(layer.norms[0].state_dict())
    own.norm2.load_state_dict(layer.norms[1].state_dict())
    return own.train()  # in eval mode torch takes a fast path that differs in the last digits


def expected(refiner, given, blocked):
    """The refiner with torch's layers; ``blocked`` (L, L) is True where a region may not look."""
    vectors = projected(refiner, given)
    vectors = vectors + grid_sinusoids(given.grid, DIM, vectors)
    for layer in refiner.stack:
        vectors = torchs_layer(layer)(vectors, src_mask=blocked)
    return refiner.norm(vectors)


def test_transformer_equals_torchs_encoder():
    refiner, given = make("TransformerRefiner"), seen()
    close(refiner(given).vectors, expected(refiner, given, None))


@pytest.mark.parametrize(("block", "margin"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("grid", [(ROWS, COLUMNS), (1, 7), (5, 5)])
def test_local_2d_attends_to_the_memory_block(block, margin, grid):
    refiner, given = make("Local2D", block=block, margin=margin), seen(grid=grid)
    rows, columns = grid
    blocked = torch.ones(rows * columns, rows * columns, dtype=torch.bool)
    for top in range(0, rows, block):
        for left in range(0, columns, block):
            for r in range(top, min(top + block, rows)):
                for c in range(left, min(left + block, columns)):
                    for y in range(top - margin, top + block + margin):
                        for x in range(left - margin, left + block + margin):
                            if 0 <= y < rows and 0 <= x < columns:
                                blocked[r * columns + c, y * columns + x] = False
    close(refiner(given).vectors, expected(refiner, given, blocked))


@pytest.mark.parametrize("window", [1, 2])
def test_convolutional_attends_to_neighbours(window):
    refiner, given = make("Convolutional", window=window, head_window=0), seen()
    blocked = torch.tensor(
        [
            [
                max(abs(i // COLUMNS - j // COLUMNS), abs(i % COLUMNS - j % COLUMNS)) > window
                for j in range(L)
            ]
            for i in range(L)
        ]
    )
    close(refiner(given).vectors, expected(refiner, given, blocked))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head_window", [1, 2, 5])
@torch.no_grad()
def test_convolutional_attends_in_neighbouring_heads(head_window, masked):
    """One attention, written out: for each cell and head, over cells and heads at once."""
    refiner = make("Convolutional", window=1, head_window=head_window)
    attention = refiner.stack[0].attention
    vectors = torch.randn(L, DIM, dtype=torch.double)
    exists = MASK[0] if masked else torch.ones(L, dtype=torch.bool)
    mask = refiner.reach((ROWS, COLUMNS), vectors.device) & exists
    found, weights, _ = attention(vectors.unsqueeze(0), mask, need_weights=True)
    fused, nothing, _ = attention(vectors.unsqueeze(0), mask)
    assert nothing is None
    close(found, fused)

    width = DIM // HEADS
    query = vectors @ attention.query.weight.T
    key, value = (vectors @ attention.key_value.weight.T).chunk(2, -1)

    def part(projected, cell, head):
        return projected[cell, head * width : (head + 1) * width]

    for i in range(L):
        heads = []
        for h in range(HEADS):
            near = [
                (j, g)
                for g in range(max(0, h - head_window), min(HEADS, h + head_window + 1))
                for j in range(L)
                if abs(i // COLUMNS - j // COLUMNS) <= 1
                and abs(i % COLUMNS - j % COLUMNS) <= 1
                and exists[j]
            ]
            if not near:
                heads.append(torch.zeros(width, dtype=torch.double))
                continue
            scores = [part(query, i, h) @ part(key, j, g) / math.sqrt(width) for j, g in near]
            alpha = torch.stack(scores).softmax(0)
            heads.append(sum(a * part(value, j, g) for a, (j, g) in zip(alpha, near, strict=True)))
            for j in range(L):
                share = sum(a for a, (k, _) in zip(alpha, near, strict=True) if k == j)
                assert weights[0, i, h, j].item() == pytest.approx(float(share), abs=1e-10)
        close(found[0, i], attention.output.weight @ torch.cat(heads))


def test_sagan_equals_its_equations():
    refiner, given = make("SAGAN"), seen()
    x = projected(refiner, given)
    f = refiner.attention.score.query.weight
    g = refiner.attention.score.key.weight
    assert f.shape == g.shape == (DIM // 8, DIM)
    for b in range(B):
        for j in range(L):
            scores = torch.stack([(f @ x[b, j]) @ (g @ x[b, i]) for i in range(L)])
            beta = scores.softmax(0)
            o = refiner.output.weight @ sum(
                beta[i] * (refiner.value.weight @ x[b, i]) for i in range(L)
            )
            close(refiner(given).vectors[b, j], refiner.gamma * o + x[b, j])


def test_sagan_adds_nothing_at_first():
    torch.manual_seed(4)
    refiner = SAGAN(D, DIM).double().eval()
    close(refiner(seen()).vectors, projected(refiner, seen()))


def test_blind_is_blind():
    refiner = Blind(D, DIM).double()
    for _ in range(3):
        refiner(seen())
    refiner.eval()
    one, two = refiner(seen()), refiner(Annotations(-5 * seen().vectors, (ROWS, COLUMNS)))
    close(one.vectors, two.vectors)


@pytest.mark.parametrize(
    ("refiner", "options", "message"),
    [
        (TransformerRefiner, {"dim": 18, "heads": 2}, "4 divides"),
        (TransformerRefiner, {"dim": 16, "heads": 3}, "3 heads do not divide a width of 16"),
        (TransformerRefiner, {"layers": 0}, "1 layer or more"),
        (TransformerRefiner, {"head_window": -1}, "0 or more"),
        (Convolutional, {"window": 0}, "window of 1 cell or more, got 0"),
        (Local2D, {"block": 0}, "block of 1 cell or more"),
        (Local2D, {"margin": -1}, "margin of 0 or more"),
        (SAGAN, {"dim": 4}, "8 or more, got 4"),
        (Projection, {"positions": -1}, "0 positions or more, got -1"),
    ],
)
def test_impossible_sizes_are_refused(refiner, options, message):
    with pytest.raises(ModelError, match=message):
        refiner(D, **options)


def test_a_projection_is_the_same_for_every_vector():
    refiner, given = make("Projection"), seen()
    assert isinstance(refiner, Projection)
    order = torch.randperm(L)
    moved = given.with_vectors(given.vectors[:, order])
    close(refiner(given).vectors[:, order], refiner(moved).vectors)


def test_positions_are_cosines_of_row_and_column():
    """By plain loops; what the CNN saw is the same everywhere, and only the place differs."""
    torch.manual_seed(0)
    refiner = Projection(4, dim=6, positions=3).eval()
    blank = Annotations(torch.zeros(1, 6, 4), (2, 3))
    linear, norm = refiner.layers[1], refiner.layers[0]
    assert isinstance(linear, nn.Linear)
    seen = norm(torch.zeros(4)).tolist()
    for row in range(2):
        for column in range(3):
            where = [math.cos(math.pi * k * (row + 0.5) / 2) for k in (1, 2, 3)]
            where += [math.cos(math.pi * k * (column + 0.5) / 3) for k in (1, 2, 3)]
            inputs = torch.tensor(seen + where)
            expected = torch.relu(linear.weight @ inputs + linear.bias)
            given = refiner(blank).vectors[0, row * 3 + column]
            torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6)


def test_every_cell_has_its_own_cosines():
    where = grid_cosines((7, 7), 4, torch.zeros(1))
    assert where.shape == (49, 8)
    apart = torch.cdist(where, where) + torch.eye(49)
    assert apart.min() > 0.2
