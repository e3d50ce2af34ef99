"""The page to check and edit captions: in a real browser, and the command that writes it."""

import json
import os
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from captioner.cli import caption_outputs as command
from captioner.cli.main import main
from captioner.data.readers import read, scan
from captioner.overlay import blend, review
from known_maps import gray, make_caption, one_hot
from layouts import picture
from runs import tiny_model

EVIL = '</textarea></script><script>document.title="evil"</script><img src=x onerror=alert(1)>"\'&'
NAMES = ["a.png", 'more/b, "c" & <d>\'.png', "<script>alert(1)<&script>.png", "e.png"]


def entry(name, text, confidence=None):
    return {
        "name": name, "text": text, "confidence": confidence,
        **review.thumbnails(make_caption(one_hot([(0, 0), (1, 1)]), (90, 60)), gray((90, 60))),
    }  # fmt: skip


def test_captions_are_edited_with_the_keyboard_and_the_table_is_read(visit, tmp_path):
    """Names and captions that look like HTML or CSV stay what they are."""
    texts = [EVIL, "a dog, on grass", '"quoted"', "left out"]
    photos = [entry(*pair, 0.5) for pair in zip(NAMES, texts, strict=True)]
    page = visit(review.page(EVIL, photos))
    assert page.title() == f"Captions of {EVIL}"
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 4 * 2  # "on" is no content word
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Save captions.csv"
    focused = "document.activeElement.dataset.image"
    for name in NAMES:
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == name
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    page.keyboard.insert_text("\nsecond caption, “ünïcode” 😀")
    status = page.get_by_role("status")
    assert status.inner_text() == "2 of 4 photos edited, not saved"
    with page.expect_download() as download:
        page.keyboard.press("Control+S")
    assert download.value.suggested_filename == "captions.csv"
    download.value.save_as(tmp_path / "captions.csv")
    assert status.inner_text() == "4 captions saved"
    for name in NAMES:
        picture(tmp_path / name)
    assert scan("csv", tmp_path)[1].found == {"no-captions": [NAMES[3]]}
    found = {record.image_id: record.captions for record in read("auto", tmp_path)}
    assert found == {
        NAMES[0]: (EVIL,),
        NAMES[1]: ("a dog, on grass",),
        NAMES[2]: ('"quoted"', "second caption, “ünïcode” 😀"),
    }


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_accessible_and_fits_its_window(width, visit):
    photos = [entry("a.png", "a dog", 0.437), entry("b.png", "b")]
    page = visit(review.page("photos", photos), width)
    page.emulate_media(color_scheme="dark")
    box = page.get_by_role("textbox", name="a.png Confidence 44 %", exact=True)
    assert box.input_value() == "a dog"
    assert page.get_by_role("textbox", name="b.png", exact=True).input_value() == "b"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, background[4:-1].split(", "))) < 40  # dark
    photo, field = page.locator("article > img").first.bounding_box(), box.bounding_box()
    assert (field["y"] > photo["y"] + photo["height"]) == (width == 390)


def test_thumbnails_show_the_sharpest_maps_and_are_small():
    weights = np.full((6, 7, 5), 1 / 35)
    weights[[0, 2]] = 0.5 / 34
    weights[[0, 2], [1, 5], [2, 3]] = 0.5
    caption, photo = make_caption(weights, (3000, 2000)), gray((3000, 2000))
    found = review.thumbnails(caption, photo)
    assert [word for word, _ in found["maps"]][:2] == ["dog", "grass"]
    assert found["size"] == (320, 213)
    assert len(json.dumps(found)) < 20_000
    with load_url(found["maps"][1][1]) as image:
        assert max(image.size) == review.MAP_SIDE
        drawn = blend(caption, 2, photo).resize(image.size)
        difference = np.abs(np.asarray(image.convert("RGB"), int) - np.asarray(drawn, int))
    assert difference.mean() < 6


def load_url(url):
    return Image.open(BytesIO(b64decode(url.partition(",")[2])))


# ── The command ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for seed, name in enumerate(["0.png", "1.png", "more/2.png", "more/3.png"]):
        picture(folder / name, seed)
    (folder / "broken.jpg").write_text("no photo")
    return folder


def write(folder, model, *options):
    call = ["caption", str(folder), "--write", "html", "--model", str(model), "--batch-size", "1"]
    return main([*call, *options])


def shown(folder, browser):
    """Return the captions of the page by photo."""
    page = browser.new_page()
    page.goto((folder / "captions.html").as_uri())
    fields = page.locator("textarea").all()
    found = {field.get_attribute("data-image"): field.input_value() for field in fields}
    page.close()
    return found


def test_an_interruption_loses_nothing_and_a_persons_words_stay(
    photos, tiny_folder, browser, monkeypatch, capsys
):
    reported, seen = command._reported, []

    def interrupted(row):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(row["image"])
        return reported(row)

    monkeypatch.setattr(command, "_reported", interrupted)
    assert write(photos, tiny_folder) == 130
    assert not (photos / "captions.html").exists()
    monkeypatch.setattr(command, "_reported", reported)
    capsys.readouterr()
    assert write(photos, tiny_folder, "--prefix", "photo of ") == 1
    printed = capsys.readouterr()
    assert "4 captions, 2 of them new, in" in printed.out
    assert "broken.jpg" in printed.err
    first = shown(photos, browser)
    assert [*first] == ["0.png", "1.png", "more/2.png", "more/3.png"]
    assert all(text.startswith("photo of ") for text in first.values())
    assert {json.loads(line)["image"] for file in (photos / ".captions.html").glob("*.jsonl")
            for line in file.read_text().splitlines()} == {*first, "broken.jpg"}  # fmt: skip

    # A new photo, a missing one, and captions that a person has edited.
    picture(photos / "4.png", 4)
    (photos / "0.png").unlink()
    (photos / "broken.jpg").unlink()
    (photos / "captions.csv").write_text('image,caption\n1.png,"my words, mine"\n1.png,second\n')
    assert write(photos, tiny_folder) == 0
    assert "4 captions, 1 of them new" in capsys.readouterr().out
    found = shown(photos, browser)
    assert [*found] == ["1.png", "4.png", "more/2.png", "more/3.png"]
    assert found["1.png"] == "my words, mine\nsecond"
    assert found["more/2.png"] == first["more/2.png"].removeprefix("photo of ")
    assert write(photos, tiny_folder, "--existing", "overwrite") == 0
    assert "4 captions, 4 of them new" in capsys.readouterr().out
    assert shown(photos, browser)["1.png"] == first["1.png"].removeprefix("photo of ")


def test_a_caption_that_was_deleted_stays_away(photos, tiny_folder, browser):
    """A photo without a row, as in a table that a person wrote, has the model's caption."""
    (photos / "broken.jpg").unlink()
    assert write(photos, tiny_folder) == 0
    first = shown(photos, browser)

    def save(name):
        page = browser.new_page()
        page.goto((photos / "captions.html").as_uri())
        page.get_by_role("textbox", name=name).fill(" \n ")
        with page.expect_download() as download:
            page.get_by_role("button").click()
        download.value.save_as(photos / "captions.csv")
        page.close()

    save("1.png")
    picture(photos / "4.png", 4)
    assert write(photos, tiny_folder) == 0
    found = shown(photos, browser)
    assert found.pop("4.png")
    assert found == first | {"1.png": ""}
    save("0.png")
    assert write(photos, tiny_folder) == 0
    assert shown(photos, browser)["1.png"] == ""
    assert [record.image_id for record in read("auto", photos)] == ["4.png", *[*first][2:]]
    (photos / "captions.csv").write_text("image,caption\n0.png,mine\n")
    assert write(photos, tiny_folder) == 0
    assert shown(photos, browser)["1.png"] == first["1.png"] != ""


def test_a_full_disk_leaves_the_old_page(photos, tiny_folder, monkeypatch, capsys):
    (photos / "broken.jpg").unlink()
    assert write(photos, tiny_folder) == 0
    old = (photos / "captions.html").read_bytes()
    fsync, calls = os.fsync, []

    def full(file):
        calls.append(file)
        if len(calls) == 4:  # manifest, shard, manifest, page
            raise OSError(28, "No space left on device")
        fsync(file)

    picture(photos / "4.png", 4)
    monkeypatch.setattr(os, "fsync", full)
    assert write(photos, tiny_folder) == 2
    assert "No space left" in capsys.readouterr().err
    assert (photos / "captions.html").read_bytes() == old


def test_what_does_not_fit_is_refused(photos, tiny_folder, capsys, monkeypatch):
    def refused(*options, folder=photos, model=tiny_folder):
        assert write(folder, model, *options) == 2
        return capsys.readouterr().err

    assert "takes one folder of photos" in refused(folder=photos / "0.png")
    assert "--num-captions cannot be used with --write html" in refused("--num-captions", "3")
    (photos / "captions.html").write_text("<p>mine")
    assert "exists and is no page of captions" in refused()
    assert (photos / "captions.html").read_text() == "<p>mine"
    (photos / "captions.html").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(command, "MAX_PHOTOS", 4)
        assert "a page holds at most 4 photos" in refused()
    (photos / "broken.jpg").unlink()
    assert write(photos, tiny_folder) == 0
    where = f"give --existing overwrite to caption all photos again: '{photos / '.captions.html'}'"
    decoding = "captions of another decoding (there --beam-size 2, now --beam-size 1)"
    assert f"{where} holds {decoding}" in refused("--beam-size", "1")
    other = tiny_model(photos.parent / "other", seed=1)
    assert f"{where} holds captions of another model" in refused(model=other)
    (photos / "captions.csv").write_text("image;caption\n0.png;a dog, black\n")
    assert "columns are separated by semicolons, expected commas" in refused()
