"""Configuration trees ⇄ modules, through this package's own table of class names.

LightningCLI and model folders store trees: ``{"class_path": "LSTMDecoder", "init_args": {"hidden": 512,
"attention": {"class_path": "Attention"}}}``. Training and loading both call ``build``. Only classes in
the table can be named, so that loading an untrusted configuration imports no code.
"""

import inspect
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, get_args

from torch import nn

from captioner.errors import ModelError, unknown

_TABLE: dict[str, dict[str, type["Component"]]] = {}


class Component(nn.Module):
    """A named, configurable part of a captioner; defining a subclass registers it.

    The base class of each kind passes ``kind="…"``. Other classes that cannot be used directly pass
    ``abstract=True``. A part receives an inner part as a factory, in a parameter named after its kind
    (``attention=``, ``score=``) or listed in ``parts``, and calls it with the sizes.
    """

    kind: ClassVar[str]
    parts: ClassVar[dict[str, str]] = {}  # the kinds of inner parts in parameters of other names
    needs_grid = False  # whether neighbouring rows and columns matter, which boxes do not have

    def __init_subclass__(cls, kind: str | None = None, abstract: bool = False) -> None:
        super().__init_subclass__()
        if kind is not None:
            cls.kind = kind
            _TABLE[kind] = {}
            return
        known = _TABLE[cls.kind].get(cls.__name__)
        if not abstract:
            if known is not None and known.__module__ != cls.__module__:
                raise ModelError(f"two classes of the kind {cls.kind} are named {cls.__name__}")
            _TABLE[cls.kind][cls.__name__] = cls
        elif known is not None:
            # A faster version has the name of the plain class. It becomes private, so that
            # jsonargparse ignores it, and an attribute of its module, so that pickle finds it.
            cls.__qualname__ = f"_{cls.__qualname__}"
            setattr(sys.modules[cls.__module__], cls.__qualname__, cls)


def names(kind: str) -> list[str]:
    """Return the names that ``class_path`` may have for this kind of part, sorted."""
    return sorted(_TABLE[kind])


def find(kind: str, name: str) -> type[Component]:
    """Return the class with this name, ignoring the path before the last dot; ModelError if unknown."""
    name = name.rpartition(".")[2]
    known = _TABLE.get(kind, {})
    if name not in known:
        raise ModelError(unknown(kind, name, known))
    return known[name]


def arguments(cls: type) -> dict[str, inspect.Parameter]:
    """Return the arguments of a class, and those that it passes on to its base as ``**options``."""
    parameters = inspect.signature(cls).parameters.values()
    passed_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {**(arguments(cls.__mro__[1]) if passed_on else {}), **named}


def require(condition: bool, message: str) -> None:
    """Raise ModelError unless the condition holds."""
    if not condition:
        raise ModelError(message)


def check_choice(option: str, value: object, choices: Any) -> None:
    """Raise ModelError unless a value is one of those of a ``Literal``."""
    known = get_args(choices)
    require(value in known, f"{option} must be {' or '.join(known)}, got {value!r}")


def build(kind: str, tree: object, /, *leading: Any, **sizes: Any) -> Any:
    """Build the part that a tree describes; other parts determine ``sizes``, such as ``in_dim``.

    ``leading`` gives the first parameters of the class without their names. Raises ModelError for a
    malformed tree, an unknown name or option, or a value that the class refuses.
    """
    if not isinstance(tree, Mapping) or not isinstance(tree.get("class_path"), str):
        raise ModelError(
            f"a {kind} is described by {{'class_path': name, 'init_args': {{…}}}}, got {tree!r:.80}"
        )
    cls = find(kind, tree["class_path"])
    name, init_args = cls.__name__, tree.get("init_args") or {}
    require(isinstance(init_args, Mapping), f"init_args of {name} must map options to values")
    sizes |= zip(inspect.signature(cls).parameters, leading, strict=False)
    known, given = set(arguments(cls)) - set(sizes), dict(init_args)
    for option, value in init_args.items():
        if option not in known:
            raise ModelError(unknown(f"option of {name}", str(option), known))
        inner = cls.parts.get(option, option)
        if inner in _TABLE and isinstance(value, Mapping):
            given[option] = partial(build, inner, value)
    try:
        return cls(**{**given, **sizes})
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"{name} cannot be built from {dict(init_args)}: {error}".replace("\n", " ")
        ) from error


def portable(tree: Any) -> Any:
    """Return the tree with plain class names instead of dotted paths, as model folders store it."""
    if not isinstance(tree, Mapping):
        return tree
    plain = {key: portable(value) for key, value in tree.items()}
    if "class_path" in plain:
        plain["class_path"] = plain["class_path"].rpartition(".")[2]
        plain.setdefault("init_args", {})
    return plain
