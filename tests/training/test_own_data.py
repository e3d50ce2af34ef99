"""Photos of the user: which data set lies in a folder, and the example of docs/own-data.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

import captioner
from captioner.cli.main import main
from captioner.data.module import CaptionDataModule
from captioner.data.object_words import CategoryWords
from captioner.data.readers import detect, read
from captioner.errors import DataError
from captioner.evaluation.metrics import CaptionScorer
from captioner.language.vocabulary import Tokenizer
from layouts import coco, csv_text, picture, write

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
TABLE = "image,caption,split\na.png,a dog,train\nb.png,a cat,val\n"
LINES = '{"image": "a.png", "caption": "a dog"}\n{"image": "b.png", "caption": "a cat"}\n'


@pytest.mark.parametrize(
    ("files", "kind", "source"),
    [
        ({"a.txt": "a dog\n", "b.txt": "a cat\n"}, "folder", ""),
        (
            {"captions.csv": TABLE, "other.csv": "x", "a.txt": "", "b.txt": ""},
            "csv",
            "captions.csv",
        ),
        ({"mine.csv": TABLE}, "csv", "mine.csv"),
        ({"captions.jsonl": LINES, "mine.csv": "x"}, "jsonl", "captions.jsonl"),
    ],
)
def test_the_kind_of_data_set_is_found(files, kind, source, tmp_path):
    for name, text in files.items():
        write(tmp_path / name, text)
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    found = detect(tmp_path)
    assert found[:2] == (kind, tmp_path / source)
    assert len(found.left_aside) == list(files.values()).count("x")
    records = read("auto", tmp_path)
    assert {r.image_id: r.captions for r in records} == {"a.png": ("a dog",), "b.png": ("a cat",)}
    if source:
        assert detect(tmp_path / source) == (kind, tmp_path / source, [])


def test_annotations_of_coco_are_found_and_nothing_is_an_error(tmp_path):
    picture(tmp_path / "empty" / "a.png")
    with pytest.raises(DataError, match=r"no captions found in .*: expected a \.txt file beside"):
        read("auto", tmp_path / "empty")
    root = coco(tmp_path / "coco", {"val2014": {"a.jpg": ["a dog"]}})
    assert detect(root) == ("coco", root, [])


def test_tables_of_something_else_are_left_aside(tmp_path, capsys):
    """With the reason, in the line of ``fit`` and in the error."""
    picture(tmp_path / "train" / "a.png")
    write(tmp_path / "captions.csv", "file,size\na.png,12\n")
    write(tmp_path / "log.jsonl", '{"step": 1}\n')
    write(tmp_path / "none.csv")
    reasons = [
        f"'{tmp_path / 'captions.csv'}': expected a header with image and caption, got 'file,size'",
        f"'{tmp_path / 'none.csv'}': expected captions, found nothing",
        f'\'{tmp_path / "log.jsonl"}\' line 1: expected \'{{"image": "a.jpg", ',
    ]
    with pytest.raises(DataError, match="no captions found") as error:
        read("auto", tmp_path)
    assert all(reason in str(error.value) for reason in reasons)
    write(tmp_path / "train" / "a.txt", "a dog\n")
    found = detect(tmp_path)
    assert found[:2] == ("folder", tmp_path)
    assert len(found.left_aside) == 3
    assert CaptionDataModule("auto", str(tmp_path), min_count=1).words == ["a", "dog"]
    line, *rest = capsys.readouterr().out.splitlines()
    assert "in text files beside photos (data.name folder)" in line
    assert rest == [f"left aside: {reason}" for reason in found.left_aside]
    write(tmp_path / "mine.csv", TABLE)
    write(tmp_path / "more.jsonl", '{"image": "train/a.png", "caption": "a cat"}\n')
    others = [*found.left_aside, f"'{tmp_path / 'more.jsonl'}': the captions of "]
    used = detect(tmp_path)
    assert used[:2] == ("csv", tmp_path / "mine.csv")
    assert len(used.left_aside) == len(others) == 4
    main(["data", "check", "--data.root", str(tmp_path), "--workers", "1"])
    output = capsys.readouterr().out
    assert output.startswith(f"csv in {tmp_path / 'mine.csv'}\n")
    assert all(f"  left aside: {reason}" in output for reason in others)


def photos_of(kind: str, root: Path, table: Path) -> dict[str, list[str]]:
    """Write a table of photos of one kind: 87 for train, 13 for val, the others for test.

    A photo is of a kind if three of its captions name a category of it. The first hundred ids are for
    training. Returns the captions of the test photos.
    """
    instances = json.loads((root / "annotations" / "instances_train2017.json").read_text())
    kinds = {c["name"]: c["supercategory"] for c in instances["categories"]}
    finder, tokenize = CategoryWords(kinds), Tokenizer()

    def names_kind(caption: str) -> bool:
        return any(kinds[found] == kind for _, found in finder.find(tokenize(caption)))

    photos = sorted(read("coco2014", root), key=lambda record: int(record.image_id))
    photos = [r for r in photos if sum(map(names_kind, r.captions)) >= 3]
    splits = ["train" if number % 8 else "val" for number in range(100)]
    splits += ["test"] * (len(photos) - 100)
    rows = [
        [str(Path(record.path).resolve()), caption, split]
        for record, split in zip(photos, splits, strict=True)
        for caption in record.captions
    ]
    write(table, csv_text([["image", "caption", "split"], *rows]))
    return {str(Path(r.path).resolve()): list(r.captions) for r in photos[100:]}


DESIGN = shlex.split("""--model configs/model/show-attend-tell.yaml --model configs/model/luong-dot.yaml
--model.encoder.init_args.name efficientnet_lite0 --model.decoding.no_repeat 2
--trainer.enable_progress_bar false --overlays 0""")


@pytest.fixture
def start(shared_data, tmp_path_factory) -> Path:
    """A model trained on Flickr8k alone: the bundled models know the photos used here."""
    run = tmp_path_factory.mktemp("start")
    call = ["fit", "--config", "configs/flickr8k.yaml", *DESIGN, "--trainer.max_epochs", "2"]
    call += ["--data.root", str(shared_data / "flickr8k"), "--data.cache_dir", str(run / "cache")]
    call += ["--trainer.check_val_every_n_epoch", "2", "--trainer.default_root_dir", str(run)]
    assert main(call) == 0
    return run


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_photos_of_another_kind(start, shared_data, tmp_path):
    """Fine-tuning is better than the model as it was, and than training from scratch."""
    held_back = photos_of("vehicle", shared_data / "coco", tmp_path / "captions.csv")
    captions = captioner.load(start).caption(list(held_back))
    texts = {photo: caption.text for photo, caption in zip(held_back, captions, strict=True)}
    own = CaptionScorer(held_back, java=False).score(texts).cider
    call = ["fit", "--config", "configs/own.yaml", "--data.root", str(tmp_path / "captions.csv")]
    call += [*DESIGN, "--data.cache_dir", str(tmp_path / "cache")]
    tuned = [str(start), "--data.keep_vocabulary", str(start), "--model.learning_rate", "4e-4"]
    scratch = ["null", "--data.keep_vocabulary", "null", "--model.learning_rate", "1.2e-3"]
    ciders = []
    for name, options in (("tuned", tuned), ("scratch", scratch)):
        run = tmp_path / name
        options = ["--model.init_from", *options, "--trainer.default_root_dir", str(run)]
        assert main([*call, *options]) == 0
        config = str(run / "config.yaml")
        assert main(["test", "--config", config, "--data.test_split", "test"]) == 0
        record = json.loads((run / "results" / "test-beam5.json").read_text())
        ciders.append(record["scores"]["cider"])
    print(f"CIDEr {own:.1f} before, {ciders[0]:.1f} fine-tuned, {ciders[1]:.1f} from scratch")
    assert ciders[0] >= own + 10
    assert ciders[0] >= ciders[1] + 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_of_the_page(tmp_path, monkeypatch, capsys):
    """Every command of the page, in order, on twelve photos and with few steps."""
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        split = ("train", "val", "test")[number % 3]
        file = picture(Path("FOLDER", split, f"{number}.png"), number)
        if number != 3:
            file.with_suffix(".txt").write_text("a zebrafish and a dog\nmany zebrafish\n")
    picture(Path("photo.jpg"))
    commands = [
        shlex.split(line) for line in re.findall("^    captioner (.*)$", PAGE.read_text(), re.M)
    ]
    assert len(commands) > 8
    for command in commands:
        if command[0] == "fit":
            command += ["--trainer.max_steps", "4", "--trainer.val_check_interval", "1"]
            command += ["--trainer.enable_progress_bar", "false", "--data.cache_dir", "cache"]
        assert main(command) == 0, command
        printed = capsys.readouterr().out
        if command[0] == "fit":
            assert "found 12 photos with 23 captions in text files" in printed
            assert re.search(
                r"started from 'luong-dot': [\d,]+ words copied, 1 new, 0 dropped", printed
            )
    assert "zebrafish" in captioner.load("runs/own").vocabulary.words
    assert list(Path("runs/own/overlays").glob("*.png"))
    assert (Path("runs/own/model/README.md")).is_file()
    records = [json.loads(line) for line in Path("captions.jsonl").read_text().splitlines()]
    assert [len(record["captions"]) for record in records] == [5] * 12
