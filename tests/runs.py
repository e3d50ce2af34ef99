"""Small training runs and a tiny model for the tests, and callbacks that record or kill a run."""

import csv
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml

from captioner.evaluation.metrics import CaptionScorer
from captioner.language.vocabulary import Vocabulary
from captioner.models.captioner import Captioner
from captioner.resources import configs_folder
from captioner.search.options import Decoding
from captioner.store import checkpoint

SIDE = 64
TRAIN = 48


def arguments(root: Path, cache: Path, *more: str, epochs: int = 2) -> list[str]:
    """``captioner fit`` on a few scenes: 3 batches an epoch, a few seconds."""
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
    """The folder of the scenes of ``arguments``; runs with other options have other folders."""
    folders = (cache / "shapes").glob("[!.]*")
    [folder] = [f for f in folders if len(list(f.glob("train/*.png"))) == TRAIN]
    return folder


def environment() -> dict[str, str]:
    """The environment of processes that import the package and the tests."""
    here = Path(__file__).parent
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}


def logged(root: Path, name: str) -> list[float]:
    """All values of a metric that a run has logged."""
    with (root / "logs" / "version_0" / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def design(file: Path) -> dict:
    """The model configuration of a design: the base file with the design's differences."""
    base = configs_folder() / "model" / "show-attend-tell.yaml"
    return yaml.safe_load(base.read_text()) | yaml.safe_load(file.read_text())


scorer = partial(CaptionScorer, java=False)


class Kill(pl.Callback):
    """Sends SIGKILL to its own process in the middle of the second epoch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if (trainer.current_epoch, batch_idx) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)


class Interrupt(pl.Callback):
    """Sends SIGINT to its own process, as Ctrl-C does, after an epoch and a batch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGINT)


class Watch(pl.Callback):
    """Records the learning rates of every step by group."""

    latest: "Watch"

    def __init__(self) -> None:
        self.rates = []
        Watch.latest = self

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        groups = trainer.optimizers[0].param_groups
        self.rates.append({group["name"]: group["lr"] for group in groups})


def small_captioner(
    words: list[str], decoder: str = "LSTMDecoder", dim: int = 8, size: int = SIDE, **options: Any
) -> Captioner:
    """An untrained model; ``trainable`` is an option of its encoder, the others of its decoder."""
    encoder = {"name": "efficientnet_lite0", "image_size": size, "stride": 16}
    encoder |= {"trainable": options.pop("trainable", False)}
    tree = {
        "encoder": {"class_path": "CNNEncoder", "init_args": encoder},
        "neck": {"class_path": "Projection", "init_args": {"dim": dim}},
        "decoder": {"class_path": decoder, "init_args": options},
    }
    captioner = Captioner.from_config(tree, Vocabulary(words))
    captioner.encoder.load_pretrained()
    return captioner


def tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write an untrained model folder whose captions differ between images."""
    torch.manual_seed(seed)
    words = ["a", "red", "blue", "circle", "square", "above", "below", "the", "of", "and", "two"]
    captioner = small_captioner(words, dim=16, hidden=16, embedding=8)
    with torch.no_grad():
        for part in (captioner.neck, captioner.decoder):
            for parameter in part.parameters():
                parameter.normal_(0, 1.0)
    checkpoint.save(captioner, folder, "# Tiny", Decoding(beam_size=2, max_length=8))
    return folder
