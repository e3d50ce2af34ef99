"""The order of the images, their distribution over processes, and resuming in mid-epoch."""

from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, DistributedSampler

from captioner import distributed
from captioner.errors import DataError


class Draw(NamedTuple):
    """The index of an image in its data set, and the seed of its random augmentation in this epoch."""

    row: int
    seed: int | None  # None does not change the image


class EpochSampler(DistributedSampler[Any]):
    """All images once; the processes share every batch.

    Without a seed, they are in order. With one, the order depends on (seed, epoch) only, so that a
    resumed run repeats it. Batch b holds images b·B … b·B + B − 1 of this order, whatever the number of
    processes N; each process takes every N-th of them. An uneven last batch is padded with None, where
    PyTorch's ``DistributedSampler`` would repeat images. Lightning keeps a sampler that derives from it.
    DataError if B, the ``batch_size``, is not a multiple of N.
    """

    def __init__(self, dataset: Sized, batch_size: int, seed: int | None = None) -> None:
        super().__init__(dataset, distributed.count(), distributed.rank(), shuffle=False)  # type: ignore[arg-type]
        self.size, self.batch_size, self.order_seed = len(dataset), batch_size, seed
        self.skip = 0  # batches to skip at the start of the next epoch only
        # The images per batch in this process.
        self.local_batch_size, rest = divmod(batch_size, self.num_replicas)
        if rest:
            raise DataError(
                f"data.batch_size counts the images of all processes: {batch_size} cannot be divided "
                f"among {self.num_replicas} processes; give a multiple"
            )

    def __len__(self) -> int:
        full, rest = divmod(self.size, self.batch_size)
        return full * self.local_batch_size + -(-rest // self.num_replicas)

    def __iter__(self) -> Iterator[Draw | None]:
        order = self._order()
        first, self.skip = self.skip * self.batch_size, 0
        for start in range(first, self.size, self.batch_size):
            batch = order[start : start + self.batch_size]
            local = batch[self.rank :: self.num_replicas]
            yield from local
            yield from [None] * (-(-len(batch) // self.num_replicas) - len(local))

    def _order(self) -> list[Draw]:
        """The images of all processes in this epoch, which Lightning sets."""
        if self.order_seed is None:
            return [Draw(row, None) for row in range(self.size)]
        rng = np.random.default_rng([self.order_seed, self.epoch])
        seeds = rng.integers(2**62, size=self.size).tolist()
        return list(map(Draw, rng.permutation(self.size).tolist(), seeds))


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` over `EpochSampler` that skips the batches a resumed run has completed.

    ``completed_batches`` returns their number in this epoch. It is called when the first batch is read,
    because Lightning restores the number only then.
    """

    def __init__(self, *, completed_batches: Callable[[], int], **options: Any) -> None:
        super().__init__(**options)
        self._completed_batches = completed_batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.sampler.skip = self._completed_batches()  # type: ignore[attr-defined]
        yield from super().__iter__()

    # Lightning warns about a loader without these two, and counts the batches itself.

    def state_dict(self) -> dict[str, int]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing."""
