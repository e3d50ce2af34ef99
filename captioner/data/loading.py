"""A loader that goes on in the middle of an epoch where a checkpoint left off."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class TrainingLoader(DataLoader[Any]):
    """Torch's loader over a ``captioner.data.order.InOrder`` that knows how far it is.

    Lightning stores its state in every checkpoint, and gives it back to a run that is resumed.
    """

    _given = 0
    _begin = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._given, self._begin = self._begin, 0
        self.sampler.skip = self._given  # type: ignore[attr-defined]
        for batch in super().__iter__():
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """How many batches of the epoch have been given; none when all have."""
        return {"batches": self._given % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next epoch begins after so many batches."""
        self._begin = state["batches"]
