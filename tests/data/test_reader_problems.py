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
COMMAS = b"image_name,comment_number,comment\n1.jpg,0,a dog\n"


def problems(name: str, root: Path) -> dict[str, list[str]]:
    return scan(name, root)[1].found


def refused(name: str, root: Path, *parts: str) -> str:
    with pytest.raises(DataError) as error:
        read(name, root)
    message = str(error.value)
    assert message.isprintable(), message  # so it is one line
    for part in parts:
        assert part in message
    return message


# ── Which data set, and where ─────────────────────────────────────────────────────────────────────


def test_unknown_data_set(tmp_path):
    refused("flickr9k", tmp_path, "unknown data set 'flickr9k'; known: flickr8k", "coco")


@pytest.mark.parametrize("name", READERS)
def test_no_such_folder_and_an_empty_one(name, tmp_path):
    start = f"'{tmp_path}/nowhere' is not a folder; expected the folder of a {name} data set: "
    message = refused(name, tmp_path / "nowhere", start)
    assert len(message) > message.index(start) + len(start) + 20  # a description follows
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
    assert "cannot be read as UTF-8" in problems(suffix, tmp_path / f"a.{suffix}")["file"][0]


# ── Files and lines that cannot be used ───────────────────────────────────────────────────────────

COCO, KARPATHY = "annotations/captions_val2014.json", "dataset_coco.json"
BROKEN = [
    ("flickr8k", TOKENS, b"a.jpg#0\tfine\n\na.jpg#1 no tab\n", "line 3: expected 'name.jpg#0<TAB>"),
    ("flickr8k", LIST, b"\n  \n", "is empty; expected one image name per line"),
    (
        "flickr30k",
        "results.csv",
        BAR_HEADER + b"1.jpg| a dog\n",
        "line 3: expected 'image_name| comment",
    ),
    ("flickr30k", "captions.txt", COMMAS + b"1.jpg,0\n", "line 3: expected 'image_name,comment_nu"),
    ("flickr30k", "captions.txt", b"image|comment\n1.jpg|a", "header with image and caption"),
    ("flickr30k", "captions.txt", b'image,caption\n1.jpg,"a\n2.jpg,"b"\n', "line 3: expected CSV"),
    ("flickr30k", "captions.txt", b"image,caption\na," + b"a" * 200_000, "line 2: expected CSV"),
    ("coco", COCO, b'{"images": [', "is not readable JSON: "),
    ("coco", COCO, b'{"images": [{"file_name": "a.jpg"}], "annotations": []}', "(KeyError: 'id')"),
    ("karpathy", KARPATHY, b'{"images": [7]}', "is not one of Karpathy's files"),
    ("csv", "a.csv", b"image,caption\na.jpg,a, b\n", "line 2: expected 'image,caption', got ["),
    ("csv", "a.csv", b"image;caption\na.jpg;a, b\n", "separated by semicolons, expected commas"),
    (
        "csv",
        "a.csv",
        b'"image";"caption"\n"a.jpg";"a"\n',
        "save it again with the comma as separator",
    ),
    ("csv", "a.csv", b"image,caption\na.jpg,...\n", "images without captions: 1 (a.jpg)"),
    ("csv", "a.csv", b"image,caption,split\na.jpg,a,train\na.jpg,b,val\n", "a.jpg: 'train', 'val'"),
    ("csv", "a.csv", b"image,caption,split\na.jpg,a,train\nb.jpg,b,\n", "b.jpg: none"),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), BROKEN)
def test_broken_files(name, file, content, message, tmp_path):
    if name == "flickr8k":
        flickr8k(tmp_path, FLICKR)
    for image in ("flickr30k-images/1.jpg", "val2014/a.jpg", "a.jpg"):
        write(tmp_path / image)
    write(tmp_path / file).write_bytes(content)
    refused(name, tmp_path, message, str(tmp_path / file))


def test_a_table_whose_captions_are_all_empty_is_no_data_set(tmp_path):
    write(tmp_path / "a.jpg")
    write(tmp_path / "a.csv", "image,caption\na.jpg,\na.jpg, \n")
    refused("csv", tmp_path, "no captioned image found")


NO_TEXT = '{"image": 7, "caption": "a"}', '{"image": "a.jpg", "captions": [7]}'


@pytest.mark.parametrize(
    "line", ["{", *NO_TEXT, '{"image": "a.jpg", "caption": null}', "[" * 100_000]
)
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
        "images listed twice in the split files: 1 (2.jpg)",
        "images without captions: 2 (3.jpg, 5.jpg)",
        f"images that do not exist: 5 ({tmp_path}/Flicker8k_Dataset/1.jpg, ",
        ", …); repair the files or remove",
    )


def test_all_problems_of_a_folder(tmp_path):
    captions = {"train/a.jpg": "a", "train/b.jpg": " ... \n", "c.jpg": "c", "other/d.jpg": "d"}
    for name, text in captions.items():
        write(tmp_path / name), write((tmp_path / name).with_suffix(".txt"), text)
    write(tmp_path / "train" / "e.jpg"), write(tmp_path / "train" / "README.txt", "a")
    (tmp_path / "train" / "a.txt").write_bytes(LATIN)
    found = problems("folder", tmp_path)
    assert "train/a.txt' cannot be read as UTF-8" in found.pop("file")[0]
    assert found == {
        "no-split": ["c.jpg", "other/d.jpg"],
        "no-words": ["train/b.jpg: '...'"],
        "no-captions": ["train/a.jpg", "train/b.jpg", "train/e.jpg"],
        "no-image": ["train/README.txt"],
    }
