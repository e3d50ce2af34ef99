"""What a stranger's model may ask for: limits to be checked before memory or time is spent on it.

``captioner.checkpoint`` builds a model from files that anybody may have made. None of them can run
code; these keep a small file from asking for a large machine.
"""

import json
import unicodedata
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook

from captioner.errors import CheckpointError, ModelError
from captioner.models.captioner import Captioner

MAX_JSON = 64 << 20
"""Bytes of a configuration or of a vocabulary; a million words are 20 MB."""
MAX_DECODING = 1000
"""Beams, words and samples that a stored decoding may name."""
MAX_TENSORS = 10_000
"""Parameters by number; the largest networks of timm have some thousands."""
SPARE = 64 << 20
"""Numbers that a model may have beyond those in its file: an encoder whose weights are a package's."""


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of at most ``MAX_JSON`` bytes.

    Raises:
        CheckpointError: it is larger, cannot be read, or holds something else.
    """
    try:
        if file.stat().st_size > MAX_JSON:
            raise ValueError(f"it is larger than {MAX_JSON} bytes")
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' holds a {type(content).__name__}; expected an object")
    return content


def words(source: Path, given: Any) -> list[str]:
    """The words of a stored vocabulary.

    Raises:
        CheckpointError: no list of words, or one that a terminal or a file of lines would stumble over.
    """
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise CheckpointError(
            f"'{source}' has no list of words; its vocabulary is missing or damaged"
        )
    for word in given:
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in word):
            raise CheckpointError(f"'{source}' has a word with control characters: {word!r:.40}")
    return given


@contextmanager
def no_larger_than(weights: Path) -> Iterator[None]:
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


def check_header(file: Path, captioner: Captioner) -> None:
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


def check_stored(file: Path) -> None:
    """Refuses packed content: a file of a few megabytes may unpack to any size."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as content:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in content.infolist()):
                raise ValueError("its content is compressed, which torch.save never does")
