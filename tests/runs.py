"""Small training runs for the tests, and a callback that dies like a machine does."""

import os
import signal
from pathlib import Path

import pytorch_lightning as pl

SIDE = 64


def arguments(root: Path, cache: Path, *more: str, epochs: int = 2) -> list[str]:
    """``captioner fit`` on a few scenes: 3 batches an epoch, seconds."""
    return [
        "fit",
        "--config=configs/shapes.yaml",
        f"--trainer.default_root_dir={root}",
        f"--trainer.max_epochs={epochs}",
        "--trainer.enable_progress_bar=false",
        f"--data.cache_dir={cache}",
        "--data.batch_size=16",
        "--model.learning_rate=1e-2",
        "--data.shapes.train=48",
        "--data.shapes.val=12",
        "--data.shapes.test=8",
        f"--data.shapes.image_size={SIDE}",
        f"--model.encoder.init_args.image_size={SIDE}",
        *more,
    ]


class KillAt(pl.Callback):
    """``kill -9`` of this very process in the middle of an epoch."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch = epoch, batch

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            os.kill(os.getpid(), signal.SIGKILL)


class Watch(pl.Callback):
    """What happened to the encoder of the latest run in this process.

    Its state after every epoch, and the learning rates of every step, by the name of their group.
    """

    latest: "Watch"

    def __init__(self) -> None:
        self.encoders, self.rates = [], []
        Watch.latest = self

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        groups = trainer.optimizers[0].param_groups
        self.rates.append({group["name"]: group["lr"] for group in groups})

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        state = pl_module.captioner.encoder.trunk.state_dict()
        self.encoders.append({name: tensor.clone() for name, tensor in state.items()})
