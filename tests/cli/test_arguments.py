"""Arguments: help, suggestions, and wrong values refused before anything slow is imported."""

import inspect
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from PIL import Image

import runs
from captioner import limits
from captioner.cli import checks, devices, training
from captioner.cli.list_models import GOOD_FOR
from captioner.cli.main import COMMANDS, _parser, main
from captioner.data import shapes_dataset
from captioner.data.readers import READERS
from captioner.data.records import SPLITS
from captioner.data.scene_grammar import COUNTS
from captioner.errors import UsageError
from captioner.evaluation.image_statistics import ENDING
from captioner.models import registry
from captioner.resources import bundled_models
from captioner.training.run import CLI, CaptionDataModule, CaptioningTask, Trainer

OPTIONS = Path(training.__file__).with_name("training_options.json")
FILE = {"ActionConfigFile": ["file"], "_ActionConfigLoad": ["file"]}
SECONDS = 1.0
"""Processor time in which a wrong argument is refused."""


def kinds(hint):
    """The plain values of a type; None if it takes others."""
    if hint in (int, float, bool):
        return [hint.__name__]
    if hint is type(None):
        return ["null"]
    if get_origin(hint) is Literal:
        return list(map(str, get_args(hint)))
    if getattr(hint, "__name__", "") == "NonNegativeInt":
        return ["int"]
    parts = [kinds(part) for part in get_args(hint)]
    if not parts or None in parts:
        return None
    return sorted({kind for part in parts for kind in part})


def declared():
    """The options of LightningCLI's parser, those of all commands apart."""
    parsers = {}

    class Parse(CLI):
        def parse_arguments(self, parser, args):
            parsers.update(parser._subcommands_action._name_parser_map)
            raise SystemExit

    with pytest.raises(SystemExit):
        Parse(CaptioningTask, CaptionDataModule, trainer_class=Trainer)
    options = {
        command: {
            option: FILE.get(type(action).__name__) or kinds(getattr(action, "_typehint", None))
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("-")
        }
        for command, parser in parsers.items()
    }
    for known in options.values():
        for part in ("encoder", "neck", "decoder"):
            known[f"--model.{part}"] = ["class", *sorted(registry.names(part))]
        known["--data.name"] = sorted([*READERS, "shapes"])
        known["--data.test_split"] = list(SPLITS)
    every = {
        name: kind
        for name, kind in options["fit"].items()
        if all(known.get(name, "") == kind for known in options.values())
    }
    return {
        "all": every,
        **{c: {n: k for n, k in known.items() if n not in every} for c, known in options.items()},
    }


def test_names_are_those_of_the_modules_that_are_not_imported():
    """The checks repeat them, because the imports take longer than the checks."""
    assert tuple(sorted(READERS)) == checks.DATA
    assert GOOD_FOR.keys() == bundled_models().keys()
    assert checks.STATISTICS == ENDING
    assert {*checks.SCENE_OPTIONS} < {*inspect.signature(shapes_dataset.write).parameters}
    assert limits.SCENE["max_objects"].high == len(COUNTS)
    assert limits.SCENES.high == shapes_dataset.SPLIT_ROOM - 1


def test_the_options_of_training_are_those_of_its_parser():
    text = json.dumps(declared(), indent=0, sort_keys=True) + "\n"
    if os.environ.get("CAPTIONER_REFRESH_OPTIONS"):
        OPTIONS.write_text(text)
    assert OPTIONS.read_text() == text, "refresh it with CAPTIONER_REFRESH_OPTIONS=1"


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
    more = ("trainer.strategy",) if training_only else getattr(COMMANDS[name], "ADVANCED", ())
    whole = spoken(capsys, *name.split(), "--help-all") if more else ""
    assert not re.search(r"default:\s+(None\)|null\)|==SUPPRESS==)", short + whole)
    assert "default: [" not in short
    for option in more:
        flag = rf"^  --(data\.)?{option.replace('_', '[-_]')}\b"
        assert not re.search(flag, short, re.MULTILINE)
        assert re.search(flag, whole, re.MULTILINE)


def test_examples_are_parsed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("DIR").mkdir()
    for module in COMMANDS.values():
        for example in re.findall(r"^captioner .*$", module.__doc__, re.MULTILINE):
            _parser().parse_args(shlex.split(example, comments=True)[1:])
    for command in training.COMMANDS:
        for example in training._parser(command).epilog.splitlines()[1:]:
            _, given, *words = map(training._shipped, shlex.split(example, comments=True))
            shutil.rmtree("runs", ignore_errors=True)
            if command not in ("fit", "prepare") or "last" in words:
                write_run(Path("runs/flickr8k"), re.sub("(?s)model:.*?trainer", "trainer", SAVED))
            assert given == command
            training.check(command, words)


def test_captioner_alone_prints_the_help(capsys):
    text = spoken(capsys)
    assert text == spoken(capsys, "--help") == spoken(capsys, "help")
    for name in (*training.COMMANDS, *(name.split()[0] for name in COMMANDS)):
        assert re.search(rf"^ +{name}\s", text, re.MULTILINE), name
    assert "check" in spoken(capsys, "data")


def test_models_says_what_each_is_good_for(capsys):
    lines = spoken(capsys, "models", "--runs", str(OPTIONS.parent)).splitlines()
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
    """The current folder, with a photo and files that fit no option."""
    Image.new("RGB", (9, 9)).save(tmp_path / "x.png")
    (tmp_path / "file").write_text("[]")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"format_version": "two"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


FLICKR = "--config=configs/flickr8k.yaml"
WRONG = [
    ("nonsense", "unexpected value 'nonsense'"),
    ("captoin x.png", "did you mean caption?"),
    ("--debgu caption x.png", "unknown option --debgu (did you mean --debug?)"),
    ("caption nowhere.jpg", "nowhere.jpg: no such file"),
    ("caption --modle=transformer x.png", "did you mean --model?"),
    ("caption --model=transfomer x.png", "did you mean transformer?"),
    ("caption --device=gpu7 x.png", "unknown device 'gpu7'"),
    ("caption --format=jsno x.png", "did you mean jsonl?"),
    ("caption --format=csv --output=empty x.png", "not csv"),
    ("caption --output=/proc/out.txt x.png", "leave --output out"),
    ("caption --output=/sys/out.txt x.png", "check the path, its permissions"),
    *((f"caption --output=out{s} x.png", "named like a photo") for s in (".jpg", ".HEIC", ".dng")),
    ("caption --output=- x.png", "leave --output out"),
    ("caption --output= x.png", "an argument is empty (output)"),
    (f"caption {'x' * 300}", "x: File name too long; expected a photo"),
    ("caption --output=. x.png", "not empty and holds no manifest.json"),
    ("caption --engine=local x.png", "--engine writes into a folder: give it with --output DIR"),
    ("caption --retry x.png", "--retry writes into a folder"),
    ("caption s3://bucket/photos", "--output DIR/"),
    ("caption file:///x.png", "give its path, without file://"),
    ("explain x.png --output=out --caption=!!!", "at least one word"),
    (f"explain x.png --output=out --caption='{'a ' * 300}'", "at most 200 words of 100 letters"),
    ("explain x.png --output=out --method=rollout", "'luong-dot' has no such layers"),
    ("ground --scenes=4 --method=rollout", "'luong-dot' has no such layers"),
    ("explain x.png --output=out --layer=9", "one map for each word: leave out --layer"),
    (
        "explain x.png --output=out --model=transformer --head=9",
        "no head 9: 'transformer' has 8 heads",
    ),
    ("caption x.png --confidence --seed=1", "the model's own search: leave out --seed"),
    ("caption x.png --min-confidence=0 --beam-size=5", "own search: leave out --beam-size"),
    ("explain x.png --output=. --formats png", "it is an input or holds one"),
    ("evaluate file --references=nowhere.json", "nowhere.json"),
    ("caption --model=broken x.png", "has format_version 'two', this captioner"),
    ("fit --data.name=shapes --model.init_from=broken", "broken/config.json' has format_version"),
    ("evaluate file --references=file", "file has no reference captions"),
    ("ground --images=. --captions=file --instances=file", "file has no reference captions"),
    ("data check --data.name=coco --data.root=.", "no 'annotations/captions_*.json'"),
    ("evaluate x.png --references=file", "'x.png' is not JSON"),
    ("ground --scenes=1000000", "--scenes: expected a whole number from 1 to 999,999"),
    ("ground --images=file --captions=file --instances=file", "is not a folder"),
    ("ground --split=val", "give --instances"),
    ("ground --data=folder --root=. --split=tset", "did you mean test?"),
    ("ground --scene-options max_object=3", "did you mean max_objects?"),
    ("ground --scene-options image_size=31", "must be a whole number from 32 to 4,096"),
    ("demo --port={busy}", ": another program uses the port; give another --port"),
    ("demo --host=192.0.2.1", "7860: it is no address of this machine; check --host"),
    ("demo --allowed-host=http://x/", "must be a host name"),
    ("data check --data.name=coco --data.root=nowhere", "nowhere"),
    ("data check --data.name=coco --data.root=~nobody_here/x", "is not a folder"),
    ("fit", "give --config FILE"),
    (f"fit {FLICKR}", "data set 'flickr8k' needs its folder"),
    ("fit --config=file", "'file' is not a configuration"),
    ("fit --config=configs/shapes.yaml --trainer.accelerator=gup", "did you mean gpu?"),
    (
        "fit --config=configs/shapes.yaml --trainer.max_epoch=3",
        "did you mean --trainer.max_epochs?",
    ),
    ("test --config=configs/shapes.yaml", "no checkpoint 'runs/shapes/checkpoints/best.ckpt'"),
    ("caption --mode=transformer x.png", "did you mean --model?"),
    ("configs nowhere/x", "the folder 'nowhere' does not exist"),
    ("fit --data.name=coc", "did you mean coco?"),
    ("fit --model.decodr.hidden=3", "unknown option"),
    ("fit --model.decoder.class_path=LSTMDecodr", "did you mean LSTMDecoder?"),
    ("fit --model configs/model/transfomer.yaml", "did you mean configs/model/transformer.yaml?"),
    ("fit --seed_everything=4294967296", "from 0 to 4,294,967,295"),
    ("fit --trainer.max_epochs=many", "expected a whole number"),
    ("fit --data.name=shapes --trainer.default_root_dir=file", "is a file"),
    ("fit --data.name=shapes --model.init_from=nowhere", "nowhere"),
    (f"fit {FLICKR} --data.root=. --ckpt_path=lsat", "did you mean last?"),
    ("fit --config=configs/shapes.yaml --ckpt_path=configs/shapes.yaml", "is not a checkpoint"),
    ("fit --config=configs/shapes.yaml --model.learning_rate=-1", "must be a number above 0"),
    ("fit --config=configs/shapes.yaml --trainer.max_epochs=-5", "a whole number of 1 or more"),
    (f"test {FLICKR} --data.test_split=tset", "did you mean test?"),
    (f"fit {FLICKR} --data.root=", "needs its folder: give --data.root DIR"),
    (f"fit {FLICKR} --data.root=. --data.entities=nowhere", "'nowhere' is not a folder"),
    (f"fit {FLICKR} --data.root=. --data.sources=x", "--data.sources: expected a list such as"),
]
if not devices.has_gpu():
    WRONG += [
        ("fit --data.name=shapes --trainer.devices=9999", "--trainer.devices: expected 1 to"),
        ("fit --data.name=shapes --trainer.devices=-1", "--trainer.devices: expected 1 to"),
        ("fit --data.name=shapes --trainer.accelerator gpu", "this machine has no 'gpu'"),
        ("caption --device=cuda x.png", "this machine has no 'cuda'"),
    ]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_a_wrong_value_is_refused_within_a_second(call, message, folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = shlex.split(call.format(busy=server.getsockname()[1]))
        command = [sys.executable, "-m", "captioner", *words]
        before = os.times()
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=runs.environment()
        )
        after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("captioner: ")
    assert message in line
    assert seconds <= SECONDS
    assert {file.name for file in folder.iterdir()} == {"x.png", "file", "empty", "loop", "broken"}


def test_right_values_of_training_pass(folder):
    """LightningCLI takes more than plain values."""
    words = """-c configs/shapes.yaml --config=configs/flickr8k.yaml --seed_everything 5
        --seed_everything=true --data.root . --data.cache images --data.cache=no --data '{name: csv}'
        --ckpt_path null --model.init_from=transformer --model configs/model/transformer.yaml
        --model.decoder.class_path LSTMDecoder --model.decoder.hidden 9 --overlays 0 --weights_only true
        --model.decoder.init_args.attention.score Dot --model.decoder.help LSTMDecoder
        --model.encoder captioner.models.CNNEncoder --model.encoder.name=timm/resnet10t.c3_in1k
        --model.decoder '{class_path: LSTMDecoder}' --model.learning_rate 1e-3 --model.objective
        Reinforce --trainer.devices 1 --trainer.precision=bf16-mixed --trainer.logger false
        --trainer.callbacks+=EMA --trainer.callbacks.patience 3 --trainer.max_epochs=null
        --trainer.max_time 00:01:00:00 --trainer.limit_val_batches .5 --trainer.profiler simple
        --trainer.default_root_dir runs/new --trainer configs/trainer/cpu.yaml"""
    chosen = training.check("fit", list(map(training._shipped, shlex.split(words))))
    assert chosen == ["--trainer.default_root_dir=runs/new", "--ckpt_path=null"]


SAVED = """
data: {name: shapes, min_count: 5, batch_size: 32}
model:
  encoder: {class_path: captioner.models.encoder.CNNEncoder, init_args: {name: timm/y.in1k}}
  decoder: {class_path: captioner.models.luong.LuongDecoder, init_args: {hidden: 256, dropout: 0.1}}
trainer: {max_epochs: 3, default_root_dir: runs/flickr8k}
"""


def write_run(root: Path, saved: str = SAVED) -> None:
    """The files of a run that a later call reads before it imports torch."""
    (root / "checkpoints").mkdir(parents=True)
    for name in ("best", "last"):
        (root / "checkpoints" / f"{name}.ckpt").touch()
    (root / "config.yaml").write_text(saved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "already holds a run: resume it with --ckpt_path last"),
        ("--ckpt_path=null", "already holds a run"),
        (
            "--ckpt_path=last --trainer.max_epochs=31",
            "--model.init_from runs/flickr8k --trainer.default_root_dir DIR",
        ),
        ("--ckpt_path=auto --data.batch_size=16", "began with data.batch_size 32, got 16"),
        ("--ckpt_path=last --data.min_count 6", "began with data.min_count 5, got 6"),
        ("--ckpt_path=last --model.decoder.hidden=9", "began with model.decoder.hidden 256, got 9"),
        ("--ckpt_path=last --model.decoder='{class_path: LSTMDecoder}'", "LuongDecoder, got LSTM"),
        ("--ckpt_path=last --model configs/model/transformer.yaml", "got TransformerDecoder"),
        ("--ckpt_path=last --model.encoder.init_args.name timm/x.in1k", "y.in1k, got timm/x.in1k"),
        (
            "--ckpt_path=last --model.decoder.init_args.dropout=1e-1 --model.decoder=LuongDecoder",
            "",
        ),
        ("--ckpt_path=last --data.root=elsewhere --model.learning_rate=1 --trainer.devices=1", ""),
    ],
)
def test_a_resumed_run_must_have_the_options_it_began_with(options, message, folder):
    write_run(Path("runs/flickr8k"))
    words = shlex.split(f"--config=runs/flickr8k/config.yaml {options}")
    words = list(map(training._shipped, words))
    if not message:
        chosen = training.check("fit", words)
        assert chosen[1] == "--ckpt_path=runs/flickr8k/checkpoints/last.ckpt"
    else:
        with pytest.raises(UsageError, match=re.escape(message)):
            training.check("fit", words)


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
    "caption photos --model model --output": "photos/a.jpg model/config.json",
    f"caption photos/a.jpg --model {RUN} --output": f"photos/a.jpg {RUN}",
    "evaluate results.json --references references.json --output": "results.json references.json",
    f"ground {COCO} --model model --output": "instances.json photos/a.jpg model/vocab.json",
    "ground --data csv --root captions.csv --model run --output": "captions.csv run/model/config.json",
    f"{CHECK} csv --data.root captions.csv --output": "captions.csv",
    f"{CHECK} folder --data.root photos --output": "photos/a.jpg",
    "compare run --output": f"run/results {RUN}",
    "export --model model --overwrite": "model model/config.json",
    f"export --model {RUN} --overwrite": "run run/checkpoints",
    "explain photos/a.jpg --model model --output": "model photos/a.jpg",
    "fit --config photos/config.yaml --trainer.default_root_dir": "photos",
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


@pytest.mark.parametrize(
    "call",
    [
        "evaluate results.json --references references.json --output run/report.json",
        "caption photos --model run --output run/captions.txt",
        "ground --model run --output run/report.json",
        "ground --model model --output model/report.json",
        "compare run --output run",
    ],
)
def test_a_report_in_the_folder_of_its_run_is_written_again(call, inputs):
    """Only the files that a command reads are its inputs, not all files beside them."""
    for file in ("run/report.json", "run/captions.txt", "run/table.md", "model/report.json"):
        Path(file).write_text("" if file.endswith("txt") else '{\n  "command": "x",\n  "model": ')
    if call.startswith("evaluate"):
        Path("run/report.json").write_text('{\n  "bleu_1": 1.0')
    options = _parser().parse_args(shlex.split(call))
    checks.check(call.split()[0], options)
