"""Training on several data sets: further sources of training images."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from captioner.data.readers import read
from captioner.data.records import TEST, TRAIN, Records
from captioner.errors import DataError, plural


@dataclass
class FurtherData:
    """A further data set whose photos join the training split.

    Attributes:
        name: the kind of data set, as ``data.name``.
        root: its folder.
        splits: the splits whose photos are used; photos of other splits are left out.
        held_out: number of these photos, those with the last ids, that join the test split instead.
    """

    name: str
    root: str
    splits: list[Literal["train", "val", "test"]] = field(default_factory=lambda: ["train"])
    held_out: int = 0


def join(records: Records, sources: Sequence[FurtherData]) -> Records:
    """Add the photos of further sources.

    Raises:
        DataError: a source cannot be read or leaves nothing to train on, or two photos have the same
            id or file.
    """
    if not sources:
        return records
    everything = list(records)
    for source in sources:
        found = [r for r in read(source.name, source.root) if r.split in source.splits]
        found.sort(key=lambda record: str(record.image_id).zfill(12))
        training = len(found) - source.held_out
        if source.held_out < 0 or training < 1:
            raise DataError(
                f"'{source.root}' has {plural(len(found), 'photo')} in {', '.join(source.splits)}, of "
                f"which {source.held_out:,} cannot be held out"
            )
        everything += [replace(record, split=TRAIN) for record in found[:training]]
        everything += [replace(record, split=TEST) for record in found[training:]]
    for what, values in (
        ("id", Counter(record.image_id for record in everything)),
        ("file", Counter(record.path for record in everything)),
    ):
        (value, count), *_ = values.most_common(1)
        if count > 1:
            raise DataError(f"two sources have a photo with the {what} {value!r}")
    return Records(everything)
