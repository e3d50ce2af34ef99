"""Photos with the boxes of Flickr30k Entities, as a data set with object masks.

The mentions of a reference caption are its annotated phrases. In other captions, such as those of a
model, an object word is a mention: a word that ends most phrases in which it occurs, "dog" but not
"black". Singular and plural are one category, and its masks are the boxes of all phrases that end with
it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from pycocotools import mask as rle

from captioner.data import entities
from captioner.data.entities import Phrase
from captioner.data.masks import MaskedImage, MaskedImages
from captioner.data.object_words import forms
from captioner.data.records import Record
from captioner.data.scene_grammar import Mention
from captioner.errors import DataError, plural
from captioner.language.vocabulary import Tokenizer
from captioner.language.word_classes import FUNCTION_WORDS

Captions = dict[tuple[str, ...], Sequence[Phrase]]
"""The phrases of the captions of one photo, by the caption's words."""


@dataclass(frozen=True)
class EntityImages(MaskedImages):
    """Photos with boxes; an instance is a coreference chain under one category."""

    exhaustive = False
    max_overlap = 0.25  # boxes are larger than their objects
    # The mentions in the captions of each photo, by its id and the caption's words.
    phrases: Mapping[int | str, Mapping[tuple[str, ...], list[Mention]]]
    problems: list[str]  # a line for each box that could not be used
    failed: list[str]  # a line for each photo that was left out

    def mentions(self, words: Sequence[str], image: MaskedImage) -> list[Mention]:
        """The phrases of a reference caption that have boxes."""
        return self.phrases[image.image_id].get(tuple(words), [])


class ObjectWords:
    """Finds the words of captions that name objects; of adjacent ones, the last: a "soccer player"."""

    def __init__(self, photos: Iterable[Captions]) -> None:
        used: Counter[str] = Counter()  # occurrences of each word
        ends: Counter[str] = Counter()  # of these, at the end of a phrase
        types: dict[str, Counter[str]] = defaultdict(Counter)  # of the phrases with boxes
        for captions in photos:
            for words, phrases in captions.items():
                used.update(words)
                for phrase in phrases:
                    last = words[phrase.words[-1]]
                    ends[last] += 1
                    if phrase.boxes:
                        types[last].update(phrase.types)
        objects = {w for w in types if w not in FUNCTION_WORDS and 2 * ends[w] >= used[w]}
        self._singular = {" ".join(forms(word)[-1]): word for word in sorted(objects)}
        # A plural that occurs may be a verb: "jumps".
        self._objects = objects | {plural for plural in self._singular if plural not in used}
        merged: dict[str, Counter[str]] = defaultdict(Counter)
        for word in objects:
            merged[self.category(word)] += types[word]
        self.types = {  # the most frequent type of each category
            category: max(sorted(of), key=of.__getitem__) for category, of in merged.items()
        }

    def category(self, word: str) -> str:
        """The singular of a word, if that is an object word; otherwise the word."""
        return self._singular.get(word, word)

    def find(self, words: Sequence[str]) -> list[tuple[tuple[int, ...], str]]:
        """The position and the category of every object word in a caption."""
        is_object = [word in self._objects for word in words]
        return [
            ((at,), self.category(words[at]))
            for at, following in enumerate([*is_object[1:], False])
            if is_object[at] and not following
        ]


def read(folder: Path, records: Sequence[Record]) -> EntityImages:
    """Read annotations; photos without readable ones are left out; DataError if none remains."""
    entities.check(folder, (record.path for record in records))
    tokenizer = lru_cache(1 << 16)(Tokenizer())  # "a man" is tokenized once
    problems: list[str] = []
    failed: list[str] = []
    reasons = ("scene", "no_box", "not_visual")
    left_out = Counter(dict.fromkeys((*reasons, "captions_without_sentence", "boxes_dropped"), 0))
    photos: list[tuple[Record, tuple[int, int], Captions]] = []
    for record in records:
        try:
            photo = entities.read_photo(folder, record.path, tokenizer)
        except DataError as error:
            failed.append(str(error))
            continue
        captions = {}
        for words in map(tuple, map(tokenizer, record.captions)):
            phrases = photo.phrases_of(words)
            left_out["captions_without_sentence"] += phrases is None
            captions[words] = phrases or ()
        problems += photo.problems
        left_out.update(photo.left_out)
        photos.append((record, photo.size, captions))
    if not photos:
        count = plural(len(records), "photo")
        raise DataError(f"none of {count} can be used; the first: {failed[0]}")
    left_out["boxes_dropped"] = len(problems)
    object_words = ObjectWords(captions for *_, captions in photos)
    found = [_image(*photo, object_words) for photo in photos]
    return EntityImages(
        images=tuple(image for image, _ in found),
        find_names=object_words.find,
        source="Flickr30k Entities",
        left_out=left_out,
        types=object_words.types,
        phrases={image.image_id: mentions for image, mentions in found},
        problems=problems,
        failed=failed,
    )


def _image(
    record: Record, size: tuple[int, int], captions: Captions, object_words: ObjectWords
) -> tuple[MaskedImage, dict[tuple[str, ...], list[Mention]]]:
    """Return a photo with its masks, and the mentions in its captions."""
    instances: dict[tuple[str, tuple[entities.Box, ...]], int] = {}
    mentions: dict[tuple[str, ...], list[Mention]] = {}
    for words, phrases in captions.items():
        mentions[words] = []
        for phrase in phrases:
            if phrase.boxes:
                category = object_words.category(words[phrase.words[-1]])
                number = instances.setdefault((category, phrase.boxes), len(instances))
                mentions[words].append(Mention(phrase.words, category, (number,), phrase.types))
    width, height = size
    masks = []
    for _, boxes in instances:
        sides = [(x, y, right - x, bottom - y) for x, y, right, bottom in boxes]
        masks.append(rle.merge(rle.frPyObjects(np.array(sides, np.float64), height, width)))
    categories = tuple(category for category, _ in instances)
    known = record.image_id, record.path, size, record.captions
    return MaskedImage(*known, categories, tuple(masks), (), frozenset(categories)), mentions
