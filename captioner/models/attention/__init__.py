"""Attention over any sequence of vectors: a score composed with a distribution."""

from captioner.models.attention.attention import Attended, Attention, Keys
from captioner.models.attention.distributions import Distribution, Soft
from captioner.models.attention.scores import Additive, Score

__all__ = ["Additive", "Attended", "Attention", "Distribution", "Keys", "Score", "Soft"]
