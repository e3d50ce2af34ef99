"""Sub-word pieces → words."""

import re
from collections.abc import Sequence
from itertools import accumulate

from captioner.language.vocabulary import Tokenizer


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
