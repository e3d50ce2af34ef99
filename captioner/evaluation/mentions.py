"""Collect the attention maps of every mention of an object, with other maps of the same model."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from captioner.data.masks import MaskedImages
from captioner.data.scene_grammar import Mention
from captioner.evaluation.attention_maps import Batch, forced_maps
from captioner.evaluation.image_statistics import Regime
from captioner.evaluation.localisation import entropies, normalised
from captioner.models.captioner import Captioner
from captioner.text import UNK, Tokenizer

LEFT_OUT = ("unknown_words", "mentions_of_unknown_words", "masks_of_whole_picture")
OVERLAP = 0.1  # masks that share at most this fraction of the smaller one count as disjoint


class CaptionRecord(NamedTuple):
    """A caption and the objects that it mentions."""

    image: int  # index of its image in the data set
    words: Sequence[str]
    mentions: list[tuple[Mention, int | None]]  # with the index among the scored ones, if scored
    entropies: Float64[np.ndarray, " T"]  # of each word's attention, nats


class MentionRecord(NamedTuple):
    """A mention that is scored."""

    image: int  # index of its image in the data set
    mention: Mention
    mask: Float64[np.ndarray, " L"]  # fraction of each cell that the named objects cover
    maps: dict[str, np.ndarray]  # kind of map → mean over the mention's words, (L,)


class GroundingData:
    """Captions, mentions and maps of all images, which are added batch by batch.

    Args:
        captioner: in eval mode.
        data: images with masks, and for ``forced`` with captions.
        regime: ``forced`` (reference captions) or ``generated`` (the model's own).

    Attributes:
        images: indices of the images that could be read.
        grid: (rows, columns) of all maps, which are flat, in raster order.
        captions: all captions.
        mentions: the mentions that are scored.
        pairs: pairs of indices of mentions in one caption whose masks are disjoint.
        left_out: counts of unknown words and of mentions that are not scored.
    """

    def __init__(self, captioner: Captioner, data: MaskedImages, regime: Regime) -> None:
        self.data, self.regime = data, regime
        self.images: list[int] = []
        self.grid = (1, 1)
        self.captions: list[CaptionRecord] = []
        self.mentions: list[MentionRecord] = []
        self.pairs: list[tuple[int, int]] = []
        self.left_out = dict.fromkeys(LEFT_OUT, 0)
        self._captioner = captioner

    def add(self, batch: Batch) -> None:
        """Compute the maps of some images."""
        self.grid = batch.annotations.grid
        self.images += batch.indices
        images, vocabulary = self.data.images, self._captioner.vocabulary
        if self.regime == "forced":
            # Decoders are faster if the longest captions come first.
            split = [filter(None, map(Tokenizer(), images[i].captions)) for i in batch.indices]
            words = [sorted(captions, key=len, reverse=True) for captions in split]
            tokens = [[vocabulary.encode(caption) for caption in captions] for captions in words]
        else:
            tokens = [[best.tokens] for best in batch.generated]
            words = [[vocabulary.decode(ids)] for [ids] in tokens]
        with torch.random.fork_rng():
            torch.manual_seed(batch.seed)  # hard attention may sample
            weights, probs = forced_maps(self._captioner.decoder, batch.annotations, tokens)
        if self.regime == "generated":  # the weights, or chosen cells, of the search
            weights = [[best.weights] for best in batch.generated]
        kinds = {"model": weights} if probs is None else {"model": weights, "chances": probs}
        for b, index in enumerate(batch.indices):
            for r, caption in enumerate(words[b]):
                maps = {name: normalised(kind[b][r].numpy()) for name, kind in kinds.items()}
                mentions = self.data.mentions(caption, images[index])
                self._add_caption(index, caption, tokens[b][r], maps, mentions)

    def _add_caption(
        self,
        index: int,
        words: Sequence[str],
        ids: Sequence[int],
        maps: dict[str, np.ndarray],
        mentions: Sequence[Mention],
    ) -> None:
        numbered = [(mention, self._number(index, ids, maps, mention)) for mention in mentions]
        self.pairs += [
            (first, second)
            for (one, first), (other, second) in combinations(numbered, 2)
            if first is not None and second is not None
            if self.data.images[index].overlap(one.instances, other.instances) <= OVERLAP
        ]
        self.left_out["unknown_words"] += list(ids).count(UNK)
        entropy = entropies(maps.get("chances", maps["model"]))
        self.captions.append(CaptionRecord(index, words, numbered, entropy))

    def _number(
        self, index: int, ids: Sequence[int], maps: dict[str, np.ndarray], mention: Mention
    ) -> int | None:
        """Add a mention if it can be scored, and return its index among the scored ones."""
        if not mention.instances:
            return None
        if any(ids[word] == UNK for word in mention.words):  # the map of <unk> belongs to no word
            self.left_out["mentions_of_unknown_words"] += 1
            return None
        mask = self.data.images[index].truth(mention.instances, self.grid)
        if mask.min() >= 1:  # every map lies inside the mask
            self.left_out["masks_of_whole_picture"] += 1
            return None
        means = {name: of_words[list(mention.words)].mean(0) for name, of_words in maps.items()}
        means["time_averaged"] = maps["model"].mean(0)
        self.mentions.append(MentionRecord(index, mention, mask, means))
        return len(self.mentions) - 1
