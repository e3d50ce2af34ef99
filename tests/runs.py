"""Small training runs and a tiny model for the tests, and a callback that dies like a machine does."""

import os
import signal
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch

from captioner import checkpoint
from captioner.decoding import Decoding
from captioner.evaluation.captions import CaptionScorer
from captioner.models.captioner import Captioner
from captioner.text import Vocabulary

SIDE = 64
TRAIN = 48


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
        f"--data.shapes.train={TRAIN}",
        "--data.shapes.val=12",
        "--data.shapes.test=8",
        f"--data.shapes.image_size={SIDE}",
        f"--model.encoder.init_args.image_size={SIDE}",
        *more,
    ]


def scenes(cache: Path) -> Path:
    """Where the scenes of ``arguments`` are, among those of runs that asked for others."""
    found = (cache / "shapes").glob("[!.]*")
    [folder] = [f for f in found if len(list(f.glob("train/*.png"))) == TRAIN]
    return folder


scorer = partial(CaptionScorer, java=False)


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


def tiny_model(folder: Path, seed: int = 0) -> Path:
    """An untrained model that still says different things of different pictures, in no time."""
    torch.manual_seed(seed)
    words = ["a", "red", "blue", "circle", "square", "above", "below", "the", "of", "and", "two"]
    tree = {
        "encoder": {
            "class_path": "CNNEncoder",
            "init_args": {"name": "efficientnet_lite0", "image_size": SIDE, "stride": 16},
        },
        "refiner": {"class_path": "Projection", "init_args": {"dim": 16}},
        "decoder": {"class_path": "LSTMDecoder", "init_args": {"hidden": 16, "embedding": 8}},
    }
    captioner = Captioner.from_config(tree, Vocabulary(words))
    captioner.encoder.load_pretrained()
    with torch.no_grad():
        for part in (captioner.refiner, captioner.decoder):
            for parameter in part.parameters():
                parameter.normal_(0, 1.0)
    checkpoint.save(captioner, folder, "# Tiny", Decoding(beam_size=2, max_length=8))
    return folder
