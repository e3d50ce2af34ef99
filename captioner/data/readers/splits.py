"""Which split an image belongs to: as the data set says, or by a hash of its name."""

import hashlib

from captioner.data.records import SPLITS, TEST, TRAIN, VAL

# One eighth each for development and test where a data set comes without its own split: the
# proportions of Flickr8k (6,000 / 1,000 / 1,000).
_HELD_OUT = {0: TEST, 1: VAL}

# Karpathy's "restval" is what he left of COCO's val2014, to train on.
_ALSO = {"restval": TRAIN, "dev": VAL, "valid": VAL, "validation": VAL}

NAMES = (*SPLITS, *_ALSO)
"""The names of splits that data sets use."""


def named(name: object) -> str | None:
    """The split that a data set means; None for any other word."""
    word = name.strip().lower() if isinstance(name, str) else ""
    return word if word in SPLITS else _ALSO.get(word)


def own(name: str) -> str:
    """The split of an image, from its name alone, so that adding images moves no other."""
    eighth = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[0] % 8
    return _HELD_OUT.get(eighth, TRAIN)
