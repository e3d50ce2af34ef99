"""The commands of LightningCLI: their short help, and checks that need neither torch nor Lightning.

``training_options.json`` holds the options of each command and the values they take, as the parser of
``captioner.training.run`` declares them.
``CAPTIONER_REFRESH_OPTIONS=1 pytest tests/cli/test_arguments.py`` writes it.
"""

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import yaml

from captioner import limits
from captioner.cli import checks, devices, outputs
from captioner.cli.configuration import read_options
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
EXAMPLES = {
    "fit": (
        "--config configs/own.yaml --data.root DIR    # your own photos, from a bundled model",
        "--config configs/shapes.yaml    # a few minutes, no data needed",
        "--config configs/flickr8k.yaml --data.root DIR",
        "--config configs/flickr8k.yaml --data.root DIR --ckpt_path last    # resume",
    ),
    "prepare": (
        "--config configs/coco.yaml --data.root DIR",
        "--config configs/coco.yaml --data.root DIR --verify true",
    ),
    "validate": ("", "--ckpt_path last"),
    **dict.fromkeys(("test", "predict"), ("", "--data.test_split val")),
}
_SAVED = "--config runs/flickr8k/config.yaml"
# The options in the short help: name, placeholder, help, and the commands that show it.
_SHORT_HELP = (
    ("config", "FILE", "a YAML file; repeat it to combine files. Options replace its values", ""),
    ("data.name", "NAME", f"kind of data set: {', '.join(checks.DATA)}, shapes", ""),
    ("data.root", "DIR", "folder of the data set, as downloaded", ""),
    ("data.batch_size", "N", "images per batch (default: 32)", "fit"),
    ("data.cache_dir", "DIR", "the cache (default: in the user's cache folder)", "prepare"),
    ("data.test_split", "SPLIT", "split to caption: train, val or test", "test predict"),
    ("model", "FILE", "another design, such as configs/model/transformer.yaml", "fit"),
    ("model.learning_rate", "RATE", "peak learning rate", "fit"),
    ("trainer.default_root_dir", "DIR", "the run folder (default: runs/NAME for NAME.yaml)", ""),
    ("trainer.precision", "P", "32-true, bf16-mixed or 16-mixed", ""),
    ("trainer.max_epochs", "N", "number of epochs (default: 12)", "fit"),
    ("trainer.devices", "N", "number of GPUs or processes (default: 1)", "fit"),
    ("seed_everything", "SEED", "random seed (default: 1)", "fit"),
    (
        "ckpt_path",
        "FILE",
        "last: resume the run in the run folder; auto: resume or start it",
        "fit",
    ),
    ("ckpt_path", "FILE", "best, last or a file (default: best)", "validate test predict"),
    ("verify", "true", "also check the whole cache and repair it", "prepare"),
    ("print_config", "[=FLAGS]", "print the whole configuration and exit", "fit"),
    ("help-all", "", "show all options", ""),
)
_RANGES = {
    "--seed_everything": limits.SEED,
    **{f"--data.{name}": number for name, number in limits.DATA.items()},
    **{f"--data.shapes.{name}": number for name, number in limits.SCENE.items()},
    **{f"--data.shapes.{split}": limits.SCENES for split in ("train", "val", "test")},
    **{f"--model.decoding.{name}": number for name, number in limits.DECODING.items()},
    "--model.val_beam_size": limits.DECODING["beam_size"],
    "--model.learning_rate": limits.RATE,
    "--model.encoder_learning_rate": replace(limits.RATE, above=False),  # 0 keeps the encoder
    "--trainer.max_epochs": limits.Number(1),
}
BEST, LAST, PREEMPTED = "checkpoints/best.ckpt", "checkpoints/last.ckpt", "hpc_ckpt_*.ckpt"
_FIXED = (
    "model.encoder.",
    "model.neck.",
    "model.decoder.",
    "data.min_count.",
    "data.keep_vocabulary.",
)
_FIXED_IN_FIT = ("trainer.max_epochs.", "trainer.max_steps.", "data.batch_size.")


def run(arguments: list[str]) -> int:
    """Run a training command, or show its help."""
    command, *rest = map(_shipped, arguments)
    if {"-h", "--help"} & {*rest}:
        _parser(command).print_help(sys.stdout)
        return 0
    chosen = [] if "--help-all" in rest else check(command, rest)

    from captioner import distributed
    from captioner.training import run

    if "--help-all" in rest:
        with redirect_stdout(StringIO()) as text, suppress(SystemExit):
            run.main([command, "--help"])
        print(re.sub(r",\s+default:\s+null\)", ")", text.getvalue()))
        return 0
    try:
        run.main([command, *rest, *chosen])
    except KeyboardInterrupt:
        if command != "fit":
            raise
        root = Path(chosen[0].partition("=")[2])
        saved = any(root.glob(LAST))
        hint = (
            "resume it with --ckpt_path last" if saved else "no epoch was finished; start it again"
        )
        raise KeyboardInterrupt(f": the run in '{root}': {hint}") from None
    distributed.leave()
    return 0


def _parser(command: str) -> Parser:
    """The parser that prints the short help; LightningCLI parses the options."""
    saved = "" if command in ("fit", "prepare") else f"{_SAVED} "
    parser = Parser(
        prog=f"captioner {command}",
        usage=f"captioner {command} --config FILE [OPTION ...]",
        description=COMMANDS[command],
        examples=[f"captioner {command} {saved}{example}" for example in EXAMPLES[command]],
    )
    for name, metavar, text, commands in _SHORT_HELP:
        if not commands or command in commands.split():
            parser.add_argument(f"--{name}", metavar=metavar, help=text)
    return parser


def _shipped(argument: str) -> str:
    """Replace ``configs/…yaml`` that does not exist here by the file shipped with the package."""
    option, equals, value = argument.rpartition("=")
    shipped = shipped_configs().get(str(Path(value)))
    return f"{option}{equals}{shipped}" if shipped and not Path(value).exists() else argument


def check(command: str, arguments: list[str]) -> list[str]:
    """Check options, plain values and named files; return the run folder and checkpoint as options.

    Raises:
        UsageError: an option is unknown, or has a value that it cannot take.
    """
    content = json.loads(Path(__file__).with_name("training_options.json").read_text("utf-8"))
    known: dict[str, Any] = {**content["all"], **content.get(command, {})}
    given: dict[str, list[str]] = {}
    for option, value in _pairs(arguments):
        _check_name(command, option, known)
        values = given.setdefault(option, [])
        if value is not None:
            _check_value(option, value, known.get(option.removesuffix(".class_path")))
            values.append(value)
    if "--print_config" in given:
        return []
    files = [*given.get("-c", ()), *given.get("--config", ())]
    options = read_options(files, given)
    name, folder = options.get("data.name"), options.get("data.root")
    if name is None:
        raise UsageError(
            f"captioner {command} needs data: give --config FILE, such as configs/shapes.yaml, or "
            "--data.name NAME (captioner configs lists the shipped files)"
        )
    if name in checks.DATA and not folder:
        raise UsageError(f"data set '{name}' needs its folder: give --data.root DIR")
    if name in checks.DATA:
        checks.check_folder("--data.root", str(folder), name)
    if command == "fit" and options.get("data.entities") is not None:
        checks.check_folder("--data.entities", str(options["data.entities"]))
    _check_sources(options.get("data.sources") or [])
    devices.check_accelerator(options.get("trainer.accelerator"), options.get("trainer.devices"))
    for name in ("model.init_from", "data.keep_vocabulary"):
        if (model := options.get(name)) is not None:
            checks.check_model(f"--{name}", model)
    default = Path("runs") / (Path(files[-1]).stem if files else "run")
    root = Path(options.get("trainer.default_root_dir") or default)
    outputs.check_directory(root)
    chosen = [f"--trainer.default_root_dir={root}"]
    if command == "prepare":
        return chosen
    file = _checkpoint(command, options.get("ckpt_path"), root)
    if file is not None and root in file.parents:
        _check_fits(root, options, training=command == "fit")
    elif command == "fit":
        outputs.check_overlap(root / "config.yaml", map(Path, files))
    return [*chosen, f"--ckpt_path={file or 'null'}"]


def _check_sources(given: Any) -> None:
    """Check the names and folders of further data sets: a list, or its text in YAML or JSON."""
    try:
        sources = yaml.safe_load(given) if isinstance(given, str) else given
    except yaml.YAMLError:
        sources = given
    for source in sources if isinstance(sources, list) else [sources]:
        if not (
            isinstance(source, dict) and source.get("name") in checks.DATA and "root" in source
        ):
            raise UsageError(
                "--data.sources: expected a list such as '[{name: coco2014, root: DIR}]' with "
                f"names from {', '.join(checks.DATA)}, got {str(source)!r:.80}"
            )
        checks.check_folder("--data.sources: root", str(source["root"]), source["name"])


def _pairs(arguments: list[str]) -> Iterator[tuple[str, str | None]]:
    """Options with their values: ``--name=value``, ``--name value`` or ``--name``."""
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=False):
        option, equals, value = argument.partition("=")
        if re.match(r"--?[a-z]", option):
            yield option, value if equals else None if following.startswith("--") else following


def _check_name(command: str, option: str, known: dict[str, Any]) -> None:
    parents = {option[:end] for end, letter in enumerate(option) if letter in ".+"}
    # Options of classes, such as --model.decoder.hidden, depend on the class.
    classes = {name for name, kinds in known.items() if kinds is None or kinds[0] == "class"}
    if option not in known and not classes & parents:
        raise UsageError(
            f"unknown option {option}{did_you_mean(option, known)} (captioner {command} --help-all "
            "lists all)"
        )


def _check_value(option: str, value: str, kinds: list[str] | None) -> None:
    if kinds is None:
        return
    is_file = value.endswith((".yaml", ".yml")) or kinds[0] == "file"
    if is_file and not value.startswith("{") and not Path(value).is_file():
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
        names = {"int": "a whole number", "float": "a number", "bool": "true or false"}
        expected = ", ".join(names.get(k, k) for k in kinds if k not in ("null", "class"))
        near = did_you_mean(value, [kind for kind in kinds if kind not in names])
        raise UsageError(f"{option}: unexpected value {value!r}{near}; expected {expected}")
    if number is not None and (limit := _RANGES.get(option)):
        limits.check(option, int(number) if limit.whole else number, limit)


def _checkpoint(command: str, option: Any, root: Path) -> Path | None:
    """Return the checkpoint to load; ``best`` and ``last`` are files of the run folder.

    ``fit`` starts a new run by default, and refuses a folder that has one; ``auto`` resumes the run
    of the folder or starts one. The default of the other commands is ``best``.
    """
    if command == "fit" and option in (None, "auto", "last"):
        saved = [*root.glob(LAST), *root.glob(PREEMPTED)]
        if option is None and saved:
            raise UsageError(
                f"'{root}' already holds a run: resume it with --ckpt_path last, choose "
                "another folder with --trainer.default_root_dir DIR, or delete it"
            )
        if saved or option != "last":
            return max(saved, key=lambda file: file.stat().st_mtime, default=None)
    named = {None: BEST, "best": BEST, "last": LAST}
    file = root / named[option] if option in named else Path(str(option))
    if not file.is_file():
        near = "" if option in named else did_you_mean(str(option), ("auto", "best", "last"))
        raise UsageError(
            f"no checkpoint '{file}'{near}: train first with captioner fit, name the run folder with "
            "--trainer.default_root_dir DIR, or give a file with --ckpt_path FILE"
        )
    if option not in named and not zipfile.is_zipfile(file):  # as torch writes checkpoints
        raise UsageError(
            f"'{file}' is not a checkpoint: give a .ckpt that captioner fit has written"
        )
    return file


def _check_fits(root: Path, options: dict[str, Any], training: bool) -> None:
    """Refuse options of model and data that differ from those in the configuration of the run."""
    file, fixed = root / "config.yaml", _FIXED + (_FIXED_IN_FIT if training else ())
    saved = read_options([str(file)], {}) if file.is_file() else {}
    for name in (name for name in options if f"{name}.".startswith(fixed) and name in saved):
        if _plain(options[name]) != _plain(saved[name]):
            advice = "resume with the options it began with, or start a new run with "
            if f"{name}.".startswith(_FIXED_IN_FIT):
                advice = (
                    "the learning rate of every step depends on it; resume without it, or start from "
                    f"the weights of this run: --model.init_from {root} "
                )
            raise UsageError(
                f"the run in '{root}' began with {name} {saved[name]}, got {options[name]}: {advice}"
                "--trainer.default_root_dir DIR"
            )


def _plain(value: Any) -> str:
    """A text that is equal for ``1e-2`` and 0.01, and for a class and its path."""
    text = str(value).replace(" ", "")
    number = limits.Number(-inf, whole=False).parse(text)
    class_name = re.sub(r"^(\w+\.)+(?=[A-Z]\w*$)", "", text)
    return class_name.lower() if number is None else f"{number:g}"
