"""Contract tests of every neck in the registry, and each neck against its equations."""

import itertools
import math

import pytest
import torch
from torch import nn

from captioner.models import Annotations, Projection
from captioner.models.positions import cells, grid_sinusoids
from captioner.models.registry import arguments, build, find, names
from tests.models.test_transformer import close, load_attention, load_rest

B, ROWS, COLUMNS, D, DIM, HEADS = 2, 3, 4, 6, 16, 4
L = ROWS * COLUMNS
MASK = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) < 0.6
SMALL = {"dim": DIM, "heads": HEADS, "feed_forward": 5, "layers": 2, "slots": 3}
every_neck = pytest.mark.parametrize("name", names("neck"))


def make(name, **options):
    """In eval mode and double precision, parameters large enough to matter."""
    torch.manual_seed(2)
    known = arguments(find("neck", name))
    small = {option: value for option, value in SMALL.items() if option in known}
    tree = {"class_path": name, "init_args": {**small, **options}}
    neck = build("neck", tree, in_dim=D)
    for parameter in neck.parameters():
        nn.init.normal_(parameter, std=0.5)
    return neck.double().eval()


def annotations(mask=None, grid=(ROWS, COLUMNS)):
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(B, grid[0] * grid[1], D, generator=generator, dtype=torch.double)
    return Annotations(vectors, grid, mask)


@every_neck
def test_keeps_the_regions_and_images_of_a_batch_apart(name):
    neck, given = make(name), annotations(MASK)
    result = neck(given)
    assert result.vectors.shape == (B, L, neck.out_dim)
    assert result.grid == (ROWS, COLUMNS)
    assert result.mask is MASK
    together = result.vectors
    for b in range(B):
        alone = Annotations(given.vectors[b : b + 1], given.grid, MASK[b : b + 1])
        close(together[b], neck(alone).vectors[0])


@every_neck
def test_masked_regions_do_not_affect_the_others(name):
    neck, given = make(name), annotations(MASK)
    other = torch.where(MASK.unsqueeze(-1), given.vectors, torch.randn(B, L, D).double())
    one, two = neck(given), neck(Annotations(other, given.grid, MASK))
    close(one.vectors[MASK], two.vectors[MASK])
    assert one.vectors.isfinite().all()
    nothing = torch.zeros(B, L, dtype=torch.bool)
    assert neck(annotations(nothing)).vectors.isfinite().all()


@every_neck
def test_gradient_reaches_every_parameter(name):
    neck = make(name).train()  # Blind updates its mean
    result = neck(annotations()).vectors.square().sum()
    if result.requires_grad:  # Identity has no parameters
        result.backward()
    for parameter_name, parameter in neck.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


def test_grid_positions_are_sines_of_row_and_column():
    encoded = grid_sinusoids((ROWS, COLUMNS), DIM, torch.zeros((), dtype=torch.double))
    for cell in range(L):
        for axis, position in enumerate(divmod(cell, COLUMNS)):
            for i in range(DIM // 4):
                angle = position / 10_000 ** (2 * i / (DIM // 2))
                at = axis * DIM // 2 + 2 * i
                assert encoded[cell, at].item() == pytest.approx(math.sin(angle), abs=1e-12)
                assert encoded[cell, at + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def torch_layer(layer):
    theirs = nn.TransformerEncoderLayer(
        DIM, HEADS, SMALL["feed_forward"], dropout=0.0, norm_first=True, batch_first=True
    ).double()
    load_attention(theirs.self_attn, layer.attention, layer.attention.key_value)
    load_rest(theirs, layer)
    return theirs.train()  # in eval mode torch takes a fast path that differs in the last digits


def expected(neck, given, blocked):
    """The neck with torch's layers; ``blocked`` (L, L) is True where a region may not attend."""
    vectors = neck.layers(given.vectors)
    vectors = vectors + grid_sinusoids(given.grid, DIM, vectors)
    for layer in neck.stack:
        vectors = torch_layer(layer)(vectors, src_mask=blocked)
    return neck.norm(vectors)


def test_transformer_equals_torchs_encoder():
    neck, given = make("TransformerNeck"), annotations()
    close(neck(given).vectors, expected(neck, given, None))


def test_the_aoa_refiner_equals_its_equation():
    """Torch's attention, then one gate for every region by loops."""
    neck, given = make("AoARefiner", feed_forward=0), annotations()
    projected = neck.layers(given.vectors)
    x = projected + grid_sinusoids(given.grid, DIM, projected)
    for layer in neck.stack:
        theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
        ours, both = layer.attention.attention, layer.attention.gate.both
        load_attention(theirs, ours, ours.key_value)
        q = layer.norms[0](x)
        context = theirs(q, q, q)[0]
        new = torch.zeros_like(x)
        for b, i in itertools.product(range(B), range(L)):
            rows = both.weight @ torch.cat([q[b, i], context[b, i]]) + both.bias
            new[b, i] = x[b, i] + rows[:DIM] * torch.sigmoid(rows[DIM:])
        x = new
    close(neck(given).vectors, neck.norm(x))


@torch.no_grad()
def test_the_memory_neck_equals_its_equations():
    """Slots among the keys and values, by loops; the outputs of all layers."""
    neck, given = make("MemoryNeck"), annotations()
    projected, width, levels = neck.layers(given.vectors), DIM // HEADS, []
    x = projected + grid_sinusoids(given.grid, DIM, projected)
    for layer in neck.stack:
        attention, slots = layer.attention.attention, layer.attention.slots
        x = x.clone()
        normed = layer.norms[0](x)
        for b in range(B):
            key_value = torch.cat([normed[b] @ attention.key_value.weight.T, slots])
            for i in range(L):
                q, heads = attention.query.weight @ normed[b, i], []
                for part in (slice(h * width, (h + 1) * width) for h in range(HEADS)):
                    keys, values = (half[:, part] for half in key_value.chunk(2, 1))
                    scores = torch.stack([q[part] @ k / math.sqrt(width) for k in keys])
                    pairs = zip(scores.softmax(0), values, strict=True)
                    heads.append(sum(s * v for s, v in pairs))
                x[b, i] += attention.output.weight @ torch.cat(heads)
        x = x + layer.feed_forward(layer.norms[1](x))
        levels.append(neck.norm(x))
    close(neck(given).vectors, torch.cat(levels, -1))


@pytest.mark.parametrize(("block", "margin"), [(1, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("grid", [(ROWS, COLUMNS), (1, 7)])
def test_local_2d_attends_to_the_memory_block(block, margin, grid):
    neck, given = make("Local2D", block=block, margin=margin), annotations(grid=grid)
    rows, columns = grid
    blocked = torch.ones(rows * columns, rows * columns, dtype=torch.bool)
    for r, c in itertools.product(range(rows), range(columns)):
        top, left = r - r % block - margin, c - c % block - margin
        for y in range(max(top, 0), min(top + block + 2 * margin, rows)):
            for x in range(max(left, 0), min(left + block + 2 * margin, columns)):
                blocked[r * columns + c, y * columns + x] = False
    close(neck(given).vectors, expected(neck, given, blocked))


@pytest.mark.parametrize(
    ("window", "head_window", "masked"), [(1, 0, False), (1, 1, False), (2, 2, True), (1, 5, True)]
)
@torch.no_grad()
def test_convolutional_attends_to_neighbours(window, head_window, masked):
    """One softmax over cells and heads at once, for every cell and head, with plain loops."""
    neck = make("Convolutional", window=window, head_window=head_window)
    attention = neck.stack[0].attention
    vectors = torch.randn(L, DIM, dtype=torch.double)
    exists = MASK[0] if masked else torch.ones(L, dtype=torch.bool)
    mask = neck.reach(*cells((ROWS, COLUMNS), vectors.device)) & exists
    width = DIM // HEADS
    query = vectors @ attention.query.weight.T
    key_value = vectors @ attention.key_value.weight.T
    found = attention(vectors.unsqueeze(0), mask)
    _, weights = attention.attend(query.unsqueeze(0), key_value.unsqueeze(0), mask)
    key, value = key_value.chunk(2, -1)

    def part(projected, cell, head):
        return projected[cell, head * width : (head + 1) * width]

    for i in range(L):
        heads = []
        for h in range(HEADS):
            near = [
                (j, g)
                for g in range(max(0, h - head_window), min(HEADS, h + head_window + 1))
                for j in range(L)
                if abs(i // COLUMNS - j // COLUMNS) <= window
                and abs(i % COLUMNS - j % COLUMNS) <= window
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
    neck, given = make("SAGAN"), annotations()
    x = neck.layers(given.vectors)
    f = neck.attention.score.query.weight
    g = neck.attention.score.key.weight
    assert f.shape == g.shape == (DIM // 8, DIM)
    for b in range(B):
        for j in range(L):
            scores = torch.stack([(f @ x[b, j]) @ (g @ x[b, i]) for i in range(L)])
            beta = scores.softmax(0)
            o = neck.output.weight @ sum(beta[i] * (neck.value.weight @ x[b, i]) for i in range(L))
            close(neck(given).vectors[b, j], neck.gamma * o + x[b, j])


def test_blind_returns_the_training_mean_whatever_the_image():
    neck = make("Blind")
    batches = [torch.randn(B, L, D, dtype=torch.double, requires_grad=True) for _ in range(3)]
    for vectors in batches:  # backward each time: the running mean must not hold the graphs
        neck.train()(Annotations(vectors, (ROWS, COLUMNS))).vectors.sum().backward()
    mean = torch.stack([vectors.mean((0, 1)) for vectors in batches]).mean(0)
    close(neck.mean, mean.detach())
    neck.eval()
    one, two = neck(annotations()), neck(Annotations(-5 * annotations().vectors, (ROWS, COLUMNS)))
    close(one.vectors, two.vectors)
    assert (one.vectors == one.vectors[:1, :1]).all()


def test_projection_equals_its_equation():
    neck, given = make("Projection"), annotations()
    norm, linear, _, _ = neck.layers
    a = given.vectors[1, 2]
    normal = norm.weight * (a - a.mean()) / (a.var(unbiased=False) + 1e-5).sqrt() + norm.bias
    close(neck(given).vectors[1, 2], (linear.weight @ normal + linear.bias).relu())


def test_positions_are_cosines_of_row_and_column():
    """By plain loops, with the same features everywhere."""
    torch.manual_seed(0)
    neck = Projection(4, dim=6, positions=3).eval()
    blank = Annotations(torch.zeros(1, 6, 4), (2, 3))
    linear, norm = neck.layers[1], neck.layers[0]
    features = norm(torch.zeros(4)).tolist()
    for row in range(2):
        for column in range(3):
            where = [math.cos(math.pi * k * (row + 0.5) / 2) for k in (1, 2, 3)]
            where += [math.cos(math.pi * k * (column + 0.5) / 3) for k in (1, 2, 3)]
            inputs = torch.tensor(features + where)
            expected = torch.relu(linear.weight @ inputs + linear.bias)
            given = neck(blank).vectors[0, row * 3 + column]
            torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6)
