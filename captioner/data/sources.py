"""Several data sets in one training: further sources of training photos."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from captioner.data.readers import read
from captioner.data.records import SPLITS, TEST, TRAIN, Record, Records
from captioner.errors import DataError, plural


@dataclass
class Source:
    """A further data set whose photos join the training split.

    Attributes:
        name: the kind of data set, as ``data.name``.
        root: its folder.
        splits: the splits whose photos are used; photos of other splits are left out.
        held_out: how many of these photos, those with the last ids, join the test split instead.
    """

    name: str
    root: str
    splits: list[str] = field(default_factory=lambda: [TRAIN])
    held_out: int = 0

    def records(self) -> Iterator[Record]:
        """Yield its photos with their new splits.

        Raises:
            DataError: the data set cannot be read, or has no photos left to train on.
        """
        if not set(self.splits) <= set(SPLITS):
            raise DataError(
                f"splits of the source {self.name!r} are {self.splits}; expected some of "
                f"{', '.join(SPLITS)}"
            )
        found = [record for record in read(self.name, self.root) if record.split in self.splits]
        found.sort(key=lambda record: str(record.image_id).zfill(12))
        training = len(found) - self.held_out
        if self.held_out < 0 or training < 1:
            raise DataError(
                f"the source {self.name!r} in '{self.root}' has {plural(len(found), 'photo')} in "
                f"{', '.join(self.splits)}, of which {self.held_out:,} cannot be held out: some must "
                "be left for training"
            )
        for number, record in enumerate(found):
            yield replace(record, split=TRAIN if number < training else TEST)


def join(records: Records, sources: Sequence[Source]) -> Records:
    """Add the photos of further sources.

    Raises:
        DataError: two photos have the same id or file, or a source cannot be used.
    """
    if not sources:
        return records
    everything = [*records, *(record for source in sources for record in source.records())]
    for what in ("image_id", "path"):
        (value, count), *_ = Counter(getattr(r, what) for r in everything).most_common(1)
        if count > 1:
            raise DataError(
                f"two sources have a photo with the {what.replace('_', ' ')} {value!r}: each photo may "
                "come from one source only"
            )
    return Records(everything)
