"""The HTML export in a real browser, from ``file://`` and offline."""

import io

import numpy as np
import pytest
from PIL import Image

from captioner import overlay
from captioner.overlay import Style, heatmap
from captioner.photos.geometry import Geometry
from captioner.photos.images import load
from known_maps import CELLS, SIZES, gray, local_caption, make_caption, one_hot, save_photo

EVIL = '</script><script>document.title="evil"</script><img src=x onerror=alert(1)>'
PHOTO = gray((50, 70))


@pytest.fixture
def simple(visit):
    """A page with one caption of four words."""
    return visit(overlay.page([make_caption(one_hot(CELLS), PHOTO.size)], [PHOTO]))


def screenshot(page):
    return Image.open(io.BytesIO(page.locator(".photo").first.screenshot())).convert("RGB")


def word(page, index):
    return page.locator(".word").nth(index)


@pytest.mark.parametrize("look", ["glow", "paper"])
def test_the_page_and_python_draw_the_same_boxes(look, visit):
    photo = gray((640, 480))
    boxes = (40.0, 30.0, 300.0, 400.0), (200.0, 100.0, 620.0, 300.0), (10.0, 410.0, 90.0, 470.0)
    weights = np.array([[[0.5, 0.1, 0.4]]], np.float32)
    geometry = Geometry(*photo.size, (1, 3), boxes)
    caption, style = make_caption(weights, photo.size, geometry=geometry), Style(look=look)
    page = visit(overlay.page([caption], [photo], style))
    word(page, 0).hover()
    shown = screenshot(page)
    drawn = overlay.blend(caption, 0, photo.resize(shown.size), style)
    difference = np.abs(np.asarray(drawn, int) - np.asarray(shown, int))
    assert np.median(difference) <= 2
    assert np.quantile(difference, 0.9) <= 24  # the browser scales the lines


@pytest.mark.parametrize("smoothing", ["bicubic", "gaussian", "none"])
@pytest.mark.parametrize("kind", SIZES)
def test_the_page_and_python_draw_the_same(kind, smoothing, visit, tmp_path):
    file = tmp_path / "photo.jpg"
    weights = np.random.default_rng(1).dirichlet(np.full(35, 0.3), 2).reshape(2, 7, 5)
    caption = make_caption(weights, save_photo(kind, file), image=str(file))
    style = Style(smoothing=smoothing)
    page = visit(overlay.page([caption], style=style))
    word(page, 1).hover()
    shown = screenshot(page)
    drawn = overlay.blend(caption, 1, load(file).resize(shown.size), style)
    difference = np.abs(np.asarray(drawn, int) - np.asarray(shown, int))
    assert np.median(difference) <= 2
    assert np.quantile(difference, 0.98) <= 24  # the browser scales the borders of cells


def test_keyboard_only(simple):
    page = simple
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Dog"  # the first stop
    live = page.locator("[aria-live]")
    pressed = page.locator('.words [aria-pressed="true"]')
    assert live.inner_text().startswith(
        "“dog”: looked most at the top left; half or more of its attention went to 3 % of"
    )
    for key, expected, location in [
        ("ArrowRight", "on", ""),
        ("Tab", "grass", "bottom right"),
        ("End", "a", "at the centre"),
        ("ArrowRight", "a", "at the centre"),
        ("Home", "dog", "top left"),
    ]:
        page.keyboard.press(key)
        assert pressed.inner_text().lower() == expected
        assert location in live.inner_text()
    page.keyboard.press("Escape")
    assert pressed.count() == 0
    assert live.inner_text() == "No word chosen."


def test_opacity_and_scale(visit):
    weights = one_hot([(0, 0), (1, 1)], (2, 2))
    weights[1] *= 0.3
    photo = gray((100, 100))
    style = Style(1, smoothing="none")
    page = visit(overlay.page([make_caption(weights, photo.size)], [photo], style))

    def color():
        shown = screenshot(page)
        return np.array(shown.getpixel((shown.width * 3 // 4, shown.height * 3 // 4)))

    def expected(level):
        *painted, alpha = heatmap.color_table("glow")[level].tolist()
        return 90 + alpha / 255 * (np.array(painted) - 90)

    word(page, 1).click()
    assert np.abs(color() - expected(round(255 * (0.3 - 0.25) / (0.75 - 0.25)))).max() <= 2
    assert page.locator(".peak").text_content() == "0.75 or more"
    page.get_by_label("one for each word").check()
    assert np.abs(color() - expected(255)).max() <= 2
    assert page.locator(".peak").text_content() == "own: 0.30"
    page.get_by_label("Opacity").fill("0")
    assert np.abs(color() - 90).max() <= 2
    assert page.locator("output").inner_text() == "0 %"


def test_play_continues_until_a_word_is_chosen(simple):
    pressed = simple.locator('.word[aria-pressed="true"]')
    word(simple, 3).click()
    simple.get_by_role("button", name="Play").click()
    assert pressed.inner_text() == "Dog"
    pressed.filter(has_text="on").wait_for(timeout=20_000)
    word(simple, 2).click()
    simple.wait_for_timeout(1200)
    assert pressed.inner_text() == "grass"
    simple.get_by_role("button", name="Play").click()
    pressed.filter(has_text="on").wait_for(timeout=20_000)
    simple.get_by_role("button", name="Stop").click()
    simple.wait_for_timeout(1200)
    assert pressed.inner_text() == "grass"
    assert simple.get_by_role("button", name="Play").is_visible()


@pytest.mark.parametrize(("size", "ratio"), [((500, 300), 0.6), ((200, 3000), 6)])
def test_the_small_maps_are_next_to_the_photo_and_have_its_shape(size, ratio, visit):
    """A photo longer than 6 : 1 is stretched to 6 : 1."""
    page = visit(overlay.page([make_caption(one_hot(CELLS), size)], [gray(size)]))
    page.set_viewport_size({"width": 1800, "height": 900})
    photo, tiles = (page.locator(part).bounding_box() for part in (".photo", ".tiles"))
    assert 0 < tiles["x"] - photo["x"] - photo["width"] < 40
    assert tiles["y"] < photo["y"] + photo["height"]
    tile = page.locator(".tiles figure span").first.bounding_box()
    assert tile["height"] == pytest.approx(ratio * tile["width"], rel=0.02)
    assert tile["height"] < 200


def test_local_attention_shows_its_window_and_centre(visit):
    page = visit(overlay.page([local_caption()], [gray((200, 280))]))
    word(page, 0).hover()
    shown = np.asarray(screenshot(page), int)
    height, width = shown.shape[:2]
    for x, y in [(0.5, 0.5), (0.2, 0.5), (0.8, 0.5), (0.5, 2 / 7), (0.5, 5 / 7)]:
        assert np.abs(shown[round(y * height), round(x * width)] - (25, 230, 255)).max() < 60


def test_text_is_never_code(visit):
    words = (EVIL, "'\"><b>", "{{ 7 * 7 }}", "a")
    text = {"text": " ".join(words), "words": words, "model": EVIL, "image": f"/x/{EVIL}"}
    caption = make_caption(one_hot(CELLS), PHOTO.size, EVIL, **text)
    page = visit(overlay.page([caption], [PHOTO]))
    word(page, 0).hover()
    assert page.title() == caption.text
    assert (page.locator("script").count(), page.locator(".photo img").count()) == (1, 1)
    assert word(page, 0).inner_text().lower() == EVIL.lower()
    assert EVIL in page.locator("[aria-live]").inner_text()
    assert word(page, 2).inner_text() == "{{ 7 * 7 }}"
    assert page.locator("h2").inner_text() == EVIL


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_also_on_a_phone(scheme, visit):
    axe = pytest.importorskip("axe_core_python.sync_playwright", reason="AXE MISSING")
    photo = gray((140, 90))
    page = visit(overlay.page([make_caption(one_hot(CELLS * 4), photo.size)] * 2, [photo] * 2))
    page.emulate_media(color_scheme=scheme)
    page.locator("summary").first.click()
    word(page, 1).hover()
    violations = axe.Axe().run(page)["violations"]
    assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []
    page.set_viewport_size({"width": 360, "height": 740})
    tops = [page.locator(f"{part} >> nth=0").bounding_box()["y"] for part in (".words", ".photo")]
    assert tops == sorted(tops)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
