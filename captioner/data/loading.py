"""A loader that goes on in the middle of an epoch where a checkpoint left off."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader


class TrainingLoader(DataLoader[Any]):
    """Torch's loader over a ``captioner.data.order.InOrder`` that leaves out batches already seen.

    Attributes:
        seen: how many batches of the epoch that begins have been seen, before an interruption. Asked
            when the first is to be read.
    """

    seen: Callable[[], int] = staticmethod(lambda: 0)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.sampler.skip = self.seen()  # type: ignore[attr-defined]
        yield from super().__iter__()

    # Lightning asks for these, or warns: the count is its own, and there is nothing to add.

    def state_dict(self) -> dict[str, int]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing."""
