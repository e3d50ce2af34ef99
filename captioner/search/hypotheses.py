"""The hypotheses of a beam search: how those in the beam grow, and what a finished one contains."""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner import limits
from captioner.language.vocabulary import END, START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.monte_carlo import MonteCarlo
from captioner.models.tensors import gather_rows, index_batch, map_tensors
from captioner.search.options import Decoding

# Finished images leave the batch once they are this share of it: copying the other images' keys
# costs about an eighth of a step.
COMPACT_SHARE = 1 / 8
Part = TypeVar("Part")
Finished = TypeVar("Finished")


@dataclass(frozen=True)
class Hypothesis:
    """A finished caption as token ids.

    The last three fields are None if not requested or if the decoder has none: see ``Decoded``.
    """

    tokens: list[int]  # ids of the T words, without start and end
    log_probs: list[float]  # in nats, of each word given the words before it
    log_prob: float  # of the whole caption including its end
    weights: Float[Tensor, "T L"]  # attention weights of each word
    score: float  # hypotheses are ranked by it
    centre: Float[Tensor, "T 2"] | None = None
    layers: Float[Tensor, "T l h L"] | None = None
    past_weights: Float[Tensor, "T l s T"] | None = None


@dataclass(frozen=True)
class Extensions:
    """Hypotheses of the beam with one more word each: C for every image, the best first."""

    parents: Int[Tensor, "B C"]  # the row of the hypothesis in the beam
    words: Int[Tensor, "B C"]
    totals: Float[Tensor, "B C"]  # as in ``Beam``, with the new word

    @classmethod
    def best(cls, totals: Float[Tensor, "B K V"], count: int) -> "Extensions":
        """Return the extensions of the largest totals; all if there are fewer than ``count``."""
        _, rows, vocab = totals.shape
        largest, index = totals.flatten(1).topk(min(count, rows * vocab))
        return cls(index.div(vocab, rounding_mode="floor"), index % vocab, largest)

    def continuing(self, count: int) -> "Extensions":
        """Return the best extensions that do not end the caption.

        With a small vocabulary there may be fewer than ``count``; totals of -inf fill the rest.
        """
        totals = self.totals.masked_fill(self.words == END, -torch.inf)
        totals, best = totals.topk(min(count, totals.shape[1]))
        return Extensions(self.parents.gather(1, best), self.words.gather(1, best), totals)


@dataclass(frozen=True)
class Beam:
    """The unfinished hypotheses: K of t words for each image, where K is at most the beam size."""

    state: Any  # of the decoder before it reads the last word
    totals: Float[Tensor, "B K"]  # log-probabilities of the hypotheses, less any penalties
    tokens: Int[Tensor, "B K s"]  # s = t + 1, from ``<start>``
    log_probs: Float[Tensor, "B K t"]
    weights: Float[Tensor, "B K t L"]

    @classmethod
    def empty(
        cls, decoder: Decoder, annotations: Annotations, rows: int, sampling: Sampling | None
    ) -> "Beam":
        """Return hypotheses without words: K = ``rows`` for each image."""
        images, regions = annotations.vectors.shape[:2]
        totals = torch.zeros(images, rows, device=annotations.vectors.device)
        return cls(
            state=decoder.init_state(annotations, rows=rows, sampling=sampling),
            totals=totals,
            tokens=torch.full_like(totals, START, dtype=torch.long).unsqueeze(-1),
            log_probs=totals.new_zeros(images, rows, 0),
            weights=totals.new_zeros(images, rows, 0, regions),
        )

    def extended(
        self, chosen: Extensions, log_probs: Float[Tensor, "B K V"], weights: Tensor, state: Any
    ) -> "Beam":
        """Return the beam of the chosen extensions; the other arguments are results of the step."""
        index = chosen.parents * log_probs.shape[-1] + chosen.words
        word_log_probs = log_probs.flatten(1).gather(1, index)
        added = (chosen.words, word_log_probs, gather_rows(weights, chosen.parents))
        earlier = gather_rows((self.tokens, self.log_probs, self.weights), chosen.parents)
        history = map_tensors(
            lambda old, new: torch.cat([old, new.unsqueeze(2)], 2), earlier, added
        )
        return Beam(state.reorder(chosen.parents), chosen.totals, *history)

    def finish(
        self,
        best: Extensions,
        log_probs: Float[Tensor, "B C"],
        finished: list[list[Hypothesis]],
        decoding: Decoding,
    ) -> None:
        """Add the hypotheses that end among the best extensions to those of their image.

        ``log_probs`` are the extensions' log-probabilities.
        """
        size = decoding.group_size
        ends = (best.words == END) & best.totals.isfinite()
        ends[:, size:] = False
        image, row = ends.nonzero()[:, 0], best.parents[ends]
        ended = (image, log_probs[ends], self.tokens[image, row, 1:], self.log_probs[image, row])
        weights = self.weights[image, row].float().cpu()
        lists = (part.tolist() for part in ended)
        length = self.tokens.shape[-1]  # the end token counts
        for number, log_prob, tokens, each, maps in zip(*lists, weights, strict=True):
            if len(finished[number]) < size:
                score = log_prob / length**decoding.length_penalty
                finished[number].append(Hypothesis(tokens, each, log_prob, maps, score))


def compact(
    beam: Part, finished: list[Finished], active: list[int], device: torch.device
) -> tuple[Part, list[Finished]]:
    """Drop the images that are not in the ``active`` rows, unless they are few."""
    if len(finished) - len(active) < COMPACT_SHARE * len(finished):
        return beam, finished
    rows = torch.tensor(active, device=device)
    return index_batch(beam, rows), [finished[row] for row in active]


def average_paths(decoder: Decoder, samples: int) -> Decoder:
    """Return a decoder whose probabilities are means over sampled paths of hard attention."""
    return decoder if samples == 1 else MonteCarlo(decoder, samples)


def in_parts(annotations: Annotations, rows: int) -> list[Annotations]:
    """Split images, with ``rows`` hypotheses each, so that ``limits.MAX_ROWS`` limits the memory."""
    most = max(1, limits.MAX_ROWS // rows)
    if len(annotations) <= most:
        return [annotations]
    images = torch.arange(len(annotations), device=annotations.vectors.device)
    return [index_batch(annotations, part) for part in torch.split(images, most)]
