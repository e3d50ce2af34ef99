"""Maps are drawn at the right place and scale, and exported numbers are the model's."""

import html
import io
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image, ImageSequence

from captioner import overlay
from captioner.errors import UsageError
from captioner.overlay import Style, export, figures, heatmap, style
from captioner.photos.images import load
from known_maps import (
    CELLS,
    HARD,
    SIZES,
    gray,
    local_caption,
    make_caption,
    one_hot,
    red_centre,
    save_photo,
)

CYAN = (25, 230, 255)
PHOTO = gray((100, 140))


@pytest.fixture
def soft():
    """Four words that attend to one cell each."""
    return make_caption(one_hot(CELLS), PHOTO.size)


@pytest.mark.parametrize("smoothing", ["bicubic", "gaussian", "none"])
@pytest.mark.parametrize("kind", SIZES)
def test_each_cell_is_drawn_on_its_pixels(kind, smoothing, tmp_path):
    file = tmp_path / "photo.jpg"
    size = save_photo(kind, file)
    caption = make_caption(one_hot(CELLS), size, image=str(file))
    photo = load(file)
    assert photo.getpixel((3, 3)) > (200, 200, 200)  # upright
    for index, (row, column) in enumerate(CELLS):
        drawn = overlay.blend(caption, index, style=Style(smoothing=smoothing))
        assert drawn.size == size
        x, y = red_centre(drawn, photo)
        left, right = (size[0] * edge / 5 for edge in (column, column + 1))
        top, bottom = (size[1] * edge / 7 for edge in (row, row + 1))
        # At the edge of the photo a wide gaussian is cut off, which moves its centre inwards.
        tolerance = 1.0 if smoothing == "gaussian" else 0.5
        assert abs(x * size[0] - (left + right) / 2) <= tolerance * (right - left)
        assert abs(y * size[1] - (top + bottom) / 2) <= tolerance * (bottom - top)
        values = heatmap.upsample(caption.weights[index], size, smoothing)
        y, x = np.unravel_index(values.argmax(), values.shape)
        assert left <= x + 0.5 <= right
        assert top <= y + 0.5 <= bottom


@pytest.mark.parametrize("size", [(35, 28), (50, 33), (31, 90), (3, 2)])
def test_unsmoothed_pixels_show_the_cell_they_are_in(size):
    cells = np.arange(35, dtype=np.float32).reshape(7, 5)
    width, height = size
    drawn = heatmap.upsample(cells, size, "none")
    for y, x in np.ndindex(drawn.shape):
        assert drawn[y, x] == cells[int((y + 0.5) * 7 / height), int((x + 0.5) * 5 / width)]


def test_gaussian_is_a_normalised_sum():
    cells = np.random.default_rng(0).random((3, 4))
    drawn = heatmap.upsample(cells, (20, 18), "gaussian")
    for y, x in [(0, 0), (7, 13), (17, 19)]:
        weights = np.zeros((3, 4))
        for r, c in np.ndindex(3, 4):
            squared = ((y + 0.5) / 6 - r - 0.5) ** 2 + ((x + 0.5) / 5 - c - 0.5) ** 2
            weights[r, c] = math.exp(-squared / (2 * 1.25**2))
        assert drawn[y, x] == pytest.approx((weights * cells).sum() / weights.sum())


@pytest.mark.parametrize("smoothing", ["bicubic", "gaussian", "none"])
@pytest.mark.parametrize("scale", ["shared", "own"])
def test_even_attention_and_opacity_0_paint_nothing(smoothing, scale):
    flat = np.full((1, 4, 6), 1 / 24)
    caption = make_caption(np.concatenate([flat, one_hot([(1, 1)], (4, 6))]), (60, 40))
    for word, opacity in ((0, 1), (1, 0)):
        style = Style(opacity, scale, smoothing)
        drawn = np.asarray(overlay.blend(caption, word, gray((60, 40)), style))
        assert (drawn == 90).all()


def test_the_photo_glows_only_where_attention_is_more_than_even():
    """Less attention does not darken it, and small differences hardly glow."""
    weights = np.full((1, 8, 8), 1.1 / 64, np.float32)
    weights[0, :4] = 0.9 / 64
    caption = make_caption(weights, (80, 80))
    drawn = np.asarray(overlay.blend(caption, 0, gray((80, 80)), Style(smoothing="none")), int)
    assert (drawn[:40] == 90).all()
    assert (drawn[40:, :, 0] > 90).all()
    assert np.abs(drawn - 90).max() < 10


def test_the_look_of_the_paper():
    weights = one_hot([(0, 0), (1, 1)], (2, 2)) * np.array([0.5, 0.1]).reshape(2, 1, 1)
    style = Style(0.75, look="paper", smoothing="none")
    photo = Image.new("RGB", (200, 200), (200, 0, 0))
    drawn = overlay.blend(make_caption(weights, (200, 200)), 0, photo, style)
    luminance = photo.convert("L").getpixel((0, 0))
    assert drawn.getpixel((50, 50)) == (round(0.25 * luminance + 0.75 * 255),) * 3
    r, g, b = drawn.getpixel((150, 150))
    assert r == g == b < luminance  # darker where there is less


def test_contours_are_at_half_of_the_scale():
    ramp = np.tile(np.arange(8, dtype=np.float32), (4, 1)) / 112
    lines = heatmap.outlines(make_caption(ramp[None], (80, 40)), 0, Style(contours=True))
    peak = max(7 / 112, 3 / 32)
    expected = (1 / 32 + peak) / 2 * 112 + 0.5  # the column, in cells
    assert lines
    assert all(x == pytest.approx(expected, abs=0.06) for x, *_ in lines)


def test_shared_and_own_scale():
    weights = one_hot([(0, 0), (1, 1)], (3, 3)) * np.array([0.5, 0.2]).reshape(2, 1, 1)
    caption = make_caption(weights, (300, 300))

    def color(index, scale, x, y):
        drawn = overlay.blend(caption, index, gray((300, 300)), Style(1, scale, "none"))
        return drawn.getpixel((x, y))

    lightest = (252, 255, 164)  # inferno at 1
    assert color(0, "shared", 50, 50) == color(0, "own", 50, 50) == lightest
    assert color(1, "own", 150, 120) == lightest
    level = round(255 * (0.2 - 1 / 9) / ((0.5 + 0.2) / 2 - 1 / 9))  # the mean of the maxima
    *expected, alpha = heatmap.color_table("glow")[level] / 255
    painted = (1 - alpha) * 90 + alpha * 255 * np.array(expected)
    np.testing.assert_allclose(color(1, "shared", 150, 120), painted, atol=1)


def test_hard_attention_outlines_the_chosen_cells():
    caption = make_caption(one_hot([(1, 3)]), (200, 280), HARD)
    photo = gray((200, 280))
    drawn = overlay.blend(caption, 0, photo, Style(smoothing="bicubic"))
    for x, y in [(120, 60), (160, 60), (140, 40), (140, 80)]:  # the middle of each side
        assert drawn.getpixel((x, y)) == CYAN
    assert drawn.getpixel((140, 60)) == drawn.getpixel((128, 50))  # the cell is not smoothed
    assert drawn.getpixel((140, 95)) == drawn.getpixel((20, 200))
    soft = overlay.blend(make_caption(one_hot([(1, 3)]), (200, 280)), 0, photo)
    expectation = replace(caption, attends="soft")
    assert np.array_equal(overlay.blend(expectation, 0, photo), soft)


def test_outlines_follow_the_chosen_head():
    layers = np.stack([one_hot([(0, 0)]), one_hot([(2, 1)])], 1)[:, None]  # one layer, two heads
    caption = make_caption(layers.mean((1, 2)), (50, 70), HARD, layers=layers)
    assert len(heatmap.outlines(caption, 0, Style())) == 8
    cell = {(1, 2, 2, 2), (1, 3, 2, 3), (1, 2, 1, 3), (2, 2, 2, 3)}
    assert set(heatmap.outlines(caption, 0, Style(head=1))) == cell


def test_local_attention_shows_its_window_and_centre():
    drawn = overlay.blend(local_caption(), 0, gray((200, 280)))
    for x, y in [(40, 140), (160, 140), (100, 80), (100, 200), (100, 140)]:
        assert drawn.getpixel((x, y)) == CYAN
    *border, across, down = heatmap.outlines(local_caption(), 0, Style())
    assert len(border) == 12  # a line per cell side around 3 x 3 cells
    assert ((across[0] + across[2]) / 2, across[1]) == pytest.approx((2.5, 3.5))
    assert (down[0], (down[1] + down[3]) / 2) == pytest.approx((2.5, 3.5))


def test_a_visual_sentinel_shows_how_much_a_word_looked():
    """As the strength of the map, and as a number."""
    shares, cell = [1.0, 0.75, 0.5, 0.04], (3, 2)
    weights = one_hot([cell] * 4) * np.float32(shares)[:, None, None]
    caption = make_caption(weights, PHOTO.size, has_sentinel=True)
    np.testing.assert_allclose(caption.visual_grounding, shares, rtol=1e-6)
    assert replace(caption, has_sentinel=False).visual_grounding is None

    drawn = [np.asarray(overlay.blend(caption, index, PHOTO), int) for index in range(4)]
    strength = [np.abs(image - np.asarray(PHOTO, int)).max() for image in drawn]
    assert sorted(strength, reverse=True) == strength
    assert strength[0] == strength[1]  # above the mean of the maxima, all have the lightest colour
    assert strength[1] > strength[2] > 10 * max(strength[3], 1)

    words = overlay.record(caption)["words"]
    assert [word["visual_grounding"] for word in words] == shares
    with np.load(io.BytesIO(overlay.npz(caption))) as stored:
        np.testing.assert_array_equal(stored["visual_grounding"], caption.visual_grounding)
    page = overlay.page([caption], [PHOTO])
    for share in ("100 %", "75 %", "50 %", "4 %"):
        assert f"looked {share} at the photo, most at the centre" in page
        assert f"<td>{share}</td>" in page
    assert style.describe_spread(caption, 1, Style()) == "looked 75 %: 1.0 of 35 cells"
    assert "sum" not in "".join(figures._notes(caption, 1, Style(), figures.TILE))


def test_entropy_of_normalised_weights():
    flat, one, half = np.ones((2, 3)), np.eye(2, 3) * [[1], [0]], np.eye(2, 3) * 0.25
    weights = np.stack([flat, one, half, flat * 0]).astype(np.float32)
    expected = [math.log(6), 0, math.log(2), 0]
    np.testing.assert_allclose(overlay.entropies(weights), expected, atol=1e-6)


@pytest.mark.parametrize(("layer", "head"), [(1, 2), (None, 2), (1, None)])
def test_layers_and_heads(layer, head):
    layers = np.random.default_rng(0).random((2, 3, 4, 2, 2), np.float32)
    caption = make_caption(layers[:, -1].mean(1), (8, 8), layers=layers)
    layer_indices = range(3) if layer is None else [layer]
    head_indices = range(4) if head is None else [head]
    for word, shown in enumerate(overlay.maps(caption, Style(layer=layer, head=head))):
        chosen = [layers[word, i, j] for i in layer_indices for j in head_indices]
        np.testing.assert_allclose(shown, sum(chosen) / len(chosen), rtol=1e-5)
    assert overlay.maps(caption) is caption.weights


def test_wrong_calls(soft):
    layered = replace(soft, layers=np.zeros((4, 3, 4, 7, 5), np.float32))
    for draw, message in (
        (lambda: Style(opacity=1.5), "0 to 1"),
        (lambda: overlay.maps(layered, Style(head=9)), "no head 10: the model has 4 heads"),
        (lambda: overlay.maps(soft, Style(layer=0)), "leave out layer and head"),
        (lambda: overlay.figure(soft), "give the image as photo="),
        (lambda: overlay.blend(soft, 4, PHOTO), "counted from 0 to 3"),
        (lambda: overlay.word_attention(soft), "details=True"),
    ):
        with pytest.raises(UsageError, match=message):
            draw()


@pytest.mark.parametrize("suffix", export.FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (3, 900), (1000, 4), (10, 20_000)])
def test_every_format_of_every_shape(suffix, size):
    """Also with words that Pillow's own font cannot draw, and more of them than fit a line."""
    words = ("собака", "狗", "Straße", "a") * 6
    caption = make_caption(one_hot(CELLS * 6), size, words=words, text=" ".join(words))
    content = export.render(suffix, caption, gray(size), Style())
    signatures = {".png": b"\x89PNG", ".gif": b"GIF89a", ".html": b"<!do", ".npz": b"PK"}
    signatures |= {".svg": b"<?xml", ".pdf": b"%PDF", ".json": b"{", ".csv": b"index,word"}
    if suffix == ".past.png":  # the caption has no attention to words
        assert content is None
    else:
        assert content.startswith(signatures[suffix])
        assert content == export.render(suffix, caption, gray(size), Style())  # no date, no chance
    if suffix == ".png":
        with Image.open(io.BytesIO(content)) as image:
            assert image.info["dpi"] == pytest.approx((300, 300), abs=1)


def test_a_very_long_photo_is_stretched():
    caption = make_caption(one_hot(CELLS), (10, 20_000))
    film = Image.open(io.BytesIO(overlay.animation(caption, gray((10, 20_000)))))
    photo = np.asarray(film.convert("RGB"), int)[:630]
    assert (np.abs(photo - 90).max(2) < 9).sum() == 630 * 105  # 6 : 1


def lightest(drawn, look="glow"):
    """Where a drawing has the colour of the highest level."""
    return np.abs(np.asarray(drawn, int) - heatmap.color_table(look)[255, :3]).max(2) <= 2


def test_the_figure_leads_with_content_words():
    """Their maps are large; those of the others are small, or left out."""
    caption = make_caption(one_hot([(3, 2)] * 4), PHOTO.size)  # dog on grass a
    full, short = (
        overlay.figure(caption, PHOTO, Style(1, smoothing="none", content_words=only))
        for only in (False, True)
    )
    tile = figures.TILE * figures.DPI
    cell = (tile / 5) * (tile * 1.4 / 7)
    assert lightest(short)[:-150].sum() == pytest.approx(2 * cell, rel=0.15)  # without the legend
    assert 2.1 * cell < lightest(full)[:-150].sum() < 3 * cell
    assert short.height < full.height


@pytest.mark.parametrize(
    "fields", [{"method": "occlusion"}, {"has_sentinel": True, "unknown": tuple(range(9))}]
)
def test_no_text_of_a_figure_runs_into_another(fields):
    words = ("a", "in", "of", "dog", "the", "on", "grass", "by", "an")
    maps = np.random.default_rng(0).dirichlet(np.full(256, 0.3), 9).reshape(9, 16, 16)
    maps *= np.linspace(0.1, 1, 9)[:, None, None]
    caption = make_caption(maps, PHOTO.size, words=words, **fields)
    scale = "shared" if "method" in fields else "own"
    with figures._settings():
        drawing = figures._plot(caption, PHOTO, Style(scale=scale))
        renderer = FigureCanvasAgg(drawing).get_renderer()
        extents = [text.get_window_extent(renderer) for text in drawing.axes[0].texts]
    assert len(extents) > 2 * len(words)
    for one, other in itertools.combinations(extents, 2):
        assert not one.overlaps(other)


def test_signed_maps_say_which_sign_they_show():
    weights = np.random.default_rng(0).normal(size=(4, 7, 5))
    for method, sign, shown in (
        ("occlusion", "positive", "falls by occlusion"),
        ("occlusion", "absolute", "falls and rises by occlusion"),
        ("integrated-gradients", "negative", "negative integrated gradients"),
    ):
        caption = make_caption(weights, PHOTO.size, method=method)
        page = html.unescape(overlay.page([caption], [PHOTO], Style(sign=sign)))
        assert f"<p>Share of the {shown} per cell" in page
        assert f": {shown}, most at the " in page
        drawing = figures._plot(caption, PHOTO, Style(sign=sign))
        legend = [text.get_text() for text in drawing.axes[0].texts][-1]
        assert legend.startswith(f"share of the {shown} per cell")


def test_figures_use_other_fonts_for_characters_that_dejavu_lacks(monkeypatch):
    caption = make_caption(one_hot([(3, 2)]), PHOTO.size, words=("\u20ea",))
    without = overlay.figure(caption, PHOTO)
    monkeypatch.setattr(figures, "OTHER_FONTS", ("not installed", "STIXGeneral"))
    assert not np.array_equal(without, overlay.figure(caption, PHOTO))


@pytest.mark.parametrize(
    ("suffix", "most"), [(".svg", 350_000), (".pdf", 400_000), (".gif", 350_000)]
)
def test_files_are_small(suffix, most):
    photo = load(Path(__file__).parents[2] / "docs/images/cameraman.jpg")
    caption = make_caption(one_hot(CELLS), photo.size)
    assert len(export.render(suffix, caption, photo, Style())) < most


def test_a_nearly_even_map_says_so():
    weights = np.random.default_rng(0).dirichlet(np.full(35, 50), 1).reshape(1, 7, 5)
    caption = make_caption(weights, PHOTO.size)
    assert style.describe_spread(caption, 0, Style()) == "looked everywhere"
    assert "looked everywhere" in overlay.page([caption], [PHOTO])


def test_the_animation_cross_fades_from_word_to_word(soft):
    film = Image.open(io.BytesIO(overlay.animation(soft, PHOTO)))
    assert film.info["loop"] == 0
    assert film.width == 420  # the photo fills the width
    held, faded = [], []
    for frame in ImageSequence.Iterator(film):
        photo = frame.convert("RGB").crop((0, 0, 420, 588))
        (held if film.info["duration"] >= 500 else faded).append(photo)
    assert (len(held), len(faded)) == (5, 10)
    for (row, column), frame in zip(CELLS, held[1:], strict=True):
        x, y = red_centre(frame, held[0])
        assert abs(5 * x - column - 0.5) <= 0.5
        assert abs(7 * y - row - 0.5) <= 0.5
    third = (2 * np.asarray(held[1], float) + np.asarray(held[2])) / 3
    assert np.abs(np.asarray(faded[2]) - third).mean() < 6  # 256 colours a frame


def test_word_attention_is_drawn_in_rows_and_columns():
    past = np.zeros((3, 1, 2, 3), np.float32)
    past[2, 0, :, 1] = 1.0
    caption = make_caption(one_hot(CELLS[:3]), (50, 70), past=past)
    drawn = np.asarray(overlay.word_attention(caption), int)
    rows, columns = np.nonzero(lightest(drawn))
    side = np.ptp(rows) + 1
    assert abs(side - np.ptp(columns) - 1) <= 2
    y, x = rows.min() + 5, columns.min() + 5
    dark = (np.abs(drawn - (0, 0, 4)).max(2) <= 2).astype(int)
    neighbours = [[dark[y + side * r, x + side * c] for c in (-1, 0, 1)] for r in (-2, -1, 0)]
    assert neighbours == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]  # 0: empty, or the light cell itself
    assert overlay.word_attention(caption, 0, 1).size == overlay.word_attention(caption).size
    content = export.render(".past.png", caption, None, Style())
    assert Image.open(io.BytesIO(content)).size == overlay.word_attention(caption).size


def test_json_and_npz_hold_the_models_numbers():
    weights = np.random.default_rng(0).dirichlet(np.ones(35), 4).reshape(4, 7, 5)
    caption = make_caption(weights, (100, 140), image="dog.jpg")
    record = json.loads(json.dumps(overlay.record(caption, Style(smoothing="gaussian"))))
    about = {"image": "dog.jpg", "size": [100, 140], "grid": [7, 5], "caption": caption.text}
    about |= {"model": "test model", "mechanism": caption.mechanism, "method": "attention"}
    assert record == about | {"words": record["words"]}
    for entry, word, expected in zip(record["words"], caption.words, weights, strict=True):
        assert (entry["word"], entry["log_prob"]) == (word, -0.5)
        np.testing.assert_array_equal(np.array(entry["weights"], np.float32), expected.astype("f"))
        assert entry["entropy"] == pytest.approx(-(expected * np.log(expected)).sum(), abs=1e-4)
    with np.load(io.BytesIO(overlay.npz(caption)), allow_pickle=False) as stored:
        assert set(stored) == {"weights", "words"}
        assert stored["weights"].dtype == np.float32
        np.testing.assert_array_equal(stored["weights"], caption.weights)
        assert tuple(stored["words"]) == caption.words
