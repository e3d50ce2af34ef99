"""Model folder ⇄ Captioner. Loading is strict and runs no code of whoever made the folder.

    config.json         format_version, the tree of parts, preprocessing, vocabulary, decoding
    model.safetensors   the weights; those of an encoder that a package brings are only named
    vocab.json          the words
    README.md           the card

The same layout as on the Hugging Face hub. A Lightning checkpoint and a run folder load too.
"""

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from captioner import __version__, untrusted
from captioner.decoding import Decoding
from captioner.errors import CaptionerError, CheckpointError, UsageError
from captioner.models.captioner import PARTS, Captioner
from captioner.shipped import models
from captioner.text import Tokenizer, Vocabulary

FORMAT_VERSION = 1
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
BEST = Path("checkpoints") / "best.ckpt"
MODEL = "model"


@dataclass(frozen=True)
class Stored:
    """What a model folder or a checkpoint holds.

    Attributes:
        captioner: in eval mode, on the CPU.
        decoding: how its captions were searched for when it was scored.
        supervision: the weight of the masks that supervised its attention; 0 where none did.
    """

    captioner: Captioner
    decoding: Decoding
    supervision: float = 0.0


def save(
    captioner: Captioner,
    folder: str | Path,
    card: str,
    decoding: Decoding,
    supervision: float = 0.0,
    half: bool = False,
) -> None:
    """Writes a model folder. What is there under its name is always a whole one or none.

    Args:
        captioner: what to save.
        folder: where; must not exist, or be an earlier model folder, which is replaced.
        card: the text of its README.md.
        decoding: how captions are searched for unless the user says otherwise.
        supervision: the weight of the masks that supervised its attention.
        half: whether to store its parameters in half precision (float16), in half the space; loaded
            they are single again.

    Raises:
        CheckpointError: the folder holds something else, or cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"'{folder}' is a file; give the folder to write the model into")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).is_file():
        raise CheckpointError(f"'{folder}' is not empty and no model folder; choose another")
    encoder = captioner.encoder
    config = {
        "format_version": FORMAT_VERSION,
        "captioner_version": __version__,
        "model": captioner.config,
        "preprocessing": asdict(encoder.preprocessing),
        "decoding": asdict(decoding),
        "supervision": supervision,
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
                _halved(captioner) if half else captioner,
                str(new / WEIGHTS),
                metadata={"format_version": str(FORMAT_VERSION)},
            )
            (new / WEIGHTS).chmod(0o644)  # safetensors makes it private
            (new / VOCABULARY).write_text(
                _dump({"words": captioner.vocabulary.plain_words}, indent=0), "utf-8"
            )
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


def _halved(captioner: Captioner) -> Captioner:
    """A copy with parameters in half precision; the statistics of a batch norm may be too large."""
    halved = copy.deepcopy(captioner)
    for parameter in halved.parameters():
        parameter.data = parameter.data.half()
    return halved


def load(source: str | Path) -> Stored:
    """What a model folder, a ``.ckpt`` or a run folder holds.

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
        bundled = ", ".join(models())
        raise CheckpointError(
            f"no model at '{path}': the path does not exist; the bundled models are {bundled}"
        )
    raise CheckpointError(
        f"'{path}' holds no model; expected a model folder ({CONFIG}, {WEIGHTS}, {VOCABULARY}), "
        f"a run folder ({MODEL}/ or {BEST}), or a .ckpt file"
    )


def load_folder(folder: Path) -> Stored:
    """From a model folder; see ``load``."""
    config = untrusted.read_json(folder / CONFIG)
    version = config.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"'{folder / CONFIG}' has no format_version; is this a model folder?")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"'{folder}' has format version {version}, this captioner ({__version__}) reads up to "
            f"{FORMAT_VERSION}: pip install --upgrade captioner"
        )
    words = untrusted.read_json(folder / VOCABULARY).get("words")
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"'{folder}' has no {WEIGHTS}; the folder is incomplete")
    captioner = _assemble(folder, config.get("model"), words, folder / WEIGHTS)
    expected = _section(folder, config, "vocabulary").get("fingerprint")
    if captioner.vocabulary.fingerprint != expected:
        raise CheckpointError(
            f"'{folder / VOCABULARY}' is not the vocabulary this model was trained with (fingerprint "
            f"{captioner.vocabulary.fingerprint}, {CONFIG} says {expected}): restore the original"
        )
    try:
        untrusted.check_header(folder / WEIGHTS, captioner)
        # Knows which tensors are stored once and used twice, as tied embeddings are.
        load_model(captioner, folder / WEIGHTS, strict=True)
    except RuntimeError as error:
        raise _misfit(folder / WEIGHTS, error) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"'{folder / WEIGHTS}' cannot be read: {error}; copy it again"
        ) from error
    check_encoder(captioner, _section(folder, config, "encoder_weights").get("sha256"), folder)
    if _section(folder, config, "preprocessing") != _plain(captioner.encoder.preprocessing):
        raise CheckpointError(
            f"'{folder / CONFIG}' names another preprocessing than its encoder has: restore the original"
        )
    decoding = _decoding(folder, config.get("decoding", {}))
    return Stored(captioner.eval(), decoding, _supervision(folder, config))


def read_lightning(file: Path) -> Mapping[str, Any]:
    """The content of a Lightning checkpoint of ``captioner fit``, nothing built yet."""
    try:
        untrusted.check_stored(file)
        # Mapped, not read: a tensor takes memory when it is used, and only if it is there.
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever a file that is no checkpoint leads the reader into
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"'{file}' cannot be read as a checkpoint: {reason:.200}; is it whole?"
        ) from error
    parts = ("hyper_parameters", "state_dict")
    if not isinstance(content, Mapping) or not all(
        isinstance(content.get(part), Mapping) for part in parts
    ):
        raise CheckpointError(f"'{file}' is no checkpoint of captioner fit: it lacks {parts[0]}")
    return content


def load_lightning(file: Path) -> Stored:
    """From a Lightning checkpoint; see ``load``. The averaged weights, if it has both."""
    content = read_lightning(file)
    given = content["hyper_parameters"]
    tree = {part: given.get(part) for part in PARTS}
    captioner = _assemble(file, tree, given.get("words"), file)
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
    check_encoder(captioner, content.get("encoder_sha256"), file)
    decoding = _decoding(file, given.get("decoding", {}))
    return Stored(captioner.eval(), decoding, _supervision(file, content))


def _section(folder: Path, config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(
            f"'{folder / CONFIG}' has no {name!r} with names and values: restore the original"
        )
    return section


def _plain(values: Any) -> Any:
    """A dataclass as JSON gives it back."""
    return json.loads(json.dumps(asdict(values)))


def _decoding(source: Path, given: Any) -> Decoding:
    try:
        decoding = Decoding(**given)
        if max(decoding.beam_size, decoding.max_length, decoding.samples) > untrusted.MAX_DECODING:
            raise UsageError(f"beams, words and samples go up to {untrusted.MAX_DECODING}")
    except (TypeError, CaptionerError) as error:
        raise CheckpointError(f"'{source}' says how to decode as {given!r:.80}: {error}") from error
    return decoding


def _supervision(source: Path, content: Mapping[str, Any]) -> float:
    """Older versions had none."""
    found = content.get("supervision", 0.0)
    if not isinstance(found, int | float):
        raise CheckpointError(
            f"'{source}' says that masks supervised it by {found!r:.80}; expected λ"
        )
    return float(found)


def _assemble(source: Path, tree: Any, words: Any, weights: Path) -> Captioner:
    if not isinstance(tree, Mapping):
        raise CheckpointError(
            f"'{source}' does not say what model it holds; its configuration is damaged"
        )
    vocabulary = untrusted.words(source, words)
    try:
        with untrusted.no_larger_than(weights):
            return Captioner.from_config(tree, Vocabulary(vocabulary))
    except (CaptionerError, RecursionError, MemoryError, OverflowError) as error:
        raise CheckpointError(
            f"'{source}' cannot be rebuilt: {str(error) or type(error).__name__:.500}"
        ) from error


def _misfit(source: Path, error: RuntimeError) -> CheckpointError:
    """Torch's list of what does not fit, in one line."""
    lines = [line.strip() for line in str(error).splitlines()[1:]]
    return CheckpointError(
        f"'{source}' does not fit its model: {' '.join(lines) or str(error):.300}"
    )


def check_encoder(captioner: Captioner, expected: Any, source: Path) -> None:
    """An encoder whose weights are a package's must be the one the decoder was trained with.

    Args:
        captioner: which fetches these weights.
        expected: the encoder's fingerprint then; None if it is not known.
        source: what the decoder comes from.

    Raises:
        CheckpointError: it is another.
    """
    if captioner.encoder.external:
        captioner.encoder.load_pretrained()
        found = captioner.encoder.fingerprint()
        if expected is not None and found != expected:
            raise CheckpointError(
                f"'{source}' was trained behind another encoder (sha256 {expected:.12}…) than this one "
                f"({found:.12}…): give its image_size, weights, stride and finer, or install the "
                "version of the weights' package that it was trained with"
            )


def _dump(content: Any, indent: int = 2) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
