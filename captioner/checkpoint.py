"""Model folder ⇄ Captioner. Loading is strict and runs no code of whoever made the folder.

    config.json         format_version, the tree of parts, preprocessing, vocabulary, decoding
    model.safetensors   the weights; those of an encoder that a package brings are only named
    vocab.json          the words
    README.md           the card

The same layout as on the Hugging Face hub. A Lightning checkpoint and a run folder load too.
"""

import json
import tempfile
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch.nn.modules.module import register_module_parameter_registration_hook

from captioner import __version__
from captioner.decoding import Decoding
from captioner.errors import CaptionerError, CheckpointError, ModelError, UsageError
from captioner.models.captioner import PARTS, Captioner
from captioner.text import Tokenizer, Vocabulary

FORMAT_VERSION = 1
CONFIG, WEIGHTS, VOCABULARY, CARD = "config.json", "model.safetensors", "vocab.json", "README.md"
BEST = Path("checkpoints") / "best.ckpt"
MODEL = "model"

# What a stranger's files may ask for before they are refused.
MAX_JSON = 64 << 20
"""Bytes of a configuration or of a vocabulary; a million words are 20 MB."""
MAX_DECODING = 1000
"""Beams, words and samples that a stored decoding may name."""
MAX_TENSORS = 10_000
"""Parameters by number; the largest networks of timm have some thousands."""
SPARE = 64 << 20
"""Numbers that a model may have beyond those in its file: an encoder whose weights are a package's."""


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
) -> None:
    """Writes a model folder. What is there under its name is always a whole one or none.

    Args:
        captioner: what to save.
        folder: where; must not exist, or be an earlier model folder, which is replaced.
        card: the text of its README.md.
        decoding: how captions are searched for unless the user says otherwise.
        supervision: the weight of the masks that supervised its attention.

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
                captioner, str(new / WEIGHTS), metadata={"format_version": str(FORMAT_VERSION)}
            )
            (new / WEIGHTS).chmod(0o644)  # safetensors makes it private
            (new / VOCABULARY).write_text(
                _dump({"words": captioner.vocabulary.plain_words}), "utf-8"
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
        raise CheckpointError(f"no model at '{path}': the path does not exist")
    raise CheckpointError(
        f"'{path}' holds no model; expected a model folder ({CONFIG}, {WEIGHTS}, {VOCABULARY}), "
        f"a run folder ({MODEL}/ or {BEST}), or a .ckpt file"
    )


def load_folder(folder: Path) -> Stored:
    """From a model folder; see ``load``."""
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
        _check_header(folder / WEIGHTS, captioner)
        # Knows which tensors are stored once and used twice, as tied embeddings are.
        load_model(captioner, folder / WEIGHTS, strict=True)
    except RuntimeError as error:
        raise _misfit(folder / WEIGHTS, error) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"'{folder / WEIGHTS}' cannot be read: {error}; copy it again"
        ) from error
    _check_encoder(captioner, _section(folder, config, "encoder_weights").get("sha256"), folder)
    if _section(folder, config, "preprocessing") != _plain(captioner.encoder.preprocessing):
        raise CheckpointError(
            f"'{folder / CONFIG}' names another preprocessing than its encoder has: restore the original"
        )
    decoding = _decoding(folder, config.get("decoding", {}))
    return Stored(captioner.eval(), decoding, _supervision(folder, config))


def read_lightning(file: Path) -> Mapping[str, Any]:
    """The content of a Lightning checkpoint of ``captioner fit``, nothing built yet."""
    try:
        _check_stored(file)
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
    _check_encoder(captioner, content.get("encoder_sha256"), file)
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
        if max(decoding.beam_size, decoding.max_length, decoding.samples) > MAX_DECODING:
            raise UsageError(f"beams, words and samples go up to {MAX_DECODING}")
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
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(
            f"'{source}' has no list of words; its vocabulary is missing or damaged"
        )
    for word in words:
        # A word goes to terminals and into files line by line.
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in word):
            raise CheckpointError(f"'{source}' has a word with control characters: {word!r:.40}")
    if not isinstance(tree, Mapping):
        raise CheckpointError(
            f"'{source}' does not say what model it holds; its configuration is damaged"
        )
    try:
        with _no_larger_than(weights):
            return Captioner.from_config(tree, Vocabulary(words))
    except (CaptionerError, RecursionError, MemoryError, OverflowError) as error:
        raise CheckpointError(
            f"'{source}' cannot be rebuilt: {str(error) or type(error).__name__:.500}"
        ) from error


@contextmanager
def _no_larger_than(weights: Path) -> Iterator[None]:
    """Refuses a model with many more parameters than its file could hold, while it is built.

    A configuration of a few bytes may name a layer of many gigabytes, or a million layers. A
    parameter is counted when it is given to its module, and no memory is touched before that.
    """
    room = weights.stat().st_size // 2 + SPARE  # no stored number is smaller than two bytes
    seen: set[int] = set()
    total = 0

    def count(_: torch.nn.Module, __: str, parameter: torch.nn.Parameter | None) -> None:
        nonlocal total
        if parameter is None or parameter.is_meta or id(parameter) in seen:
            return
        seen.add(id(parameter))
        total += parameter.numel()
        if total > room or len(seen) > MAX_TENSORS:
            raise ModelError(
                f"its configuration asks for more parameters than '{weights.name}' can hold"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _check_header(file: Path, captioner: Captioner) -> None:
    """Refuses weights of other names or shapes by the file's header, before any is read."""
    own = captioner.state_dict()
    with safe_open(str(file), "pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - no mapping
            shape = stored.get_slice(name).get_shape()
            if name not in own or list(own[name].shape) != shape:
                expected = list(own[name].shape) if name in own else "no such tensor"
                raise CheckpointError(
                    f"'{file}' does not fit its model: {name!r:.100} is {shape}, expected {expected}"
                )


def _check_stored(file: Path) -> None:
    """Refuses packed content: a file of a few megabytes may unpack to any size."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as content:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in content.infolist()):
                raise ValueError("its content is compressed, which torch.save never does")


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
        if file.stat().st_size > MAX_JSON:
            raise ValueError(f"it is larger than {MAX_JSON} bytes")
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' holds a {type(content).__name__}; expected an object")
    return content


def _dump(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
