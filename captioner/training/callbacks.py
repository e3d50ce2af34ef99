"""The moving average of the weights, and checkpoints that are written atomically."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor

from captioner.files import atomic


class EMA(WeightAveraging):
    """Exponential moving average of the weights; validation and checkpoints use the average.

    The decay starts at 0.1 and grows to ``decay``, so that the random initial weights soon have no
    influence. A weight that does not change keeps its exact value, so a frozen encoder stays equal to
    the weights of its package.
    """

    def __init__(self, decay: float = 0.998) -> None:
        def average(averages: Sequence[Tensor], weights: Sequence[Tensor], steps: Any) -> None:
            done = int(steps)
            fraction = 1 - min(decay, (1 + done) / (10 + done))
            torch._foreach_lerp_(list(averages), list(weights), fraction)

        super().__init__(use_buffers=False, multi_avg_fn=average)


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file beside its destination and renames it.

    Lightning copies its temporary file if that is on another disk, and a copy can be interrupted.
    ``folder``, the run's checkpoint folder, replaces that of a loaded checkpoint, so that a run that was
    moved keeps its best epoch.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint and update the paths in the states of its callbacks."""
        content = super().load_checkpoint(path, *args, **kwargs)
        for state in content.get("callbacks", {}).values():
            former = isinstance(state, dict) and state.get("dirpath")
            if former and Path(former).name == self.folder.name:
                for key in ("dirpath", "best_model_path", "kth_best_model_path", "last_model_path"):
                    state[key] = state[key].replace(former, str(self.folder))
                scores = state["best_k_models"].items()
                state["best_k_models"] = {str(self.folder / Path(f).name): s for f, s in scores}
        return content

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, *_: Any, **__: Any
    ) -> None:
        """Write ``checkpoint`` to ``path``; an OSError leaves an earlier file unchanged."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with atomic(file) as stream:
                torch.save(checkpoint, stream)
        except RuntimeError as error:  # torch replaces an OSError of the stream
            raise OSError(f"cannot write '{file}': {error.__context__ or error}") from error
