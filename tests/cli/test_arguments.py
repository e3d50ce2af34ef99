"""Arguments: help, suggestions, wrong values in one line, and outputs that are inputs."""

import os
import re
import shlex
import shutil
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from captioner.cli import training
from captioner.cli.list_models import GOOD_FOR
from captioner.cli.main import COMMANDS, main, module, parse
from captioner.errors import UsageError
from captioner.resources import bundled_models

# Help


def spoken(capsys, *arguments):
    try:
        status = main(list(arguments))
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert not captured.err
    assert not status
    return captured.out


@pytest.mark.parametrize("name", [*COMMANDS, *training.COMMANDS])
def test_help_of_a_command(name, capsys):
    short = spoken(capsys, *name.split(), "--help")
    assert spoken(capsys, "help", *name.split()) == short
    assert len(re.findall(rf"^  captioner {name}\b", short, re.MULTILINE)) >= 2
    assert len(short.splitlines()) <= 65
    training_only = name in training.COMMANDS
    more = ("trainer.strategy",) if training_only else getattr(module(name), "ADVANCED", ())
    whole = spoken(capsys, *name.split(), "--help-all") if more else ""
    assert not re.search(r"default:\s+(None\)|null\)|==SUPPRESS==)", short + whole)
    assert "default: [" not in short
    for option in more:
        flag = rf"^  --(data\.)?{option.replace('_', '[-_]')}\b"
        assert not re.search(flag, short, re.MULTILINE)
        assert re.search(flag, whole, re.MULTILINE)


def test_examples_are_parsed():
    for command in COMMANDS:
        for example in re.findall(r"^captioner .*$", module(command).__doc__, re.MULTILINE):
            parse(shlex.split(example, comments=True)[1:])


def test_captioner_alone_prints_the_help(capsys):
    text = spoken(capsys)
    assert text == spoken(capsys, "--help") == spoken(capsys, "help")
    for name in (*training.COMMANDS, *(name.split()[0] for name in COMMANDS)):
        assert re.search(rf"^ +{name}\s", text, re.MULTILINE), name
    assert "check" in spoken(capsys, "data")


def test_models_says_what_each_is_good_for(capsys, tmp_path):
    lines = spoken(capsys, "models", "--runs", str(tmp_path)).splitlines()
    assert [line.split()[0] for line in lines] == ["model", *bundled_models()]
    assert "(the default)" in lines[1]
    for name, line in zip(bundled_models(), lines[1:], strict=True):
        assert GOOD_FOR[name] in line
        assert re.search(r" \d\d\.\d +\d\d\.\d +\d+\.\d MB ", line)


def test_models_below_the_home_folder(tmp_path, monkeypatch, capsys):
    checkpoint = tmp_path / "experiments" / "soft" / "checkpoints" / "best.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    text = spoken(capsys, "models", "--runs", "~/experiments")
    assert text.endswith(f"{tmp_path}/experiments/soft  (your run)\n")


# Wrong values


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a photo and an empty folder."""
    Image.new("RGB", (9, 9)).save(tmp_path / "x.png")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


WRONG = [
    ("captoin x.png", "did you mean caption?"),
    ("--debgu caption x.png", "unknown option --debgu (did you mean --debug?)"),
    ("caption nowhere.jpg", "nowhere.jpg: no such file"),
    ("caption --mode=transformer x.png", "did you mean --model?"),
    ("caption --model=transfomer x.png", "known: transformer"),
    ("caption --device=gpu7 x.png", "device 'gpu7' cannot be used here"),
    ("caption --beam-size=0 x.png", "expected a whole number from 1 to 100, got '0'"),
    ("caption --format=jsno x.png", "did you mean jsonl?"),
    ("caption --format=csv --output=empty x.png", "csv is not written into a folder"),
    ("caption --output=captions.md x.png", "cannot tell the format of 'captions.md'"),
    ("caption --output=no/out.txt x.png", "cannot write into 'no': No such file"),
    ("caption --output= x.png", "an argument is empty (output)"),
    ("caption --output=. x.png", "not empty and holds no manifest.json"),
    ("caption --retry x.png", "--retry needs a folder: give --output DIR/"),
    ("caption s3://bucket/photos", "--output DIR/"),
    ("caption --beam-size=5 --temperature=1 x.png", "beam_size"),
    ("caption --diversity=1 x.png", "--diversity needs --diverse-groups"),
    ("caption --write=txt --prefix=\udcff x.png", "--prefix: expected text in UTF-8"),
    ("explain x.png --output=out --caption=\udcff", "--caption: expected text in UTF-8"),
    ("explain x.png --output=out --caption=!!!", "a sentence to explain has"),
    ("explain https://a.example/dog.jpg --output=out", "is a web address: download the photo"),
    ("explain x.png --output=x.png/out", "Not a directory"),
    ("ground --data=folder --root=. --split=tset", "did you mean test?"),
    (
        "ground --scenes=4 --scene-options max_object=3",
        "takes image_size=N, max_objects=N; got 'max_object=3'",
    ),
    ("data check --data.name=coco --data.root=nowhere", "nowhere"),
    ("fit --config=nowhere.yaml", "nowhere.yaml"),
    ("fit --config=configs/flickr8k.yaml", "data set 'flickr8k' needs its folder"),
    ("fit --config=configs/shapes.yaml --trainer.max_epoch=3", "mean --trainer.max_epochs?"),
    ("fit --config=configs/shapes.yaml --trainer.max_epochs=many", "max_epochs"),
    ("fit --config=configs/shapes.yaml --model.decoder.hiden=3", "'hiden' is not accepted"),
    ("fit --config=configs/shapes.yaml --ckpt_path=lsat", "did you mean last?"),
    ("test --config=configs/shapes.yaml", "no checkpoint 'runs/shapes/checkpoints/best.ckpt'"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_wrong_value_is_refused_in_one_line(call, message, folder, refused):
    assert message in refused(*shlex.split(call))
    assert {file.name for file in folder.iterdir()} == {"x.png", "empty"}


def options_of_a_run(root, **options):
    """The parsed options of a training command, as far as the choice of its folder reads them."""
    trainer = SimpleNamespace(default_root_dir=str(root))
    return SimpleNamespace(config=[], ckpt_path=None, trainer=trainer, **options)


def test_a_run_does_not_replace_the_configuration_that_it_is_given(tmp_path):
    (tmp_path / "config.yaml").write_text("data: {batch_size: 32}")
    options = options_of_a_run(tmp_path)
    options.config = [tmp_path / "config.yaml"]
    with pytest.raises(UsageError, match="is an input, and the run would replace it"):
        training.choose_run("fit", options)


def test_the_newest_checkpoint_is_resumed(tmp_path):
    """The newest may be last.ckpt or the file that Lightning saves before SLURM ends a job."""
    assert training._checkpoint("fit", "auto", tmp_path) is None
    last, saved = tmp_path / "checkpoints" / "last.ckpt", tmp_path / "hpc_ckpt_2.ckpt"
    last.parent.mkdir()
    for newest in (last, saved):
        newest.touch()
        os.utime(newest, (time.time() + 9, time.time() + 9))
        for option in ("auto", "last"):
            assert training._checkpoint("fit", option, tmp_path) == newest
        os.utime(newest, (0, 0))


# Outputs that are inputs


@pytest.fixture
def inputs(tmp_path, monkeypatch, tiny_folder):
    """One of each kind of input."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_folder, "model")
    Path("photos").mkdir()
    Image.new("RGB", (9, 9)).save("photos/a.jpg")
    for name in ("results.json", "references.json", "instances.json", "captions.csv"):
        Path(name).write_text("[]")
    shutil.copytree("model", "run/model")
    (tmp_path / "run" / "checkpoints").mkdir()
    zipfile.ZipFile(tmp_path / "run" / "checkpoints" / "best.ckpt", "w").close()
    (tmp_path / "run" / "results").mkdir()
    return tmp_path


COCO = "--instances instances.json --captions references.json --images photos"
CHECK = "data check --data.name"
RUN = "run/checkpoints/best.ckpt"
OVERWRITING = {
    "caption photos --model model --overwrite --format text --output": "photos/a.jpg model/config.json",
    f"caption photos/a.jpg --model {RUN} --overwrite --format text --output": f"photos/a.jpg {RUN}",
    "evaluate results.json --references references.json --overwrite --output": (
        "results.json references.json"
    ),
    f"ground {COCO} --model model --overwrite --output": "instances.json photos/a.jpg model/vocab.json",
    "ground --data csv --root captions.csv --model run --overwrite --output": (
        "captions.csv run/model/config.json"
    ),
    f"{CHECK} csv --data.root captions.csv --overwrite --output": "captions.csv",
    f"{CHECK} folder --data.root photos --overwrite --output": "photos/a.jpg",
    "compare run --output": f"run/results {RUN}",
    "export --model model --overwrite": "model model/config.json",
    f"export --model {RUN} --overwrite": "run run/checkpoints",
    "explain photos --model model --output": "photos photos/a.jpg",
}


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("command", "output", "link"),
    [
        (command, output, link)
        for command, outputs in OVERWRITING.items()
        for output in outputs.split()
        for link in (None, "symbolic", "hard")
        if link != "hard" or "." in output  # folders have no hard links
    ],
)
def test_an_input_is_not_overwritten(command, output, link, inputs, capsys):
    (inputs / "photos" / "config.yaml").write_text("data: {name: shapes}")
    target = Path(output)
    if link == "hard":
        Path("link").hardlink_to(target)
    elif link == "symbolic":
        Path("link").symlink_to(target)
    before = contents(inputs)
    assert main([*shlex.split(command), "link" if link else output]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert contents(inputs) == before
