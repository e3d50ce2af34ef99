"""Words of sub-word tokens, grids on the photo, and the documented captioner of one's own."""

import re
from pathlib import Path

import numpy as np
import pytest

from captioner.errors import ImageError, UsageError
from captioner.language.alignment import words_of
from captioner.photos.geometry import photo_grid, to_photo

PAGE = (Path(__file__).parents[2] / "docs" / "any-captioner.md").read_text("utf-8")


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
    assert len(code.splitlines()) < 60
    names = {"__name__": "example"}
    exec(code, names)
    return names


def test_the_documented_example_runs(example, tmp_path, capsys):
    caption, model = example["caption"], example["model"]
    assert "Caption('the light is on the right'" in repr(caption)
    assert (tmp_path / "light.png").stat().st_size > 10_000
    assert caption.weights[0].argmax() % 6 >= 3  # the right half
    assert [other.text for other in caption.alternatives] == ["the light is on the left"]
    assert model.explain(example["photo"], "a light").words == ("a", "light")
    assert caption.outside == pytest.approx(0, abs=1e-6)
    broken, fine = model.captions([b"no photo", example["photo"]])
    assert isinstance(broken, ImageError)
    assert fine.text == caption.text
    with pytest.raises(UsageError, match="1 to 200 words"):
        model.explain(example["photo"], "?!")
    with pytest.raises(UsageError, match="has no rollout"):
        model.explain(example["photo"], caption, "rollout")


@pytest.mark.parametrize(
    ("pieces", "words", "members"),
    [
        (["A", " zeb", "ra", "'s", " eye", "."], ["a", "zebra", "'s", "eye"], [[0], [1, 2], [3], [4]]),
        ([" a", " dog", ",", " a", " dog"], ["a", "dog", "a", "dog"], [[0], [1], [3], [4]]),
        (["don", "'t", " st", "op"], ["do", "n't", "stop"], [[0], [0, 1], [2, 3]]),
        (["caf", "", "é"], ["café"], [[0, 1, 2]]),  # é in two bytes
        (["?!"], ["?!"], [[0]]),
        ([""], ["–"], [[0]]),
    ],
)  # fmt: skip
def test_pieces_are_merged_to_words(pieces, words, members):
    assert words_of(pieces) == (words, members)


def test_a_map_keeps_its_weight_and_goes_where_its_part_of_the_photo_is():
    generator = np.random.default_rng(0)
    maps = generator.random((3, 2, 4, 6))
    whole = (0.0, 0.0, 1.0, 1.0)
    np.testing.assert_array_equal(to_photo(maps, whole, (4, 6)), maps)
    crop = (0.25, 0.0, 0.75, 1.0)  # of half the photo's width
    assert photo_grid((4, 6), crop) == (4, 12)
    moved = to_photo(maps, crop, (4, 12))
    np.testing.assert_allclose(moved[..., 3:9], maps, atol=1e-12)
    assert not moved[..., :3].any()
    assert not moved[..., 9:].any()
    padded = (0.0, -0.5, 1.0, 1.5)  # as much padding as photo: only the two middle rows are on it
    assert photo_grid((4, 6), padded) == (2, 6)
    np.testing.assert_allclose(to_photo(maps, padded, (2, 6)), maps[..., 1:3, :], atol=1e-12)
    uneven = to_photo(maps, (-0.1, 0.2, 0.9, 0.8), (7, 5))
    np.testing.assert_allclose(uneven.sum((-2, -1)), maps.sum((-2, -1)), rtol=1e-9)
