"""The contract of every decoder: initial state, one step, and teacher forcing."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.distributions import Choice, Sampling
from captioner.models.local_attention import Local
from captioner.models.registry import Component
from captioner.models.sentinel import Sentinel
from captioner.models.tensors import map_tensors

# The results of a step: logits of the next word, attention weights, new state.
StepResult = tuple[Float[Tensor, "B R V"], Float[Tensor, "B R L"], Any]


@dataclass(frozen=True)
class Decoded:
    """All steps of teacher-forced captions; the axis R exists if the tokens had it.

    Values at steps whose inputs, from there on, are all ``<end>`` or ``<pad>`` are undefined but finite.
    """

    # Logits of the next word at the N steps where ``valid_mask`` is True; at all without a mask.
    packed_logits: Float[Tensor, "*packed V"]
    weights: Float[Tensor, "B *R T L"]  # this and the next two as in ``Weights``
    centre: Float[Tensor, "B *R T 2"] | None = None
    choice: Choice | None = None
    # Weights of every layer and head; None without ``details``, or if there is only one.
    layers: Float[Tensor, "B *R T l h L"] | None = None
    # past_weights[…, t, l, h, j]: the weight of input j, <start> being 0, at step t of layer l and
    # head h; 0 for j > t. None without ``details``, or if the decoder attends to no earlier words.
    past_weights: Float[Tensor, "B *R T l s T"] | None = None
    # True at all steps whose caption has not ended, and possibly at some others.
    valid_mask: Bool[Tensor, "B *R T"] | None = None

    @property
    def logits(self) -> Float[Tensor, "B *R T V"]:
        """Logits of the next word at every step; zeros where they were not computed."""
        return self.unpack(self.packed_logits)

    def pack(self, values: Shaped[Tensor, "*steps"]) -> Shaped[Tensor, "*packed"]:
        """Select the valid steps, in the order of ``packed_logits``."""
        return values if self.valid_mask is None else values[self.valid_mask]

    def unpack(self, values: Shaped[Tensor, "*packed"]) -> Shaped[Tensor, "*steps"]:
        """Put packed values back at their steps; the other steps are zero."""
        if self.valid_mask is None:
            return values
        padded = values.new_zeros(*self.valid_mask.shape, *values.shape[1:])
        padded[self.valid_mask] = values
        return padded


class Decoder(Component, kind="decoder"):
    """Base of all decoders: annotations and the words so far → logits of the next word.

    Subclasses implement ``init_state`` and ``read``, and ``teacher_force`` if all steps can be computed
    faster than one by one. A state belongs to R rows of every image: its captions in training, its
    hypotheses in a search. It is a dataclass of tensors whose first axis is the images, with a method
    ``reorder(rows)``: row k of image b of the result continues row ``rows[b, k]``.
    """

    @property
    def mechanism(self) -> str:
        """Name of the attention mechanism, as shown to users."""
        return type(self).__name__

    @property
    def window(self) -> int | None:
        """Half width in regions of the window of local attention; None for other attention."""
        return next((part.window for part in self.modules() if isinstance(part, Local)), None)

    @property
    def has_sentinel(self) -> bool:
        """Whether a visual sentinel takes part of the attention."""
        return any(isinstance(part, Sentinel) for part in self.modules())

    def init_state(
        self, annotations: Annotations, rows: int = 1, sampling: Sampling | None = None
    ) -> Any:
        """Return the state of R rows before the first word; ``sampling`` is for hard attention."""
        raise NotImplementedError

    def step(
        self, tokens: Int[Tensor, " B *R"], state: Any
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], Any]:
        """Read one token of every row; return next-token logits, attention weights, new state."""
        logits, weights, state = self.read(tokens.view(len(tokens), -1), state)
        return logits.view(*tokens.shape, -1), weights.view(*tokens.shape, -1), state

    def forward(
        self,
        annotations: Annotations,
        tokens: Int[Tensor, "B *R T"],
        details: bool = False,
        sampling: Sampling | None = None,
    ) -> Decoded:
        """Teacher forcing: the logits at step t depend on tokens 0 … t, the first being ``<start>``.

        ``details`` adds the attention weights of every layer and head, and those on earlier words.
        """
        rows = tokens if tokens.ndim == 3 else tokens.unsqueeze(1)
        state = self.init_state(annotations, rows.shape[1], sampling)
        decoded = self.teacher_force(rows, state, details)
        return decoded if tokens.ndim == 3 else map_tensors(lambda part: part.squeeze(1), decoded)

    def read(self, tokens: Int[Tensor, "B R"], state: Any) -> StepResult:
        """Run ``step`` for R rows of every image."""
        raise NotImplementedError

    def teacher_force(self, tokens: Int[Tensor, "B R T"], state: Any, details: bool) -> Decoded:
        """Run ``forward`` from the initial state, by default step by step."""
        all_logits, all_weights = [], []
        for words in tokens.unbind(-1):
            logits, weights, state = self.read(words, state)
            all_logits.append(logits)
            all_weights.append(weights)
        return Decoded(torch.stack(all_logits, 2), torch.stack(all_weights, 2))


class WordDecoder(Decoder, abstract=True):
    """Base of the decoders of this package: word embeddings and an output layer.

    Args:
        vocab_size: V.
        embedding: m, the width of a word embedding and of the input of the output layer.
        dropout: probability of dropping a component while training.
        tied: use the embedding matrix as output layer (Press, Wolf 2017, arXiv 1608.05859).
        std: standard deviation of the initial embeddings; torch's default, 1, gives huge logits.
    """

    def __init__(
        self, vocab_size: int, embedding: int, dropout: float, tied: bool, std: float = 0.05
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.output = nn.Linear(embedding, vocab_size)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.embedding.weight, std=std)
        if tied:
            self.output.weight = self.embedding.weight
