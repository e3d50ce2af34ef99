"""The classic sanity check: to write a string backwards, one must look at it backwards."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

from captioner.models.registry import names

SCRIPT = Path(__file__).parents[1] / "scripts" / "reverse_sequence.py"
CONTENT_BASED = [score for score in names("score") if score != "Location"]


@pytest.fixture(scope="module")
def reverse_sequence():
    spec = importlib.util.spec_from_file_location("reverse_sequence", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("score", ["General", "Additive"])
def test_a_short_string(reverse_sequence, score, tmp_path):
    outcome = reverse_sequence.run("LuongDecoder", score, "Soft", 5, 60.0, tmp_path / "map.png")
    assert outcome.exact >= 99
    assert outcome.on_the_anti_diagonal >= 95
    with Image.open(tmp_path / "map.png") as drawn:
        cells = drawn.resize((5, 5), Image.Resampling.BOX)
        for row in range(5):
            brightness = [cells.getpixel((column, row)) for column in range(5)]
            assert max(range(5), key=brightness.__getitem__) == 4 - row


@pytest.mark.slow
@pytest.mark.parametrize("score", CONTENT_BASED)
def test_ten_digits_with_every_content_based_score(reverse_sequence, score, tmp_path):
    outcome = reverse_sequence.run("LuongDecoder", score, "Soft", 10, 90.0, tmp_path / "map.png")
    assert outcome.exact >= 99
    assert outcome.on_the_anti_diagonal >= 95
