"""Sub-word pieces → words, and a model's grid → a grid that covers the whole photo."""

import re
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from jaxtyping import Float, Float64

from captioner.language.vocabulary import Tokenizer
from captioner.photos.geometry import overlaps

Box = tuple[float, float, float, float]
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
MOST_CELLS = 96  # along one axis of a photo of which the model sees a small part


def words_of(
    pieces: Sequence[str], given: Sequence[str] | None = None
) -> tuple[list[str], list[list[int]]]:
    """Return the words of a text, as ``Tokenizer`` splits it, and the pieces of each.

    If the words are ``given``, those that the text contains are returned: a model's tokenizer may have
    put spaces inside them.

    Punctuation is no word. A piece without text, such as one byte of a letter, belongs to the word in
    which it stands. If no piece holds a word, the whole text is one word.

    >>> words_of(["A", " zeb", "ra", "'s", " eye", "."])
    (['a', 'zebra', "'s", 'eye'], [[0], [1, 2], [3], [4]])
    """
    text = "".join(pieces)
    ends = list(accumulate(map(len, pieces)))
    starts = [end - len(piece.lstrip()) for end, piece in zip(ends, pieces, strict=True)]
    words, members, position = [], [], 0
    for word in Tokenizer()(text) if given is None else given:
        pattern = r"\s*".join(map(re.escape, word))
        found = re.compile(pattern, re.IGNORECASE).search(text, position)
        if found is None:  # the tokenizer changed its letters
            continue
        position = found.end()
        words.append(word)
        members.append(
            [
                index
                for index, (start, end) in enumerate(zip(starts, ends, strict=True))
                if start < found.end() and max(end, start + 1) > found.start()
            ]
        )
    if not words:
        return [text.strip() or "–"], [list(range(len(pieces)))]
    return words, members


def photo_grid(grid: tuple[int, int], box: Box) -> tuple[int, int]:
    """Return rows and columns of cells of about the model's size that cover the whole photo."""
    left, top, right, bottom = box
    spans = ((grid[0], bottom - top), (grid[1], right - left))
    rows, columns = (min(max(round(cells / span), 1), MOST_CELLS) for cells, span in spans)
    return rows, columns


def to_photo(
    maps: Float[np.ndarray, "*axes rows columns"], box: Box, grid: tuple[int, int]
) -> Float64[np.ndarray, "*axes photo_rows photo_columns"]:
    """Move maps of a part of the photo to a grid that covers it: each cell's weight goes where it lies.

    A cell that lies partly on padding counts for its part on the photo; one that lies wholly on padding
    is dropped. Parts of the photo that the model does not see have weight 0.

    Args:
        maps: the cells of the model.
        box: left, top, right and bottom of the model's grid, as fractions of the photo's sides.
        grid: rows and columns of the result.
    """
    left, top, right, bottom = box
    if box == WHOLE and grid == maps.shape[-2:]:
        return np.asarray(maps, np.float64)
    down = overlaps(maps.shape[-2], grid[0], top, bottom)
    across = overlaps(maps.shape[-1], grid[1], left, right)
    return np.asarray(down.T @ np.asarray(maps, np.float64) @ across)
