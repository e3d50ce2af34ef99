"""Every data set format, with the quirks of the real ones, read into the expected records."""

import json
import shutil
from collections import Counter
from pathlib import Path
from unicodedata import normalize

import pytest

from captioner.data import readers
from captioner.data.records import TEST, TRAIN, VAL, Record
from layouts import captions_txt, coco, csv_text, entry, flickr8k, karpathy, write

FLICKR = {
    TRAIN: {"2.jpg": ["a dog runs", "the dog"], "10.jpg": ["two cats"]},
    VAL: {"3.jpg": ["a man with a hat, red"]},
    TEST: {"1.jpg": ["a boy", "a girl", "a child"]},
}
PART = {f"{i}.jpg": ["a caption", "another caption"] for i in range(400)}


def read(name: str, root: Path) -> list[Record]:
    return list(readers.read(name, root))


def splits_of(records: list[Record]) -> dict[str, str]:
    return {Path(record.path).name: record.split for record in records}


# ── Flickr8k ──────────────────────────────────────────────────────────────────────────────────────


def test_flickr8k_as_distributed(tmp_path):
    folder = flickr8k(tmp_path, FLICKR) / "Flicker8k_Dataset"
    assert read("flickr8k", tmp_path) == [
        Record("2.jpg", f"{folder}/2.jpg", ("a dog runs .", "the dog ."), TRAIN),
        Record("10.jpg", f"{folder}/10.jpg", ("two cats .",), TRAIN),
        Record("3.jpg", f"{folder}/3.jpg", ("a man with a hat, red .",), VAL),
        Record("1.jpg", f"{folder}/1.jpg", ("a boy .", "a girl .", "a child ."), TEST),
    ]


def test_images_outside_the_lists_are_ignored(tmp_path):
    """The token file also has captions of ….jpg.1, which does not exist."""
    flickr8k(tmp_path, FLICKR)
    with (tmp_path / "Flickr8k_text" / "Flickr8k.token.txt").open("a") as file:
        file.write("9.jpg.1#0\tan extra\n")
    assert "9.jpg" not in splits_of(read("flickr8k", tmp_path))
    (tmp_path / "Flickr8k_text" / "Flickr_8k.testImages.txt").unlink()
    assert {r.split for r in read("flickr8k", tmp_path)} == {TRAIN, VAL}
    for file in (tmp_path / "Flickr8k_text").glob("*Images.txt"):
        file.unlink()
    assert {r.image_id for r in read("flickr8k", tmp_path)} == {"1.jpg", "2.jpg", "3.jpg", "10.jpg"}


def test_captions_txt(tmp_path):
    captions = {"7.jpg": ["a dog, a cat and a bird", 'a sign "stop", red'], "8.jpg": ['the "word"']}
    # Captions without words are left out.
    file = captions_txt(tmp_path, captions | {"8.jpg": ['the "word"', "..."]}) / "captions.txt"
    file.write_bytes(("\ufeff" + file.read_text().replace("\n", "\r\n\r\n")).encode())
    assert {r.image_id: list(r.captions) for r in read("flickr8k", tmp_path)} == captions


# ── Flickr30k ─────────────────────────────────────────────────────────────────────────────────────

TOKENS = """1000092795.jpg#0\tTwo young guys , one "cool" , talk | look .
1000092795.jpg#1\tTwo men .
2199200615.jpg#4\tA dog runs across the grass .
"""
BAR_HEADER = """image_name| comment_number| comment
1000092795.jpg| 0| Two young guys , one "cool" , talk | look .
1000092795.jpg| 1| Two men .
2199200615.jpg| 4   A dog runs across the grass .
"""  # Kaggle's file lacks the second bar in this line
COMMAS = """image_name,comment_number,comment
1000092795.jpg,0," Two young guys , one ""cool"" , talk | look ."
1000092795.jpg, 1, Two men .
2199200615.jpg, 3, A dog runs across the grass .
2199200615.jpg, 4   A dog runs across the grass .,
"""  # the last line has its caption in the wrong column
FILES_30K = {"results_20130124.token": TOKENS, "results.csv": BAR_HEADER, "captions.txt": COMMAS}


@pytest.mark.parametrize(
    ("name", "images", "texts"),
    [
        ("results_20130124.token", "flickr30k-images", "."),
        ("captions.txt", "Images", "data"),
        ("results.csv", "data/flickr30k_images/flickr30k_images", "data"),
    ],
)
def test_flickr30k(name, images, texts, tmp_path):
    write(tmp_path / texts / name, FILES_30K[name].replace("\n", "\r\n"))
    for image in ("1000092795.jpg", "2199200615.jpg"):
        write(tmp_path / images / image)
    captions = ('Two young guys , one "cool" , talk | look .', "Two men .")
    assert {r.path: r.captions for r in read("flickr30k", tmp_path)} == {
        f"{tmp_path}/{images}/1000092795.jpg": captions,
        f"{tmp_path}/{images}/2199200615.jpg": ("A dog runs across the grass .",),
    }


def test_split_lists_of_flickr30k_entities(tmp_path):
    splits = {"train": "1 2", "val": "3", "test": "4"}
    rows = "".join(f"{i}.jpg| 0| a {i}\n" for i in range(1, 6))
    write(tmp_path / "results.csv", BAR_HEADER.splitlines()[0] + "\n" + rows)
    for split, numbers in splits.items():
        write(tmp_path / "flickr30k_entities" / f"{split}.txt", numbers.replace(" ", "\n") + "\n")
    for i in range(1, 6):
        write(tmp_path / "flickr30k-images" / f"{i}.jpg")
    found = {r.image_id: r.split for r in read("flickr30k", tmp_path)}
    assert found == {f"{n}.jpg": s for s, numbers in splits.items() for n in numbers.split()}


# ── COCO ──────────────────────────────────────────────────────────────────────────────────────────


def test_coco_with_train_and_val(tmp_path):
    train = {"b.jpg": ["two"], "a.jpg": [" one ", "uno"]}
    coco(tmp_path, {"train2017": train, "val2017": {"c.jpg": ["three"]}})
    for name in ("instances_val2017.json", "captions_mine.json", "image_info_test2017.json"):
        write(tmp_path / "annotations" / name, "not even JSON")
    assert read("coco", tmp_path) == [
        Record(1, f"{tmp_path}/train2017/b.jpg", ("two",), TRAIN),
        Record(2, f"{tmp_path}/train2017/a.jpg", ("one", "uno"), TRAIN),
        Record(3, f"{tmp_path}/val2017/c.jpg", ("three",), VAL),
    ]


YEARS = {f"{s}{y}": {f"{s}{y}.jpg": ["a"]} for s in ("train", "val") for y in (2014, 2017)}


@pytest.mark.parametrize(("name", "year"), [("coco", "2014"), ("coco2017", "2017")])
def test_the_year_of_coco(name, year, tmp_path):
    coco(tmp_path, YEARS)
    expected = {f"train{year}.jpg": TRAIN, f"val{year}.jpg": VAL}
    assert splits_of(read(name, tmp_path)) == expected


# ── Karpathy ──────────────────────────────────────────────────────────────────────────────────────

COCO_ENTRIES = [
    entry(0, "v1.jpg", "test", "A man .", " two men", filepath="val2014", cocoid=391895),
    entry(1, "v2.jpg", "restval", "a cat", filepath="val2014", cocoid=7),
    entry(2, "v3.jpg", "val", "a cow", filepath="val2014", cocoid=60623),
    entry(3, "t1.jpg", "train", "a dog", filepath="train2014", cocoid=522418),
]


def test_karpathy_coco(tmp_path):
    karpathy(tmp_path / "annotations" / "dataset_coco.json", COCO_ENTRIES)
    for image in COCO_ENTRIES:
        write(tmp_path / image["filepath"] / image["filename"])
    assert read("karpathy", tmp_path) == read("karpathy-coco", tmp_path)
    assert read("karpathy", tmp_path) == [
        Record(7, f"{tmp_path}/val2014/v2.jpg", ("a cat",), TRAIN),
        Record(522418, f"{tmp_path}/train2014/t1.jpg", ("a dog",), TRAIN),
        Record(60623, f"{tmp_path}/val2014/v3.jpg", ("a cow",), VAL),
        Record(391895, f"{tmp_path}/val2014/v1.jpg", ("A man .", "two men"), TEST),
    ]


def test_karpathy_flickr(tmp_path):
    folder = tmp_path / "flickr30k_images" / "flickr30k_images"
    entries = [entry(10, "a.jpg", "train", "a dog"), entry(2, "b.jpg", "val", "a cat")]
    karpathy(tmp_path / "dataset_flickr30k.json", entries)
    for image in entries:
        write(folder / image["filename"])
    assert read("karpathy-flickr30k", tmp_path) == [
        Record(10, f"{folder}/a.jpg", ("a dog",), TRAIN),
        Record(2, f"{folder}/b.jpg", ("a cat",), VAL),
    ]


# ── Tables and folders ────────────────────────────────────────────────────────────────────────────

ROWS = [
    ("photos/1.jpg", ["a dog, brown", 'a "dog"'], "train"),
    ("photos/2.jpg", ["two\u2028cats"], "dev"),
    ("3.png", ["a cow"], "Test "),
]


def as_jsonl(rows, key="captions") -> str:
    lines = [{"image": i, key: captions, "split": s, "log_prob": -1.0} for i, captions, s in rows]
    return "".join(json.dumps(line) + "\n" for line in lines)


def as_csv(rows) -> str:
    header = ["note", "image", "caption", "split"]
    return csv_text([header, *(["x", i, c, s] for i, captions, s in rows for c in captions)])


def as_wide_csv(rows) -> str:
    header = ["image", "caption_1", "caption_2", "split"]
    return csv_text([header, *([i, *cs, *[""] * (2 - len(cs)), s] for i, cs, s in rows)])


TABLES = {
    "lists": "\n" + as_jsonl(ROWS).replace("photos/1", "./photos//1"),
    "rows": as_jsonl([(i, c, s) for i, cs, s in ROWS for c in cs], "caption"),
    "csv BOM": "\ufeff" + as_csv(ROWS).replace("\n", "\r\n\r\n"),
    "csv wide": as_wide_csv(ROWS),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables(kind, tmp_path):
    suffix = "csv" if kind.startswith("csv") else "jsonl"
    file = write(tmp_path / f"mine.{suffix}", TABLES[kind])
    for image, _, _ in ROWS:
        write(tmp_path / image)
    expected = [
        Record("photos/1.jpg", f"{tmp_path}/photos/1.jpg", ("a dog, brown", 'a "dog"'), TRAIN),
        Record("photos/2.jpg", f"{tmp_path}/photos/2.jpg", ("two cats",), VAL),
        Record("3.png", f"{tmp_path}/3.png", ("a cow",), TEST),
    ]
    assert read(suffix, file) == read(suffix, tmp_path) == expected


def test_a_folder_with_splits(tmp_path):
    captions = {"train/a.jpg": "a dog\n\n the dog \r\n", "train/deep/b.PNG": "a cat"}
    captions |= {"validation/c.webp": "é", "test/d.jpeg": "4 cats"}
    for name, text in captions.items():
        write(tmp_path / name), write((tmp_path / name).with_suffix(".txt"), text)
    write(tmp_path / "train" / ".hidden.jpg"), write(tmp_path / ".cache" / "notes.txt", "x")
    assert read("folder", tmp_path) == [
        Record("train/a.jpg", f"{tmp_path}/train/a.jpg", ("a dog", "the dog"), TRAIN),
        Record("train/deep/b.PNG", f"{tmp_path}/train/deep/b.PNG", ("a cat",), TRAIN),
        Record("validation/c.webp", f"{tmp_path}/validation/c.webp", ("é",), VAL),
        Record("test/d.jpeg", f"{tmp_path}/test/d.jpeg", ("4 cats",), TEST),
    ]


def test_names_as_other_systems_write_them(tmp_path):
    """macOS decomposes accented letters in names, and Windows separates folders by backslashes."""
    composed, decomposed = (normalize(form, "été/café.jpg") for form in ("NFC", "NFD"))
    write(tmp_path / decomposed), write(tmp_path / "photos" / "a.jpg")
    rows = [["image", "caption"], [composed, "a cup"], ["photos\\a.jpg", "a dog"]]
    write(tmp_path / "captions.csv", csv_text(rows))
    found = {record.image_id: record.path for record in read("auto", tmp_path)}
    assert found == {
        composed: f"{tmp_path}/{decomposed}",
        "photos\\a.jpg": f"{tmp_path}/photos/a.jpg",
    }
    for text in (composed, decomposed):
        write(tmp_path / "texts" / decomposed)
        write(tmp_path / "texts" / text.replace("jpg", "txt"), "a cup")
        assert len(read("folder", tmp_path / "texts")) == 1
        shutil.rmtree(tmp_path / "texts")


# ── Recognised without a name ─────────────────────────────────────────────────────────────────────


def kaggle_8k(root):
    captions_txt(root, FLICKR[TRAIN])
    return "flickr8k"


def kaggle_30k(root):
    write(root / "results.csv", BAR_HEADER)
    for name in ("1000092795.jpg", "2199200615.jpg"):
        write(root / "flickr30k_images" / name)
    return "flickr30k"


def one_karpathy(root):
    karpathy(root / "dataset_coco.json", COCO_ENTRIES)
    for image in COCO_ENTRIES:
        write(root / image["filepath"] / image["filename"])
    return "karpathy"


@pytest.mark.parametrize("layout", [kaggle_8k, kaggle_30k, one_karpathy])
def test_data_sets_that_need_no_name(layout, tmp_path):
    name = layout(tmp_path)
    assert readers.detect(tmp_path) == (name, tmp_path, [])
    assert read("auto", tmp_path) == read(name, tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("folders", [("",), ("train", "validation")])
def test_metadata_of_hugging_face(folders, suffix, tmp_path):
    for folder in folders:
        text = (
            '{"file_name": "a.jpg", "text": "a dog"}'
            if suffix == "jsonl"
            else "file_name,text\na.jpg,a dog"
        )
        write(tmp_path / folder / f"metadata.{suffix}", text), write(tmp_path / folder / "a.jpg")
    found = read("auto", tmp_path)
    assert {record.captions for record in found} == {("a dog",)}
    if len(folders) > 1:
        assert [(r.image_id, r.split) for r in found] == [
            ("train/a.jpg", TRAIN),
            ("validation/a.jpg", VAL),
        ]


# ── Splits by hash ────────────────────────────────────────────────────────────────────────────────


def test_hash_splits_depend_on_names_only(tmp_path):
    first = splits_of(read("coco", coco(tmp_path / "coco", {"val2014": PART})))
    more = {f"new{i}.jpg": ["more"] for i in range(50)} | dict(reversed(PART.items()))
    second = splits_of(read("coco", coco(tmp_path / "b", {"train2017": more}, 77)))
    assert first == {name: split for name, split in second.items() if name in PART}
    assert first == splits_of(read("flickr8k", captions_txt(tmp_path / "flickr8k", PART)))
    sizes = Counter(first.values())
    assert sizes[VAL] == pytest.approx(50, abs=20)
    assert sizes[TEST] == pytest.approx(50, abs=20)


# ── The real data sets ────────────────────────────────────────────────────────────────────────────


def test_real_flickr8k(shared_data):
    records = read("flickr8k", shared_data / "flickr8k")
    assert Counter(r.split for r in records) == {TRAIN: 6000, VAL: 1000}
    assert {len(r.captions) for r in records} == {5}
    assert all(Path(r.path).is_file() for r in records[::500])


def test_real_coco(shared_data):
    records = read("coco", shared_data / "coco")
    assert records == read("coco2014", shared_data / "coco")  # not that of 2017
    assert (len(records), sum(len(r.captions) for r in records)) == (1465, 7327)
    assert {Path(r.path).parent.name for r in records} == {"val2014"}
    assert len(read("coco2017", shared_data / "coco")) == 80
