"""Model folder ⇄ Captioner, in the layout of the Hugging Face hub; checkpoints load, too.

Loading is strict and runs no code from the folder.
"""

import copy
import json
import pickle
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from captioner import __version__
from captioner.errors import CheckpointError, ModelError, unknown
from captioner.language.vocabulary import Tokenizer, Vocabulary
from captioner.models.captioner import PARTS, Captioner
from captioner.models.encoder import Preprocessing
from captioner.resources import bundled_models
from captioner.search.options import Decoding
from captioner.store import model_folder
from captioner.store.calibration import Calibration
from captioner.store.model_folder import (
    BEST,
    CARD,
    CONFIG,
    FORMAT_VERSION,
    MODEL,
    VOCABULARY,
    WEIGHTS,
)

SPARE = 32 << 20
"""Parameters of a model that its file need not hold: those of encoders from installed packages."""


@dataclass(frozen=True)
class Stored:
    """The content of a model folder or a checkpoint.

    Attributes:
        captioner: the model, in eval mode, on the CPU.
        decoding: the search with which the model was scored.
        supervision: weight of the mask supervision of its attention in training; 0 for none.
        calibration: of the confidence of its captions; None before ``captioner calibrate``.
    """

    captioner: Captioner
    decoding: Decoding
    supervision: float = 0.0
    calibration: Calibration | None = None


def save(
    captioner: Captioner,
    folder: str | Path,
    card: str,
    decoding: Decoding,
    supervision: float = 0.0,
    half: bool = False,
    calibration: Calibration | None = None,
) -> None:
    """Write a model folder. An interrupted save leaves the previous folder, if there was one.

    Args:
        captioner, decoding, supervision, calibration: as in ``Stored``.
        folder: a new or empty folder, or a model folder, which is replaced.
        card: the text of ``README.md``.
        half: store parameters as float16; they are loaded as float32.

    Raises:
        CheckpointError: the folder holds something else, or cannot be written.
    """
    folder = Path(folder)
    foreign = folder.exists() and not (folder / CONFIG).is_file()
    if foreign and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"'{folder}' is not empty and not a model folder; choose another")
    config, words = _config(captioner, decoding, supervision), captioner.vocabulary.plain_words
    if calibration is not None:
        config["confidence"] = asdict(calibration)
    metadata = {"format_version": str(FORMAT_VERSION)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
            new = Path(staging) / "new"
            new.mkdir()
            if half:  # buffers can exceed the range of float16 and are unchanged
                captioner = copy.deepcopy(captioner)
                for parameter in captioner.parameters():
                    parameter.data = parameter.data.half()
            save_model(captioner, str(new / WEIGHTS), metadata)
            (new / WEIGHTS).chmod(0o644)  # safetensors makes it private
            (new / VOCABULARY).write_text(_dump({"words": words}, indent=0), "utf-8")
            (new / CARD).write_text(card, "utf-8")
            (new / CONFIG).write_text(_dump(config), "utf-8")
            old = Path(staging) / "old"
            if folder.exists():
                folder.replace(old)
            try:
                new.replace(folder)
            except OSError:
                if old.exists():
                    old.replace(folder)
                raise
    except OSError as error:
        raise CheckpointError(f"cannot write the model folder '{folder}': {error}") from error


def _config(captioner: Captioner, decoding: Decoding, supervision: float) -> dict[str, Any]:
    encoder, vocabulary, preprocessing = captioner.encoder, captioner.vocabulary, {}
    if isinstance(encoder.preprocessing, Preprocessing):
        preprocessing = {"preprocessing": asdict(encoder.preprocessing)}
    return {
        "format_version": FORMAT_VERSION,
        "captioner_version": __version__,
        "model": captioner.config,
        **preprocessing,
        "decoding": asdict(decoding),
        "supervision": supervision,
        "vocabulary": {
            "size": len(vocabulary),
            "fingerprint": vocabulary.fingerprint,
            "tokenizer": Tokenizer.name,
        },
        "encoder_weights": {"stored": not encoder.external, "sha256": encoder.fingerprint()},
    }


def load(source: str | Path) -> Stored:
    """Load a model folder, a Lightning ``.ckpt`` or a run folder.

    Raises:
        CheckpointError: no model; a file that is missing, damaged or a link; a configuration that is
            wrong or of another format; weights, vocabulary or encoder of another model.
    """
    path = Path(source).expanduser()
    with model_folder.named(path):
        found = _find(path, str(source))
        return _load_folder(found) if found.is_dir() else _load_lightning(found)


def words_of(source: str | Path) -> list[str]:
    """Return the words of a model that ``load`` would load, without its weights.

    Raises:
        CheckpointError: as ``load``.
    """
    path = Path(source).expanduser()
    with model_folder.named(path):
        found = _find(path, str(source))
        if found.is_dir():
            return model_folder.read(found)[1]
        options = read_lightning(found)["hyper_parameters"]
        return model_folder.check_words(options.get("words"))


def _find(path: Path, name: str) -> Path:
    """Return the model folder or the checkpoint at a path; ``name`` is what the user gave."""
    if (folder := model_folder.find(path)) is not None:
        return folder
    for file in (path.resolve(), path / BEST):
        if file.is_file() and (file.suffix == BEST.suffix or zipfile.is_zipfile(file)):
            return file
    if not path.exists():
        raise CheckpointError(
            f"{unknown('model', name, bundled_models())}; or give an existing path"
        )
    raise CheckpointError(
        f"'{path}' holds no model; expected a model folder ({CONFIG}, {WEIGHTS}, {VOCABULARY}), "
        f"a run folder ({MODEL}/ or {BEST}), a .ckpt file, or a bundled name"
    )


def read_card(source: Path) -> str | None:
    """Return the card of a model folder, a run folder or its checkpoint; None if it has no card."""
    source = source.parents[1] if source.parts[-2:] == BEST.parts else source
    for file in (source / CARD, source / MODEL / CARD):
        if file.is_symlink() or file.exists():
            return model_folder.read_text(file)
    return None


def _load_folder(folder: Path) -> Stored:
    config, words = model_folder.read(folder)
    weights, vocabulary = folder / WEIGHTS, Vocabulary(words)
    if (expected := config["vocabulary"]["fingerprint"]) != vocabulary.fingerprint:
        raise CheckpointError(
            f"'{folder / VOCABULARY}' is not the vocabulary this model was trained with (fingerprint "
            f"{vocabulary.fingerprint}, {CONFIG} says {expected}): restore the original"
        )
    captioner = _build(config["model"], vocabulary, weights)
    try:
        load_model(captioner, weights)
    except SafetensorError as error:
        raise CheckpointError(f"'{weights}' cannot be read: {error}; copy it again") from error
    except RuntimeError as error:
        raise _misfit(weights, error) from error
    check_encoder(captioner, config["encoder_weights"]["sha256"], weights)
    decoding = Decoding().with_options(config.get("decoding", {}))
    calibration = Calibration(**config["confidence"]) if "confidence" in config else None
    return Stored(captioner.eval(), decoding, config.get("supervision", 0.0), calibration)


def read_lightning(file: Path) -> Mapping[str, Any]:
    """Read a Lightning checkpoint of ``captioner fit``; raise CheckpointError if it is none."""
    try:
        # With memory mapping, torch refuses a tensor of which the file holds only a part.
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        if not {"hyper_parameters", "state_dict"} <= content.keys():
            raise ValueError("it lacks hyper_parameters or state_dict")
    except Exception as error:  # other files can raise anything
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch advises to run the code
            reason = "it holds something other than tensors and plain values, which could run code"
        raise CheckpointError(
            f"'{file}' cannot be read as a checkpoint: {reason:.200}; give a complete file of "
            "captioner fit"
        ) from error
    return cast(Mapping[str, Any], content)


def _load_lightning(file: Path) -> Stored:
    """Load a checkpoint: the averaged weights, if it holds both."""
    content = read_lightning(file)
    options = content["hyper_parameters"]
    vocabulary = Vocabulary(model_folder.check_words(options.get("words")))
    captioner = _build({part: options.get(part) for part in PARTS}, vocabulary, file)
    prefix = "captioner."
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(prefix)
    }
    try:
        captioner.load_state_dict(tensors)
    except RuntimeError as error:
        raise _misfit(file, error) from error
    check_encoder(captioner, content.get("encoder_sha256"), file)
    decoding = Decoding().with_options(options.get("decoding", {}))
    return Stored(captioner.eval(), decoding, float(content.get("supervision", 0.0)))


def _build(tree: Mapping[str, Any], vocabulary: Vocabulary, weights: Path) -> Captioner:
    """Build a model, unless it has many more parameters than its file can hold.

    A configuration of a few lines can ask for layers of any size. Parameters are counted when they are
    registered.
    """
    room = weights.stat().st_size // 2 + SPARE  # a number takes at least two bytes

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal room
        room -= 0 if parameter is None else parameter.numel()
        if room < 0:
            raise ModelError(f"its configuration asks for more weights than '{weights}' can hold")

    counting = register_module_parameter_registration_hook(count)
    try:
        return Captioner.from_config(tree, vocabulary)
    finally:
        counting.remove()


def _misfit(source: Path, error: RuntimeError) -> CheckpointError:
    """Return torch's list of missing, unexpected and misshapen weights as one line."""
    lines = [line.strip() for line in str(error).splitlines()[1:]]
    listed = " ".join(lines) or str(error)
    return CheckpointError(f"'{source}' does not fit its model: {listed:.300}")


def check_encoder(captioner: Captioner, expected: Any, source: Path) -> None:
    """Load an encoder's packaged weights; raise CheckpointError if training used others.

    Args:
        captioner: the model.
        expected: the encoder's fingerprint in training; None if it is unknown.
        source: the folder or file of the decoder, for the message.
    """
    if not captioner.encoder.external:
        return
    captioner.encoder.load_pretrained()
    actual = captioner.encoder.fingerprint()
    if expected is not None and actual != expected:
        raise CheckpointError(
            f"'{source}' was trained with another encoder (sha256 {expected!s:.12}…) than this one "
            f"({actual:.12}…): give its image_size, weights, stride and extra_strides, or install "
            "the same version of the package with the weights"
        )


def _dump(content: Any, indent: int = 2) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
