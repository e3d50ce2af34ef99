"""The schema of ``config.json``: the type and the range of every field.

Model folders come from strangers. Ranges are wide enough for every useful model, and sizes that
multiply have a common limit, so that no configuration can take much memory or time.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shortened
from typing import Any, Literal, Union, get_args, get_origin

from captioner.errors import ModelError
from captioner.limits import DECODING, SHARE, SUPERVISION, TEMPERATURE, Number
from captioner.models.captioner import PARTS
from captioner.models.registry import arguments, find
from captioner.text import MAX_WORD

MAX_NUMBERS = 1 << 28
"""Numbers, of four bytes, in the largest tensor that one image needs."""
PATCH = 8
"""The smallest patch of a Vision Transformer, in pixels."""


@dataclass(frozen=True)
class Text:
    """A text of limited length."""

    length: int = MAX_WORD

    def accepts(self, value: Any) -> bool:
        """Return whether it is such a text."""
        return isinstance(value, str) and len(value) <= self.length

    def __str__(self) -> str:
        return f"text of at most {self.length} characters"


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def accepts(self, value: Any) -> bool:
        """Return whether it is one of them, with the same type: 1 is not True."""
        return any(type(value) is type(known) and value == known for known in self.values)

    def __str__(self) -> str:
        return " or ".join(repr(value) for value in self.values)


@dataclass(frozen=True)
class ListOf:
    """A list of limited length."""

    item: "Field"
    least: int = 0
    most: int = 8

    def accepts(self, value: Any) -> bool:
        """Return whether it is such a list."""
        sequence = isinstance(value, list | tuple) and self.least <= len(value) <= self.most
        return sequence and all(map(self.item.accepts, value))

    def __str__(self) -> str:
        return f"a list of {self.least} to {self.most} values, each {self.item}"


@dataclass(frozen=True)
class AnyOf:
    """A value of one of several kinds."""

    kinds: tuple["Field", ...]

    def accepts(self, value: Any) -> bool:
        """Return whether one of them accepts it."""
        return any(kind.accepts(value) for kind in self.kinds)

    def __str__(self) -> str:
        return " or ".join(map(str, self.kinds))


Field = Number | Text | OneOf | ListOf | AnyOf

BOOLEAN = OneOf((True, False))
_SIDE = Number(16, 1024)
# Options of parts; all parts that have an option of this name share its range.
RANGES = {
    "image_size": _SIDE,
    "trainable": Number(0, 10_000),
    **dict.fromkeys(("stride", "extra_strides", "layers", "heads", "block"), Number(1, 64)),
    **dict.fromkeys(("margin", "window", "head_window"), Number(0, 64)),
    "positions": Number(0, 65_536),
    "top": Number(1, 65_536),
    "temperature": TEMPERATURE,
    "dropout": SHARE,
}
# Options of other names. The class of a part may accept less.
WHOLE = Number(1, 16_384)
FRACTION = Number(-1e6, 1e6, whole=False)
_COLOURS = ListOf(Number(-1000, 1000, whole=False), 3, 3)
# Besides "model", whose fields are the options of the classes that it names.
CONFIG: dict[str, Field | Mapping[str, Field]] = {
    "format_version": Number(1, 1_000_000),
    "captioner_version": Text(),
    "preprocessing": {
        "height": _SIDE,
        "width": _SIDE,
        "interpolation": Text(),
        "mean": _COLOURS,
        "std": _COLOURS,
    },
    "decoding": DECODING,
    "supervision": SUPERVISION,
    "vocabulary": {"size": Number(4, 1_000_000), "fingerprint": Text(), "tokenizer": Text()},
    "encoder_weights": {"stored": BOOLEAN, "sha256": Text()},
}
# What is read of a Lightning checkpoint besides the words, the parts and the weights.
CHECKPOINT: dict[str, Any] = {
    "hyper_parameters": {"decoding": DECODING},
    "supervision": CONFIG["supervision"],
    "encoder_sha256": Text(),
}
# What older folders and checkpoints may lack.
OPTIONAL = ("captioner_version", "decoding", "supervision", "encoder_sha256", *DECODING)


def check(
    config: Any, schema: Mapping[str, Any] = CONFIG, where: str = "the configuration"
) -> None:
    """Raise ModelError if a field of a section is missing, of another type or outside its range.

    Fields that are not in the schema are never read.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"{where} is {shortened(config)}, expected names and values")
    for name, field in schema.items():
        if name not in config:
            if name not in OPTIONAL:
                raise ModelError(f"{where} has no {name!r}")
        elif isinstance(field, Mapping):
            check(config[name], field, name)
        elif not field.accepts(config[name]):
            raise ModelError(f"{name} is {shortened(config[name])}, expected {field}")


def option(name: str, annotation: Any) -> Field | None:
    """Return the schema of a part's option; None if only a tree of parts is accepted."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        fields = [option(name, kind) for kind in inner]
        kinds = tuple(field for field in fields if field is not None)
        return AnyOf(kinds) if kinds else None
    if origin is Literal:
        return OneOf(inner)
    if origin is Sequence:
        item = option(name, inner[0])
        return None if item is None else ListOf(item)
    if annotation in (int, float):
        whole = annotation is int
        return replace(RANGES.get(name, WHOLE if whole else FRACTION), whole=whole)
    others: dict[Any, Field] = {bool: BOOLEAN, str: Text(), types.NoneType: OneOf((None,))}
    return others.get(annotation)


def check_model(trees: Any) -> None:
    """Check the trees of the encoder, the neck and the decoder, like ``check_part``."""
    check(trees, {part: {} for part in PARTS}, "the model")
    for part in PARTS:
        check_part(part, trees[part])


def check_part(kind: str, tree: Any) -> None:
    """Raise ModelError if a part, or a part inside it, does not fit the arguments of its class."""
    check(tree, {"class_path": Text(200)}, f"the {kind}")
    options = tree.get("init_args") or {}
    if not isinstance(options, Mapping):
        raise ModelError(f"init_args of the {kind} are {shortened(options)}, expected a mapping")
    cls = find(kind, tree["class_path"])
    parameters = arguments(cls)
    for name, value in options.items():
        if name not in parameters:
            continue  # refused by ``build``, which lists the known options
        field = option(name, parameters[name].annotation)
        if field is None:
            check_part(cls.parts.get(name) or str(name), value)
        elif not field.accepts(value):
            raise ModelError(f"{kind}: {name} is {shortened(value)}, expected {field}")


def check_size(trees: Mapping[str, Any], rows: int, words: int) -> None:
    """Raise ModelError if one image, with ``rows`` hypotheses, takes a tensor above ``MAX_NUMBERS``."""
    encoder, neck = (_sizes(part, trees[part]) for part in ("encoder", "neck"))
    # Other classes may not have these options; a Vision Transformer's stride is its patch.
    ends = [name.removesuffix("image_size") for name in encoder if name.endswith("image_size")]
    sides = [encoder[f"{end}image_size"] // encoder.get(f"{end}stride", PATCH) for end in ends]
    regions = max(sides, default=0) ** 2
    width = max([*neck.values(), *_sizes("decoder", trees["decoder"]).values()], default=1)
    block = neck.get("block", 0)
    window = (block + 2 * neck.get("margin", 0)) ** 2 if block else regions
    scores = regions * window * neck.get("heads", 1)
    gathered = regions * window * width // block**2 if block else 0
    numbers = max(scores, gathered, rows * max(regions * width, words))
    if numbers > MAX_NUMBERS:
        raise ModelError(
            f"an image of {regions:,} regions, {rows:,} hypotheses and a width of {width:,} take "
            f"{numbers:,} numbers, expected at most {MAX_NUMBERS:,}: choose smaller sizes"
        )


def _sizes(kind: str, tree: Mapping[str, Any]) -> dict[str, int]:
    """Return the whole numbers among the options of a part and its inner parts, or their defaults."""
    sizes: dict[str, int] = {}
    options = tree.get("init_args") or {}
    cls = find(kind, tree["class_path"])
    for name, parameter in arguments(cls).items():
        value = options.get(name, parameter.default)
        if isinstance(value, Mapping):
            inner = cls.parts.get(name, name)
            sizes |= {f"{name}.{key}": size for key, size in _sizes(inner, value).items()}
        elif type(value) is int:
            sizes[name] = value
    return sizes
