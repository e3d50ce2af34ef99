"""Which picture comes when, and to which of the processes of a training."""

from collections.abc import Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DistributedSampler

from captioner import processes
from captioner.errors import DataError


class Draw(NamedTuple):
    """A picture's place in its data set, and the seed of everything random about it this time."""

    place: int
    seed: int


class InOrder(DistributedSampler[Any]):
    """All places of a data set in order, those of every batch dealt out to the processes.

    Batch b of all processes together is b·B … b·B + B − 1, however many they are; each takes every N-th
    of it. Where the last batch does not come out even, None marks an empty place: no picture is
    seen twice, as torch's own sampler would have it, and all processes have as many batches.

    Args:
        dataset: what is to be seen.
        batch_size: B, of all processes together.

    Raises:
        DataError: B cannot be divided among the processes.
    """

    def __init__(self, dataset: Sized, batch_size: int) -> None:
        # Lightning leaves a DistributedSampler as it is.
        super().__init__(dataset, processes.count(), processes.rank(), shuffle=False)  # type: ignore[arg-type]
        self.size, self.batch_size = len(dataset), batch_size
        self.skip = 0  # batches at the beginning of the next epoch, and of that one alone
        if batch_size % self.num_replicas:
            raise DataError(
                f"data.batch_size is that of all processes together: {batch_size} cannot be divided "
                f"among {self.num_replicas}; give a multiple"
            )

    @property
    def own(self) -> int:
        """How many pictures of a batch this process gets."""
        return self.batch_size // self.num_replicas

    def __len__(self) -> int:
        full, rest = divmod(self.size, self.batch_size)
        return full * self.own + -(-rest // self.num_replicas)

    def __iter__(self) -> Iterator[Draw | int | None]:
        places = self.places()
        first, self.skip = self.skip * self.batch_size, 0
        for start in range(first, self.size, self.batch_size):
            batch = places[start : start + self.batch_size]
            mine = batch[self.rank :: self.num_replicas]
            yield from mine
            yield from [None] * (-(-len(batch) // self.num_replicas) - len(mine))

    def places(self) -> Sequence[Draw | int]:
        """All of them, before they are dealt out."""
        return range(self.size)


class Shuffled(InOrder):
    """All pictures in an order that depends on (seed, epoch) alone, so that a resumed run repeats it.

    Args:
        dataset: what is to be seen.
        batch_size: B, of all processes together.
        seed: another gives other orders.
    """

    def __init__(self, dataset: Sized, batch_size: int, seed: int) -> None:
        super().__init__(dataset, batch_size)
        self.seed = seed

    def places(self) -> Sequence[Draw]:
        """Of this epoch, which Lightning sets."""
        rng = np.random.default_rng([self.seed, self.epoch])
        seeds = rng.integers(2**62, size=self.size)
        order = rng.permutation(self.size)
        return [Draw(int(place), int(seed)) for place, seed in zip(order, seeds, strict=True)]
