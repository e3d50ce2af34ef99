"""What every decoder is: start, step, and teacher forcing."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.registry import Component


@runtime_checkable
class State(Protocol):
    """What a decoder remembers between words, for every row of every picture.

    A picture has one or more rows: its captions in training, its hypotheses in a search. Rows share
    the picture's annotations and keys, which the state holds once.
    """

    def select(self, rows: Int[Tensor, "B K"]) -> "State":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        ...


@dataclass(frozen=True)
class Decoded:
    """All steps of a caption, teacher forced. ``*R`` is there when a picture has several captions.

    Attributes:
        logits: the scores of the next word, at every step.
        weights: where the model looked, at every step.
        log_prob: log-probability of the locations drawn; None for deterministic attention.
        entropy: entropy in nats of what they were drawn from; None likewise.
    """

    logits: Float[Tensor, "B *R T V"]
    weights: Float[Tensor, "B *R T L"]
    log_prob: Float[Tensor, "B *R T"] | None = None
    entropy: Float[Tensor, "B *R T"] | None = None


class Decoder(Component, kind="decoder"):
    """Base of all decoders: annotations and the words so far → the next word.

    Stepping equals teacher forcing: ``forward`` does at once what ``step`` does word by word.
    """

    def start(self, annotations: Annotations) -> Any:
        """The state before the first word, with one row (B,) per picture."""
        raise NotImplementedError

    def step(
        self, tokens: Int[Tensor, "B *R"], state: Any
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], Any]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        raise NotImplementedError

    def forward(self, annotations: Annotations, tokens: Int[Tensor, "B *R T"]) -> Decoded:
        """Teacher forcing: ``tokens`` are the inputs, beginning with ``<start>``.

        The logits at step t depend on tokens 0 … t. The shift between inputs and targets is the
        caller's.
        """
        raise NotImplementedError
