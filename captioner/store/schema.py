"""The schema of ``config.json``: the type and the range of every field.

Model folders come from strangers. Ranges are wide enough for every useful model, and sizes that
multiply have a common limit, so that no configuration can take much memory or time. Only the options
of classes need torch, so that other errors in a configuration are found without importing it.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from reprlib import repr as shortened
from typing import Any, Literal, Union, get_args, get_origin

from captioner.errors import ModelError
from captioner.language.vocabulary import MAX_WORD, SPECIALS, Tokenizer
from captioner.limits import DECODING, SHARE, SUPERVISION, TEMPERATURE, Number

MAX_NUMBERS = 1 << 28  # of four bytes, in the largest tensor that one image needs
MAX_LIST = 8  # values in a list
PATCH = 8  # the smallest patch of a Vision Transformer, in pixels


@dataclass(frozen=True)
class Field:
    """A value that is not a number; ``str`` says what is expected, as for a ``Number``."""

    expected: str
    accepts: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.expected


def one_of(values: Sequence[Any]) -> Field:
    """Return the schema of a choice of values; the type must match too, so 1 is not True."""

    def accepts(value: Any) -> bool:
        return any(type(value) is type(known) and value == known for known in values)

    return Field(" or ".join(map(repr, values)), accepts)


def list_of(item: Field | Number) -> Field:
    """Return the schema of a short list."""

    def accepts(value: Any) -> bool:
        short = isinstance(value, list | tuple) and len(value) <= MAX_LIST
        return short and all(map(item.accepts, value))

    return Field(f"a list of at most {MAX_LIST} values, each {item}", accepts)


def any_of(fields: Sequence[Field | Number]) -> Field:
    """Return the schema of a value that at least one of several schemas accepts."""

    def accepts(value: Any) -> bool:
        return any(field.accepts(value) for field in fields)

    return Field(" or ".join(map(str, fields)), accepts)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_WORD


TEXT = Field(f"text of at most {MAX_WORD} characters", _is_text)
PATH = Field(
    "a path of at most 4096 characters", lambda value: isinstance(value, str) and len(value) <= 4096
)
BOOLEAN = one_of((True, False))
# Options of parts; all parts that have an option of this name share its range.
RANGES = {
    "image_size": Number(16, 1024),
    "trainable": Number(0, 10_000),
    **dict.fromkeys(("stride", "extra_strides", "layers", "heads", "block"), Number(1, 64)),
    **dict.fromkeys(("margin", "window", "head_window"), Number(0, 64)),
    "feed_forward": Number(0, 16_384),
    "positions": Number(0, 65_536),
    "regions": Number(1, 4096),
    "top": Number(1, 65_536),
    "temperature": TEMPERATURE,
    "dropout": SHARE,
}
PATHS = ("features", "boxes")  # options that name folders
# Options of other names. The class of a part may accept less.
WHOLE = Number(1, 16_384)
FRACTION = Number(-1e6, 1e6, whole=False)
# Besides "model", whose fields are the options of the classes that it names.
CONFIG: dict[str, Any] = {
    "captioner_version": TEXT,
    "preprocessing": {
        **dict.fromkeys(("height", "width"), RANGES["image_size"]),
        "interpolation": one_of(("bicubic", "bilinear")),
        **dict.fromkeys(("mean", "std"), list_of(FRACTION)),
    },
    "decoding": DECODING,
    "supervision": SUPERVISION,
    "confidence": dict.fromkeys(("intercept", "slope"), Number(-100, 100, whole=False)),
    "vocabulary": {
        "size": Number(len(SPECIALS)),
        "fingerprint": TEXT,
        "tokenizer": one_of((Tokenizer.name,)),
    },
    "encoder_weights": {"stored": BOOLEAN, "sha256": TEXT},
}
# What is read of a Lightning checkpoint besides the words, the parts and the weights.
CHECKPOINT: dict[str, Any] = {
    "hyper_parameters": {"decoding": DECODING},
    "supervision": SUPERVISION,
    "encoder_sha256": TEXT,
}
# What older folders and checkpoints, and models of region features, may lack.
OPTIONAL = ("preprocessing", "decoding", "supervision", "confidence", "encoder_sha256", *DECODING)


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


def option(name: str, annotation: Any) -> Field | Number | None:
    """Return the schema of a part's option; None if only a tree of parts is accepted."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        fields = [field for kind in inner if (field := option(name, kind)) is not None]
        return any_of(fields) if fields else None
    if origin is Literal:
        return one_of(inner)
    if origin is Sequence:
        item = option(name, inner[0])
        return None if item is None else list_of(item)
    if annotation in (int, float):
        whole = annotation is int
        return replace(RANGES.get(name, WHOLE if whole else FRACTION), whole=whole)
    text = PATH if name in PATHS else TEXT
    return {bool: BOOLEAN, str: text, types.NoneType: one_of((None,))}.get(annotation)


def check_model(trees: Any) -> None:
    """Check the trees of the encoder, the neck and the decoder, like ``check_part``."""
    from captioner.models.captioner import PARTS

    check(trees, {part: {} for part in PARTS}, "the model")
    for part in PARTS:
        check_part(part, trees[part])


def check_part(kind: str, tree: Any) -> None:
    """Raise ModelError if a part, or a part inside it, does not fit the arguments of its class."""
    from captioner.models.registry import arguments, find

    check(tree, {"class_path": TEXT}, f"the {kind}")
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
    regions = max(max(sides, default=0) ** 2, encoder.get("regions", 0))
    width = max([*neck.values(), *_sizes("decoder", trees["decoder"]).values()], default=1)
    block = neck.get("block", 0)
    slots = neck.get("slots", 0)
    if slots:  # the outputs of all layers are concatenated
        width = max(width, neck["dim"] * neck["layers"])
    window = (block + 2 * neck.get("margin", 0)) ** 2 if block else regions + slots
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
    from captioner.models.registry import arguments, find

    sizes: dict[str, int] = {}
    options = tree.get("init_args") or {}
    cls = find(kind, tree["class_path"])
    for name, parameter in arguments(cls).items():
        value = options.get(name, parameter.default)
        if isinstance(value, Mapping):
            inner = _sizes(cls.parts.get(name, name), value)
            sizes |= {f"{name}.{key}": size for key, size in inner.items()}
        elif type(value) is int:
            sizes[name] = value
    return sizes
