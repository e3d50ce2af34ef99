"""The commands of LightningCLI: their short help, and checks that need neither torch nor Lightning.

``training_options.json`` holds the options of each command and the values they take, as the parser of
``captioner.training.run`` declares them. ``CAPTIONER_REFRESH_OPTIONS=1 pytest tests/test_arguments.py``
writes it.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import yaml

from captioner import limits
from captioner.cli import checks
from captioner.cli.parser import Parser, did_you_mean
from captioner.errors import UsageError
from captioner.resources import shipped_configs

COMMANDS = {
    "fit": "Train a captioner, score its best checkpoint on the development split, and export it.",
    "validate": "Score a checkpoint on the development split as during training.",
    "test": "Generate and score captions for data.test_split.",
    "predict": "Generate captions for data.test_split as COCO results JSON.",
    "prepare": "Fill the annotation cache before training, or check it.",
}
_ROOT = "--data.root DIR"
_SAVED = "--config runs/flickr8k/config.yaml"
EXAMPLES = {
    "fit": (
        "captioner fit --config configs/shapes.yaml    # a few minutes, no data needed",
        f"captioner fit --config configs/flickr8k.yaml {_ROOT}",
        f"captioner fit --config configs/flickr8k.yaml {_ROOT} --ckpt_path last    # resume",
        "captioner configs    # lists the configuration files",
    ),
    "validate": (f"captioner validate {_SAVED}", f"captioner validate {_SAVED} --ckpt_path last"),
    "test": (f"captioner test {_SAVED}", f"captioner test {_SAVED} --data.test_split val"),
    "predict": (f"captioner predict {_SAVED}", f"captioner predict {_SAVED} --data.test_split val"),
    "prepare": (
        f"captioner prepare --config configs/coco.yaml {_ROOT}",
        f"captioner prepare --config configs/coco.yaml {_ROOT} --verify true",
    ),
}
_MAIN = {
    "config": "a YAML file; repeat it to combine files. Options replace its values",
    "data.name": f"kind of data set: {', '.join(checks.DATA)}, shapes",
    "data.root": "folder of the data set, as downloaded",
    "trainer.default_root_dir": "the run folder (default: runs/ and the name of the configuration)",
    "trainer.precision": "32-true, bf16-mixed or 16-mixed",
}
_SPLIT = {"data.test_split": "the split that is captioned: train, val or test"}
_CHECKPOINT = {"ckpt_path": "best, last or a file (default: best)"}
_MORE = {
    "fit": {
        "ckpt_path": "last resumes the run of the folder; auto resumes it or starts a new one",
        "model": "a YAML file with another model, such as configs/model/transformer.yaml",
        "model.learning_rate": "peak learning rate",
        "data.batch_size": "images per batch (default: 32)",
        "trainer.max_epochs": "number of epochs (default: 12)",
        "trainer.devices": "number of GPUs or processes (default: 1)",
        "seed_everything": "random seed (default: 1)",
        "print_config": "print the whole configuration and exit",
    },
    "validate": _CHECKPOINT,
    "test": _SPLIT | _CHECKPOINT,
    "predict": _SPLIT | _CHECKPOINT,
    "prepare": {
        "data.cache_dir": "folder of the cache (default: in the user's cache folder)",
        "verify": "true also checks the whole cache and repairs it",
    },
}
_METAVARS = {"config": "FILE", "seed_everything": "SEED", "print_config": "[=FLAGS]"}
_RANGES = {
    "--seed_everything": limits.SEED,
    **{f"--data.{name}": number for name, number in limits.DATA.items()},
    **{f"--data.shapes.{name}": number for name, number in limits.SCENE.items()},
    **{f"--data.shapes.{split}": limits.SCENES for split in ("train", "val", "test")},
    **{f"--model.decoding.{name}": number for name, number in limits.DECODING.items()},
    "--model.val_beam_size": limits.DECODING["beam_size"],
}


def run(arguments: list[str]) -> int:
    """Run a training command, or show its help."""
    command, *rest = arguments
    if {"-h", "--help"} & {*rest}:
        _parser(command).print_help(sys.stdout)
        return 0
    if "--help-all" not in rest:
        check(command, rest)

    from captioner import distributed
    from captioner.training import run

    if "--help-all" in rest:
        with redirect_stdout(StringIO()) as text, suppress(SystemExit):
            run.main([command, "--help"])
        print(re.sub(r",\s+default:\s+null\)", ")", text.getvalue()))
        return 0
    run.main(arguments)
    distributed.leave()
    return 0


def _parser(command: str) -> Parser:
    """The parser that prints the short help; LightningCLI parses the options."""
    parser = Parser(
        prog=f"captioner {command}",
        usage=f"captioner {command} --config FILE [OPTION ...]",
        description=COMMANDS[command],
        examples=EXAMPLES[command],
    )
    for name, text in {**_MAIN, **_MORE[command]}.items():
        metavar = _METAVARS.get(name, name.rpartition(".")[2].rpartition("_")[2].upper())
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument("--help-all", action="store_true", help="show all options")
    return parser


def check(command: str, arguments: list[str]) -> None:
    """Check the names of options, plain values, and the files that are named.

    Raises:
        UsageError: an option is unknown, or has a value that it cannot take.
    """
    content = json.loads(Path(__file__).with_name("training_options.json").read_text("utf-8"))
    known: dict[str, Any] = {**content["all"], **content.get(command, {})}
    given: dict[str, list[str]] = {}
    for option, value in _pairs(arguments):
        _check_name(command, option, known)
        whole = [name for name in known if name.startswith(option)]
        if len(whole) == 1:  # LightningCLI takes abbreviations
            option = whole[0]
        values = given.setdefault(option, [])
        if value is not None:
            _check_value(option, value, known.get(option))
            values += [value] * (value != "null")
    configurations = [*given.get("-c", ()), *given.get("--config", ())]
    configured = _configured(configurations)
    name, root, devices = (
        [configured.get(option), *given.get(f"--{option}", ())][-1]
        for option in ("data.name", "data.root", "trainer.devices")
    )
    if name in checks.DATA and root is not None:
        checks.check_root("--data.root", str(root), name)
    elif not {"--data", "--print_config"} & given.keys():
        if name is None:
            raise UsageError(
                f"captioner {command} needs data: give --config FILE, such as configs/shapes.yaml, or "
                "--data.name NAME (captioner configs lists the shipped files)"
            )
        if name in checks.DATA:
            raise UsageError(f"data set '{name}' needs its folder: give --data.root DIR")
    cores = os.cpu_count() or 1
    number = re.fullmatch(r"\w+", str(devices)) and str(devices) not in ("auto", "None")
    if number and not (str(devices).isdecimal() and 1 <= int(devices) <= cores):
        raise UsageError(
            f"--trainer.devices: expected 1 to {cores}, the cores of this machine, or auto, "
            f"got {devices}"
        )
    for model in given.get("--model.init_from", ()):
        checks.CHECKS["model"]("--model.init_from", model)
    for file in given.get("--ckpt_path", ()):
        if file not in ("auto", "best", "last", "hpc") and not Path(file).is_file():
            near = did_you_mean(file, ("auto", "best", "last"))
            raise UsageError(f"no checkpoint '{file}'{near}; train first with captioner fit")
    for folder in map(Path, given.get("--trainer.default_root_dir", ())[-1:]):
        checks.check_directory(folder)
        # With checkpoints, fit resumes or refuses.
        if command == "fit" and not (folder / "checkpoints").exists():
            checks.check_overlap(folder / "config.yaml", map(Path, configurations))


def _pairs(arguments: list[str]) -> Iterator[tuple[str, str | None]]:
    """Options with their values: ``--name=value``, ``--name value`` or ``--name``."""
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=False):
        option, equals, value = argument.partition("=")
        if re.match(r"--?[a-z]", option):
            yield option, value if equals else None if following.startswith("--") else following


def _check_name(command: str, option: str, known: dict[str, Any]) -> None:
    if option.startswith("--") and not any(name.startswith(option) for name in known):
        parents = [option[:end] for end, letter in enumerate(option) if letter in ".+"]
        # Options of classes, such as --model.decoder.hidden, depend on the class.
        classes = [name for name, kinds in known.items() if kinds is None or kinds[0] == "class"]
        if not {*classes} & {*parents}:
            raise UsageError(
                f"unknown option {option}{did_you_mean(option, known)} (captioner {command} --help-all "
                "lists all)"
            )


def _check_value(option: str, value: str, kinds: list[str] | None) -> None:
    if kinds is None:
        return
    is_file = value.endswith((".yaml", ".yml")) or kinds[0] == "file"
    if is_file and not value.startswith("{") and not _path(value).is_file():
        near = did_you_mean(value, shipped_configs())
        raise UsageError(
            f"{option}: no file '{value}'{near}; captioner configs lists the shipped files"
        )
    if kinds[0] == "file" or (kinds[0] == "class" and re.search(r"\W", value)):  # a path or a tree
        return
    number = limits.Number(-inf, whole=False).parse(value)
    fits = {
        "int": number is not None and float(number).is_integer(),
        "float": number is not None,
        "bool": value.lower() in ("true", "false", "yes", "no", "on", "off"),
    }
    if not any(fits.get(kind, value == kind) for kind in kinds):
        unsaid = ("null", "class")
        names = {"int": "a whole number", "float": "a number", "bool": "true or false"}
        expected = ", ".join(names.get(kind, kind) for kind in kinds if kind not in unsaid)
        near = did_you_mean(value, [kind for kind in kinds if kind not in names])
        raise UsageError(f"{option}: unexpected value {value!r}{near}; expected {expected}")
    if number is not None and (limit := _RANGES.get(option)):
        limits.check(option, int(number) if limit.whole else number, limit)


def _path(file: str) -> Path:
    """The file, or the shipped one of this name."""
    return Path(file) if Path(file).exists() else shipped_configs().get(file, Path(file))


def _configured(files: list[str]) -> dict[str, Any]:
    """The options of data and trainer in configuration files, by their names on the command line."""
    found = {}
    for name in files:
        content = _read(name)
        for part in ("data", "trainer"):
            options = content.get(part)
            if isinstance(options, str):
                options = _read(str(_path(name).parent / options))
            if isinstance(options, dict):
                found.update({f"{part}.{option}": value for option, value in options.items()})
    return found


def _read(file: str) -> dict[str, Any]:
    """The options in a YAML file, or in a text in braces."""
    try:
        content = yaml.safe_load(file if file[:1] == "{" else _path(file).read_text("utf-8"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"'{file}' is no YAML: line {line}: {error.problem}") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        expected = "expected a YAML file of options, such as configs/shapes.yaml"
        raise UsageError(f"'{file}' is no configuration: {expected}")
    return content
