"""Data sets broken in many ways: one line explains each, and all problems are found together."""

from pathlib import Path

import pytest

from captioner.data.readers import READERS, read, scan
from captioner.data.records import TEST, TRAIN, VAL
from captioner.errors import DataError
from layouts import coco, entry, flickr8k, karpathy, write

FLICKR = {TRAIN: {"2.jpg": ["a dog"]}, VAL: {"3.jpg": ["a man"]}, TEST: {"1.jpg": ["a boy"]}}
TOKENS, LIST = "Flickr8k_text/Flickr8k.token.txt", "Flickr8k_text/Flickr_8k.devImages.txt"
LATIN = "a café\n".encode("latin-1")
BAR_HEADER = b"image_name| comment_number| comment\n1.jpg| 0| a dog\n"


def problems(name: str, root: Path) -> dict[str, list[str]]:
    return scan(name, root)[1].found


def refused(name: str, root: Path, *parts: str) -> None:
    with pytest.raises(DataError) as error:
        read(name, root)
    message = str(error.value)
    assert message.isprintable(), message  # so it is one line
    for part in parts:
        assert part in message


# ── Which data set, and where ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", READERS)
def test_no_such_folder_and_an_empty_one(name, tmp_path):
    expected = f"expected the folder of a {name} data set"
    refused(name, tmp_path / "nowhere", f"'{tmp_path}/nowhere' is not a folder; {expected}")
    refused(name, tmp_path, str(tmp_path))


def test_no_image_folder(tmp_path):
    flickr8k(tmp_path, FLICKR)
    (tmp_path / "Flicker8k_Dataset").rename(tmp_path / "photos")
    refused("flickr8k", tmp_path, f"'{tmp_path}'", "expected one of: Flicker8k_Dataset, ", "Images")
    coco(tmp_path, {"val2014": {"a.jpg": ["a"]}})
    (tmp_path / "val2014").rename(tmp_path / "elsewhere")
    refused("coco", tmp_path, f"needs the image folder '{tmp_path}/val2014', which does not exist")


def test_several_karpathy_files(tmp_path):
    image = entry(0, "v1.jpg", "test", "A man .", filepath="val2014", cocoid=391895)
    karpathy(tmp_path / "dataset_coco.json", [image])
    karpathy(tmp_path / "dataset_flickr8k.json", [])
    write(tmp_path / "val2014" / "v1.jpg")
    refused("karpathy", tmp_path, "one with --data.name karpathy-coco or karpathy-flickr8k")
    assert len(read("karpathy-coco", tmp_path)) == 1


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_no_table_or_several(suffix, tmp_path):
    refused(suffix, tmp_path, f"expected one .{suffix} file in ", "found none", "--data.root FILE")
    write(tmp_path / f"a.{suffix}"), write(tmp_path / f"b.{suffix}")
    refused(suffix, tmp_path, f"found a.{suffix}, b.{suffix}; ")
    refused(suffix, tmp_path / f"a.{suffix}", "no captioned image found")
    (tmp_path / f"a.{suffix}").write_bytes(LATIN)
    assert (
        "is not in UTF-8: save it as UTF-8" in problems(suffix, tmp_path / f"a.{suffix}")["file"][0]
    )


# ── Files and lines that cannot be used ───────────────────────────────────────────────────────────

COCO, KARPATHY = "annotations/captions_val2014.json", "dataset_coco.json"
BROKEN = [
    ("flickr8k", TOKENS, b"a.jpg#0\tfine\n\na.jpg#1 no tab\n", "line 3: expected 'name.jpg#0<TAB>"),
    (
        "flickr30k",
        "results.csv",
        BAR_HEADER + b"1.jpg| a dog\n",
        "line 3: expected 'image_name| co",
    ),
    ("flickr30k", "captions.txt", b"image|comment\n1.jpg|a", "header with image and caption"),
    ("coco", COCO, b'{"images": [', "is not readable JSON: "),
    ("coco", COCO, b'{"images": [{"file_name": "a.jpg"}], "annotations": []}', "(KeyError: 'id')"),
    ("karpathy", KARPATHY, b'{"images": [7]}', "is not one of Karpathy's files"),
    ("csv", "a.csv", b"image,caption\na.jpg,a, b\n", "line 2: expected 'image,caption', got ["),
    ("csv", "a.csv", b'image,caption\na.jpg,"a\nb.jpg,"b"\n', "line 3: expected CSV"),
    ("csv", "a.csv", b"image;caption\na.jpg;a, b\n", "separated by semicolons, expected commas"),
    ("csv", "a.csv", b"image,caption,split\na.jpg,a,train\na.jpg,b,val\n", "a.jpg: 'train', 'val'"),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), BROKEN)
def test_broken_files(name, file, content, message, tmp_path):
    if name == "flickr8k":
        flickr8k(tmp_path, FLICKR)
    for image in ("flickr30k-images/1.jpg", "val2014/a.jpg", "a.jpg"):
        write(tmp_path / image)
    write(tmp_path / file).write_bytes(content)
    refused(name, tmp_path, message, str(tmp_path / file))


NO_TEXT = '{"image": 7, "caption": "a"}', '{"image": "a.jpg", "captions": [7]}'


@pytest.mark.parametrize("line", ["{", *NO_TEXT, '{"image": "a.jpg", "caption": null}'])
def test_broken_lines_of_jsonl(line, tmp_path):
    write(tmp_path / "a.jpg")
    write(tmp_path / "a.jsonl", f'{{"image": "a.jpg", "caption": "a"}}\n\n{line}\n{line}\n')
    found = problems("jsonl", tmp_path)
    assert set(found) == {"line"}
    first, second = found["line"]
    assert f"'{tmp_path}/a.jsonl' line 3: expected " in first
    assert " line 4: expected " in second


# ── All problems together ─────────────────────────────────────────────────────────────────────────


def test_all_problems_of_flickr8k(tmp_path):
    train = {"1.jpg": ["a"], "2.jpg": ["b"], "3.jpg": []}
    flickr8k(tmp_path, {TRAIN: train, VAL: {"4.jpg": ["c"]}})
    with (tmp_path / LIST).open("a") as file:
        file.write("2.jpg\n5.jpg\n")
    for file in (tmp_path / "Flicker8k_Dataset").iterdir():
        file.unlink()
    refused(
        "flickr8k",
        tmp_path,
        f"'{tmp_path / TOKENS}': ",
        "images in two splits: 1 (2.jpg)",
        f"images that do not exist: 3 ({tmp_path}/Flicker8k_Dataset/1.jpg, ",
    )
    assert problems("flickr8k", tmp_path)["no-captions"] == ["3.jpg", "5.jpg"]


# ── What is left out ──────────────────────────────────────────────────────────────────────────────


def test_what_a_folder_leaves_out(tmp_path, caplog):
    """A person's folder is never perfect: the rest is trained on, and a warning counts the others."""
    texts = {
        "a": "a dog",
        "b": " ... \n",
        "empty": "",
        "labels": "0 0.51 0.43\n16 1e-05 .5 7",
        "c": "7 dogs",
    }
    for name, text in texts.items():
        write(tmp_path / f"{name}.jpg"), write(tmp_path / f"{name}.txt", text)
    write(tmp_path / "without.jpg"), write(tmp_path / "README.txt", "a")
    write(tmp_path / "latin.jpg"), (tmp_path / "latin.txt").write_bytes(LATIN)
    found = problems("folder", tmp_path)
    assert "latin.txt' is not in UTF-8: save it as UTF-8" in found.pop("text")[0]
    assert found == {
        "no-words": ["b.jpg: '...'"],
        "numbers": ["labels.jpg: '0 0.51 0.43'", "labels.jpg: '16 1e-05 .5 7'"],
        "no-captions": ["b.jpg", "empty.jpg", "labels.jpg", "latin.jpg", "without.jpg"],
        "no-image": ["README.txt"],
    }
    assert [record.captions for record in read("auto", tmp_path)] == [("7 dogs",), ("a dog",)]
    assert "left out: images without captions: 5 (b.jpg, empty.jpg, labels.jpg, …); " in caplog.text


def test_a_data_set_of_which_everything_is_left_out(tmp_path):
    write(tmp_path / "a.jpg")
    write(tmp_path / "a.csv", "image,caption\na.jpg,\na.jpg, \n")
    refused("csv", tmp_path, "no captioned image found", "images without captions: 1 (a.jpg)")


def test_a_folder_with_splits_has_no_photo_outside_them(tmp_path):
    for name in ("train/a", "c", "other/d"):
        write(tmp_path / f"{name}.jpg"), write(tmp_path / f"{name}.txt", "a dog")
    assert problems("folder", tmp_path) == {"no-split": ["c.jpg", "other/d.jpg"]}


def test_a_text_belongs_to_one_photo(tmp_path):
    """Two photos whose names differ in the suffix have texts of their own, or none."""
    for name in ("dog.jpg", "dog.png", "cat.jpg", "cat.png", "cow.jpg"):
        write(tmp_path / name)
    for name in ("dog.txt", "cat.txt", "cat.jpg.txt", "cow.jpg.txt"):
        write(tmp_path / name, f"the text {name}")
    assert problems("folder", tmp_path) == {"shared-text": ["dog.txt: dog.jpg, dog.png"]}
    found = {record.image_id: record.captions for record in read("folder", tmp_path)}
    assert found == {
        "cat.jpg": ("the text cat.jpg.txt",),
        "cat.png": ("the text cat.txt",),
        "cow.jpg": ("the text cow.jpg.txt",),
    }
