"""The schema takes the options of every class, also of classes that it does not know."""

import itertools
import math

import pytest

from captioner.errors import ModelError
from captioner.models import registry
from captioner.models.captioner import PARTS
from captioner.models.encoder import Encoder
from captioner.models.scores import Dot
from captioner.store import schema


@pytest.fixture(autouse=True)
def new_classes(monkeypatch):
    """A score and an encoder as a user may add them."""
    for kind in ("score", "encoder"):
        monkeypatch.setitem(registry._TABLE, kind, dict(registry._TABLE[kind]))

    class Steep(Dot):
        def __init__(self, query_dim: int, key_dim: int, alpha: float = 1.5) -> None:
            super().__init__(query_dim, key_dim)

    class Patches(Encoder):
        def __init__(self, folders: dict[str, str]) -> None:
            super().__init__()


def test_fractions_of_new_classes_may_be_any_finite_number():
    for alpha in (1.5, -3, 1e6):
        schema.check_part("score", {"class_path": "Steep", "init_args": {"alpha": alpha}})
    for alpha in (math.nan, math.inf, 1e7, True, "1"):
        with pytest.raises(ModelError, match="expected a number from -1,000,000 to 1,000,000"):
            schema.check_part("score", {"class_path": "Steep", "init_args": {"alpha": alpha}})


def test_the_size_of_a_model_of_any_classes_is_checked():
    """Not all classes have options of the names that the check knows."""
    for names in itertools.product(*map(registry.names, PARTS)):
        trees = {part: {"class_path": name} for part, name in zip(PARTS, names, strict=True)}
        schema.check_size(trees, rows=5, words=1000)
        with pytest.raises(ModelError, match="choose smaller sizes"):
            schema.check_size(trees, rows=1000, words=schema.MAX_NUMBERS)


def test_a_tree_that_is_no_part_is_refused_in_one_line():
    tree = {"class_path": "Patches", "init_args": {"folders": {"class_path": "x"}}}
    with pytest.raises(ModelError, match="unknown folders 'x'"):
        schema.check_part("encoder", tree)
