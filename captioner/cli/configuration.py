"""The options of a training command, from its YAML files and arguments, without Lightning."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from captioner.errors import UsageError


def read_options(files: list[str], given: dict[str, list[str]]) -> dict[str, Any]:
    """Return the values from files and options by dotted name; ``model.decoder`` is the decoder's class.

    A later file overrides an earlier one, and options override files.

    Raises:
        UsageError: a file is not YAML, or holds no options.
    """
    trees = [_leaves("", _read(file), Path(file).parent) for file in files]
    for option, values in given.items():
        if option not in ("-c", "--config"):
            trees += [_leaves(option[2:], value, Path()) for value in values]
    options: dict[str, Any] = {}
    for tree in trees:
        leaves = dict(tree)
        # A new class does not have the options of the former one.
        replaced = {old for old in options for new in leaves if old.startswith(f"{new}.")}
        options = {name: value for name, value in options.items() if name not in replaced} | leaves
    return options


def _leaves(name: str, tree: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """The values in a tree by dotted names without ``class_path`` and ``init_args``."""
    if isinstance(tree, str) and tree.endswith((".yaml", ".yml")) and name != "ckpt_path":
        tree, folder = _read(str(folder / tree)), (folder / tree).parent
    elif isinstance(tree, str) and tree.startswith("{"):
        tree = _read(tree)
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(f"{name}.{key}", value, folder)
    else:
        parts = [part for part in name.split(".") if part not in ("", "class_path", "init_args")]
        yield ".".join(parts), None if tree == "null" else tree


def _read(file: str) -> dict[str, Any]:
    """The options in a YAML file, or in a text in braces."""
    try:
        content = yaml.safe_load(file if file[:1] == "{" else Path(file).read_text("utf-8"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"'{file}' is not YAML: line {line}: {error.problem}") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict):
        expected = "expected a YAML file of options, such as configs/shapes.yaml"
        raise UsageError(f"'{file}' is not a configuration: {expected}")
    return content
