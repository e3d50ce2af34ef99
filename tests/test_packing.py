"""Words side by side, against loops over what is there."""

import pytest
import torch
from torch import Tensor

from captioner.models.linear import missing_rows
from captioner.models.packing import Packing, rounded

THERE = torch.tensor(
    [
        [[1, 1, 1, 0], [1, 1, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],  # a picture without words
        [[1, 1, 1, 1], [1, 1, 1, 0]],
    ],
    dtype=torch.bool,
)


@pytest.fixture
def values() -> Tensor:
    return torch.randn(*THERE.shape, 5, dtype=torch.float64)


def of_each(values: Tensor) -> list[list[Tensor]]:
    """The words of every picture, by a loop."""
    return [
        [
            values[b, r, t]
            for r in range(values.shape[1])
            for t in range(values.shape[2])
            if THERE[b, r, t]
        ]
        for b in range(len(values))
    ]


def test_words_in_one_row_and_back(values: Tensor) -> None:
    packing = Packing(THERE.shape, THERE)
    packed = packing.pack(values)
    torch.testing.assert_close(packed, torch.stack([w for words in of_each(values) for w in words]))
    torch.testing.assert_close(packing.unpack(packed), values * THERE.unsqueeze(-1))


def test_words_of_each_picture_and_back(values: Tensor) -> None:
    packing = Packing(THERE.shape, THERE)
    packed = packing.pack(values)
    found = packing.by_picture(packed)
    assert found.shape == (3, 7, 5)  # the last picture has seven
    for own, words in zip(found, of_each(values), strict=True):
        torch.testing.assert_close(own[: len(words)], torch.stack([*words, own[0]])[:-1])
        assert not own[len(words) :].any()
    torch.testing.assert_close(packing.from_pictures(found), packed)


def test_without_a_mask_all_words_are_there(values: Tensor) -> None:
    packing = Packing(THERE.shape)
    packed = packing.pack(values)
    torch.testing.assert_close(packed, values.view(-1, 5))
    torch.testing.assert_close(packing.by_picture(packed), values.view(3, 8, 5))
    torch.testing.assert_close(packing.from_pictures(values.view(3, 8, 5)), packed)
    torch.testing.assert_close(packing.unpack(packed), values)


def test_gradients_reach_the_words_that_are_there(values: Tensor) -> None:
    values.requires_grad_()
    packing = Packing(THERE.shape, THERE)
    found = packing.from_pictures(packing.by_picture(packing.pack(values)) ** 2)
    packing.unpack(found).sum().backward()
    torch.testing.assert_close(values.grad, 2 * values.detach() * THERE.unsqueeze(-1))


def test_one_row_a_picture(values: Tensor) -> None:
    there = THERE[:, 0]
    packing = Packing(there.shape, there)
    packed = packing.pack(values[:, 0])
    assert packing.by_picture(packed).shape == (3, 4, 5)
    torch.testing.assert_close(packing.from_pictures(packing.by_picture(packed)), packed)


@pytest.mark.parametrize("words", [1, 37, 300, 1001, 1500])
def test_rounded_adds_steps_of_all_pictures(words: int) -> None:
    there = torch.zeros(16, 5, 21, dtype=torch.bool)
    there.view(16, -1)[:, : words // 16] = True
    there.view(16, -1)[0, : words // 16 + words % 16] = True
    some = rounded(there)
    added = some & ~there
    assert (some | ~there).all()
    assert missing_rows(int(some.sum())) == 0
    assert int(added.sum()) == missing_rows(words)
    # None has many more than its share: the picture with the most words makes room for itself in all.
    assert int(added.flatten(1).sum(1).max()) <= missing_rows(words) // 16 + 2
