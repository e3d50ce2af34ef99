"""Model folder ⇄ Captioner. Loading is strict and runs no code of whoever made the folder.

    config.json         format_version, the tree of parts, preprocessing, vocabulary
    model.safetensors   the weights; those of an encoder that a package brings are only named
    vocab.json          the words
    README.md           the card

The same layout as on the Hugging Face hub. A Lightning checkpoint and a run folder load too.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from captioner import __version__
from captioner.errors import CaptionerError, CheckpointError
from captioner.models.captioner import PARTS, Captioner
from captioner.text import Tokenizer, Vocabulary

FORMAT_VERSION = 1
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
BEST = Path("checkpoints") / "best.ckpt"
MODEL = "model"


def save(captioner: Captioner, folder: str | Path, card: str) -> None:
    """Writes a model folder, whole or not at all.

    Args:
        captioner: what to save.
        folder: where; must not exist, or be an earlier model folder, which is replaced.
        card: the text of its README.md.

    Raises:
        CheckpointError: the folder holds something else, or cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise CheckpointError(f"'{folder}' is not empty and no model folder; choose another")
    encoder = captioner.encoder
    config = {
        "format_version": FORMAT_VERSION,
        "captioner_version": __version__,
        "model": captioner.config,
        "preprocessing": asdict(encoder.preprocessing),
        "vocabulary": {
            "size": len(captioner.vocabulary),
            "fingerprint": captioner.vocabulary.fingerprint,
            "tokenizer": Tokenizer.name,
        },
        "encoder_weights": {"stored": not encoder.external, "sha256": encoder.fingerprint()},
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
            new = Path(staging) / "new"
            new.mkdir()
            save_model(
                captioner, str(new / WEIGHTS), metadata={"format_version": str(FORMAT_VERSION)}
            )
            (new / WEIGHTS).chmod(0o644)  # safetensors makes it private
            (new / VOCABULARY).write_text(
                _dump({"words": captioner.vocabulary.plain_words}), "utf-8"
            )
            (new / CARD).write_text(card, "utf-8")
            (new / CONFIG).write_text(_dump(config), "utf-8")
            if folder.exists():
                folder.replace(Path(staging) / "old")
            new.replace(folder)
    except OSError as error:
        raise CheckpointError(f"cannot write the model folder '{folder}': {error}") from error


def load(source: str | Path) -> Captioner:
    """A captioner in eval mode, on the CPU, from a model folder, a ``.ckpt`` or a run folder.

    Raises:
        CheckpointError: nothing there, files missing or cut, a newer format, unknown parts, weights
            or vocabulary of another size.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return load_lightning(path)
    if (path / CONFIG).is_file():
        return load_folder(path)
    if (path / MODEL / CONFIG).is_file():
        return load_folder(path / MODEL)
    if (path / BEST).is_file():
        return load_lightning(path / BEST)
    if not path.exists():
        raise CheckpointError(f"no model at '{path}': the path does not exist")
    raise CheckpointError(
        f"'{path}' holds no model; expected a model folder ({CONFIG}, {WEIGHTS}, {VOCABULARY}), "
        f"a run folder ({MODEL}/ or {BEST}), or a .ckpt file"
    )


def load_folder(folder: Path) -> Captioner:
    """A captioner from a model folder; see ``load``."""
    config = _read_json(folder / CONFIG)
    version = config.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"'{folder / CONFIG}' has no format_version; is this a model folder?")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"'{folder}' has format version {version}, this captioner ({__version__}) reads up to "
            f"{FORMAT_VERSION}: pip install --upgrade captioner"
        )
    words = _read_json(folder / VOCABULARY).get("words")
    captioner = _assemble(folder, config.get("model"), words)
    expected = config.get("vocabulary", {}).get("fingerprint")
    if captioner.vocabulary.fingerprint != expected:
        raise CheckpointError(
            f"'{folder / VOCABULARY}' is not the vocabulary this model was trained with (fingerprint "
            f"{captioner.vocabulary.fingerprint}, {CONFIG} says {expected}): restore the original"
        )
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"'{folder}' has no {WEIGHTS}; the folder is incomplete")
    try:
        # Knows which tensors are stored once and used twice, as tied embeddings are.
        load_model(captioner, folder / WEIGHTS, strict=True)
    except RuntimeError as error:
        raise _misfit(folder / WEIGHTS, error) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"'{folder / WEIGHTS}' cannot be read: {error}; copy it again"
        ) from error
    _check_encoder(captioner, config.get("encoder_weights", {}).get("sha256"), folder)
    return captioner.eval()


def load_lightning(file: Path) -> Captioner:
    """A captioner from a Lightning checkpoint; see ``load``. The averaged weights, if it has both."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file that is no checkpoint leads the reader into
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"'{file}' cannot be read as a checkpoint: {reason:.200}") from error
    if not isinstance(content, Mapping) or not {"hyper_parameters", "state_dict"} <= set(content):
        raise CheckpointError(
            f"'{file}' is no checkpoint of captioner fit: hyper_parameters are missing"
        )
    given = content["hyper_parameters"]
    tree = {part: given.get(part) for part in PARTS}
    captioner = _assemble(file, tree, given.get("words"))
    prefix = "captioner."
    tensors = {
        key.removeprefix(prefix): tensor
        for key, tensor in content["state_dict"].items()
        if key.startswith(prefix)
    }
    try:
        captioner.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise _misfit(file, error) from error
    _check_encoder(captioner, content.get("encoder_sha256"), file)
    return captioner.eval()


def _assemble(source: Path, tree: Any, words: Any) -> Captioner:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(
            f"'{source}' has no list of words; its vocabulary is missing or damaged"
        )
    if not isinstance(tree, Mapping):
        raise CheckpointError(
            f"'{source}' does not say what model it holds; its configuration is damaged"
        )
    try:
        return Captioner.from_config(tree, Vocabulary(words))
    except CaptionerError as error:
        raise CheckpointError(f"'{source}' cannot be rebuilt: {error}") from error


def _misfit(source: Path, error: RuntimeError) -> CheckpointError:
    """Torch's list of what does not fit, in one line."""
    lines = [line.strip() for line in str(error).splitlines()[1:]]
    return CheckpointError(
        f"'{source}' does not fit its model: {' '.join(lines) or str(error):.300}"
    )


def _check_encoder(captioner: Captioner, expected: Any, source: Path) -> None:
    """An encoder whose weights are a package's must be the one the decoder was trained with."""
    if captioner.encoder.external:
        captioner.encoder.load_pretrained()
        found = captioner.encoder.fingerprint()
        if expected is not None and found != expected:
            raise CheckpointError(
                f"'{source}' was trained with other encoder weights (sha256 {expected:.12}…) than the "
                f"installed package has ({found:.12}…): install the version it was trained with"
            )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' holds a {type(content).__name__}; expected an object")
    return content


def _dump(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_text(file: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o644)  # noqa: PTH101 - mkstemp makes it private
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
