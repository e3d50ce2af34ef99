"""Collect the attention maps of every mention of an object, with the model's baseline maps."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from captioner.data.masks import MaskedImage, MaskedImages
from captioner.data.scene_grammar import Mention
from captioner.evaluation.attention_maps import Batch, forced_maps, grad_cams, untrained
from captioner.evaluation.image_statistics import Regime
from captioner.evaluation.localisation import entropies, normalised
from captioner.models.captioner import Captioner
from captioner.text import UNK, Tokenizer

OVERLAP = 0.1  # masks that share at most this fraction of the smaller one count as disjoint

WordMaps = dict[str, np.ndarray]
"""Kind of map → one map per word, (T, L)."""


class CaptionRecord(NamedTuple):
    """A caption and the objects that it mentions."""

    image: int  # index of its image in the data set
    words: Sequence[str]
    mentions: list[tuple[Mention, int | None]]  # with the index among the scored ones, if scored
    mean_map: Float64[np.ndarray, " L"]  # mean attention over the words
    entropies: Float64[np.ndarray, " T"]  # of each word's attention, nats


class MentionRecord(NamedTuple):
    """A mention that is scored."""

    image: int  # index of its image in the data set
    mention: Mention
    mask: Float64[np.ndarray, " L"]  # fraction of each cell that the named objects cover
    maps: dict[str, np.ndarray]  # kind of map → (L,)


class GroundingData:
    """Captions, mentions and maps of all images, which are added batch by batch.

    Args:
        captioner: in eval mode.
        data: images with masks, and for ``forced`` with captions.
        regime: ``forced`` (reference captions) or ``generated`` (the model's own).
        seed: of shuffling and random weights.

    Attributes:
        images: indices of the images that could be read.
        grid: (rows, columns) of all maps, which are flat, in raster order.
        captions: all captions.
        mentions: the mentions that are scored.
        pairs: pairs of indices of mentions in one caption whose masks are disjoint.
        left_out: counts of unknown words and of mentions that are not scored.
    """

    def __init__(
        self, captioner: Captioner, data: MaskedImages, regime: Regime, seed: int = 0
    ) -> None:
        self.data, self.regime = data, regime
        self.images: list[int] = []
        self.grid = (1, 1)
        self.captions: list[CaptionRecord] = []
        self.mentions: list[MentionRecord] = []
        self.pairs: list[tuple[int, int]] = []
        self.left_out: Counter[str] = Counter()
        self._captioner, self._rng = captioner, np.random.default_rng(seed)
        self._random_neck, self._random_decoder = untrained(captioner, seed)

    def add(self, batch: Batch) -> None:
        """Compute the maps of some images."""
        with torch.random.fork_rng():
            torch.manual_seed(batch.seed)  # hard attention may sample
            self._add(batch)

    def _add(self, batch: Batch) -> None:
        self.grid = batch.annotations.grid
        self.images += batch.indices
        images, decoder = [self.data.images[i] for i in batch.indices], self._captioner.decoder
        vocabulary = self._captioner.vocabulary
        if self.regime == "forced":
            words = list(map(_references, images))
            tokens = [[vocabulary.encode(caption) for caption in captions] for captions in words]
        else:
            tokens = [[best.tokens] for best in batch.generated]
            words = [[vocabulary.decode(ids)] for [ids] in tokens]
        weights, probs = forced_maps(decoder, batch.annotations, tokens)
        if self.regime == "generated":  # the weights, or chosen cells, of the search
            weights = [[best.weights] for best in batch.generated]
        mentions = [
            [self.data.mentions(caption, image) for caption in captions]
            for captions, image in zip(words, images, strict=True)
        ]
        explained = [
            [(r, w) for r, ms in enumerate(of_image) for m in ms if m.instances for w in m.words]
            for of_image in mentions
        ]
        cams = grad_cams(decoder, batch.annotations, tokens, explained)
        with torch.no_grad():
            random_annotations = self._random_neck(batch.encoded)
        random_weights, _ = forced_maps(self._random_decoder, random_annotations, tokens)
        kinds = {"model": weights, "random_weights": random_weights, "grad_cam": cams}
        if probs is not None:
            kinds["chances"] = probs
        for b, index in enumerate(batch.indices):
            for r, caption in enumerate(words[b]):
                maps = {name: normalised(kind[b][r].numpy()) for name, kind in kinds.items()}
                maps["shuffled"] = maps["model"][self._rng.permutation(len(caption))]
                self._add_caption(index, caption, tokens[b][r], maps, mentions[b][r])

    def _add_caption(
        self,
        index: int,
        words: Sequence[str],
        ids: Sequence[int],
        maps: WordMaps,
        mentions: Sequence[Mention],
    ) -> None:
        numbered = [(mention, self._number(index, ids, maps, mention)) for mention in mentions]
        scored = [(mention, number) for mention, number in numbered if number is not None]
        self.pairs += [
            (first, second)
            for (one, first), (other, second) in combinations(scored, 2)
            if self.data.images[index].overlap(one.instances, other.instances) <= OVERLAP
        ]
        self.left_out["unknown_words"] += list(ids).count(UNK)
        entropy = entropies(maps.get("chances", maps["model"]))
        mean_map = maps["model"].mean(0)
        self.captions.append(CaptionRecord(index, words, numbered, mean_map, entropy))

    def _number(
        self, index: int, ids: Sequence[int], maps: WordMaps, mention: Mention
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
        self.mentions.append(MentionRecord(index, mention, mask, _mention_maps(mention, maps)))
        return len(self.mentions) - 1


def _mention_maps(mention: Mention, maps: WordMaps) -> dict[str, np.ndarray]:
    """Average the maps of the mention's words, for each kind of map."""
    words = list(mention.words)
    means = {name: of_words[words].mean(0) for name, of_words in maps.items()}
    means["time_averaged"] = maps["model"].mean(0)
    # Take the map of one word only. The mean of several shuffled maps is smoother, and the chance
    # level of a pair of mentions with different lengths would then not be one half.
    means["shuffled"] = maps["shuffled"][words[0]]
    return means


def _references(image: MaskedImage) -> list[list[str]]:
    """Split the reference captions into words; decoders are faster if the longest come first."""
    return sorted(filter(None, map(Tokenizer(), image.captions)), key=len, reverse=True)
