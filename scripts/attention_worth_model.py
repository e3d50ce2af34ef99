"""Models and captions for attention_worth.py: log-probabilities and searches with given weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from captioner.cli.ground_images import open_cache
from captioner.data.records import Record
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.interventions import Intervened, Plan, log_probs, record
from captioner.language.vocabulary import END, PAD, SPECIALS, START, UNK
from captioner.language.word_classes import FUNCTION_WORDS
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.tensors import index_batch, map_tensors
from captioner.predict.load import load_own
from captioner.predict.predictor import Predictor
from captioner.search.beam import search

BEAM = 5  # the widest search
ROWS = 100  # captions computed together
BEAMS = 50  # photos searched together


@dataclass(frozen=True)
class Captions:
    """Captions of photos as rows of tokens, sorted by length."""

    photos: list[int]  # of each row
    firsts: list[bool]  # whether a row is the first caption of its photo
    tokens: Tensor  # (C, S): <start> words <end> <pad> …
    lengths: list[int]  # steps of each row, the end included

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows of about the same length, and their tokens without common padding."""
        for start in range(0, len(self.lengths), ROWS):
            rows = slice(start, start + ROWS)
            yield rows, self.tokens[rows, : 1 + max(self.lengths[rows])]

    def chosen(self, vocabulary: Sequence[str]) -> dict[str, np.ndarray]:
        """Return which tokens count, (C, S - 1): all but unknown words, and the content words."""
        function = torch.tensor([w in FUNCTION_WORDS or w in SPECIALS for w in vocabulary])
        following = self.tokens[:, 1:]
        known = (following != PAD) & (following != UNK)
        content = known & ~function[following]
        return {"log_prob": known.numpy(), "content": content.numpy()}


def captions_of(ids: Sequence[Sequence[Sequence[int]]], longest: int) -> Captions:
    """Return the rows of the captions of every photo; longer ones are cut and have no end."""
    rows = [
        (photo, number == 0, [START, *caption, END][: longest + 1])
        for photo, of_photo in enumerate(ids)
        for number, caption in enumerate(of_photo)
    ]
    rows.sort(key=lambda row: -len(row[2]))
    photos, firsts, texts = zip(*rows, strict=True)
    width = len(texts[0])
    tokens = torch.tensor([[*text, *[PAD] * (width - len(text))] for text in texts])
    return Captions(list(photos), list(firsts), tokens, [len(text) - 1 for text in texts])


class Model:
    """A model with the annotations of the photos."""

    def __init__(self, name: str, records: Sequence[Record]) -> None:
        self.predictor: Predictor = load_own(name)
        captioner = self.predictor.captioner.requires_grad_(False)
        self.decoder: Decoder = captioner.decoder
        decoding = self.predictor.decoding
        self.decoding = replace(decoding, samples=1, beam_size=min(BEAM, decoding.beam_size))
        failed: list[str] = []
        stored = open_cache(self.predictor, records, lambda *_: None)
        found = [b.annotations for b in batches(captioner, records, BEAMS, failed, cache=stored)]
        if failed:
            raise SystemExit(failed[0])
        # Copies, because gradients cannot pass tensors of inference mode.
        self.annotations: Annotations = map_tensors(lambda *parts: torch.cat(parts), *found)

    def of(self, captions: Captions, rows: slice) -> Annotations:
        """Return the annotations of the photo of each row."""
        return index_batch(self.annotations, torch.tensor(captions.photos[rows]))

    def plan(self, captions: Captions) -> Plan:
        """Record the model's own weights."""
        steps, found = captions.tokens.shape[1] - 1, []
        for rows, tokens in captions.parts():
            plan = record(self.decoder, self.of(captions, rows), tokens)
            missing = steps - (tokens.shape[1] - 1)
            found.append([pad(part, (0, 0, 0, missing)) for part in plan])
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def log_probs(self, captions: Captions, plan: Plan) -> np.ndarray:
        """Return the log-probability of every token, (C, S - 1), with the weights of a plan."""
        found = np.zeros((len(captions.lengths), captions.tokens.shape[1] - 1))
        for rows, tokens in captions.parts():
            decoder = Intervened(self.decoder, tuple(part[rows] for part in plan))
            values = log_probs(decoder, self.of(captions, rows), tokens)
            found[rows, : values.shape[1]] = values.numpy()
        return found

    def search(self, plan: Plan | None = None) -> list[list[int]]:
        """Return the ids of the best caption of every photo, with the weights of a plan."""
        found = []
        for start in range(0, len(self.annotations), BEAMS):
            numbers = torch.arange(start, min(start + BEAMS, len(self.annotations)))
            decoder = self.decoder
            if plan is not None:
                decoder = Intervened(decoder, tuple(part[numbers] for part in plan))
            photos = index_batch(self.annotations, numbers)
            beams = search(decoder, photos, self.decoding, Sampling("argmax"))
            found += [beam[0].tokens for beam in beams]
        return found
