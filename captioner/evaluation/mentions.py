"""What a model looked at whenever it named an object, with the maps that it is to be compared with."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch

from captioner.data.masks import MaskedPicture, MaskedPictures
from captioner.data.objects import Mention
from captioner.decoding import Decoding, search
from captioner.evaluation.baselines import shuffled
from captioner.evaluation.gaze import Encoded, encoded, forced, gradients, untrained
from captioner.evaluation.localisation import entropies, normalised
from captioner.models.captioner import Captioner
from captioner.text import UNK, Tokenizer

Regime = Literal["forced", "generated"]
OVERLAP = 0.1  # two masks that share at most this part of the smaller are apart


@dataclass
class Seen:
    """All that was seen; pictures are given by their places in the data set.

    Attributes:
        grid: (rows, columns) of all maps, which are flat, in raster order.
        mentions: that have a mask, N of them; and of each
        picture: its picture,
        masks: the fraction of every cell that the objects meant cover,
        maps: by kind, its words' mean map,
        order: its number in its caption, and whether the caption has named the same before.
        pairs: of mentions in one caption whose masks are apart.
        caption_maps: the mean map over all words of every caption; and of each
        caption_picture: its picture,
        captions: its words,
        named: all its mentions, each with its place among ``mentions`` if it has a mask.
        words: of all captions, counted; and those of them that name nothing.
        found: mentions, with a mask or without.
        naming: words that are part of a mention.
        unknown: words that are not in the model's vocabulary.
        unknown_mentions: mentions dropped because such a word is part of them: their maps would be
            those of ``<unk>``.
        places: the pictures that could be used.
        entropy: of the map of every word, in nats; where a cell is chosen, of what it is chosen from;
            and of each
        entropy_picture: its picture.
        full: mentions dropped because their mask fills the picture.
        failed: what was wrong with pictures that could not be used.
    """

    picture: list[int] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)
    maps: dict[str, list[np.ndarray]] = field(default_factory=dict)
    order: list[tuple[int, bool]] = field(default_factory=list)  # in the caption; a repetition?
    pairs: list[tuple[int, int]] = field(default_factory=list)
    caption_maps: list[np.ndarray] = field(default_factory=list)
    caption_picture: list[int] = field(default_factory=list)
    captions: list[Sequence[str]] = field(default_factory=list)
    named: list[list[tuple[Mention, int | None]]] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    found: int = 0
    naming: int = 0
    unknown: int = 0
    unknown_mentions: int = 0
    full: int = 0
    places: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    entropy_picture: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    grid: tuple[int, int] = (1, 1)


def look(
    captioner: Captioner,
    data: MaskedPictures,
    regime: Regime,
    decoding: Decoding,
    batch_size: int,
    seed: int,
    progress: Callable[[Iterable[Encoded], int], Iterable[Encoded]],
) -> Seen:
    """Runs the model over all pictures; keeps the maps of every mention."""
    seen, tokenizer, vocabulary = Seen(), Tokenizer(), captioner.vocabulary
    rng = np.random.default_rng(seed)
    random_refiner, random_decoder = untrained(captioner, seed)
    batches = encoded(captioner, data.pictures, batch_size, seen.failed)
    for batch in progress(batches, -(-len(data.pictures) // batch_size)):
        seen.grid = batch.annotations.grid
        seen.places += batch.places
        pictures = [data.pictures[place] for place in batch.places]
        with torch.no_grad():
            refined = captioner.refiner(batch.annotations)
            refined_at_random = random_refiner(batch.annotations)
        if regime == "forced":
            words = [[w for c in p.captions if (w := tokenizer(c))] for p in pictures]
            # The longest first: decoders leave rows out as captions end.
            words = [sorted(given, key=len, reverse=True) for given in words]
            tokens = [[vocabulary.encode(caption) for caption in given] for given in words]
            weights, chances = forced(captioner.decoder, refined, tokens)
        else:
            best = [found[0] for found in search(captioner.decoder, refined, decoding)]
            tokens, weights = [[h.tokens] for h in best], [[h.weights] for h in best]
            words = [[vocabulary.decode(h.tokens)] for h in best]
            # A search keeps the choices alone.
            _, chances = forced(captioner.decoder, refined, tokens)
        mentions = [
            [data.namer(caption, picture) for caption in given]
            for given, picture in zip(words, pictures, strict=True)
        ]
        asked = [
            sorted(
                {
                    (r, w)
                    for r, (ms, ids) in enumerate(zip(given, of_picture, strict=True))
                    for m in ms
                    if m.instances and known(m, ids)
                    for w in m.words
                }
            )
            for given, of_picture in zip(mentions, tokens, strict=True)
        ]
        cams = gradients(captioner.decoder, refined, tokens, asked)
        at_random, _ = forced(random_decoder, refined_at_random, tokens)
        for row, (place, picture) in enumerate(zip(batch.places, pictures, strict=True)):
            for r, caption in enumerate(words[row]):
                maps: dict[str, Any] = {
                    "model": normalised(weights[row][r].numpy()),
                    "random_weights": normalised(at_random[row][r].numpy()),
                    "grad_cam": {w: cams[row][r, w].numpy() for k, w in cams[row] if k == r},
                }
                maps["shuffled"] = shuffled(maps["model"], rng)
                if chances is not None:
                    maps["chances"] = normalised(chances[row][r].numpy())
                add(seen, place, picture, caption, tokens[row][r], mentions[row][r], maps)
    return seen


def known(mention: Mention, ids: Sequence[int]) -> bool:
    """Whether the model knows all words of a mention in a caption of these ids."""
    return all(ids[word] != UNK for word in mention.words)


def add(
    seen: Seen,
    place: int,
    picture: MaskedPicture,
    caption: Sequence[str],
    ids: Sequence[int],
    mentions: Sequence[Mention],
    maps: dict[str, Any],
) -> None:
    """A caption's mentions, those that have a mask with all maps.

    Args:
        seen: to which they are added.
        place: of the picture in the data set.
        picture: what the caption is about.
        caption: its words.
        ids: its words as the model reads them.
        mentions: what it names.
        maps: by kind a map for every word, (T, L); of Grad-CAM by place for the words asked about.
    """
    average = maps["model"].mean(0)
    seen.unknown += list(ids).count(UNK)
    looked = maps.get("chances", maps["model"])
    seen.entropy += entropies(looked).tolist()
    seen.entropy_picture += [place] * len(looked)
    seen.caption_maps.append(average)
    seen.caption_picture.append(place)
    seen.captions.append(caption)
    seen.words.update(caption)
    naming = {word for mention in mentions for word in mention.words}
    seen.found += len(mentions)
    seen.naming += len(naming)
    seen.unnamed.update(word for i, word in enumerate(caption) if i not in naming)
    usable: list[tuple[Mention, int]] = []
    named: list[tuple[Mention, int | None]] = []
    for number, mention in enumerate(mentions):
        named.append((mention, None))
        if not mention.instances:
            continue
        if not known(mention, ids):
            seen.unknown_mentions += 1
            continue
        mask = picture.truth(mention.instances, seen.grid)
        if mask.min() >= 1:  # every map lies in it
            seen.full += 1
            continue
        index = len(seen.masks)
        named[-1] = (mention, index)
        usable.append((mention, index))
        seen.picture.append(place)
        seen.mentions.append(mention)
        seen.masks.append(mask)
        repeated = any(m.instances == mention.instances for m in mentions[:number])
        seen.order.append((number, repeated))
        places = list(mention.words)
        cams = normalised(np.stack([maps["grad_cam"][word] for word in places]))
        for name, own in {
            "time_averaged": average,
            "grad_cam": cams.mean(0),
            "model": maps["model"][places].mean(0),
            **({"chances": maps["chances"][places].mean(0)} if "chances" in maps else {}),
            "random_weights": maps["random_weights"][places].mean(0),
            # One word's, however many the mention has: of two mentions of unequal length, means of
            # dealt maps are not alike in law, and pairs would not be right by chance alone.
            "shuffled": maps["shuffled"][places[0]],
        }.items():
            seen.maps.setdefault(name, []).append(own)
    seen.named.append(named)
    for (one, first), (other, second) in combinations(usable, 2):
        if picture.overlap(one.instances, other.instances) <= OVERLAP:
            seen.pairs.append((first, second))
