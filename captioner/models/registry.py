"""Configuration trees ⇄ modules, through this package's own table of names.

A tree is what LightningCLI writes and a model folder stores: ``{"class_path": "LSTMDecoder",
"init_args": {"hidden": 512, "attention": {"class_path": "Attention"}}}``. One builder makes modules
from it, for training and for loading alike, so what is saved is what was built. Only classes that
are already in the table can be named: a stranger's tree imports nothing.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from torch import nn

from captioner.errors import ModelError, unknown

_TABLE: dict[str, dict[str, type["Component"]]] = {}


class Component(nn.Module):
    """A named, configurable part of a captioner; defining a subclass enters it into the table.

    The base class of each kind says ``kind="…"``, and ``abstract=False`` if it can be used itself.
    A part inside a part is received as a *factory*
    under a parameter named after its kind (``attention=``, ``score=``), called with the sizes that
    only the outer part knows.
    """

    kind: ClassVar[str]

    def __init_subclass__(
        cls, kind: str | None = None, abstract: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if kind is not None:
            cls.kind = kind
            _TABLE[kind] = {}
        if not (kind is not None if abstract is None else abstract):
            _TABLE[cls.kind][cls.__name__] = cls


def names(kind: str) -> list[str]:
    """The names that ``class_path`` may have for this kind of part, sorted."""
    return sorted(_TABLE[kind])


def build(kind: str, tree: object, /, **sizes: Any) -> Any:
    """The part described by ``tree``; ``sizes`` are the arguments its surroundings determine.

    Args:
        kind: ``encoder``, ``refiner``, ``decoder``, ``attention``, ``score``, ``distribution``.
        tree: ``{"class_path": name, "init_args": {…}}``; only the last part of a dotted name counts.

    Raises:
        ModelError: not such a tree, an unknown name (the nearest known ones are listed), an option
            that the class does not have, or a value that it refuses.
    """
    if not isinstance(tree, Mapping) or not isinstance(tree.get("class_path"), str):
        raise ModelError(
            f"a {kind} is described by {{'class_path': name, 'init_args': {{…}}}}, got {tree!r:.80}"
        )
    name = tree["class_path"].rpartition(".")[2]
    if name not in _TABLE[kind]:
        raise ModelError(unknown(kind, name, _TABLE[kind]))
    cls = _TABLE[kind][name]
    given = tree.get("init_args") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"init_args of {name} must map options to values, got {given!r:.80}")
    if own := sorted(set(given) & set(sizes)):
        raise ModelError(
            f"option {own[0]} of {name} follows from the parts around it: leave it out"
        )
    options = dict(given)
    parameters = inspect.signature(cls).parameters.values()
    accepted = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    for option, value in given.items():
        if option not in accepted:
            known = accepted - set(sizes) or {"none"}
            raise ModelError(unknown(f"option of {name}", str(option), known))
        if option in _TABLE and isinstance(value, Mapping):
            options[option] = partial(build, option, value)
    try:
        return cls(**{**options, **sizes})
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"{name} cannot be built from {dict(given)}: {error}".replace("\n", " ")
        ) from error


def portable(tree: Any) -> Any:
    """The tree with plain class names, as a model folder stores it: dotted paths are dropped."""
    if not isinstance(tree, Mapping):
        return tree
    plain = {key: portable(value) for key, value in tree.items()}
    if "class_path" in plain:
        plain["class_path"] = plain["class_path"].rpartition(".")[2]
        plain.setdefault("init_args", {})
    return plain
