"""Model folder ⇄ Captioner, in the layout of the Hugging Face hub; checkpoints load, too."""

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_model, save_model

from captioner import __version__
from captioner.errors import CheckpointError, unknown
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
    config = _config(captioner, decoding, supervision)
    if calibration is not None:
        config["confidence"] = asdict(calibration)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
            new = Path(staging) / "new"
            new.mkdir()
            if half:  # buffers can exceed the range of float16 and are unchanged
                captioner = copy.deepcopy(captioner)
                for parameter in captioner.parameters():
                    parameter.data = parameter.data.half()
            save_model(captioner, str(new / WEIGHTS), {"format_version": str(FORMAT_VERSION)})
            (new / WEIGHTS).chmod(0o644)  # safetensors makes it private
            _write_json(new / VOCABULARY, {"words": captioner.vocabulary.plain_words}, indent=0)
            (new / CARD).write_text(card, "utf-8")
            _write_json(new / CONFIG, config)
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


def _write_json(file: Path, content: Any, indent: int = 2) -> None:
    file.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", "utf-8")


def load(source: str | Path) -> Stored:
    """Load a model folder, a Lightning ``.ckpt`` or a run folder.

    Raises:
        CheckpointError: no model; a file that is missing, damaged or a link; a configuration that is
            wrong or of another format; weights, vocabulary or encoder of another model.
    """
    path = Path(source).expanduser()
    with model_folder.named(path):
        if (folder := model_folder.find(path)) is not None:
            return _load_folder(folder)
        for file in (path, path / BEST):
            if file.is_file() and file.suffix == BEST.suffix:
                return _load_lightning(file)
        if not path.exists():
            known = unknown("model", str(source), bundled_models())
            raise CheckpointError(f"{known}; or give an existing path")
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
            f"{vocabulary.fingerprint}, expected {expected}): restore the original"
        )
    captioner = Captioner.from_config(config["model"], vocabulary)
    load_model(captioner, weights)
    check_encoder(captioner, config["encoder_weights"]["sha256"], weights)
    decoding = Decoding().with_options(config.get("decoding", {}))
    calibration = Calibration(**config["confidence"]) if "confidence" in config else None
    return Stored(captioner.eval(), decoding, config.get("supervision", 0.0), calibration)


def read_lightning(file: Path) -> Mapping[str, Any]:
    """Read a Lightning checkpoint of ``captioner fit``; raise CheckpointError if it is none."""
    with model_folder.named(file):
        try:
            # With memory mapping, torch refuses a tensor of which the file holds only a part.
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch's messages advise to run the code
            raise CheckpointError(
                "it is damaged, or holds more than tensors and plain values, which could run code: give "
                "a complete file of captioner fit"
            ) from error
        if not {"hyper_parameters", "state_dict"} <= content.keys():
            raise CheckpointError("it is no checkpoint of captioner fit")
    return cast(Mapping[str, Any], content)


def _load_lightning(file: Path) -> Stored:
    """Load a checkpoint: the averaged weights, if it holds both."""
    content = read_lightning(file)
    options = content["hyper_parameters"]
    tree = {part: options.get(part) for part in PARTS}
    captioner = Captioner.from_config(tree, Vocabulary(options["words"]))
    prefix = "captioner."
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(prefix)
    }
    captioner.load_state_dict(tensors)
    check_encoder(captioner, content.get("encoder_sha256"), file)
    decoding = Decoding().with_options(options.get("decoding", {}))
    return Stored(captioner.eval(), decoding, float(content.get("supervision", 0.0)))


def check_encoder(captioner: Captioner, expected: Any, source: Path) -> None:
    """Load an encoder's packaged weights; raise CheckpointError if training used others.

    ``expected`` is the encoder's fingerprint in training, None if it is unknown; ``source`` is the file
    of the decoder, for the message.
    """
    if not captioner.encoder.external:
        return
    captioner.encoder.load_pretrained()
    actual = captioner.encoder.fingerprint()
    if expected is not None and actual != expected:
        raise CheckpointError(
            f"'{source}' was trained with another encoder (sha256 {expected!s:.12}…) than this one "
            f"({actual:.12}…): give its options, or install the same version of its package"
        )
