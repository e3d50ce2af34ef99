"""The app in a real browser, as somebody uses it who has never seen it."""

import io
import json
import re

import numpy as np
import pytest
from axe_core_python.sync_playwright import Axe
from gradio_client import Client, handle_file
from PIL import Image

import runs
from looks import SIZES, heat_centre, save_photo

pytestmark = pytest.mark.slow

WAIT = 60_000  # milliseconds; a busy machine is no failure


@pytest.fixture
def visit(app, browser):
    """The opened page; in the end it has asked no other host for anything and reported no error."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    context.set_default_timeout(WAIT)
    elsewhere, errors = [], []
    page = context.new_page()
    page.on("request", lambda request: elsewhere.append(request.url))
    page.on("console", lambda message: errors.append(message) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(app)
    yield page
    context.close()
    assert [url for url in elsewhere if not url.startswith((app, "data:", "blob:"))] == []
    assert [getattr(error, "text", error) for error in errors] == []


@pytest.fixture(scope="module")
def scene(shapes_cache, run_folder):
    return sorted(runs.scenes(shapes_cache).glob("val/*.png"))[0]


def give(page, file):
    page.set_input_files("#photo input[type=file]", file)
    page.wait_for_selector("#words-1 label")


def choose(page, label, name):
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=name, exact=True).click()


def drawn(page, number=1):
    """The address of the map that is shown, which changes with it."""
    return page.locator(f"#map-{number} img").get_attribute("src")


def changed(page, before, number=1):
    page.wait_for_function(
        "([id, before]) => document.querySelector(id)?.src !== before",
        arg=[f"#map-{number} img", before],
    )
    assert page.locator(f"#map-{number} img").evaluate("img => img.decode().then(() => img.src)")
    return drawn(page, number)


def test_a_visit(visit, scene, app, run_folder, hard_folder):
    page = visit
    wanted = Client(app, verbose=False).predict(handle_file(scene), api_name="/caption")
    give(page, scene)
    words = page.locator("#words-1 label")
    assert words.all_inner_texts() == wanted["words"]
    assert page.locator("#others-1 label").count() == 1 + len(wanted["alternatives"])

    before = drawn(page)
    words.nth(2).click()
    after = changed(page, before)
    facts = page.locator("#facts-1")
    assert facts.locator("b").inner_text() == wanted["words"][2]
    assert re.search(r"probability \d+% · looked at about [\d.]+ of \d+ cells", facts.inner_text())

    page.locator("#others-1 label").nth(1).click()
    changed(page, after)
    page.wait_for_function(
        "wanted => [...document.querySelectorAll('#words-1 label')].map(l => l.innerText).join(' ')"
        " === wanted",
        arg=wanted["alternatives"][0]["caption"],
    )

    with page.expect_download() as coming:
        page.locator("#html-1").click()
    saved = coming.value
    assert saved.suggested_filename == f"{scene.stem}.html"
    text = saved.path().read_text("utf-8")
    assert wanted["alternatives"][0]["caption"] in text
    with page.expect_download() as coming:
        page.locator("#json-1").click()
    told = json.loads(coming.value.path().read_text())
    assert told["caption"] == wanted["alternatives"][0]["caption"]

    assert page.locator("#redraw-1").count() == 0  # soft attention draws nothing
    choose(page, "Model", hard_folder.name)
    page.wait_for_selector("#redraw-1")
    assert page.locator(".heading h2").first.inner_text() == hard_folder.name
    choose(page, "Compare with", run_folder.name)
    page.wait_for_selector("#words-2 label")
    assert page.locator("#words-2 label").all_inner_texts() == wanted["words"]


def test_the_search_is_the_model_s_own_until_it_is_chosen(visit, scene):
    page = visit
    give(page, scene)
    assert page.locator("#others-1 label").count() > 1
    page.get_by_text("How it searches").click()
    for option in ("Beam size", "Length penalty"):
        assert page.get_by_label(option, exact=True).input_value() == "the model's own"
    choose(page, "Beam size", "1")
    page.wait_for_selector("#others-1 label", state="detached")
    page.wait_for_selector("#words-1 label")


def test_a_sentence_of_one_s_own(visit, scene):
    page = visit
    give(page, scene)
    own = page.locator("#words-1 label").all_inner_texts()
    page.locator("#sentence textarea").fill("a red ring <b>")
    page.get_by_role("button", name="Explain", exact=True).click()
    page.wait_for_function("document.querySelectorAll('#words-1 label').length === 4")
    assert page.locator("#words-1 label").all_inner_texts()[:3] == ["a", "red", "ring"]
    page.get_by_role("button", name="Its own words").click()
    page.wait_for_function(
        "count => document.querySelectorAll('#words-1 label').length === count", arg=len(own)
    )


def test_the_keyboard_is_enough(visit, scene):
    """Tab reaches the words, the arrows go through them, and each is announced by its name."""
    page = visit
    give(page, scene)
    words = page.get_by_role("radiogroup", name="Caption").or_(page.locator("#words-1"))
    assert words.count()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("!!document.activeElement.closest('#words-1')"):
            break
    else:
        raise AssertionError("40 times Tab did not reach the words")
    before = drawn(page)
    page.keyboard.press("ArrowRight")
    after = changed(page, before)
    page.keyboard.press("ArrowRight")
    changed(page, after)
    third = page.locator("#words-1 input").nth(2)
    assert third.is_checked()
    assert (
        page.locator("#facts-1 b").inner_text()
        == page.locator("#words-1 label").nth(2).inner_text()
    )


def test_a_bad_photo_is_a_sentence_and_leaves_nothing_of_the_last(visit, scene, tmp_path):
    page = visit
    give(page, scene)
    (tmp_path / "<img src=x>.jpg").write_text("no picture")
    page.set_input_files("#photo input[type=file]", tmp_path / "<img src=x>.jpg")
    # Said again where the page asks again.
    message = page.get_by_text("found text not recognisable as a picture").first
    message.wait_for()
    page.wait_for_selector("#words-1", state="detached")
    give(page, scene)


def test_an_example_is_a_photo(visit):
    page = visit
    page.locator(".gallery-item, .gallery button").first.click()
    page.wait_for_selector("#words-1 label")


@pytest.mark.parametrize("kind", SIZES)
def test_a_chosen_cell_lands_on_its_pixels(kind, visit, app, hard_folder, tmp_path):
    """In portrait, landscape and turned photos: hard attention lights up one cell a word."""
    file = tmp_path / "photo.jpg"
    save_photo(kind, file)
    width, height = SIZES[kind]
    page = visit
    give(page, file)
    before = drawn(page)
    choose(page, "Model", hard_folder.name)
    changed(page, before)
    asked = {"photo": handle_file(file), "model": hard_folder.name}
    told = Client(app, verbose=False).predict(**asked, api_name="/explain")
    cells = np.array(told["words"][0]["weights"])
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    image = page.locator("#map-1 img")
    box = image.bounding_box()
    assert image.evaluate("img => img.naturalWidth / img.naturalHeight") == pytest.approx(
        width / height, rel=0.01
    )
    assert box["width"] / box["height"] == pytest.approx(width / height, rel=0.02)
    shown = Image.open(io.BytesIO(image.screenshot())).convert("RGB")
    x, y = heat_centre(shown, Image.new("RGB", shown.size, (90, 90, 90)))
    rows, columns = cells.shape
    assert x * columns == pytest.approx(column + 0.5, abs=0.5)
    assert y * rows == pytest.approx(row + 0.5, abs=0.5)


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(visit, scene, width, scheme):
    page = visit
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.reload()
    give(page, scene)
    page.locator("#map-1 img").evaluate("img => img.decode()")
    found = Axe().run(page)["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    ours = [
        (v["id"], node["html"][:300])
        for v in serious
        for node in v["nodes"]
        if "footer" not in str(node["target"])
    ]
    assert ours == []
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0
