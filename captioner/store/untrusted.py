"""Limits for model files from untrusted sources.

Loading runs no code from a file; these checks keep a small file from taking much memory or time.
"""

import json
import pickletools
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from captioner.errors import CheckpointError, ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Upper limits of what a model file may contain.
SIZES = {".json": 8 << 20, ".md": 1 << 20, ".safetensors": 8 << 30, ".ckpt": 32 << 30}  # bytes
MAX_PICKLE = 64 << 20  # bytes of the pickle in a checkpoint; the tensors are not part of it
MAX_NODES = 2_000_000  # options in a checkpoint; a shared one counts each time it is reached
MAX_TENSORS = 10_000  # parameter tensors; the largest networks of timm have a few thousand
MAX_STORED = 3 * MAX_TENSORS  # in a file of weights: parameters, and buffers such as running means
SPARE = 32 << 20  # parameters beyond the file, for encoders from installed packages
# All that torch.save writes for dictionaries, lists, texts, numbers and tensors.
_OPCODES = frozenset(
    "PROTO MARK STOP GLOBAL REDUCE BUILD BINPERSID NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 "  # noqa: SIM905
    "BINFLOAT BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT "
    "SETITEM SETITEMS BINPUT LONG_BINPUT BINGET LONG_BINGET".split()
)
_GLOBALS = re.compile(
    "collections OrderedDict|torch[.]_utils _rebuild_tensor_v2|torch[.]_utils _rebuild_parameter|"
    "torch (Float|Half|BFloat16|Double|Long|Int|Short|Char|Byte|Bool)Storage"
)


def check_file(file: Path) -> None:
    """Raise CheckpointError unless a path is a regular file of a reasonable size, not a link."""
    try:
        status = file.lstat()
    except FileNotFoundError as error:
        raise CheckpointError(f"'{file}' is missing: copy the whole folder again") from error
    except OSError as error:
        raise CheckpointError(f"'{file}' cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "no regular file"
        raise CheckpointError(f"'{file}' is {kind}: copy the file itself into the folder")
    if status.st_size > (limit := SIZES.get(file.suffix, SIZES[".ckpt"])):
        raise CheckpointError(f"'{file}' has {status.st_size:,} bytes, expected at most {limit:,}")


def read_text(file: Path) -> str:
    """Read a checked file as UTF-8; raise CheckpointError if it is something else."""
    check_file(file)
    try:
        return file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file; raise CheckpointError if it holds something else."""
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'{file}' cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"'{file}' holds a {type(content).__name__}; expected an object")
    return content


@contextmanager
def no_larger_than(weights: Path) -> Iterator[None]:
    """Raise ModelError when the block builds a model with many more parameters than its file holds.

    A short configuration can ask for a layer of many gigabytes, or for a million layers. Parameters
    are counted when they are registered, before their memory is touched.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook

    limit = weights.stat().st_size // 2 + SPARE  # at least two bytes per number
    sizes: dict[int, int] = {}

    def count(_: "nn.Module", __: str, parameter: "nn.Parameter | None") -> None:
        if parameter is not None and not parameter.is_meta:
            sizes[id(parameter)] = parameter.numel()
            if len(sizes) > MAX_TENSORS or sum(sizes.values()) > limit:
                raise ModelError(
                    f"its configuration asks for more parameters than '{weights.name}' can hold"
                )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def read_weights(file: Path) -> "dict[str, Tensor]":
    """Read a safetensors file; raise CheckpointError if it is damaged.

    A tensor with two names, such as tied embeddings, is stored once; the metadata lists the other.
    """
    try:
        with safe_open(str(file), "pt") as stored:
            names, aliases = stored.keys(), stored.metadata() or {}
            if (number := len(names) + len(aliases)) > MAX_STORED:
                raise CheckpointError(
                    f"'{file}' lists {number:,} tensors, expected at most {MAX_STORED:,}; give a "
                    "file that captioner export wrote"
                )
            tensors = {name: stored.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}; copy it again") from error
    return tensors | {alias: tensors[name] for alias, name in aliases.items() if name in tensors}


def check_pickle(file: Path) -> None:
    """Raise ValueError unless a checkpoint is an archive as torch.save writes it.

    A compressed archive could unpack to any size, and a pickle could call functions that take any
    memory or time, so only what torch.save writes for tensors and plain values is allowed.
    """
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = {entry.filename for entry in entries}
        pickles = [name for name in names if name.endswith(".pkl")]
        if len(names) < len(entries) or len(pickles) != 1:
            raise ValueError("it is not an archive of torch.save")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("its content is compressed; torch.save never compresses")
        if archive.getinfo(pickles[0]).file_size > MAX_PICKLE:
            raise ValueError(f"its pickle has more than {MAX_PICKLE:,} bytes")
        for opcode, argument, _ in pickletools.genops(archive.read(pickles[0])):
            allowed = opcode.name != "GLOBAL" or _GLOBALS.fullmatch(str(argument))
            if opcode.name not in _OPCODES or not allowed:
                raise ValueError(f"it may run code ({opcode.name} {argument!r:.100})")


def check_nodes(tree: Any) -> None:
    """Raise ValueError for a name that is no text, or for more than ``MAX_NODES`` values."""
    stack, count = [tree], 0
    while stack:
        node = stack.pop()
        count += 1
        if isinstance(node, Mapping):
            if not all(isinstance(name, str) for name in node):
                raise ValueError("its options have a name that is no text")
            stack += node.values()
        elif isinstance(node, list | tuple):
            stack += node
        if count + len(stack) > MAX_NODES:
            raise ValueError(f"its options have more than {MAX_NODES:,} values")
