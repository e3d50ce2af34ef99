"""Ranges of numbers that a caller can give; without torch, for the command line."""

from dataclasses import dataclass
from math import inf
from typing import Any

from captioner.errors import UsageError


@dataclass(frozen=True)
class Number:
    """A number in a range; NaN is not accepted."""

    low: float | int
    high: float | int = inf
    whole: bool = True  # whether it must be a whole number
    above: bool = False  # whether it must be larger than ``low``

    def accepts(self, value: Any) -> bool:
        """Return whether a value is such a number; True and False are not."""
        number = isinstance(value, int if self.whole else int | float)
        inside = number and not isinstance(value, bool) and self.low <= value <= self.high
        return bool(inside and not (self.above and value == self.low))

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low, high = f"{self.low:,.10g}", f"{self.high:,.10g}"
        if self.above:
            return f"{kind} above {low}" + ("" if self.high == inf else f" and at most {high}")
        return f"{kind} of {low} or more" if self.high == inf else f"{kind} from {low} to {high}"


def check(option: str, value: Any, expected: Number) -> None:
    """Raise UsageError unless a value is in a range."""
    if not expected.accepts(value):
        raise UsageError(f"{option} must be {expected}, got {value!r:.40}")


SHARE = Number(0, 1, whole=False)
SUPERVISION = Number(0, 1e6, whole=False)  # the weight of mask supervision
SEED = Number(0, 2**32 - 1)  # what numpy accepts
# The options of a search.
DECODING = {
    "beam_size": Number(1, 100),
    "max_length": Number(1, 200),
    "length_penalty": Number(-10, 10, whole=False),
    "samples": Number(1, 100),
    "no_repeat": Number(0, 200),
    "min_length": Number(1, 200),
    "diverse_groups": Number(1, 100),
    "diversity": Number(0, 100, whole=False),
}
# The options of sampled captions.
WORD_SAMPLING = {
    "num_captions": Number(1, 100),
    "temperature": Number(0.01, 100, whole=False),
    "top_k": Number(0, 1_000_000),
    "top_p": Number(0, 1, whole=False, above=True),
    "min_length": Number(1, 200),
    "max_length": Number(1, 200),
    "seed": SEED,
}
SAMPLING = ("temperature", "top_k", "top_p", "seed")  # those that only sampling has
# The options of a generated scene, and the number of scenes of a split.
SCENE = {"seed": Number(0), "image_size": Number(32, 4096), "max_objects": Number(1, 6)}
SCENES = Number(1, 999_999)
# Hypotheses × paths that are searched together. Each takes memory for every word of the vocabulary,
# so a larger beam means that fewer images are searched together.
MAX_ROWS = 1000
# How the words of a caption are explained: the methods, and what they show.
METHODS = {
    "attention": "attention weight",
    "grad-cam": "share of Grad-CAM",
    "integrated-gradients": "share of the {} integrated gradients",
    "occlusion": "share of the {} by occlusion",
    "rollout": "share of the attention rollout",
}
# The methods whose maps may be negative, and the word for what they show of each sign.
SIGNED = {
    "integrated-gradients": {sign: sign for sign in ("positive", "negative", "absolute")},
    "occlusion": {"positive": "falls", "negative": "rises", "absolute": "falls and rises"},
}
BATCH = Number(1, 512)  # images that are read and encoded together
