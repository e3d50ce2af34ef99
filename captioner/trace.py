"""What a search kept of its steps, from which its captions are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One caption found, as ids.

    Attributes:
        tokens: ids of the T words, without start and end.
        log_probs: log-probability of each word given those before it; (T,), nats.
        log_prob: of the whole caption, its end included.
        weights: where the model looked for each word; (T, L).
        score: what hypotheses are ranked by.
        centre: the (row, column) that local attention looks around, in cells, where asked for.
        layers: the weights of every layer and head, where asked for and there are several.
        past: how much each input word counts, ``<start>`` being input 0, for every layer and head,
            where asked for and the decoder attends to what it wrote.
    """

    tokens: list[int]
    log_probs: list[float]
    log_prob: float
    weights: Float[Tensor, "T L"]
    score: float
    centre: Float[Tensor, "T 2"] | None = None
    layers: Float[Tensor, "T l h L"] | None = None
    past: Float[Tensor, "T l s T"] | None = None


class Trace:
    """What every step kept, and which row it continued: hypotheses are read off backwards."""

    def __init__(self) -> None:
        self.steps: list[tuple[list[int], Tensor, Tensor, Tensor, Tensor]] = []

    def append(
        self, pictures: list[int], rows: Tensor, tokens: Tensor, log_probs: Tensor, weights: Tensor
    ) -> None:
        """Adds a step: for every row its parent, its word and that word's log-probability, (B, K).

        ``pictures`` (B,) are those that are still at work. ``weights`` (B, K, L) are those of the rows
        before the step: row k looked where its parent did.
        """
        weights = weights.gather(1, rows.unsqueeze(-1).expand(-1, -1, weights.shape[-1]))
        self.steps.append((pictures, rows, tokens, log_probs, weights))

    def read(self) -> "list[Kept]":
        """All steps as they can be looked up, on the host."""
        return [
            Kept(
                {b: place for place, b in enumerate(pictures)},
                *(rows.tolist(), tokens.tolist(), log_probs.tolist()),
                weights.float().cpu().numpy(),
            )
            for pictures, rows, tokens, log_probs, weights in self.steps
        ]


class Kept(NamedTuple):
    """A step of a ``Trace``; ``places`` says where in it a picture is."""

    places: dict[int, int]
    rows: list[list[int]]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    weights: Float[np.ndarray, "B K L"]


def follow(
    steps: Sequence[Kept], b: int, length: int, row: int, total: float, score: float
) -> Hypothesis:
    """The hypothesis of ``length`` words that stood in ``row`` of picture ``b``."""
    path = []
    for step in reversed(steps[:length]):
        place = step.places[b]
        path.append((step.tokens[place][row], step.log_probs[place][row], step.weights[place, row]))
        row = step.rows[place][row]
    tokens, log_probs, weights = zip(*reversed(path), strict=True)
    return Hypothesis(
        list(tokens), list(log_probs), total, torch.from_numpy(np.stack(weights)), score
    )
