"""Data sets laid out as distributed, whole and broken in every way that one line must explain."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from captioner.data.readers import read
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record
from captioner.errors import DataError
from layouts import captions_txt, coco, flickr8k

FLICKR = {
    TRAIN: {"2.jpg": ["a dog runs", "the dog"], "10.jpg": ["two cats"]},
    VAL: {"3.jpg": ["a man with a hat, red"]},
    TEST: {"1.jpg": ["a boy", "a girl", "a child"]},
}
PART = {f"{i}.jpg": [f"picture {i}", "another caption"] for i in range(400)}


def splits_of(records: list[Record]) -> dict[str, str]:
    return {Path(record.path).name: record.split for record in records}


# ── Flickr8k ──────────────────────────────────────────────────────────────────────────────────────


def test_flickr8k_as_distributed(tmp_path):
    pictures = flickr8k(tmp_path, FLICKR) / "Flicker8k_Dataset"
    assert read("flickr8k", tmp_path) == [
        Record("2.jpg", f"{pictures}/2.jpg", ("a dog runs .", "the dog ."), TRAIN),
        Record("10.jpg", f"{pictures}/10.jpg", ("two cats .",), TRAIN),
        Record("3.jpg", f"{pictures}/3.jpg", ("a man with a hat, red .",), VAL),
        Record("1.jpg", f"{pictures}/1.jpg", ("a boy .", "a girl .", "a child ."), TEST),
    ]


@pytest.mark.parametrize("folder", ["Flickr8k_Dataset", "Images", "images"])
def test_text_files_and_pictures_may_lie_elsewhere(folder, tmp_path):
    flickr8k(tmp_path, FLICKR)
    (tmp_path / "Flicker8k_Dataset").rename(tmp_path / folder)
    for file in (tmp_path / "Flickr8k_text").iterdir():
        file.rename(tmp_path / file.name)
    records = read("flickr8k", str(tmp_path))
    assert [r.image_id for r in records] == ["2.jpg", "10.jpg", "3.jpg", "1.jpg"]
    assert all(Path(r.path).parent.name == folder for r in records)


def test_pictures_in_no_list_are_left_alone(tmp_path):
    """The original token file has captions of 92 pictures that no list names."""
    flickr8k(tmp_path, FLICKR)
    with (tmp_path / "Flickr8k_text" / "Flickr8k.token.txt").open("a") as file:
        file.write("9.jpg.1#0\tan extra\n")
    assert "9.jpg" not in splits_of(read("flickr8k", tmp_path))
    (tmp_path / "Flickr8k_text" / "Flickr_8k.testImages.txt").unlink()
    assert {r.split for r in read("flickr8k", tmp_path)} == {TRAIN, VAL}


@pytest.mark.parametrize(
    "change", [None, ("\n", "\r\n"), ("image,", "\ufeffimage,"), ("\n", "\n\n")]
)
def test_captions_txt(change, tmp_path):
    captions = {
        "7.jpg": ["a dog, a cat and a bird", 'a sign "stop", red', "plain"],
        "8.jpg": ['the "word"', "..."],
    }
    file = captions_txt(tmp_path, captions) / "captions.txt"
    if change:
        file.write_bytes(file.read_text().replace(*change).encode())
    records = read("flickr8k", tmp_path)
    assert {r.image_id: list(r.captions) for r in records} == {
        "7.jpg": captions["7.jpg"],
        "8.jpg": ['the "word"'],  # what holds no word says nothing
    }


# ── COCO ──────────────────────────────────────────────────────────────────────────────────────────


def test_coco_with_train_and_val(tmp_path):
    parts = {
        "train2017": {"b.jpg": ["two"], "a.jpg": [" one ", "uno"]},
        "val2017": {"c.jpg": ["3"]},
    }
    coco(tmp_path, parts)
    assert read("coco", tmp_path) == [
        Record(1, f"{tmp_path}/train2017/b.jpg", ("two",), TRAIN),
        Record(2, f"{tmp_path}/train2017/a.jpg", ("one", "uno"), TRAIN),
        Record(3, f"{tmp_path}/val2017/c.jpg", ("3",), VAL),
    ]


def test_records_are_in_order_of_their_numbers(tmp_path):
    coco(tmp_path, {"train2014": PART, "val2014": {"z.jpg": ["z"]}}, first_id=8)
    assert [r.image_id for r in read("coco", tmp_path)] == list(range(8, 8 + 401))


def test_of_two_years_the_first_is_read(tmp_path):
    years = {f"{s}{y}": {f"{s}{y}.jpg": ["a"]} for s in ("train", "val") for y in (2014, 2017)}
    coco(tmp_path, years)
    names = {"train2014.jpg": TRAIN, "val2014.jpg": VAL}
    assert splits_of(read("coco", tmp_path)) == names


def test_other_annotations_are_left_alone(tmp_path):
    coco(tmp_path, {"train2017": {"a.jpg": ["a"]}, "val2017": {"b.jpg": ["b"]}})
    for name in ("instances_val2017.json", "captions_mine.json", "image_info_test2017.json"):
        (tmp_path / "annotations" / name).write_text("not even JSON")
    assert len(read("coco", tmp_path)) == 2


# ── A split of our own ────────────────────────────────────────────────────────────────────────────


def test_own_split_depends_on_names_alone(tmp_path):
    first = splits_of(read("coco", coco(tmp_path / "coco", {"val2014": PART})))
    assert set(first) == set(PART)
    backwards = dict(reversed(PART.items()))
    assert first == splits_of(read("coco", coco(tmp_path / "b", {"train2017": backwards}, 77)))
    assert first == splits_of(read("flickr8k", captions_txt(tmp_path / "flickr8k", backwards)))


def test_own_split_is_stable_when_pictures_are_added(tmp_path):
    before = splits_of(read("coco", coco(tmp_path / "small", {"val2014": PART})))
    more = {f"new{i}.jpg": ["more"] for i in range(50)} | PART
    after = splits_of(read("coco", coco(tmp_path / "large", {"val2014": more})))
    assert {name: split for name, split in after.items() if name in PART} == before


def test_own_split_holds_out_an_eighth_each(tmp_path):
    sizes = Counter(splits_of(read("coco", coco(tmp_path, {"val2014": PART}))).values())
    assert sizes[VAL] == pytest.approx(50, abs=20)
    assert sizes[TEST] == pytest.approx(50, abs=20)


# ── The real ones ─────────────────────────────────────────────────────────────────────────────────


def test_real_flickr8k(shared_data):
    records = read("flickr8k", shared_data / "flickr8k")
    assert Counter(r.split for r in records) == {TRAIN: 6000, VAL: 1000}
    assert {len(r.captions) for r in records} == {5}
    assert all(Path(r.path).is_file() for r in records[::500])


def test_real_coco(shared_data):
    records = read("coco", shared_data / "coco")
    assert len(records) == 1297
    assert sum(len(r.captions) for r in records) == 6486
    assert {Path(r.path).parent.name for r in records} == {"val2014"}
    sizes = Counter(r.split for r in records)
    assert sizes[VAL] == pytest.approx(1297 / 8, rel=0.25)
    assert sizes[TEST] == pytest.approx(1297 / 8, rel=0.25)
    assert [r.split for r in records] == sorted((r.split for r in records), key=SPLITS.index)


# ── What is wrong, in one line ────────────────────────────────────────────────────────────────────


def refused(name: str, root: Path, *parts: str) -> str:
    with pytest.raises(DataError) as error:
        read(name, root)
    message = str(error.value)
    assert message.isprintable(), message  # so it is one line, too
    for part in parts:
        assert part in message
    return message


@pytest.mark.parametrize(
    ("given", "first"), [("flickr9k", "flickr8k"), ("COCO", "coco"), ("cocoa", "coco"), ("", "")]
)
def test_unknown_data_set(given, first, tmp_path):
    refused(given, tmp_path, f"unknown data set '{given}'; known: {first}", "flickr8k", "coco")


@pytest.mark.parametrize("name", ["flickr8k", "coco"])
@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_root_is_no_folder(name, place, tmp_path):
    (tmp_path / "file").touch()
    refused(
        name, tmp_path / place, f"'{tmp_path}/{place}' is not a folder", f"of a {name} data set"
    )


TOKENS, LIST = "Flickr8k_text/Flickr8k.token.txt", "Flickr8k_text/Flickr_8k.devImages.txt"
LATIN = "a café\n".encode("latin-1")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (TOKENS, None, "neither 'Flickr8k.token.txt' nor 'captions.txt' found"),
        (TOKENS, b"a.jpg#0\tfine\n\na.jpg#1 no tab\n", "line 3: expected 'name.jpg#0<TAB>caption'"),
        (TOKENS, b"a.jpg\tno number\n", "line 1: expected 'name.jpg#0<TAB>caption', got 'a.jpg"),
        (TOKENS, b"image,caption\n", "line 1: expected 'name.jpg#0<TAB>caption', got 'image,"),
        (TOKENS, LATIN, "cannot be read as UTF-8 text"),
        (LIST, b"", "is empty; expected one image name per line"),
        (LIST, b"\n  \n", "is empty; expected one image name per line"),
        (LIST, LATIN, "cannot be read as UTF-8 text"),
    ],
)
def test_broken_flickr8k(file, content, said, tmp_path):
    broken = flickr8k(tmp_path, FLICKR) / file
    broken.unlink()
    if content is not None:
        broken.write_bytes(content)
    refused("flickr8k", tmp_path, said, str(tmp_path if content is None else broken))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"file,text\n1.jpg,a dog\n", "expected the header 'image,caption', got 'file,text'"),
        (b"1.jpg,a dog\n", "expected the header 'image,caption', got '1.jpg,a dog'"),
        (b"", "expected the header 'image,caption', got ''"),
        (b"image,caption\n1.jpg,a dog, a cat\n", "line 2: expected 'image,caption', got ['1.jpg'"),
        (b"image,caption\n\n\n1.jpg\n", "line 4: expected 'image,caption', got ['1.jpg']"),
        (b'image,caption\n1.jpg,"a dog\n2.jpg,a cat\n', "quoted as CSV has it"),
        (
            b'image,caption\n1.jpg,"a dog\n2.jpg,"a cat"\n',
            "line 3: expected 'image,caption', quoted",
        ),
        (b"image,caption\n1.jpg," + b"a" * 200_000, "line 2: expected 'image,caption'"),
        (b"image,caption\n1.jpg," + LATIN, "cannot be read as UTF-8 text"),
    ],
)
def test_broken_captions_txt(content, said, tmp_path):
    file = captions_txt(tmp_path, {"1.jpg": ["a"], "2.jpg": ["b"]}) / "captions.txt"
    file.write_bytes(content)
    refused("flickr8k", tmp_path, said, str(file))


def test_no_picture_folder(tmp_path):
    flickr8k(tmp_path, FLICKR)
    (tmp_path / "Flicker8k_Dataset").rename(tmp_path / "photos")
    refused("flickr8k", tmp_path, f"'{tmp_path}'", "expected one of: Flicker8k_Dataset, ", "Images")


def test_nothing_in_it(tmp_path):
    captions_txt(tmp_path, {}), (tmp_path / "Images").mkdir()
    refused("flickr8k", tmp_path, f"no captioned image found under '{tmp_path}'", "'flickr8k'")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"images": [', "is not readable JSON: "),
        (b"", "is not readable JSON: "),
        (b'{"a": "' + LATIN + b'"}', "is not readable JSON: "),
        (b"[]", "expected images with id and file_name, and annotations with image_id"),
        (b"7", "is not a COCO captions file"),
        (b"{}", "(KeyError: 'images')"),
        (b'{"images": {"1": "a.jpg"}, "annotations": []}', "is not a COCO captions file"),
        (b'{"images": [{"id": 1}], "annotations": []}', "(KeyError: 'file_name')"),
        (b'{"images": [{"file_name": "a.jpg"}], "annotations": []}', "(KeyError: 'id')"),
        (b'{"images": [], "annotations": [{"image_id": 1, "bbox": []}]}', "(KeyError: 'caption')"),
        (b'{"images": [], "annotations": [{"caption": "a"}]}', "(KeyError: 'image_id')"),
    ],
)
def test_broken_coco(content, said, tmp_path):
    file = coco(tmp_path, {"val2014": {"a.jpg": ["a"]}}) / "annotations" / "captions_val2014.json"
    file.write_bytes(content)
    refused("coco", tmp_path, said, str(file))


@pytest.mark.parametrize("caption", [None, 7, {}])
def test_captions_that_are_no_text(caption, tmp_path):
    file = coco(tmp_path, {"val2014": {"a.jpg": ["a"]}}) / "annotations" / "captions_val2014.json"
    document = json.loads(file.read_text())
    document["annotations"][0]["caption"] = caption
    file.write_text(json.dumps(document))
    refused("coco", tmp_path, f"'{file}' is not a COCO captions file")


def test_coco_without_annotations(tmp_path):
    coco(tmp_path, {"val2014": {"a.jpg": ["a"]}})
    (tmp_path / "annotations").rename(tmp_path / "labels")
    refused("coco", tmp_path, "no 'annotations/captions_*.json'", f"under '{tmp_path}'")


def test_coco_without_pictures(tmp_path):
    coco(tmp_path, {"val2014": {"a.jpg": ["a"]}})
    (tmp_path / "val2014").rename(tmp_path / "photos")
    refused("coco", tmp_path, f"needs the image folder '{tmp_path}/val2014', which does not exist")


@pytest.mark.parametrize("name", ["flickr8k", "captions.txt", "coco"])
def test_missing_pictures_are_counted_and_three_are_named(name, tmp_path):
    write = {"flickr8k": lambda root, c: flickr8k(root, {TRAIN: c}), "captions.txt": captions_txt}
    write["coco"] = lambda root, captions: coco(root, {"train2014": captions})
    write[name](tmp_path, PART)
    for i in range(1, 6):
        next(tmp_path.rglob(f"{i}.jpg")).unlink()
    reader = "coco" if name == "coco" else "flickr8k"
    message = refused(reader, tmp_path, "5 images that do not exist (", ".jpg, …); repair")
    named = re.findall(r"/(\d+)\.jpg", message)
    assert len(named) == 3
    assert set(named) < set("12345")


def test_all_problems_of_flickr8k_at_once(tmp_path):
    flickr8k(
        tmp_path, {TRAIN: {"1.jpg": ["a"], "2.jpg": ["b"], "3.jpg": []}, VAL: {"4.jpg": ["c"]}}
    )
    with (tmp_path / LIST).open("a") as file:
        file.write("2.jpg\n5.jpg\n")
    (tmp_path / "Flicker8k_Dataset" / "1.jpg").unlink()
    refused(
        "flickr8k",
        tmp_path,
        f"'{tmp_path / TOKENS}': ",
        "1 images listed twice in the split files (2.jpg)",
        "2 images listed in a split but without captions (3.jpg, 5.jpg)",
        f"2 images that do not exist ({tmp_path}/Flicker8k_Dataset/1.jpg, ",
        "repair the files or remove the entries",
    )


@pytest.mark.parametrize("where", ["train2014", "val2014"])
def test_all_problems_of_coco_at_once(where, tmp_path):
    """An id used twice, in one file or in two."""
    coco(
        tmp_path,
        {"train2014": {"1.jpg": ["a"], "2.jpg": ["  ", "..."]}, "val2014": {"3.jpg": ["c"]}},
    )
    file = tmp_path / "annotations" / f"captions_{where}.json"
    document = json.loads(file.read_text())
    document["images"].append({"id": 1, "file_name": "4.jpg"})
    document["annotations"] += [{"image_id": i, "caption": "d"} for i in (1, 77, 77, 77)]
    file.write_text(json.dumps(document))
    (tmp_path / "train2014" / "1.jpg").unlink()
    refused(
        "coco",
        tmp_path,
        f"'{tmp_path}/annotations/captions_train2014.json', ",
        "1 images captioned but missing from the list of images (77)",
        "1 images without captions (2.jpg)",
        "1 images with an id used twice (1)",
        f"2 images that do not exist ({tmp_path}/train2014/1.jpg, {tmp_path}/{where}/4.jpg)",
    )
