"""The page of the app in a real browser."""

import io
import json

import numpy as np
import pytest
from axe_core_python.sync_playwright import Axe
from gradio_client import Client, handle_file
from PIL import Image

import runs

WAIT = 60_000  # milliseconds, for busy machines


def thorough(test):
    """Mark a test that only the run of all tests includes."""
    return pytest.mark.slow(pytest.mark.alone(test))


@pytest.fixture
def page(app, browser):
    """The opened page; fail if it sends a request to another host or logs an error."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(WAIT)
    requests, errors = [], []
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(app)
    settle(page)
    yield page
    context.close()
    assert [url for url in requests if not url.startswith((app, "data:", "blob:"))] == []
    assert [getattr(error, "text", error) for error in errors] == []


@pytest.fixture(scope="module")
def scene(shapes_cache, run_folder):
    return sorted(runs.scenes(shapes_cache).glob("val/*.png"))[0]


def settle(page):
    """Wait until the models have answered and the maps are drawn."""
    page.wait_for_selector("attention-map .word[aria-pressed]")
    page.wait_for_function("!document.querySelector('#stage.busy')")
    page.wait_for_timeout(300)


def drawn(page):
    """When the shown maps were drawn; it changes with every answer."""
    return page.evaluate(
        "JSON.parse(document.querySelector('attention-map').dataset.caption).drawn"
    )


LOOK = "JSON.parse(document.querySelector('attention-map').dataset.caption).look === 'paper'"


def do(page, action):
    """Do something and wait for the answer."""
    before = drawn(page)
    action()
    page.wait_for_function(
        "old => JSON.parse(document.querySelector('attention-map').dataset.caption).drawn !== old",
        arg=before,
    )
    settle(page)


def upload(page, file):
    do(page, lambda: page.set_input_files("#photo input[type=file]", file))


def explain(page, sentence):
    page.locator("#sentence textarea").fill(sentence)
    page.get_by_role("button", name="Explain", exact=True).click()


def choose(page, label, name):
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=name, exact=True).click()


def words(page, side=0):
    shown = page.locator("attention-map").nth(side).locator(".word").all_inner_texts()
    return [shown[0].lower(), *shown[1:]]


def image_of(page, selector="attention-map .photo"):
    return Image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("RGB")


def test_a_short_visit(page, scene, tmp_path):
    """A word, a TIFF, which no browser shows, and inputs that are refused in words."""
    page.locator("attention-map .word").nth(1).click()
    assert page.locator('.word[aria-pressed="true"]').inner_text() == words(page)[1]
    with Image.open(scene) as image:
        image.save(tmp_path / "scene.tif")
    upload(page, tmp_path / "scene.tif")
    caption = words(page)
    for name, shown in (("<img src=x>.jpg", ".jpg"), ("x.py", "x.py")):
        (tmp_path / name).write_text("not a photo")
        page.set_input_files("#photo input[type=file]", tmp_path / name)
        page.locator("#notice [role=alert]", has_text=f"{shown} is not an image").wait_for()
    drop = """() => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["not a photo"], "dropped.py", { type: "text/x-python" }));
      const area = document.querySelector("#photo input[type=file]").parentElement;
      area.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(drop)
    page.locator("#notice [role=alert]", has_text="dropped.py is not an image").wait_for()
    explain(page, "!!!")
    page.locator("#notice", has_text="has 1 to").wait_for()
    settle(page)
    assert words(page) == caption
    broken = "[...document.images].filter(i => i.complete && i.naturalWidth === 0 && i.src).length"
    assert page.evaluate(broken) == 0


@thorough
def test_it_opens_with_a_captioned_photo(page):
    """The map of the sharpest content word is shown; the strip offers six photos."""
    assert page.locator(".strip img").count() == 6
    data = json.loads(page.locator("attention-map").get_attribute("data-caption"))
    pressed = page.locator('.word[aria-pressed="true"]')
    sharpest = data["words"][data["start"]]["description"]
    assert sharpest.startswith(f"“{pressed.inner_text().lower()}”")
    shown = image_of(page)
    page.keyboard.press("Escape")
    assert not np.array_equal(shown, image_of(page))
    text = " ".join(words(page))
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"{text[0].upper()}{text[1:]}."
    do(page, page.locator(".strip button").nth(3).click)
    assert not np.array_equal(shown, image_of(page))


@thorough
def test_a_visit(page, scene, app, run_folder, hard_folder):
    expected = Client(app, verbose=False).predict(handle_file(scene), api_name="/caption")
    upload(page, scene)
    assert words(page) == expected["words"]
    others = page.locator("#others-1 label")
    assert others.count() == 1 + len(expected["alternatives"])
    assert [text.partition(" ·")[0] for text in others.all_inner_texts()[1:]] == [
        f"{other['score']:.1%}" for other in expected["alternatives"]
    ]

    before = image_of(page)
    page.locator("attention-map .word").nth(2).hover()
    assert not np.array_equal(before, image_of(page))
    live = page.locator("attention-map .live").inner_text()
    assert live.startswith(f"“{expected['words'][2]}”: looked ")
    assert "nats" not in page.locator("attention-map").inner_text()  # closed details

    do(page, others.nth(1).click)
    assert " ".join(words(page)) == expected["alternatives"][0]["caption"]
    with page.expect_download() as download:
        page.locator("#json-1").click()
    assert download.value.suggested_filename == f"{scene.stem}.json"
    record = json.loads(download.value.path().read_text())
    assert record["caption"] == expected["alternatives"][0]["caption"]

    assert page.locator("#redraw-1").count() == 0  # soft attention samples nothing
    do(page, lambda: choose(page, "Compare with", hard_folder.name))
    assert page.locator("attention-map h2").all_inner_texts() == [run_folder.name, hard_folder.name]
    assert " ".join(words(page)) == expected["alternatives"][0]["caption"]  # it stays chosen
    tops = [photo.bounding_box()["y"] for photo in page.locator("attention-map .photo").all()]
    assert tops[0] == pytest.approx(tops[1], abs=1)  # in line


@thorough
def test_sampled_cells_and_back(page, scene, hard_folder):
    upload(page, scene)
    do(page, lambda: choose(page, "Model", hard_folder.name))
    before = image_of(page)
    assert page.locator("#back-1").count() == 0
    for _ in range(20):
        do(page, page.locator("#redraw-1").click)
        if not np.array_equal(before, image_of(page)):
            break
    assert page.locator("attention-map h2 small").inner_text() == "Sampled cells"
    do(page, page.locator("#back-1").click)
    assert np.array_equal(before, image_of(page))
    assert page.locator("#back-1").count() == 0


@thorough
def test_a_given_sentence(page, scene):
    """Words that the model does not know are marked; a sentence it cannot explain changes nothing."""
    upload(page, scene)
    caption = words(page)
    explain(page, "word " * 500)
    page.locator("#notice", has_text="has 1 to 40 words").wait_for()
    settle(page)
    assert words(page) == caption
    do(page, lambda: explain(page, "a red asdf <b> {{7}}"))
    assert words(page)[:3] == ["a", "red", "asdf"]
    assert "asdf" in page.locator(".word.unknown").all_inner_texts()
    assert page.locator("attention-map h2 small").inner_text() == "Your sentence"
    assert "just before it read the word" in page.locator("attention-map .note").inner_text()
    assert page.locator("#notice [role=alert]").count() == 0
    do(page, page.get_by_role("button", name="Model's caption").click)
    assert words(page) == caption
    assert page.locator(".word.unknown").count() == 0


@thorough
def test_the_answer_to_a_sentence_is_in_view_on_a_phone(page):
    """Or the error; both are above the form."""
    page.set_viewport_size({"width": 390, "height": 844})
    for sentence, answer in (("a red circle", "#stage .words"), ("!!!", "#notice [role=alert]")):
        page.locator("#sentence textarea").scroll_into_view_if_needed()
        before = page.evaluate("scrollY")
        explain(page, sentence)
        page.wait_for_function("y => scrollY < y", arg=before)
        settle(page)
        box = page.locator(answer).bounding_box()
        assert 0 <= box["y"] < 200


@thorough
def test_numbers_out_of_range_and_no_number(page):
    """The field takes the nearest number, or its last one, without a message; the map has the same."""
    page.get_by_text("Drawing", exact=True).click()
    field = page.get_by_label("number input for Opacity")
    shown = "JSON.parse(document.querySelector('attention-map').dataset.caption).opacity"
    for typed, used in (("9999", 1), ("0.5", 0.5), ("", 0.5), ("-1", 0), ("", 0)):
        field.fill(typed)
        field.blur()
        page.wait_for_function(f"{shown} === {used}")
        settle(page)
        assert float(field.input_value()) == used
        assert page.locator("[role=alert]").count() == page.locator(".toast-body").count() == 0


@thorough
def test_keyboard_only(page, scene):
    """Tab reaches the words, the arrow keys move between them, and dropdowns close behind it."""
    upload(page, scene)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("!!document.activeElement.closest('.words')"):
            break
    first = image_of(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator(".word").nth(2).get_attribute("aria-pressed") == "true"
    assert not np.array_equal(first, image_of(page))
    page.get_by_label("Model", exact=True).focus()
    page.get_by_role("option").first.wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.wait_for_function("!document.querySelector('[role=option]')")


@thorough
def test_drawing(page, scene):
    """The word stays chosen when the style changes."""
    upload(page, scene)
    page.locator("attention-map .word").nth(1).click()
    before = image_of(page)
    page.get_by_text("Drawing", exact=True).click()
    do(page, page.get_by_label("as in the paper").check)
    after = np.asarray(image_of(page), int)
    assert page.locator(".word").nth(1).get_attribute("aria-pressed") == "true"
    assert np.ptp(after, axis=2).max() <= 4  # grey
    assert np.ptp(np.asarray(before, int), axis=2).max() > 50


@thorough
def test_several_captions(page, scene):
    """Samples are listed, choosing one shows its maps, and the same seed gives them again."""
    upload(page, scene)
    listed = page.locator("#others-1 label")
    page.get_by_text("Search", exact=True).click()
    seed = page.locator("#seed input")
    assert seed.is_hidden()
    do(page, page.get_by_label("sampling", exact=True).check)
    do(page, lambda: choose(page, "Number of captions", "7"))
    sampled = listed.all_inner_texts()
    assert len(sampled) == 7
    assert seed.is_visible()
    for number, equal in (("1", False), ("0", True)):
        do(page, lambda number=number: (seed.fill(number), seed.blur()))
        assert (listed.all_inner_texts() == sampled) == equal
    do(page, listed.nth(6).click)
    assert " ".join(words(page)) in sampled[6].lower()
    do(page, page.get_by_label("diverse beam search", exact=True).check)
    assert seed.is_hidden()
    assert page.get_by_text("Diversity", exact=True).is_visible()
    assert len(listed.all_inner_texts()) == 7


@thorough
def test_a_control_that_is_changed_while_the_model_answers(page):
    """The answer is drawn with the control's new value."""
    page.get_by_text("Drawing", exact=True).click()
    held = []
    page.route("**/queue/join*", lambda route: route.continue_() if held else held.append(route))
    explain(page, "a red circle")
    page.wait_for_function("document.querySelector('#stage.busy, #stage .busy')")
    page.get_by_label("as in the paper").check()
    page.wait_for_function(LOOK)  # of the former caption
    held[0].continue_()
    page.get_by_text("Your sentence", exact=True).nth(1).wait_for()
    page.wait_for_function(LOOK)


@thorough
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.reload()
    settle(page)
    explain(page, "a red asdf")
    page.locator(".word.unknown").wait_for()
    for violation in Axe().run(page)["violations"]:
        nodes = [node for node in violation["nodes"] if "footer" not in str(node["target"])]
        assert violation["impact"] not in ("serious", "critical") or nodes == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    tops = [
        page.locator(f"attention-map {part}").bounding_box()["y"] for part in (".words", ".photo")
    ]
    assert tops == sorted(tops)  # also on a phone
