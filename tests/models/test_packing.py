"""Packing against loops over the valid steps."""

import pytest
import torch
from torch import Tensor

from captioner.models.packing import Packing, missing_rows, pad_to_multiple

VALID = torch.tensor(
    [
        [[1, 1, 1, 0], [1, 1, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],  # an image without words
        [[1, 1, 1, 1], [1, 1, 1, 0]],
    ],
    dtype=torch.bool,
)
ALL = torch.ones_like(VALID)


@pytest.fixture
def values() -> Tensor:
    return torch.randn(*VALID.shape, 5, dtype=torch.float64, requires_grad=True)


def by_image(values: Tensor, mask: Tensor) -> list[list[Tensor]]:
    """The valid steps of every image, by a loop."""
    _, rows, length = mask.shape
    return [
        [values[b, r, t] for r in range(rows) for t in range(length) if mask[b, r, t]]
        for b in range(len(mask))
    ]


@pytest.mark.parametrize(("mask", "width"), [(VALID, 7), (ALL, 8)])
def test_packing_and_grouping_against_a_loop(values, mask, width):
    packing, expected = Packing(mask), by_image(values, mask)
    packed = packing.pack(values)
    torch.testing.assert_close(packed, torch.stack([step for steps in expected for step in steps]))
    torch.testing.assert_close(packing.unpack(packed), values * mask.unsqueeze(-1))
    grouped = packing.group_by_image(packed)
    assert grouped.shape == (3, width, 5)
    for group, steps in zip(grouped, expected, strict=True):
        for step, value in zip(group, steps, strict=False):
            torch.testing.assert_close(step, value)
        assert not group[len(steps) :].any()
    torch.testing.assert_close(packing.ungroup(grouped), packed)


@pytest.mark.parametrize("words", [1, 300, 1500])
def test_padding_to_a_multiple_is_spread_over_the_images(words):
    valid = torch.zeros(16, 5, 21, dtype=torch.bool)
    valid.view(16, -1)[:, : words // 16] = True
    valid.view(16, -1)[0, : words // 16 + words % 16] = True
    padded = pad_to_multiple(valid)
    added = padded & ~valid
    assert (padded | ~valid).all()
    assert missing_rows(int(padded.sum())) == 0
    assert int(added.sum()) == missing_rows(words)
    assert int(added.flatten(1).sum(1).max()) <= missing_rows(words) // 16 + 2
