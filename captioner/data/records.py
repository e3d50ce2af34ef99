"""The one form in which every data set arrives."""

from dataclasses import dataclass

TRAIN, VAL, TEST = "train", "val", "test"
SPLITS = (TRAIN, VAL, TEST)


@dataclass(frozen=True, slots=True)
class Record:
    """One picture with its reference captions.

    Attributes:
        image_id: what results and references are joined on: COCO's integer, else the file name.
        path: the picture's file.
        captions: one or more sentences, as written by people.
        split: ``train``, ``val`` or ``test``.
    """

    image_id: int | str
    path: str
    captions: tuple[str, ...]
    split: str
