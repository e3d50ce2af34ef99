"""Checks of arguments against files, devices and ports.

They run before a command imports torch, so that a wrong argument is refused within a second.
"""

import argparse
import errno
import importlib.util
import json
import os
import re
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from captioner import resources
from captioner.batch.inputs import INSTALL
from captioner.batch.output_folder import refuse_foreign
from captioner.batch.sidecars import MAX_PHOTOS, PAGE
from captioner.cli import devices
from captioner.cli.arguments import writes_folder
from captioner.cli.outputs import (
    GENERATOR,
    MODEL_FILES,
    check_directory,
    check_export,
    check_overlap,
    check_replaced,
    check_text,
)
from captioner.cli.parser import did_you_mean
from captioner.errors import UsageError, plural, printable
from captioner.language.vocabulary import MAX_WORD
from captioner.limits import DECODING, NO_CAPTUM, NO_LAYERS, SAMPLING, SCENE
from captioner.photos import paths
from captioner.store import model_folder
from captioner.store.model_folder import BEST, CARD, CONFIG, NOT_CALIBRATED, VOCABULARY, WEIGHTS

DATA = (
    *("auto", "coco", "coco2014", "coco2017", "csv", "flickr30k", "flickr8k", "folder", "jsonl"),
    *("karpathy", "karpathy-coco", "karpathy-flickr30k", "karpathy-flickr8k"),
)
"""The keys of ``captioner.data.readers.READERS``, repeated because its import takes longer."""

TABLES = ("auto", "csv", "jsonl")  # whose root may be a file
SCENE_OPTIONS = ("image_size", "max_objects")
STATISTICS = ".images.jsonl"  # the end of the name of the second file that ``ground`` writes
KINDS = {  # what commands write to --output
    "caption": "captions",
    "evaluate": "scores",
    "ground": "a report of captioner ground",
    "data check": "a report of captioner data check",
}
INPUT_FILES = ("results", "references", "instances", "captions")  # JSON files


def check(command: str, options: argparse.Namespace) -> None:
    """Check the parsed arguments of a command.

    Raises:
        UsageError: a value is unknown or out of range, an input is missing, or an output cannot be
            written or is an input.
    """
    given = {name: value for name, value in vars(options).items() if value is not None}
    prefix = "data." if command == "data check" else ""
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one == "":
                raise UsageError(f"an argument is empty ({name}); is a shell variable unset?")
            if name in CHECKS:
                CHECKS[name](f"--{prefix}{name.replace('_', '-')}", one)
    if "root" in given:
        check_folder(f"--{prefix}root", given["root"], given.get("name", given.get("data")))
    for photos in (given.get("inputs", ()), given.get("examples", ())):
        # Raises if nothing matches.
        next(paths.iterate([name for name in photos if "://" not in name]), None)
    if "device" in given and given.get("engine") != "ray":  # Ray uses the devices of its cluster
        devices.check_gpu("--device", options.device)
    if command == "caption":
        _check_write(given)
        _check_generation(given)
    if command in ("explain", "ground"):
        _check_layers(given)
    if command == "demo":
        _check_address(options.host, options.port)
    _check_output(command, options, given)


def check_model(_option: str, name: str) -> None:
    """Check a bundled name or the path of a model of this package."""
    bundled, path = resources.bundled_models(), Path(name).expanduser()
    if name in bundled:
        return
    if (folder := model_folder.find(path)) is not None:
        with model_folder.named(path):
            model_folder.read(folder)
    if folder is not None or (path / BEST).is_file():
        return
    if not path.exists():
        raise UsageError(
            f"no model at '{name}': the path does not exist; the bundled models are "
            f"{', '.join(bundled)}{did_you_mean(name, bundled)}"
        )
    if path.is_file() and zipfile.is_zipfile(path):  # as torch writes checkpoints
        return
    raise UsageError(
        f"'{name}' holds no model; give a .ckpt of captioner fit, a model folder, a run folder or a "
        "bundled name"
    )


def _check_model_or_hf(option: str, name: str) -> None:
    if not name.startswith(resources.HF):
        return check_model(option, name)
    from captioner.hf.families import check_installed, family_of

    check_installed()
    source = name.removeprefix(resources.HF)
    folder = Path(source).expanduser()
    if not source or not folder.is_dir():
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
            raise UsageError(
                f"{option} '{name}': no such folder, and no name on the hub; expected hf:FOLDER or "
                "hf:OWNER/NAME, such as hf:Salesforce/blip-image-captioning-base"
            )
        return None
    _check_file(option, str(folder / "config.json"))
    with (folder / "config.json").open("rb") as file:
        try:
            config = json.load(file)
        except ValueError as error:
            raise UsageError(f"'{folder / 'config.json'}' is not JSON: {error}") from error
    family_of(name, config if isinstance(config, dict) else {})
    return None


def _check_scene_option(option: str, text: str) -> None:
    name, _, value = text.partition("=")
    if name not in SCENE_OPTIONS:
        near = did_you_mean(name, SCENE_OPTIONS)
        raise UsageError(f"{option} takes {'=…, '.join(SCENE_OPTIONS)}=…; got {text!r}{near}")
    if SCENE[name].parse(value) is None:
        raise UsageError(f"{option}: {name} must be {SCENE[name]}, got {value!r:.40}")


def _check_installed(option: str, value: str) -> None:
    package = {"parquet": "pyarrow", "ray": "ray"}.get(value)
    if package and importlib.util.find_spec(package) is None:
        raise UsageError(f"{option} {value} needs {package}: {INSTALL}")


def _check_write(given: dict[str, Any]) -> None:
    """Refuse options of files of captions with ``--write``, and its options without it."""
    kind = given.get("write")
    files = ("engine", "format", "output", "retry", "shard_size")
    if kind and given.get("overwrite"):
        raise UsageError(
            f"--overwrite cannot be used with --write {kind}: give --existing overwrite"
        )
    if kind == "html":
        _check_page(given)
    if kind and (given.get("num_captions") or 1) > 1:
        raise UsageError(f"--num-captions cannot be used with --write {kind}: leave it out")
    for name in files if kind else ("existing", "prefix", "suffix"):
        if name in given:
            option = f"--{name.replace('_', '-')}"
            needs = f"cannot be used with --write {kind}" if kind else "needs --write KIND"
            raise UsageError(f"{option} {needs}: leave it out, or see captioner caption --help")


def _check_page(given: dict[str, Any]) -> None:
    """Check the folder of a page of captions, and a file that the page would replace."""
    inputs = given["inputs"]
    if len(inputs) != 1 or not Path(inputs[0]).is_dir():
        raise UsageError(
            f"--write html takes one folder of photos, got {' '.join(inputs)!r:.80}: give the folder "
            "in which to write the page"
        )
    if given.get("existing") == "append":
        raise UsageError(
            "--existing append cannot be used with --write html: edit the page instead"
        )
    count = sum(1 for _ in paths.iterate(inputs))
    if count > MAX_PHOTOS:
        raise UsageError(
            f"'{inputs[0]}' holds {count:,} photos, and a page at most {MAX_PHOTOS:,}: give its "
            "subfolders one by one"
        )
    page = Path(inputs[0], PAGE)
    if page.exists() and not (page.is_file() and GENERATOR.encode() in page.read_bytes()[:1000]):
        raise UsageError(f"'{page}' exists and is no page of captions: give it another name")
    check_directory(page.parent)


def _check_generation(given: dict[str, Any]) -> None:
    """Refuse sampling and confidence for models that do not support them."""
    name = given.get("model", resources.DEFAULT_MODEL)
    unsure = [o for o in ("confidence", "min_confidence") if given.get(o, False) is not False]
    if name.startswith(resources.HF):
        for option in (*(option for option in SAMPLING if option in given), *unsure):
            raise UsageError(
                f"--{option.replace('_', '-')} needs a model of this package, got '{name}': leave it "
                "out, or give another --model"
            )
    elif unsure and (config := _config(name)) is not None and "confidence" not in config:
        raise UsageError(NOT_CALIBRATED.format(name))


def _check_layers(given: dict[str, Any]) -> None:
    """Refuse layers, heads and methods that the model or the installation does not have."""
    if given.get("method") == "integrated-gradients" and importlib.util.find_spec("captum") is None:
        raise UsageError(NO_CAPTUM)
    name = given.get("model", resources.DEFAULT_MODEL)
    config = None if name.startswith(resources.HF) else _config(name)
    decoder = (config or {}).get("model", {}).get("decoder", {}).get("init_args", {})
    if config is not None and given.get("method") == "rollout" and "layers" not in decoder:
        raise UsageError(NO_LAYERS.format(f"'{name}'"))
    attention = decoder.get("attention", {})
    if attention.get("class_path") not in ("Attention", "MultiHead"):
        return
    layers, heads = decoder.get("layers", 1), attention.get("init_args", {}).get("heads", 1)
    for option, count in {"layer": layers, "head": heads}.items():
        if option in given and layers == heads == 1:
            raise UsageError(f"'{name}' has one map for each word: leave out --{option}")
        if given.get(option, 0) >= count:
            raise UsageError(
                f"--{option}: there is no {option} {given[option] + 1}: "
                f"'{name}' has {plural(count, option)}"
            )


def _config(name: str) -> dict[str, Any] | None:
    """Return the ``config.json`` of a model by its name; None for a checkpoint."""
    folder = model_folder.find(resources.find_model(name))
    return None if folder is None else model_folder.read_json(folder / CONFIG)


def _check_file(_option: str, name: str) -> None:
    if not Path(name).is_file():
        found = "it is a folder" if Path(name).is_dir() else "no such file"
        raise UsageError(f"cannot read '{name}': {found}; check the path")
    with Path(name).open("rb") as file:
        if not re.match(rb"(\xef\xbb\xbf)?\s*([\[{]|\Z)", file.read(512)):
            raise UsageError(f"'{name}' is not JSON: expected a file that begins with [ or {{")


def check_folder(option: str, name: str, data: str | None = None) -> None:
    """Check a folder, such as that of a data set, or the file of a data set that is a table."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - never raises
    if not path.is_dir() and not (path.is_file() and data in TABLES):
        found = "it is a file" if path.exists() else "no such file or folder"
        raise UsageError(f"{option} '{name}' is not a folder: {found}; check the path")


def _check_sentence(option: str, text: str) -> None:
    words, most = re.findall(r"\S*\w\S*", text), DECODING["max_length"].high
    if not words:
        raise UsageError(f"{option} needs at least one word, got {printable(text)!r}")
    if len(words) > most or re.search(rf"\w{{{MAX_WORD + 1}}}", text):
        expected = f"at most {most} words of {MAX_WORD} letters"
        raise UsageError(f"{option} must have {expected}, got {len(words)} words: {text!r:.80}")


def _check_host_name(option: str, name: str) -> None:
    if not re.fullmatch(r"[\w.-]+|\[[\da-fA-F:.]+\]", name):
        raise UsageError(f"{option} must be a host name without http:// and port, got {name!r:.80}")


def _check_address(host: str, port: int) -> None:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except (OSError, UnicodeError) as error:
        reason = {
            errno.EADDRINUSE: "another program uses the port; give another --port",
            errno.EACCES: "the port needs more rights; give a --port above 1023",
        }.get(getattr(error, "errno", None) or 0, "it is no address of this machine; check --host")
        raise UsageError(f"cannot listen on {host}:{port}: {reason}") from error


CHECKS: dict[str, Callable[[str, Any], None]] = {
    "model": _check_model_or_hf,
    "device": devices.check_device,
    "scene_options": _check_scene_option,
    "format": _check_installed,
    "engine": _check_installed,
    **dict.fromkeys(("images", "entities"), check_folder),
    "caption": _check_sentence,
    "allowed_host": _check_host_name,
    **dict.fromkeys(INPUT_FILES, _check_file),
}


def _inputs(given: dict[str, Any]) -> Iterator[Path]:
    """The files that a command reads."""
    yield from (Path(given[name]) for name in INPUT_FILES if name in given)
    for name in {"root", "entities"} & set(given):
        root = Path(given[name]).expanduser()
        yield from root.rglob("*") if root.is_dir() else [root]
    if "model" in given:
        model = _model_path(given["model"])
        yield model
        yield from (model / name for name in ("config.yaml", *MODEL_FILES))
        yield from (
            folder / name
            for folder in (model, model / "model")
            for name in (CONFIG, WEIGHTS, VOCABULARY, CARD)
        )
    photos = given.get("inputs", [])
    if "images" in given:
        photos = [str(Path(given["images"]).expanduser())]
    yield from paths.iterate([name for name in photos if "://" not in name])


def _model_path(name: str) -> Path:
    return resources.find_model(name.removeprefix(resources.HF))


def _check_output(command: str, options: argparse.Namespace, given: dict[str, Any]) -> None:
    if command == "export":
        if options.model.startswith(resources.HF):
            raise UsageError(
                f"cannot export '{options.model}': model folders hold the package's own models"
            )
        check_export(Path(options.folder), Path(options.model), options.overwrite)
    if "output" not in given:
        return
    output = Path(options.output)
    if command == "explain":
        folders = [_model_path(given["model"])] if "model" in given else []
        inputs = list(map(Path, options.inputs))
        # A figure among the photos could replace a photo of its name, and would be captioned next time.
        beside = [path.parent for path in inputs if not path.is_dir()]
        check_directory(output, [*folders, *inputs, *beside])
    elif command == "compare":
        check_directory(output, [Path(run) / "results" for run in options.runs])
    elif command == "caption" and writes_folder(options):
        refuse_foreign(output)
        check_directory(output)
    else:
        check_text(output)
        check_overlap(output, _inputs(given))
        check_replaced(output, KINDS[command], options.overwrite)
        if command == "ground":
            check_overlap(output.with_suffix(STATISTICS), _inputs(given))
            kind = "the statistics of a report"
            check_replaced(output.with_suffix(STATISTICS), kind, options.overwrite)
