"""Attention over any sequence of vectors: a score composed with a distribution."""

from captioner.models.attention.attention import Attended, Attention, AttentionBase, Keys
from captioner.models.attention.distributions import Asked, Distribution, Hard, Soft, Sparsemax
from captioner.models.attention.local import LocalM, LocalP, LocalP2D
from captioner.models.attention.multihead import MultiHead
from captioner.models.attention.scores import (
    Additive,
    Concat,
    Distance,
    Dot,
    General,
    Location,
    ScaledDot,
    Score,
)
from captioner.models.attention.self_attention import SelfAttention

__all__ = [
    "Additive",
    "Asked",
    "Attended",
    "Attention",
    "AttentionBase",
    "Concat",
    "Distance",
    "Distribution",
    "Dot",
    "General",
    "Hard",
    "Keys",
    "LocalM",
    "LocalP",
    "LocalP2D",
    "Location",
    "MultiHead",
    "ScaledDot",
    "Score",
    "SelfAttention",
    "Soft",
    "Sparsemax",
]
