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

    Args:
        folder: of the run's checkpoints, now. A run may have been moved, or be named otherwise than when
            it began: callbacks that kept theirs in a folder of that name are told where it is, since
            Lightning's would forget which epoch was the best.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.folder = folder

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What ``save_checkpoint`` wrote, with the places of now."""
        content = super().load_checkpoint(path, *args, **kwargs)
        for state in content.get("callbacks", {}).values():
            here = self.folder
            if here is None or not isinstance(state, dict) or not state.get("dirpath"):
                continue
            if Path(state["dirpath"]).name == here.name:
                state["dirpath"] = str(here)
                for key in ("best_model_path", "kth_best_model_path", "last_model_path"):
                    state[key] = _moved(state[key], here)
                kept = state["best_k_models"].items()
                state["best_k_models"] = {_moved(file, here): score for file, score in kept}
        return content

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


def _moved(file: str, folder: Path) -> str:
    """The same file in another folder; no file stays none."""
    return str(folder / Path(file).name) if file else file
