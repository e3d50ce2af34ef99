"""Translation of format 1 of model folders and checkpoints; format 2 is returned as it is."""

from collections.abc import Mapping
from typing import Any

CLASSES = {"TransformerRefiner": "TransformerNeck"}
OPTIONS = {"refiner": "neck", "finer": "extra_strides"}


def config(tree: Any) -> Any:
    """Translate the class names and options of a tree of parts."""
    if not isinstance(tree, Mapping):
        return tree
    renamed = {OPTIONS.get(key, key): config(value) for key, value in tree.items()}
    if isinstance(renamed.get("class_path"), str):
        name = renamed["class_path"].rpartition(".")[2]  # checkpoints store dotted names
        renamed["class_path"] = CLASSES.get(name, name)
    return renamed


def tensor_name(name: str) -> str:
    """Translate the name of a tensor."""
    part, dot, rest = name.partition(".")
    return OPTIONS.get(part, part) + dot + rest
