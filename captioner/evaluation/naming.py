"""What generated captions name: is it there, and did the model look at it when it said so?

F1-all and F1-loc are those of Zhou et al. 2019 (Grounded Video Description), pointing into a mask in
place of an IoU of boxes above ½; CHAIR is that of Rohrbach et al. 2018.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from captioner.data.grammar import true_of
from captioner.data.masks import MaskedPicture, MaskedPictures
from captioner.data.objects import Namer
from captioner.evaluation.bootstrap import Bootstrap, ratio
from captioner.evaluation.means import Totals, macro, percent, totals
from captioner.evaluation.mentions import Seen
from captioner.text import Tokenizer


def objects(
    seen: Seen,
    data: MaskedPictures,
    hits: Mapping[str, Float64[np.ndarray, " N"]],
    bootstrap: Bootstrap,
) -> tuple[dict[str, Any], dict[str, Totals]]:
    """F1-all and F1-loc of every kind of map, and CHAIR, in percent with their intervals.

    To be named are the categories with a mask that a reference caption names. A category that the
    caption names (once, by its first mention) is right if it is one of these and means objects that
    are there, and grounded if the map then points into their mask. One that is in the picture but not
    to be named is neither right nor wrong.

    - ``f1_all`` = 2 · grounded / (named + to be named); ``f1_all_macro``, its mean over categories.
    - ``f1_loc`` = grounded / right: of what is named rightly only. With one mention counted for each
      category, precision and recall are the same.
    - ``chair_i``: percent of the mentions that name what neither the annotations nor any reference know;
      ``chair_s``: percent of the captions with such a mention. Lower is better.
    - ``true_captions``, of generated scenes, whose contents are known: percent of the captions that say
      nothing false (``captioner.data.shapes.true_of``).

    Args:
        seen: of generated captions, one a picture.
        data: the pictures.
        hits: of pointing, for every kind of map and every mention with a mask.
        bootstrap: over the pictures.

    Returns:
        The report, and what each picture adds to the measures of the model.
    """
    categories: dict[str, int] = {}
    named: list[tuple[int, int]] = []  # (picture, category)
    wanted: list[tuple[int, int]] = []
    right: list[tuple[int, int, int]] = []  # (picture, category, mention)
    mentions: list[tuple[int, bool]] = []  # (picture, made up?)
    captions: list[tuple[int, bool]] = []
    tokenizer = Tokenizer()

    def key(category: str) -> int:
        return categories.setdefault(category, len(categories))

    for place, caption in zip(seen.caption_picture, seen.named, strict=True):
        picture = data.pictures[place]
        told = _told(picture, data.namer, tokenizer)
        to_name = told & set(picture.categories)
        wanted += [(place, key(category)) for category in sorted(to_name)]
        invented = [mention.category not in picture.present | told for mention, _ in caption]
        mentions += [(place, made_up) for made_up in invented]
        captions.append((place, any(invented)))
        first = {mention.category: index for mention, index in reversed(caption)}
        for category, index in first.items():
            if category in to_name or category not in picture.present | told:
                named.append((place, key(category)))
            if category in to_name and index is not None:
                right.append((place, key(category), index))

    of_named, of_wanted = (_columns(rows, 2) for rows in (named, wanted))
    of_right, of_mention, of_caption = (
        _columns(right, 3),
        _columns(mentions, 2),
        _columns(captions, 2),
    )
    counted = np.concatenate([of_named, of_wanted])
    pictures = len(data.pictures)

    def share(marked: np.ndarray) -> Totals:
        return totals(marked[:, 1], marked[:, 0], marked[:, 0], pictures)

    added = {"chair_i": share(of_mention), "chair_s": share(of_caption)}
    if data.generated:
        spoken = zip(seen.caption_picture, seen.captions, strict=True)
        true = [(p, true_of(" ".join(words), data.pictures[p].things)) for p, words in spoken]
        added["true_captions"] = share(_columns(true, 2))
    found: dict[str, Any] = {
        "named": len(named),
        "to_be_named": len(wanted),
        "right": len(right),
        "mentions": len(mentions),
        **{name: percent(bootstrap, pictures, ratio(*of)) for name, of in added.items()},
    }
    for name, hit in hits.items():
        grounded, where = hit[of_right[:, 2]], of_right[:, 0]
        own = {
            "f1_all": totals(2 * grounded, where, counted[:, 0], pictures),
            "f1_loc": totals(grounded, where, where, pictures),
        }
        measures = {key: ratio(*of) for key, of in own.items()}
        measures["f1_all_macro"] = macro(2 * grounded, of_right[:, :2], counted, pictures)
        found[name] = {
            key: percent(bootstrap, pictures, measure) for key, measure in measures.items()
        }
        if name == "model":
            added |= own
    return found, added


def _told(picture: MaskedPicture, namer: Namer, tokenizer: Tokenizer) -> set[str]:
    """The categories that the reference captions name."""
    return {
        mention.category
        for caption in picture.captions
        for mention in namer(tokenizer(caption), picture)
    }


def _columns(rows: list[Any], width: int) -> np.ndarray:
    return np.array(rows, dtype=int).reshape(-1, width)
