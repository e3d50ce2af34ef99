"""Every format against a small data set written here, with the quirks of the real ones."""

import csv
import io
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from captioner.data.readers import READERS, read, scan
from captioner.data.readers.splits import own
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record
from captioner.errors import DataError
from layouts import coco, picture


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def problems(name: str, root: Path) -> dict[str, list[str]]:
    return scan(name, root)[1].found


def test_every_reader_says_what_it_expects(tmp_path):
    for name in READERS:
        with pytest.raises(
            DataError, match=f"is not a folder; expected the folder of a {name} data set: [A-Zd]"
        ):
            read(name, tmp_path / "nowhere")
        with pytest.raises(DataError) as error:
            read(name, tmp_path)
        assert str(tmp_path) in str(error.value)


# ── COCO: which year ──────────────────────────────────────────────────────────────────────────────

YEARS = {f"{s}{y}": {f"{s}{y}.jpg": ["a"]} for s in ("train", "val") for y in (2014, 2017)}


@pytest.mark.parametrize(
    ("name", "there", "year"),
    [
        ("coco", YEARS, "2014"),
        ("coco2014", YEARS, "2014"),
        ("coco2017", YEARS, "2017"),
        ("coco", ["train2017", "val2017"], "2017"),
        ("coco2017", ["train2014", "val2014", "train2017", "val2017"], "2017"),
    ],
)
def test_the_year_is_chosen_by_name(name, there, year, tmp_path, caplog):
    coco(tmp_path, {part: YEARS[part] for part in there})
    assert [Path(r.path).name for r in read(name, tmp_path)] == [
        f"train{year}.jpg",
        f"val{year}.jpg",
    ]
    assert not caplog.records


def test_a_year_that_is_not_there(tmp_path):
    coco(tmp_path, {"val2014": {"a.jpg": ["a"]}})
    with pytest.raises(
        DataError, match=r"no 'annotations/captions_\*2017.json' .*; there are those of 2014"
    ):
        read("coco2017", tmp_path)


def test_images_in_a_folder_of_their_own(tmp_path):
    coco(tmp_path, YEARS)
    (tmp_path / "images").mkdir()
    for part in YEARS:
        (tmp_path / part).rename(tmp_path / "images" / part)
    assert {Path(r.path).parent.parent.name for r in read("coco", tmp_path)} == {"images"}


def test_years_of_the_real_coco(shared_data):
    root = shared_data / "coco"
    assert read("coco", root) == read("coco2014", root)
    (later,) = {Path(r.path).parent.name for r in read("coco2017", root)}
    assert (later, len(read("coco2017", root))) == ("train2017", 80)


# ── Karpathy ──────────────────────────────────────────────────────────────────────────────────────


def karpathy(file: Path, images: list[dict]) -> Path:
    return write(
        file, json.dumps({"dataset": file.stem.removeprefix("dataset_"), "images": images})
    )


def entry(number: int, name: str, split: str, *captions: str, **more) -> dict:
    """An image as Karpathy's files have it."""
    sentences = [
        {"tokens": c.split(), "raw": c, "imgid": number, "sentid": 5 * number + i}
        for i, c in enumerate(captions)
    ]
    return {"filename": name, "imgid": number, "split": split, "sentences": sentences, **more}


COCO_ENTRIES = [
    entry(0, "v1.jpg", "test", "A man .", " two men", filepath="val2014", cocoid=391895),
    entry(1, "v2.jpg", "restval", "a cat", filepath="val2014", cocoid=7),
    entry(2, "v3.jpg", "val", "a cow", filepath="val2014", cocoid=60623),
    entry(3, "t1.jpg", "train", "a dog", filepath="train2014", cocoid=522418),
]


@pytest.mark.parametrize("folder", [".", "annotations"])
@pytest.mark.parametrize("name", ["karpathy", "karpathy-coco"])
def test_karpathy_coco(folder, name, tmp_path):
    karpathy(tmp_path / folder / "dataset_coco.json", COCO_ENTRIES)
    for image in COCO_ENTRIES:
        write(tmp_path / image["filepath"] / image["filename"])
    assert read(name, tmp_path) == [
        Record(7, f"{tmp_path}/val2014/v2.jpg", ("a cat",), TRAIN),
        Record(522418, f"{tmp_path}/train2014/t1.jpg", ("a dog",), TRAIN),
        Record(60623, f"{tmp_path}/val2014/v3.jpg", ("a cow",), VAL),
        Record(391895, f"{tmp_path}/val2014/v1.jpg", ("A man .", "two men"), TEST),
    ]


@pytest.mark.parametrize(
    ("dataset", "folder"),
    [
        ("flickr8k", "Flicker8k_Dataset"),
        ("flickr8k", "Images"),
        ("flickr30k", "flickr30k-images"),
        ("flickr30k", "flickr30k_images/flickr30k_images"),
    ],
)
def test_karpathy_flickr(dataset, folder, tmp_path):
    entries = [entry(10, "a.jpg", "train", "a dog"), entry(2, "b.jpg", "val", "a cat")]
    karpathy(tmp_path / f"dataset_{dataset}.json", entries)
    for image in entries:
        write(tmp_path / folder / image["filename"])
    expected = [
        Record(10, f"{tmp_path}/{folder}/a.jpg", ("a dog",), TRAIN),
        Record(2, f"{tmp_path}/{folder}/b.jpg", ("a cat",), VAL),
    ]
    assert read("karpathy", tmp_path) == read(f"karpathy-{dataset}", tmp_path) == expected


def test_of_several_karpathy_files_one_is_chosen(tmp_path):
    karpathy(tmp_path / "dataset_coco.json", COCO_ENTRIES[:1])
    karpathy(tmp_path / "dataset_flickr8k.json", [])
    write(tmp_path / "val2014" / "v1.jpg")
    with pytest.raises(
        DataError, match=r"choose one with --data.name karpathy-coco or karpathy-flickr8k"
    ):
        read("karpathy", tmp_path)
    assert len(read("karpathy-coco", tmp_path)) == 1


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"images": [7]}',
        '{"images": [{}]}',
        '{"images": [{"filename": "a.jpg", "imgid": null, "split": "train", "sentences": []}]}',
        '{"images": [{"filename": "a.jpg", "imgid": 1, '
        '"split": "train", "sentences": [{"raw": null}]}]}',
        "{",
    ],
)
def test_broken_karpathy(content, tmp_path):
    file = write(tmp_path / "dataset_coco.json", content)
    with pytest.raises(
        DataError, match=r"is not one of Karpathy's files|is not readable JSON"
    ) as error:
        read("karpathy", tmp_path)
    assert str(file) in str(error.value)


def test_all_problems_of_karpathy_at_once(tmp_path):
    entries = [
        *COCO_ENTRIES[:2],
        entry(4, "v4.jpg", "later", "a", filepath="val2014", cocoid=7),
        entry(5, "v5.jpg", "train", "...", filepath="val2014", cocoid=8),
        entry(6, "v1.jpg", "train", "a", filepath="val2014", cocoid=9),
    ]
    karpathy(tmp_path / "dataset_coco.json", entries)
    for name in ("v1.jpg", "v4.jpg", "v5.jpg"):
        write(tmp_path / "val2014" / name)
    assert problems("karpathy", tmp_path) == {
        "no-words": ["val2014/v5.jpg: '...'"],
        "no-captions": ["val2014/v5.jpg"],
        "no-split": ["val2014/v4.jpg: 'later'"],
        "duplicate-id": ["7"],
        "duplicate-path": [f"{tmp_path}/val2014/v1.jpg"],
        "missing": [f"{tmp_path}/val2014/v2.jpg"],
    }


@pytest.mark.slow
def test_real_flickr8k_through_karpathy(shared_data, tmp_path):
    """The same records as from the original files, but for the numbers that Karpathy gives them."""
    real = read("flickr8k", shared_data / "flickr8k")
    entries = [
        entry(i, Path(r.path).name, r.split, *r.captions) for i, r in enumerate(reversed(real))
    ]
    karpathy(tmp_path / "dataset_flickr8k.json", entries)
    (tmp_path / "Flicker8k_Dataset").symlink_to(shared_data / "flickr8k" / "Flicker8k_Dataset")
    names = {image["imgid"]: image["filename"] for image in entries}
    found = {
        (names[r.image_id], Path(r.path).name, r.captions, r.split)
        for r in read("karpathy-flickr8k", tmp_path)
    }
    assert found == {(r.image_id, Path(r.path).name, r.captions, r.split) for r in real}
    assert len(found) == 7000


# ── Flickr30k ─────────────────────────────────────────────────────────────────────────────────────

TOKENS = """1000092795.jpg#0\tTwo young guys , one "cool" , talk | look .
1000092795.jpg#1\tTwo men .
2199200615.jpg#4\tA dog runs across the grass .
"""
BARS = """image_name| comment_number| comment
1000092795.jpg| 0| Two young guys , one "cool" , talk | look .
1000092795.jpg| 1| Two men .
2199200615.jpg| 4   A dog runs across the grass .
"""  # so, without its second bar, in the file that Kaggle has
COMMAS = """image_name,comment_number,comment
1000092795.jpg,0," Two young guys , one ""cool"" , talk | look ."
1000092795.jpg, 1, Two men .
2199200615.jpg, 4   A dog runs across the grass .,
"""
PAIRS = """image,caption
1000092795.jpg,"Two young guys , one ""cool"" , talk | look ."
1000092795.jpg,Two men .
2199200615.jpg,A dog runs across the grass .
"""
FILES_30K = {
    "results_20130124.token": TOKENS,
    "results.csv": BARS,
    "captions.txt": COMMAS,
    "./captions.txt": PAIRS,
}


@pytest.mark.parametrize("name", FILES_30K)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("images", "texts"),
    [
        ("flickr30k-images", "."),
        ("flickr30k_images", "."),
        ("Images", "."),
        ("flickr30k_images/flickr30k_images", "flickr30k_images"),
        ("data/flickr30k_images/flickr30k_images", "data"),
    ],
)
def test_flickr30k(name, newline, images, texts, tmp_path):
    write(tmp_path / texts / name, FILES_30K[name].replace("\n", newline))
    for image in ("1000092795.jpg", "2199200615.jpg"):
        write(tmp_path / images / image)
    assert {r.image_id: (r.path, r.captions) for r in read("flickr30k", tmp_path)} == {
        "1000092795.jpg": (
            f"{tmp_path}/{images}/1000092795.jpg",
            ('Two young guys , one "cool" , talk | look .', "Two men ."),
        ),
        "2199200615.jpg": (
            f"{tmp_path}/{images}/2199200615.jpg",
            ("A dog runs across the grass .",),
        ),
    }


def test_split_lists_of_flickr30k_entities(tmp_path):
    names = {"train": "1 2", "val": "3", "test": "4"}
    write(
        tmp_path / "results.csv",
        BARS.splitlines()[0] + "".join(f"\n{i}.jpg| 0| a {i}" for i in range(1, 6)),
    )
    for split, numbers in names.items():
        write(tmp_path / "flickr30k_entities" / f"{split}.txt", numbers.replace(" ", "\n") + "\n")
    for i in range(1, 6):
        write(tmp_path / "flickr30k-images" / f"{i}.jpg")
    found = {r.image_id: r.split for r in read("flickr30k", tmp_path)}
    assert found == {f"{n}.jpg": split for split, numbers in names.items() for n in numbers.split()}


@pytest.mark.parametrize(
    ("name", "content", "kind", "said"),
    [
        (
            "results.csv",
            "image|comment\n1.jpg|a",
            "file",
            "expected the header 'image_name| comment_number| comment'",
        ),
        ("results.csv", "", "file", "expected the header"),
        (
            "results.csv",
            BARS + "1.jpg\n1.jpg| a dog\n",
            "line",
            "line 6: expected 'image_name| comment_number| comment', got '1.jpg| a d",
        ),
        (
            "captions.txt",
            COMMAS + "1.jpg,0\n",
            "line",
            "line 5: expected 'image_name,comment_number,comment', got ['1.jpg', '0']",
        ),
        (
            "results_20130124.token",
            "1.jpg a dog\n",
            "line",
            "line 1: expected 'name.jpg#0<TAB>caption'",
        ),
    ],
)
def test_broken_flickr30k(name, content, kind, said, tmp_path):
    file = write(tmp_path / name, content)
    for image in ("1000092795.jpg", "2199200615.jpg"):
        write(tmp_path / "flickr30k-images" / image)
    found = problems("flickr30k", tmp_path)
    assert set(found) == {kind}
    assert said in found[kind][-1]
    assert str(file) in found[kind][-1]


def test_the_name_that_flickr8k_has_no_picture_of(tmp_path):
    """Flickr8k.token.txt captions 2258277193_586949ec62.jpg.1, which nobody has and no list names."""
    write(tmp_path / "Flickr8k.token.txt", "a.jpg#0\ta dog\na.jpg.1#0\ta cat\n")
    write(tmp_path / "Flicker8k_Dataset" / "a.jpg")
    assert [r.image_id for r in read("flickr8k", tmp_path)] == ["a.jpg"]


# ── Tables of one's own ───────────────────────────────────────────────────────────────────────────

ROWS = [
    ("photos/1.jpg", ["a dog, brown", 'a "dog"'], "train"),
    ("photos/2.jpg", ["two\u2028cats"], "dev"),
    ("3.png", ["a cow"], "Test "),
]


def as_jsonl(rows, key="captions") -> str:
    return "".join(
        json.dumps({"image": i, key: c, "split": s, "other": 1}) + "\n" for i, c, s in rows
    )


def as_csv(rows, split=True) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["note", "image", "caption", *(["split"] if split else [])])
    for image, captions, name in rows:
        for caption in captions:
            writer.writerow(["x", image, caption, *([name] if split else [])])
    return stream.getvalue()


def as_wide_csv(rows) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["image", "caption_1", "caption_2", "split"])
    for image, captions, name in rows:
        writer.writerow([image, *captions, *[""] * (2 - len(captions)), name])
    return stream.getvalue()


TABLES = [
    ("jsonl", as_jsonl(ROWS)),
    ("jsonl", as_jsonl(ROWS, "caption")),
    ("jsonl", as_jsonl([(i, [c], s) for i, cs, s in ROWS for c in cs])),
    ("jsonl", as_jsonl([(i, c, s) for i, cs, s in ROWS for c in cs], "caption")),
    ("jsonl", "\n" + as_jsonl(ROWS).replace("photos/1", "./photos//1")),
    ("csv", as_csv(ROWS)),
    ("csv", "\ufeff" + as_csv(ROWS).replace("\r\n", "\n\n")),
    ("csv", as_wide_csv(ROWS)),
]


@pytest.mark.parametrize("number", range(len(TABLES)))
@pytest.mark.parametrize("by_file", [True, False])
def test_tables(number, by_file, tmp_path):
    suffix, text = TABLES[number]
    file = write(tmp_path / f"mine.{suffix}", text)
    for image, _, _ in ROWS:
        write(tmp_path / image)
    assert read(suffix, file if by_file else tmp_path) == [
        Record("photos/1.jpg", f"{tmp_path}/photos/1.jpg", ("a dog, brown", 'a "dog"'), TRAIN),
        Record("photos/2.jpg", f"{tmp_path}/photos/2.jpg", ("two\u2028cats",), VAL),
        Record("3.png", f"{tmp_path}/3.png", ("a cow",), TEST),
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_table_without_splits_gets_our_own(suffix, tmp_path):
    names = [f"{i}.jpg" for i in range(60)]
    rows = [(name, ["a"], None) for name in names]
    write(
        tmp_path / f"a.{suffix}", as_jsonl(rows) if suffix == "jsonl" else as_csv(rows, split=False)
    )
    for name in names:
        write(tmp_path / name)
    found = {r.image_id: r.split for r in read(suffix, tmp_path)}
    assert found == {name: own(name) for name in names}
    assert set(found.values()) == set(SPLITS)


def test_pictures_elsewhere(tmp_path):
    there = write(tmp_path / "far" / "away.jpg")
    above = write(tmp_path / "above.jpg")
    rows = [(str(there), ["a"], "train"), ("../above.jpg", ["b"], "train")]
    file = write(tmp_path / "here" / "a.jsonl", as_jsonl(rows))
    records = read("jsonl", file)
    assert {Path(r.path).resolve() for r in records} == {there.resolve(), above.resolve()}
    assert {r.image_id for r in records} == {str(there), "../above.jpg"}


def test_what_the_caption_command_writes_can_be_trained_on(tmp_path):
    write(tmp_path / "a.jpg")
    lines = [
        {
            "image": "a.jpg",
            "caption": "a dog",
            "words": ["a", "dog"],
            "log_prob": -1.0,
            "model": "m",
        }
    ]
    write(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    (record,) = read("jsonl", tmp_path)
    assert record.captions == ("a dog",)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        "{}",
        '{"image": 7, "caption": "a"}',
        '{"image": "a.jpg", "captions": [7]}',
        '{"image": "a.jpg", "caption": null}',
        "a.jpg,a dog",
        "[" * 100_000,
    ],
)
def test_broken_lines_of_jsonl(line, tmp_path):
    write(tmp_path / "a.jpg")
    write(tmp_path / "a.jsonl", f'{{"image": "a.jpg", "caption": "a"}}\n\n{line}\n{line}\n')
    found = problems("jsonl", tmp_path)
    assert set(found) == {"line"}
    first, second = found["line"]
    assert f"'{tmp_path}/a.jsonl' line 3: expected " in first
    assert " line 4: expected " in second


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "file,text\na.jpg,a dog\n",
            "file",
            "expected a header with image and caption, got 'file,text'",
        ),
        ("image,split\na.jpg,train\n", "file", "expected a header with image and caption"),
        (
            "image,caption\na.jpg,a dog, a cat\n",
            "line",
            "line 2: expected 'image,caption', got ['a.jpg'",
        ),
        ('image,caption\na.jpg,"a dog\n', "file", "expected rows quoted as CSV has it"),
        ("image,caption\na.jpg,...\n", "no-captions", "a.jpg"),
        ("image,caption,split\na.jpg,a,train\na.jpg,b,val\n", "no-split", "a.jpg: 'train', 'val'"),
        ("image,caption,split\na.jpg,a,train\nb.jpg,b,\n", "no-split", "b.jpg: none"),
        ("image,caption,split\na.jpg,a,later\n", "no-split", "a.jpg: 'later'"),
        ("image,caption\nb.jpg,a\n", "missing", "b.jpg"),
    ],
)
def test_broken_csv(text, kind, said, tmp_path):
    write(tmp_path / "a.jpg")
    write(tmp_path / "a.csv", text)
    assert said in problems("csv", tmp_path)[kind][0]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_which_table(suffix, tmp_path):
    with pytest.raises(
        DataError, match=rf"expected one \.{suffix} file in .*, found none; .*--data.root FILE"
    ):
        read(suffix, tmp_path)
    write(tmp_path / f"a.{suffix}"), write(tmp_path / f"b.{suffix}")
    with pytest.raises(DataError, match=rf"found a\.{suffix}, b\.{suffix}; "):
        read(suffix, tmp_path)
    with pytest.raises(DataError, match="no captioned image found"):
        read(suffix, tmp_path / f"a.{suffix}")
    write(tmp_path / f"a.{suffix}").write_bytes("é".encode("latin-1"))
    assert "cannot be read as UTF-8" in problems(suffix, tmp_path / f"a.{suffix}")["file"][0]


# ── A folder ──────────────────────────────────────────────────────────────────────────────────────


def folder(root: Path, captions: dict[str, str]) -> Path:
    for name, text in captions.items():
        write(root / name)
        write((root / name).with_suffix(".txt"), text)
    return root


def test_a_folder_with_splits(tmp_path):
    folder(
        tmp_path,
        {
            "train/a.jpg": "a dog\n\n the dog \r\n",
            "train/deep/b.PNG": "a cat",
            "validation/c.webp": "é",
            "test/d.jpeg": "4",
        },
    )
    write(tmp_path / "train" / ".hidden.jpg"), write(tmp_path / ".cache" / "notes.txt", "x")
    assert read("folder", tmp_path) == [
        Record("train/a.jpg", f"{tmp_path}/train/a.jpg", ("a dog", "the dog"), TRAIN),
        Record("train/deep/b.PNG", f"{tmp_path}/train/deep/b.PNG", ("a cat",), TRAIN),
        Record("validation/c.webp", f"{tmp_path}/validation/c.webp", ("é",), VAL),
        Record("test/d.jpeg", f"{tmp_path}/test/d.jpeg", ("4",), TEST),
    ]


def test_a_folder_without_splits_gets_our_own(tmp_path):
    names = [f"{place}{i}.jpg" for place in ("", "more/") for i in range(40)]
    folder(tmp_path, dict.fromkeys(names, "a"))
    assert {r.image_id: r.split for r in read("folder", tmp_path)} == {n: own(n) for n in names}


def test_all_problems_of_a_folder_at_once(tmp_path):
    folder(
        tmp_path, {"train/a.jpg": "a", "train/b.jpg": " ... \n", "c.jpg": "c", "other/d.jpg": "d"}
    )
    write(tmp_path / "train" / "e.jpg"), write(tmp_path / "train" / "README.txt", "a")
    (tmp_path / "train" / "a.txt").write_bytes("é".encode("latin-1"))
    found = problems("folder", tmp_path)
    assert "train/a.txt' cannot be read as UTF-8" in found.pop("file")[0]
    assert found == {
        "no-split": ["c.jpg", "other/d.jpg"],
        "no-words": ["train/b.jpg: '...'"],
        "no-captions": ["train/a.jpg", "train/b.jpg", "train/e.jpg"],
        "no-image": ["train/README.txt"],
    }


# ── The same pictures in every format ─────────────────────────────────────────────────────────────


def test_all_formats_give_the_same(tmp_path):
    """Names, captions and splits; every combination of how many captions and which split."""
    cases = list(itertools.product((1, 2, 5), SPLITS))
    truth = {
        f"{i}.jpg": ([f"picture {i}, caption {j}" for j in range(count)], split)
        for i, (count, split) in enumerate(cases)
    }
    roots = {
        name: tmp_path / name
        for name in ("coco", "karpathy", "flickr8k", "flickr30k", "jsonl", "csv", "folder")
    }
    coco(
        roots["coco"],
        {f"{s}2017": {n: c for n, (c, split) in truth.items() if split == s} for s in SPLITS},
    )
    for name, (captions, split) in truth.items():
        for where in (
            "karpathy/Images",
            "flickr8k/Images",
            "flickr30k/Images",
            "jsonl",
            "csv",
            f"folder/{split}",
        ):
            picture(tmp_path / where / name)
        write(roots["folder"] / split / f"{Path(name).stem}.txt", "\n".join(captions))
    entries = [entry(i, n, s, *c) for i, (n, (c, s)) in enumerate(truth.items())]
    karpathy(roots["karpathy"] / "dataset_flickr8k.json", entries)
    tokens = "".join(f"{n}#{i}\t{c}\n" for n, (cs, _) in truth.items() for i, c in enumerate(cs))
    write(roots["flickr8k"] / "Flickr8k.token.txt", tokens)
    write(roots["flickr30k"] / "results_20130124.token", tokens)
    for split, part in {TRAIN: "train", VAL: "dev", TEST: "test"}.items():
        names = [n for n, (_, s) in truth.items() if s == split]
        write(roots["flickr8k"] / f"Flickr_8k.{part}Images.txt", "\n".join(names))
        write(roots["flickr30k"] / f"{split}.txt", "\n".join(Path(n).stem for n in names))
    rows = [(n, c, s) for n, (c, s) in truth.items()]
    write(roots["jsonl"] / "a.jsonl", as_jsonl(rows)), write(roots["csv"] / "a.csv", as_csv(rows))
    for name, root in roots.items():
        records = read(name, root)
        assert {Path(r.path).name: (list(r.captions), r.split) for r in records} == truth, name
        assert Counter(r.split for r in records) == dict.fromkeys(SPLITS, 3)
        assert all(Path(r.path).is_file() for r in records)
