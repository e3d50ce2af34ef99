"""What n-gram scores do not punish: captions that break off."""

from collections.abc import Collection

# No English sentence ends in one of these; captions trained on n-gram rewards do.
DETERMINERS = {"a", "an", "the", "his", "her", "their", "its"}
PREPOSITIONS = {"with", "of", "in", "on", "at", "to", "from", "for", "by", "into", "onto"}
UNFINISHED = frozenset(DETERMINERS | PREPOSITIONS | {"and", "or", "is", "are"})


def fluency(captions: Collection[str]) -> dict[str, float]:
    """Mean length in words, and the percentage of captions that end in an article or the like.

    Args:
        captions: sentences; at least one.
    """
    words = [caption.rstrip(" .").split() for caption in captions]
    broken = sum(bool(w) and w[-1].lower() in UNFINISHED for w in words)
    return {
        "mean_length": round(sum(map(len, words)) / len(words), 2),
        "bad_endings": round(100 * broken / len(words), 2),
    }
