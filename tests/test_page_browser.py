"""The single-file page in a real browser, from ``file://`` and with the network off."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from captioner import overlay
from captioner.overlay import Style, colours
from looks import SIZES, heat_centre, hot, looked, save_photo

CELLS = [(0, 0), (1, 3), (6, 4), (3, 2)]
EVIL = '</script><script>document.title="evil"</script><img src=x onerror=alert(1)>'


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a page and returns it; in the end there must have been no request and no complaint."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    seen = []

    def visited(html):
        file = tmp_path / "page.html"
        file.write_text(html, "utf-8")
        page = context.new_page()
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("dialog", lambda dialog: seen.append(dialog.message))
        page.on("request", lambda request: seen.append(request.url))
        page.goto(file.as_uri())
        assert seen.pop(0) == file.as_uri()
        return page

    yield visited
    context.close()
    assert [what for what in seen if not what.startswith("data:")] == []


def photo_of(page):
    return Image.open(io.BytesIO(page.locator(".photo").first.screenshot())).convert("RGB")


def word(page, index):
    return page.locator(".words button").nth(index)


@pytest.mark.parametrize("kind", SIZES)
def test_a_hot_cell_lands_on_its_pixels(kind, visit, tmp_path):
    file = tmp_path / "photo.jpg"
    save_photo(kind, file)
    width, height = SIZES[kind]
    page = visit(overlay.page([looked(hot(CELLS), (width, height), image=str(file))]))
    plain = photo_of(page)
    assert plain.width / plain.height == pytest.approx(width / height, rel=0.01)
    assert plain.getpixel((9, 9)) > (200, 200, 200)  # the corner that makes it upright
    for index, (row, column) in enumerate(CELLS):
        word(page, index).hover()
        x, y = heat_centre(photo_of(page), plain)
        assert abs(5 * x - column - 0.5) <= 0.5
        assert abs(7 * y - row - 0.5) <= 0.5


@pytest.mark.parametrize("smoothing", ["bicubic", "gaussian", "none"])
def test_it_looks_like_the_picture(smoothing, visit):
    """Two programs, one in Python and one in the page, draw the same."""
    weights = np.random.default_rng(1).dirichlet(np.full(35, 0.3), 2).reshape(2, 7, 5)
    photo = Image.new("RGB", (200, 280), (90, 90, 90))
    caption = looked(weights, photo.size)
    style = Style(smoothing=smoothing)
    page = visit(overlay.page([caption], [photo], style))
    word(page, 1).hover()
    shown = photo_of(page)
    drawn = overlay.blend(caption, 1, photo, style, longest_side=max(shown.size))
    difference = np.abs(np.asarray(drawn.resize(shown.size), int) - np.asarray(shown, int))
    assert np.median(difference) <= 2
    assert np.quantile(difference, 0.98) <= 24  # at the borders of cells, scaled differently


def test_keyboard_only(visit):
    page = visit(overlay.page([looked(hot(CELLS), (50, 70))], [Image.new("RGB", (50, 70))]))
    live = page.locator("[aria-live]")
    pressed = page.locator('.words [aria-pressed="true"]')
    word(page, 0).focus()
    assert pressed.inner_text() == "dog"
    assert live.inner_text().startswith("“dog”: looked most at the top left; entropy 0.00 nats")
    page.keyboard.press("ArrowRight")
    assert pressed.inner_text() == "on"
    page.keyboard.press("Tab")
    assert pressed.inner_text() == "grass"
    assert "bottom right" in live.inner_text()
    page.keyboard.press("End")
    assert (pressed.inner_text(), "at the centre" in live.inner_text()) == ("a", True)
    page.keyboard.press("ArrowRight")  # there is no further word
    assert pressed.inner_text() == "a"
    page.keyboard.press("Home")
    assert pressed.inner_text() == "dog"
    page.keyboard.press("Escape")
    assert pressed.count() == 0
    assert live.inner_text() == "No word chosen."


def test_opacity_and_scale(visit):
    weights = hot([(0, 0), (1, 1)], (2, 2))
    weights[1] *= 0.2
    photo = Image.new("RGB", (100, 100), (90, 90, 90))
    page = visit(overlay.page([looked(weights, photo.size)], [photo], Style(1, smoothing="none")))

    def colour():
        picture = photo_of(page)
        return np.array(picture.getpixel((picture.width * 3 // 4, picture.height * 3 // 4)))

    word(page, 1).click()
    assert np.abs(colour() - colours.TABLE[51]).max() <= 2
    assert page.locator(".top").inner_text() == "1.0"
    page.get_by_label("each word its own").check()
    assert np.abs(colour() - colours.TABLE[255]).max() <= 2
    assert page.locator(".top").inner_text() == "own: 0.20"
    page.get_by_label("Opacity").fill("0")
    assert np.abs(colour() - 90).max() <= 2
    assert page.locator("output").inner_text() == "0 %"


def test_play_goes_on_by_itself_until_a_word_is_chosen(visit):
    page = visit(overlay.page([looked(hot(CELLS), (50, 70))], [Image.new("RGB", (50, 70))]))
    pressed = page.locator('.words button:not(.play)[aria-pressed="true"]')
    page.get_by_role("button", name="Play").click()
    assert pressed.inner_text() == "dog"
    pressed.filter(has_text="on").wait_for(timeout=20_000)
    word(page, 2).click()
    page.wait_for_timeout(1200)
    assert pressed.inner_text() == "grass"


def test_several_captions_do_not_disturb_each_other(visit):
    photo = Image.new("RGB", (50, 70), (90, 90, 90))
    page = visit(overlay.page([looked(hot(CELLS), photo.size)] * 2, [photo] * 2))
    before = photo_of(page)
    second = page.locator("article").nth(1)
    second.get_by_role("button", name="grass").hover()
    assert np.array_equal(photo_of(page), before)
    assert second.locator('[aria-pressed="true"]').inner_text() == "grass"


def test_marks_of_local_attention(visit):
    weights = np.zeros((1, 7, 5), np.float32)
    weights[0, 2:5, 1:4] = 1 / 9
    centre = np.array([[3.5, 2.5]], np.float32)
    local = "LuongDecoder: General × LocalP2D"
    caption = looked(weights, (200, 280), local, centre=centre, window=1)
    page = visit(overlay.page([caption], [Image.new("RGB", (200, 280), (90, 90, 90))]))
    word(page, 0).hover()
    shown = np.asarray(photo_of(page), int)
    high, wide = shown.shape[:2]
    for x, y in [(0.5, 0.5), (0.2, 0.5), (0.8, 0.5), (0.5, 2 / 7), (0.5, 5 / 7)]:
        assert np.abs(shown[round(y * high), round(x * wide)] - (25, 230, 255)).max() < 60


def test_text_is_never_code(visit):
    words = (EVIL, "'\"><b>", "{{ 7 * 7 }}", "a")
    caption = looked(
        hot(CELLS),
        (50, 70),
        EVIL,
        words=words,
        text=" ".join(words),
        model=EVIL,
        image=f"/x/{EVIL}",
    )
    page = visit(overlay.page([caption], [Image.new("RGB", (50, 70))]))
    word(page, 0).hover()
    assert page.title() == caption.text
    assert page.locator("script").count() == 3
    assert page.locator("img").count() == 1
    assert word(page, 0).inner_text() == EVIL
    assert EVIL in page.locator("[aria-live]").inner_text()
    assert "{{ 7 * 7 }}" in page.locator("h2").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme, visit):
    axe = pytest.importorskip("axe_core_python.sync_playwright", reason="AXE MISSING")
    photo = Image.new("RGB", (140, 90), (90, 90, 90))
    page = visit(overlay.page([looked(hot(CELLS), photo.size)] * 2, [photo] * 2))
    page.emulate_media(color_scheme=scheme)
    page.locator("summary").first.click()
    word(page, 1).hover()
    found = axe.Axe().run(page)["violations"]
    assert [rule["id"] for rule in found if rule["impact"] in ("serious", "critical")] == []


def test_it_fits_a_phone(visit):
    photo = Image.new("RGB", (140, 90), (90, 90, 90))
    page = visit(overlay.page([looked(hot(CELLS * 4), photo.size)], [photo]))
    page.set_viewport_size({"width": 360, "height": 740})
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360
    assert not math.isnan(photo_of(page).width)
