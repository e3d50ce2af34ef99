"""Checkpoints that are whole or not there, whenever the power goes."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there.

    Lightning's own goes through the folder for temporary files; from another disk, moving is copying,
    and a copy can be cut short. What a killed write leaves, the next one writes over.
    """

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,  # noqa: ARG002 - a file has none
    ) -> None:
        """Writes ``checkpoint`` to ``path``.

        Raises:
            OSError: the disk is full, or the folder may not be written.
        """
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        try:
            with part.open("wb") as stream:
                torch.save(checkpoint, stream)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
