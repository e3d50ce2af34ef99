"""What every decoder is: start, step, and teacher forcing."""

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.linear import Linear
from captioner.models.registry import Component
from captioner.text import END, PAD


@runtime_checkable
class State(Protocol):
    """What a decoder remembers between words, for every row of every picture.

    A picture has one or more rows: its captions in training, its hypotheses in a search. Rows share
    the picture's annotations and keys, which the state holds once. It is a dataclass, all whose
    tensors, as those of the dataclasses and tuples in it, have pictures as their first axis: a search
    leaves some out when they are done (``of_pictures``).
    """

    def select(self, rows: Int[Tensor, "B K"]) -> "State":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        ...


# How much a decoder says about where it looked: nothing, which may be faster; what is shown for a
# word; or all there is.
Detail = Literal["none", "shown", "all"]


@dataclass(frozen=True)
class Decoded:
    """All steps of a caption, teacher forced. ``*R`` is there when a picture has several captions.

    Attributes:
        said: the scores of the next word at the N steps marked in ``there``; at all steps, (B, *R, T,
            V), where it is None. ``logits`` has them in their places.
        weights: where the model looked, at every step; None where nobody asked. Zeros, like all below,
            where a caption has ended and nothing was computed.
        log_prob: log-probability of the locations drawn; None for deterministic attention.
        entropy: entropy in nats of what they were drawn from; None likewise.
        centre: the (row, column) that local attention looks around, in cells; None for any other.
        expected: the probabilities that the locations were drawn from; None where none was drawn.
        layers: the weights of every layer and head; None unless asked for, or where there is one.
        past: how much each earlier word counts, for every layer and head, where the decoder attends
            to what it wrote: ``past[…, t, l, h, j]`` is the weight of input j, ``<start>`` being
            input 0, at step t; 0 for every j > t. None unless asked for.
        there: the steps after which a caption still has something to say, and perhaps some more: the
            vocabulary is projected for these alone, and the loss need not go through the others.
    """

    said: Float[Tensor, "*said V"]
    weights: Float[Tensor, "B *R T L"] | None
    log_prob: Float[Tensor, "B *R T"] | None = None
    entropy: Float[Tensor, "B *R T"] | None = None
    centre: Float[Tensor, "B *R T 2"] | None = None
    expected: Float[Tensor, "B *R T L"] | None = None
    layers: Float[Tensor, "B *R T l h L"] | None = None
    past: Float[Tensor, "B *R T l s T"] | None = None
    there: Bool[Tensor, "B *R T"] | None = None

    @property
    def logits(self) -> Float[Tensor, "B *R T V"]:
        """The scores of the next word, at every step; zeros where they were left out."""
        return self.placed(self.said)

    def at(self, values: Shaped[Tensor, "*steps"]) -> Shaped[Tensor, "*said"]:
        """Something of every step, where ``said`` is."""
        return values if self.there is None else values[self.there]

    def placed(self, values: Float[Tensor, "*said"]) -> Float[Tensor, "*steps"]:
        """Something of what was said, at its step; zeros at the others."""
        if self.there is None:
            return values
        everywhere = values.new_zeros(*self.there.shape, *values.shape[1:])
        everywhere[self.there] = values
        return everywhere


class Decoder(Component, kind="decoder"):
    """Base of all decoders: annotations and the words so far → the next word.

    Stepping equals teacher forcing: ``forward`` does at once what ``step`` does word by word.
    """

    @property
    def mechanism(self) -> str:
        """How it attends, for people."""
        return type(self).__name__

    @property
    def window(self) -> int | None:
        """How many cells local attention reaches to either side of its centre; None for any other."""
        return None

    def start(self, annotations: Annotations) -> Any:
        """The state before the first word, with one row (B,) per picture."""
        raise NotImplementedError

    def begin(self, annotations: Annotations, tokens: Int[Tensor, "B *R T"]) -> Any:
        """The state before the first word, with a row for each caption in ``tokens``."""
        state = self.start(annotations)
        return state if tokens.ndim == 2 else state.select(torch.zeros_like(tokens[..., 0]))

    def step(
        self, tokens: Int[Tensor, " B *R"], state: Any
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], Any]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        raise NotImplementedError

    def forward(
        self, annotations: Annotations, tokens: Int[Tensor, "B *R T"], detail: Detail = "shown"
    ) -> Decoded:
        """Teacher forcing: ``tokens`` are the inputs, beginning with ``<start>``.

        The logits at step t depend on tokens 0 … t. The shift between inputs and targets is the
        caller's. Where a caption has ended, all inputs from there on being ``<end>`` or ``<pad>``, there
        is nothing to say: decoders may leave such steps out, with logits of zeros in their place, and
        anything finite elsewhere.
        """
        raise NotImplementedError


class WordDecoder(Decoder, abstract=True):
    """What the decoders of this package share: word embeddings and an output layer.

    Args:
        vocab_size: V.
        embedding: m, the width of a word embedding and of what the output layer reads.
        dropout: probability of dropping a component while training.
        tied: whether the output layer is the embedding matrix (Press, Wolf 2017, arXiv 1608.05859):
            fewer parameters, less overfitting on a small data set.
        spread: standard deviation of the first embeddings.
    """

    def __init__(
        self, vocab_size: int, embedding: int, dropout: float, tied: bool, spread: float = 0.05
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.output = Linear(embedding, vocab_size)
        self.dropout = nn.Dropout(dropout)
        # Unit variance, torch's choice for embeddings, would make the first logits enormous.
        nn.init.normal_(self.embedding.weight, std=spread)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(
        self, annotations: Annotations, tokens: Int[Tensor, "B *R T"], detail: Detail = "shown"
    ) -> Decoded:
        """Teacher forcing."""
        decoded = self.teach(annotations, tokens.view(len(tokens), -1, tokens.shape[-1]), detail)
        if tokens.ndim == 3:
            return decoded
        single = {
            name: part.squeeze(1)
            for name, part in vars(decoded).items()
            if part is not None and not (name == "said" and decoded.there is not None)
        }
        return replace(decoded, **single)

    def teach(
        self, annotations: Annotations, tokens: Int[Tensor, "B R T"], detail: Detail
    ) -> Decoded:
        """Teacher forcing, for several captions a picture: what a subclass writes."""
        raise NotImplementedError


def unfinished(tokens: Int[Tensor, "B R T"]) -> Bool[Tensor, "B R T"]:
    """True for the inputs after which a caption still has something to say."""
    words = (tokens != PAD) & (tokens != END)
    return words.flip(-1).cummax(-1).values.flip(-1)


def rows_at_work(unfinished: Bool[Tensor, "B R T"]) -> list[int]:
    """At every step, how many rows of each picture, from the first, hold all that are unfinished.

    Fewest where the longer captions of every picture come first. At least 1.
    """
    numbers = torch.arange(1, unfinished.shape[1] + 1, device=unfinished.device)
    return (unfinished.any(0) * numbers.unsqueeze(1)).amax(0).clamp(min=1).tolist()


def mixture(
    logits: Float[Tensor, "*steps k V"], chances: Float[Tensor, "*steps k"]
) -> Float[Tensor, "*steps V"]:
    """Log-probabilities of the next word, Σ_i chance_i · softmax(logits_i)."""
    least = torch.finfo(chances.dtype).tiny
    return (logits.log_softmax(-1) + chances.clamp(min=least).log().unsqueeze(-1)).logsumexp(-2)


def repeat(vectors: Float[Tensor, "*rows n"], ways: int) -> Float[Tensor, "*rows k n"]:
    """Every row ``ways`` times, for each of as many positions that it tries."""
    return vectors.unsqueeze(-2).expand(*vectors.shape[:-1], ways, -1)


Part = TypeVar("Part")


def of_pictures(part: Part, pictures: Int[Tensor, " P"]) -> Part:
    """A state, or annotations, of some pictures, copied.

    Args:
        part: a tensor with pictures as its first axis, or a tuple or dataclass of such; what else is
            in it stays as it is.
        pictures: which; any of them any number of times.
    """
    found: Any = part
    if isinstance(part, Tensor):
        found = part.index_select(0, pictures)
    elif isinstance(part, tuple):
        found = tuple(of_pictures(each, pictures) for each in part)
    elif is_dataclass(part) and not isinstance(part, type):
        parts = {f.name: of_pictures(getattr(part, f.name), pictures) for f in fields(part)}
        found = replace(part, **parts)
    return found


def gather_rows(
    memory: Float[Tensor, " B *more"], rows: Int[Tensor, "B K"], trailing: int = 1
) -> Float[Tensor, "B K *own"]:
    """Row k of picture b is what row ``rows[b, k]`` was.

    Args:
        memory: (B, *R, …): what every row remembers; no axis R means one row.
        rows: for every new row the old one that it continues.
        trailing: how many axes what a row remembers has.
    """
    own = memory.shape[memory.ndim - trailing :]
    memory = memory.view(len(memory), math.prod(memory.shape[1 : memory.ndim - trailing]), *own)
    index = rows.view(*rows.shape, *[1] * trailing).expand(*rows.shape, *own)
    return memory.gather(1, index)
