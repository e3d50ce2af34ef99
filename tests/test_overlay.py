"""What is drawn lies where the model looked, on one scale, and the numbers are the model's own."""

import io
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import captioner
from captioner import overlay
from captioner.errors import UsageError
from captioner.images import load
from captioner.overlay import Style, colours, heat
from looks import SIZES, heat_centre, hot, looked, save_photo

CELLS = [(0, 0), (1, 3), (6, 4), (3, 2)]
BARE = Style(opacity=1, smoothing="none")


def grey(size):
    return Image.new("RGB", size, (90, 90, 90))


@pytest.fixture
def soft():
    """Four words that look at one cell each."""
    return looked(hot(CELLS), (100, 140))


@pytest.mark.parametrize("smoothing", ["bicubic", "gaussian", "none"])
@pytest.mark.parametrize("kind", SIZES)
def test_a_hot_cell_lands_on_its_pixels(kind, smoothing, tmp_path):
    file = tmp_path / "photo.jpg"
    size = save_photo(kind, file)
    caption = looked(hot(CELLS), size, image=str(file))
    photo = load(file)
    assert photo.getpixel((3, 3)) > (200, 200, 200)  # upright: the corner is where it was drawn
    for index, (row, column) in enumerate(CELLS):
        drawn = overlay.blend(caption, index, style=Style(smoothing=smoothing))
        assert drawn.size == size
        x, y = heat_centre(drawn, photo)
        left, top, right, bottom = caption.geometry.cell_box(row, column)
        # A gaussian wider than a cell leans inwards at the edge of the photo, where it is cut.
        slack = 1.0 if smoothing == "gaussian" else 0.5
        assert abs(x * size[0] - (left + right) / 2) <= slack * (right - left)
        assert abs(y * size[1] - (top + bottom) / 2) <= slack * (bottom - top)
        values = colours.spread(caption.weights[index], size, smoothing)
        y, x = np.unravel_index(values.argmax(), values.shape)
        assert caption.geometry.cell_at(x + 0.5, y + 0.5) == (row, column)


def test_no_opacity_is_the_photo(soft, tmp_path):
    file = tmp_path / "photo.png"
    caption = looked(hot(CELLS), save_photo("turned", file))
    drawn = overlay.blend(caption, 0, file, Style(opacity=0))
    assert np.array_equal(drawn, load(file))


@pytest.mark.parametrize("size", [(70, 35), (500, 333), (81, 190)])
def test_bicubic_is_that_of_pillow(size):
    cells = np.random.default_rng(0).random((5, 7), np.float32)
    expected = Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)
    found = colours.spread(cells, size, "bicubic")
    np.testing.assert_allclose(found, np.maximum(expected, 0), atol=2e-5)


def test_gaussian_is_the_plain_sum():
    cells = np.random.default_rng(0).random((3, 4))
    found = colours.spread(cells, (20, 18), "gaussian")
    for y, x in [(0, 0), (7, 13), (17, 19)]:
        row, column = (y + 0.5) / 6, (x + 0.5) / 5
        weight, total = 0.0, 0.0
        for r in range(3):
            for c in range(4):
                squared = (row - r - 0.5) ** 2 + (column - c - 0.5) ** 2
                share = math.exp(-squared / (2 * 1.25**2))
                total, weight = total + share * cells[r, c], weight + share
        assert found[y, x] == pytest.approx(total / weight)


@pytest.mark.parametrize("smoothing", ["bicubic", "gaussian", "none"])
@pytest.mark.parametrize("scale", ["shared", "own"])
def test_a_flat_map_looks_flat(smoothing, scale):
    flat = np.full((1, 4, 6), 1 / 24)
    sharp = hot([(1, 1)], (4, 6))
    caption = looked(np.concatenate([flat, sharp]), (60, 40))
    drawn = np.asarray(overlay.blend(caption, 0, grey((60, 40)), Style(1, scale, smoothing)))
    above_the_tag = drawn[:15]
    assert np.ptp(above_the_tag, axis=(0, 1)).max() <= 1
    if scale == "shared" and smoothing != "gaussian":
        assert above_the_tag.mean() < 20  # next to a sharp one it is dark, too


def test_shared_and_own_scale():
    weights = hot([(0, 0), (1, 1)], (2, 2))
    weights[0] *= 0.5
    weights[1] *= 0.1
    caption = looked(weights, (200, 200))

    def at(index, scale, x, y):
        drawn = overlay.blend(caption, index, grey((200, 200)), Style(1, scale, "none"))
        return drawn.getpixel((x, y))

    lightest, fifth = tuple(colours.TABLE[255]), tuple(colours.TABLE[51])
    assert at(0, "shared", 50, 50) == at(0, "own", 50, 50) == lightest
    assert at(1, "shared", 150, 120) == fifth
    assert at(1, "own", 150, 120) == lightest


def test_an_own_scale_says_so(soft):
    shared = overlay.blend(soft, 0, grey((100, 140)), Style(scale="shared"))
    own = overlay.blend(soft, 0, grey((100, 140)), Style(scale="own"))
    changed = np.asarray(shared, int) != np.asarray(own, int)  # each map's top is 1: same colours
    rows, columns = np.nonzero(changed.any(2))
    assert rows.min() > 110
    assert columns.min() < 10
    assert overlay.figure(soft, grey((100, 140)), Style(scale="own")).height > (
        overlay.figure(soft, grey((100, 140))).height
    )


def test_the_colour_map_is_inferno():
    """Values of matplotlib's inferno; its lightness rises evenly, by the formula of CIELAB."""
    known = {
        0: (0, 0, 4),
        64: (87, 16, 110),
        128: (188, 55, 84),
        192: (249, 142, 9),
        255: (252, 255, 164),
    }
    for level, colour in known.items():
        assert np.abs(colours.TABLE[level].astype(int) - colour).max() <= 2
    shares = colours.TABLE / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722]
    lightness = np.where(light > 0.008856, 116 * np.cbrt(light) - 16, 903.3 * light)
    even = np.linspace(lightness[0], lightness[-1], 256)
    assert (np.diff(lightness) > -0.05).all()
    assert np.abs(lightness - even).max() < 6  # evenness itself was made in CAM02-UCS


def test_hard_attention_outlines_the_cells_it_chose():
    caption = looked(hot([(1, 3)]), (200, 280), "LSTMDecoder: Additive × Hard (argmax)")
    drawn = overlay.blend(caption, 0, grey((200, 280)), Style(smoothing="bicubic"))
    cyan = (25, 230, 255)
    for x, y in [(120, 60), (160, 60), (140, 40), (140, 80)]:  # the middles of its four sides
        assert drawn.getpixel((x, y)) == cyan
    inside, outside = drawn.getpixel((140, 60)), drawn.getpixel((140, 95))
    assert inside == drawn.getpixel((128, 50))  # the whole cell is lit, nothing runs over
    assert outside == drawn.getpixel((20, 200))
    soft = overlay.blend(looked(hot([(1, 3)]), (200, 280)), 0, grey((200, 280)))
    expected = "LSTMDecoder: Additive × Hard (expectation)"
    mean = overlay.blend(looked(hot([(1, 3)]), (200, 280), expected), 0, grey((200, 280)))
    assert np.array_equal(mean, soft)


def test_the_cells_outlined_are_those_of_the_head_shown():
    layers = np.stack([hot([(0, 0)]), hot([(2, 1)])], 1)[:, None]  # one layer of two heads
    hard = "TransformerDecoder × 1: MultiHead × Hard (argmax)"
    caption = looked(layers.mean((1, 2)), (50, 70), hard, layers=layers)
    assert len(heat.marks(caption, 0, Style())[0]) == 8
    assert set(heat.marks(caption, 0, Style(head=1))[0]) == {
        (1, 2, 2, 2),
        (1, 3, 2, 3),
        (1, 2, 1, 3),
        (2, 2, 2, 3),
    }


def test_local_attention_shows_its_window_and_centre():
    weights = np.zeros((1, 7, 5), np.float32)
    weights[0, 2:5, 1:4] = 1 / 9
    centre = np.array([[3.5, 2.5]], np.float32)
    caption = looked(
        weights, (200, 280), "LuongDecoder: General × LocalP2D", centre=centre, window=1
    )
    drawn = overlay.blend(caption, 0, grey((200, 280)))
    cyan = (25, 230, 255)
    for x, y in [(40, 140), (160, 140), (100, 80), (100, 200), (100, 140)]:
        assert drawn.getpixel((x, y)) == cyan
    lines, place = heat.marks(caption, 0, Style())
    assert len(lines) == 12  # around three by three cells, a line for each cell's side
    assert place == (2.5, 3.5)


def test_a_window_in_raster_order_wraps_around_rows():
    cells = np.zeros((3, 4), bool)
    cells[0, 3] = cells[1, 0] = True
    right = {(3, 0, 4, 0), (3, 1, 4, 1), (3, 0, 3, 1), (4, 0, 4, 1)}
    left = {(0, 1, 1, 1), (0, 2, 1, 2), (0, 1, 0, 2), (1, 1, 1, 2)}
    assert set(heat.outline(cells)) == right | left


def test_entropy_is_that_of_shares():
    flat, one, half = np.ones((2, 3)), np.eye(2, 3) * [[1], [0]], np.eye(2, 3) * 0.25
    weights = np.stack([flat, one, half, flat * 0]).astype(np.float32)
    found = overlay.entropies(weights)
    np.testing.assert_allclose(found, [math.log(6), 0, math.log(2), 0], atol=1e-6)


@pytest.mark.parametrize(("layer", "head"), [(1, 2), (None, 2), (1, None)])
def test_layers_and_heads(layer, head):
    layers = np.random.default_rng(0).random((2, 3, 4, 2, 2), np.float32)
    caption = looked(layers[:, -1].mean(1), (8, 8), layers=layers)
    for word, shown in enumerate(overlay.maps(caption, Style(layer=layer, head=head))):
        chosen = [
            layers[word, i, j]
            for i in range(3)
            for j in range(4)
            if i in (layer, i if layer is None else layer)
            and j in (head, j if head is None else head)
        ]
        np.testing.assert_allclose(shown, sum(chosen) / len(chosen), rtol=1e-5)
    assert overlay.maps(caption) is caption.weights


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"opacity": 1.5}, "0 to 1"),
        ({"layer": -1}, "no layer 0"),
        ({"head": 9}, "no head 10: there are 4"),
        ({"layer": 3}, "no layer 4: there are 3"),
    ],
)
def test_a_style_that_does_not_exist(options, said):
    layers = np.zeros((1, 3, 4, 2, 2), np.float32)
    caption = looked(layers[:, 0, 0], (8, 8), layers=layers)
    with pytest.raises(UsageError, match=said):
        overlay.maps(caption, Style(**options))


def test_a_name_that_does_not_exist():
    """In a process of its own: here, the run-time checker of the tests would be faster."""
    code = "from captioner.overlay import Style; Style(scale='each')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("UsageError: scale is shared or own, got 'each'\n")


def test_what_cannot_be_drawn(soft):
    with pytest.raises(UsageError, match="give it as photo="):
        overlay.figure(soft)
    with pytest.raises(UsageError, match="give the photo that was captioned"):
        overlay.figure(soft, grey((140, 100)))
    with pytest.raises(UsageError, match="counted from 0 to 3"):
        overlay.blend(soft, 4, grey((100, 140)))
    with pytest.raises(UsageError, match="leave out layer and head"):
        overlay.figure(soft, grey((100, 140)), Style(layer=0))
    with pytest.raises(UsageError, match="1 pixel or more"):
        overlay.blend(soft, 0, grey((100, 140)), longest_side=0)
    with pytest.raises(UsageError, match="one caption or more"):
        overlay.page([])
    with pytest.raises(UsageError, match="as many photos, got 2"):
        overlay.page([soft], [grey((100, 140))] * 2)


@pytest.mark.parametrize("size", [(1, 1), (3, 900), (1000, 4)])
def test_pictures_of_odd_shapes(size):
    caption = looked(hot(CELLS), size)
    assert overlay.blend(caption, 1, grey(size)).size == size
    assert overlay.figure(caption, grey(size)).width > 200
    assert overlay.animation(caption, grey(size))
    assert overlay.page([caption], [grey(size)])


@pytest.mark.parametrize("words", [1, 5, 24])
def test_the_figure_shows_every_map(words):
    cells = [CELLS[i % len(CELLS)] for i in range(words)]
    caption = looked(hot(cells), (100, 140))
    drawn = np.asarray(overlay.figure(caption, grey((100, 140)), BARE), int)
    lit = (np.abs(drawn - colours.TABLE[255]).max(2) <= 2).sum()
    cell = 270 * 270 * 100 / 140 / 35
    assert lit == pytest.approx(words * cell, rel=0.1)


def test_the_animation_goes_through_the_words(soft):
    film = Image.open(io.BytesIO(overlay.animation(soft, grey((100, 140)))))
    assert film.n_frames == 5
    assert film.info["loop"] == 0
    frames = []
    for number in range(film.n_frames):
        film.seek(number)
        assert film.info["duration"] >= 500
        frames.append(film.convert("RGB").crop((0, 0, film.width, 480)))
    for (row, column), frame in zip(CELLS, frames[1:], strict=True):
        x, y = heat_centre(frame, frames[0])
        left, width = (film.width - 343) / 2, 343  # the photo stands in the middle
        assert abs((x * film.width - left) / width * 5 - column - 0.5) <= 0.5
        assert abs(y * 7 - row - 0.5) <= 0.5


def test_earlier_words_are_where_rows_and_columns_say():
    past = np.zeros((3, 1, 2, 3), np.float32)
    past[2, 0, :, 1] = 1.0
    caption = looked(hot(CELLS[:3]), (50, 70), past=past)
    drawn = np.asarray(overlay.past(caption), int)
    dark = (np.abs(drawn - colours.TABLE[0]).max(2) <= 1).astype(int)
    light = np.abs(drawn - colours.TABLE[255]).max(2) <= 1
    rows, columns = np.nonzero(light)
    assert np.ptp(rows) + 1 == np.ptp(columns) + 1 == 43
    y, x = rows.min() + 3, columns.min() + 3
    here = [[dark[y + 44 * r, x + 44 * c] for c in (-1, 0, 1)] for r in (-2, -1, 0)]
    assert here == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]  # 0: nothing, or the light one itself
    assert overlay.past(caption, 0, 1).size == overlay.past(caption).size


def test_without_earlier_words(soft):
    with pytest.raises(UsageError, match="details=True"):
        overlay.past(soft)


def test_json_holds_the_models_own_numbers(soft):
    weights = np.random.default_rng(0).dirichlet(np.ones(35), 4).reshape(4, 7, 5)
    caption = looked(weights, (100, 140), image="dog.jpg")
    text = json.dumps(overlay.record(caption, Style(smoothing="gaussian")), allow_nan=False)
    record = json.loads(text)
    assert list(record) == ["image", "size", "grid", "caption", "model", "mechanism", "words"]
    assert (record["image"], record["size"], record["grid"]) == ("dog.jpg", [100, 140], [7, 5])
    assert (record["caption"], record["mechanism"]) == (caption.text, caption.mechanism)
    for word, told, expected in zip(record["words"], caption.words, weights, strict=True):
        assert set(word) == {"word", "log_prob", "entropy", "weights"}
        assert (word["word"], word["log_prob"]) == (told, -0.5)
        np.testing.assert_array_equal(np.array(word["weights"], np.float32), expected.astype("f"))
        shannon = -(expected * np.log(expected)).sum()
        assert word["entropy"] == pytest.approx(shannon, abs=1e-4)


def test_npz_holds_the_models_own_numbers(soft):
    with np.load(io.BytesIO(overlay.npz(soft)), allow_pickle=False) as stored:
        assert set(stored) == {"weights", "words"}
        assert stored["weights"].dtype == np.float32
        np.testing.assert_array_equal(stored["weights"], soft.weights)
        assert tuple(stored["words"]) == soft.words


def test_words_of_any_script(soft):
    words = ("собака", "狗", "Straße", "a")
    caption = looked(hot(CELLS), (100, 140), words=words, text=" ".join(words))
    photo = grey((100, 140))
    assert overlay.figure(caption, photo).width > 0
    assert overlay.animation(caption, photo)
    assert "Straße" in overlay.page([caption], [photo])


def test_it_is_reached_from_the_front_door():
    assert captioner.overlay.figure is overlay.figure
