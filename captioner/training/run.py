"""``captioner fit | validate | test | predict | prepare``: LightningCLI over our task and data.

A run lives in one folder, ``trainer.default_root_dir`` (by default ``runs/`` and the name of the
configuration file): ``config.yaml``, ``checkpoints/{best,last}.ckpt``, ``logs/version_N`` (CSV and
TensorBoard, one version per start), ``results/``, ``model/``, the best model as a folder, and
``overlays/``, where it looked in a few development pictures.
"""

import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentError
from jsonargparse.typing import NonNegativeInt
from lightning_fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from captioner import checkpoint, processes
from captioner.data.module import CaptionDataModule
from captioner.data.records import TRAIN, VAL
from captioner.data.supervision import masks_of
from captioner.errors import UsageError
from captioner.files import write_text
from captioner.memory import keep_memory
from captioner.models.monte_carlo import check_samples
from captioner.predictor import Predictor
from captioner.shipped import configs_folder
from captioner.training.card import model_card
from captioner.training.checkpoints import WholeCheckpoints
from captioner.training.pictures import draw
from captioner.training.result import write_result
from captioner.training.task import CaptioningTask

_LOG = logging.getLogger(__name__)
OVERLAYS = "overlays"
LAST = Path("checkpoints") / "last.ckpt"
UNMIXED = ("16-true", "bf16-true", "64-true", "64")  # of weights that are not float32


class Trainer(pl.Trainer):
    """Lightning's trainer, which can also fill the annotation cache and stop."""

    def prepare(
        self, model: CaptioningTask, datamodule: CaptionDataModule, verify: bool = False
    ) -> None:
        """Fill the annotation cache ahead of training; several such commands share the work.

        Args:
            model: whose encoder is asked.
            datamodule: whose pictures.
            verify: read all that is there, and compute again what no longer has its checksum.
        """
        encoder = model.captioner.encoder
        if not datamodule.caches(encoder.trainable):
            raise UsageError(
                "nothing is cached of an encoder that learns, or with data.cache false: give "
                "--data.cache images to keep the pictures at the encoder's size"
            )
        encoder.load_pretrained()
        device = self.strategy.root_device
        cache = datamodule.fill_cache(encoder.to(device), device, verify)
        rows, columns = cache.grid
        size = encoder.preprocessing
        what = (
            f"{size.height} × {size.width} pixels"
            if cache.grid == (0, 0)
            else f"{rows} × {columns} annotation vectors of width {encoder.out_dim}"
        )
        print(
            f"{len(cache.rows):,} pictures × {what}, {cache.shards.bytes / 1e9:.2f} GB, "
            f"{len(cache.failed)} left out, in {datamodule.cache_dir}"
            f"{', all as when they were written' if verify else ''}"
        )


class SaveConfig(SaveConfigCallback):
    """Writes the whole configuration into the run folder, when a run begins."""

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002
        """Not for validate, test and predict: they belong to a run that has one."""
        if stage == "fit":
            # Not where it was resumed from, which test would take for the checkpoint to test.
            config = self.config.clone()
            config.ckpt_path = None
            text = self.parser.dump(config, skip_none=False)
            write_text(Path(trainer.default_root_dir) / "config.yaml", text)


class CLI(LightningCLI):
    """Configuration files and flags → data, task and trainer."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's, and ``prepare``."""
        return {**LightningCLI.subcommands(), "prepare": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The model speaks the words of the data."""
        parser.link_arguments("data.words", "model.words", apply_on="instantiate")
        parser.add_argument(
            "--overlays",
            type=NonNegativeInt,
            default=4,
            help="of how many development pictures fit draws where it looked; 0 for none",
        )

    def _parse_ckpt_path(self) -> None:
        """Not Lightning's: it would put the options of the checkpoint over those that were given."""

    def before_instantiate_classes(self) -> None:
        """Settles the run folder, so that every part and the saved configuration name the same."""
        self.started = time.time()
        config = self.config[self.subcommand]
        if (precision := str(config.trainer.precision)) in UNMIXED:
            raise UsageError(
                f"weights have 32 bits, got --trainer.precision {precision}: give bf16-mixed or 32-true"
            )
        if config.trainer.default_root_dir is None:
            files = config.get("config") or []
            name = Path(str(files[-1])).stem if files else "run"
            config.trainer.default_root_dir = str(Path("runs") / name)
        self.root = Path(config.trainer.default_root_dir)
        if "ckpt_path" in config:
            config.ckpt_path = self._checkpoint(config.ckpt_path)

    def _checkpoint(self, given: str | None) -> str | None:
        """The file to start from: ``best`` and ``last`` are those of the run folder.

        A new run starts from none, and refuses a folder that has one; ``auto`` goes on from the last if
        there is one. The other commands take the best if nothing is given: Lightning would go on with
        random weights.
        """
        if self.subcommand == "fit" and given in (None, "auto", "last"):
            # Of an epoch's end, or of a job that saved itself when SLURM was about to end it.
            saved = [file for file in (self.root / LAST, *self._preempted()) if file.is_file()]
            if given is None and saved:
                raise UsageError(
                    f"'{self.root}' already holds a run: resume it with --ckpt_path last, choose "
                    "another folder with --trainer.default_root_dir DIR, or delete it"
                )
            if saved:
                return str(max(saved, key=lambda file: file.stat().st_mtime))
            if given != "last":
                return None
        named = {"best": checkpoint.BEST, "last": LAST}
        given = given or "best"
        file = self.root / named[given] if given in named else Path(given)
        if not file.is_file():
            raise UsageError(
                f"no checkpoint '{file}': train first with captioner fit, name the run folder with "
                "--trainer.default_root_dir DIR, or give a file with --ckpt_path FILE"
            )
        return str(file)

    def _preempted(self) -> list[Path]:
        """What Lightning saves at SLURM's signal; it would also load that over a finished run's best."""
        return sorted(self.root.glob("hpc_ckpt_*.ckpt"))

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Puts loggers and checkpoints into the run folder where the user did not say otherwise."""
        if self._get(self.config_init, "trainer").get("logger") is None:
            version = len(list(self.root.glob("logs/version_*")))
            kwargs["logger"] = self.subcommand == "fit" and [
                CSVLogger(self.root, "logs", version),
                TensorBoardLogger(self.root, "logs", version),
            ]
        plugins = self._get(self.config_init, "trainer").get("plugins") or []
        given = plugins if isinstance(plugins, list) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in given):
            kwargs["plugins"] = [*given, WholeCheckpoints(self.root / LAST.parent)]
        trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(self.root / LAST.parent)
        return trainer

    def before_fit(self) -> None:
        """What can be wrong is found before the cache is filled."""
        self._before(VAL)
        if self.model.objective.needs_masks:
            masks_of(self.datamodule.of_split(TRAIN))
        check_samples(self.model.decoding.samples, self.model.captioner.decoder)

    def before_test(self) -> None:
        """Likewise."""
        self._before(self.datamodule.test_split)

    def before_validate(self) -> None:
        """Likewise."""
        self._before(VAL)

    before_predict = before_test

    def _before(self, split: str) -> None:
        """The split has pictures; the checkpoint is whole, and of these words and this encoder."""
        self.datamodule.of_split(split)
        if (given := self._get(self.config, "ckpt_path")) is not None:
            content = checkpoint.read_lightning(Path(given))
            self.model.on_load_checkpoint(dict(content))
            expected = content.get("encoder_sha256")
            checkpoint.check_encoder(self.model.captioner, expected, Path(given))

    def after_fit(self) -> None:
        """Scores the best checkpoint on the development split and writes it as a model folder."""
        if self.trainer.interrupted:
            return
        best = self.root / checkpoint.BEST
        if not best.is_file():
            if self.trainer.is_global_zero:
                print(f"no epoch was scored: in {self.root} is no model, but what {LAST} holds")
            return
        if self.trainer.is_global_zero:
            for file in self._preempted():
                file.unlink()
        self.trainer.strategy.barrier()
        content = torch.load(best, map_location="cpu", weights_only=True)
        self.model.load_state_dict(content["state_dict"])
        training_seconds = time.time() - self.started
        self.trainer.test(self.model, dataloaders=self.datamodule.val_dataloader(), verbose=False)
        if not self.trainer.is_global_zero:
            return
        record = self._result(
            VAL,
            training_seconds=round(training_seconds),
            resumed=self._get(self.config, "ckpt_path") is not None,
            epoch=content["epoch"] + 1,
            epochs=self.trainer.current_epoch,
        )
        card = model_card(self.model.captioner.config, record)
        checkpoint.save(
            self.model.captioner,
            self.root / checkpoint.MODEL,
            card,
            self.model.decoding,
            self.model.supervision,
        )
        for image_id, caption in list(self.model.generated.items())[:3]:
            print(f"{image_id}: {caption}")
        print(f"model written to {self.root / checkpoint.MODEL}")
        if count := self._get(self.config, "overlays"):
            self._draw(count)

    def _draw(self, count: int) -> None:
        """Shows where the model looked in some development pictures; the run is whole without."""
        model = self.model
        looking = Predictor(model.captioner, self.root.name, str(model.device), model.decoding)
        paths = [r.path for r in self.datamodule.of_split(VAL) if r.image_id in model.generated]
        try:
            written = draw(looking, paths[:count], self.root / OVERLAYS)
        except Exception as error:  # whatever it is, training is done
            _LOG.warning("no overlays: %s", " ".join(f"{type(error).__name__}: {error}".split()))
        else:
            print(f"{written} pictures of where it looked written to {self.root / OVERLAYS}")

    def after_test(self) -> None:
        """Scores the captions generated for ``data.test_split``."""
        if self.trainer.is_global_zero:
            self._result(self.datamodule.test_split)

    def predict(self, model: CaptioningTask, **kwargs: Any) -> None:
        """Writes captions of ``data.test_split`` in COCO's results format."""
        batches = self.trainer.predict(model, **kwargs) or []
        own = {image_id: caption for batch in batches for image_id, caption in batch}
        written = self.datamodule.in_order(processes.merged(own))
        if not self.trainer.is_global_zero:
            return
        captions = [{"image_id": i, "caption": c} for i, c in written.items()]
        file = self.root / "results" / f"{self.datamodule.test_split}-captions.json"
        write_text(file, json.dumps(captions, ensure_ascii=False, indent=1) + "\n")
        print(f"{len(captions):,} captions written to {file}")

    def _result(self, split: str, **more: Any) -> dict[str, Any]:
        """Of the captions that the task has generated."""
        seed = self._get(self.config, "seed_everything")
        folder = self.root / "results"
        return write_result(self.model, self.datamodule, split, folder, seed=seed, **more)


def main(arguments: list[str]) -> None:
    """Runs one of the subcommands.

    Raises:
        UsageError: an option is unknown or has a wrong value.
    """
    raising = {"exit_on_error": False}
    given = sys.argv
    # LightningCLI reads the command line itself, and warns when it is given a list as well.
    # Lightning starts further processes by the same program and arguments.
    sys.argv = [given[0], *map(_shipped, arguments)]
    _quiet()
    keep_memory()
    try:
        CLI(
            CaptioningTask,
            CaptionDataModule,
            save_config_callback=SaveConfig,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_class=Trainer,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            parser_kwargs={"prog": "captioner", **raising}
            | dict.fromkeys(CLI.subcommands(), raising),
        )
    except (ArgumentError, MisconfigurationException) as error:
        message = " ".join(str(error).split())
        files = [a.rpartition("=")[2] for a in arguments if a.endswith((".yaml", ".yml"))]
        # YAML's parser is given text and does not know where it came from.
        message = message.replace('"<unicode string>"', " or ".join(files) or "an option")
        raise UsageError(f"{message} (see captioner {arguments[0]} --help)") from error
    finally:
        sys.argv = given


def _quiet() -> None:
    """Silences what Lightning says about itself and what is meant here."""
    for message in (
        "`isinstance.treespec, LeafSpec.` is deprecated",
        r"Found \d+ module.s. in eval mode",  # the frozen encoder
        "You.re using the WeightAveraging callback, but loading a checkpoint",  # the average itself
        r"The number of training batches .* is smaller than the logging interval",
        "`training_step` returned `None`",  # no picture of a batch could be read
        r"The '\w+_dataloader' does not have many workers",  # the cache needs none
    ):
        warnings.filterwarnings("ignore", message)
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_about_us)


def _about_us(record: logging.LogRecord) -> bool:
    """Not Lightning's advice to install another product of its makers."""
    return "litlogger" not in record.getMessage()


def _shipped(argument: str) -> str:
    """``configs/…yaml`` that is not in the current folder: the file that ships with the package."""
    option, equals, value = argument.rpartition("=")
    path = Path(value)
    if path.suffix == ".yaml" and path.parts[0] == "configs" and not path.exists():
        shipped = configs_folder().joinpath(*path.parts[1:])
        if shipped.is_file():
            return f"{option}{equals}{shipped}"
    return argument
