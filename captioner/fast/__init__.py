"""Faster versions of parts of a model, swapped in from outside.

``captioner.models`` defines the computation and never imports this package. Results are the same up to
rounding. docs/speed.md lists the gain of each replacement.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def accelerate(model: "nn.Module") -> "dict[str, type[nn.Module]]":
    """Swap in the faster versions of a model's modules, in place, unless ``CAPTIONER_FAST=0``.

    A faster version is a subclass of the plain module with the same parameters, so only the class of
    an existing module changes. Returns the plain class of every replaced module by its name.
    """
    from captioner.fast.replacements import REPLACEMENTS

    if os.environ.get("CAPTIONER_FAST") == "0":
        return {}
    replaced = {}
    for name, module in model.named_modules():
        faster = REPLACEMENTS.get(type(module))
        if faster is not None:
            replaced[name] = type(module)
            module.__class__ = faster
    return replaced


def restore(model: "nn.Module", replaced: "Mapping[str, type[nn.Module]]") -> None:
    """Undo ``accelerate``, given its result: give the modules their plain classes back."""
    for name, plain in replaced.items():
        model.get_submodule(name).__class__ = plain
