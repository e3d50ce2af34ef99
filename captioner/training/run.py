"""``captioner fit | validate | test | predict | prepare``: LightningCLI with our task and data.

docs/training.md describes the run folder, ``trainer.default_root_dir``.
"""

import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentError
from jsonargparse.typing import NonNegativeInt
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from captioner import distributed, limits
from captioner.data import entities
from captioner.data.module import CaptionDataModule
from captioner.data.records import TRAIN, VAL
from captioner.data.supervision import masks_of
from captioner.errors import UsageError, did_you_mean, joined, plural
from captioner.fast.malloc import keep_memory
from captioner.files import write_text
from captioner.models.monte_carlo import check_samples
from captioner.predict.predictor import Predictor
from captioner.store import checkpoint, model_folder
from captioner.training.callbacks import AtomicCheckpoints
from captioner.training.precision import supported
from captioner.training.results import model_card, write_result
from captioner.training.task import CaptioningTask, ModelOptions
from captioner.training.trainer import Trainer

Choose = Callable[[Any], None]
_LOG = logging.getLogger(__name__)
LAST = Path("checkpoints") / "last.ckpt"
PREEMPTED = "hpc_ckpt_*.ckpt"  # saved by Lightning before SLURM ends a job


def _tree(class_path: str, **options: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": options}


def _checkpoints(filename: str, **options: Any) -> dict[str, Any]:
    options |= {"filename": filename, "enable_version_counter": False}
    return _tree("pytorch_lightning.callbacks.ModelCheckpoint", **options)


_BEST = {"monitor": "val/cider", "mode": "max"}
# With those of ``ModelOptions``, the defaults are the design configs/model/show-attend-tell.yaml.
DEFAULTS: dict[str, Any] = {
    "model.encoder": _tree("captioner.models.encoder.CNNEncoder", name="efficientnet_lite2"),
    "model.neck": _tree("captioner.models.neck.Projection", dropout=0.5),
    "trainer.devices": 1,
    "trainer.max_epochs": 12,
    "trainer.gradient_clip_val": 5.0,
    "trainer.num_sanity_val_steps": 0,
    "trainer.log_every_n_steps": 25,
    "trainer.callbacks": [
        _checkpoints("best", **_BEST),
        # With save_last, Lightning would write last.ckpt only together with best.ckpt.
        _checkpoints("last", save_on_train_epoch_end=True),
        _tree("pytorch_lightning.callbacks.EarlyStopping", patience=4, strict=False, **_BEST),
        _tree("captioner.training.callbacks.EMA"),
    ],
}


class SaveConfig(SaveConfigCallback):
    """Writes the whole configuration into the run folder when ``fit`` begins a run."""

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write ``config.yaml``; a resumed run keeps it."""
        file = Path(trainer.default_root_dir) / "config.yaml"
        if stage == "fit" and not (self.config.ckpt_path and file.exists()):
            config = self.config.clone()
            config.ckpt_path = None  # otherwise captioner test would test that checkpoint
            write_text(file, self.parser.dump(config, skip_none=False))


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise Lightning's errors about the values of options in one line."""
    try:
        yield
    except (ValueError, MisconfigurationException) as error:
        raise UsageError(joined(error, 2000)) from error


class CLI(LightningCLI):
    """Builds the data, the task and the trainer from configuration files and options."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:  # noqa: D102
        return {**LightningCLI.subcommands(), "prepare": {"model", "datamodule"}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``--overlays`` and our defaults."""
        parser.set_defaults(DEFAULTS)
        parser.add_argument(
            "--overlays",
            type=NonNegativeInt,
            default=4,
            help="number of development photos for which fit draws the attention; 0 for none",
        )

    def __init__(self, *arguments: Any, choose: Choose | None = None, **options: Any) -> None:
        self.choose = choose
        super().__init__(*arguments, **options)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the options, and name the one that is most similar to an unknown one."""
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            unknown = re.search(r"unrecognized arguments: (-[\w.-]+)", str(error))
            parsers = self._subcommand_parsers.values()
            known = {name for each in parsers for a in each._actions for name in a.option_strings}
            near = did_you_mean(unknown[1], known) if unknown else ""
            message = f"{joined(error, 2000)}{near} (see captioner {sys.argv[1]} --help-all)"
            raise UsageError(message) from error

    def _set_seed(self) -> None:
        with _refusing():
            super()._set_seed()

    def _parse_ckpt_path(self) -> None:
        """Do nothing; Lightning's version lets the checkpoint override the command line."""

    def before_instantiate_classes(self) -> None:
        """Choose the precision, the run folder and the checkpoint."""
        self.started = time.time()
        options = self.config[self.subcommand]
        for name, above in (("learning_rate", True), ("encoder_learning_rate", False)):
            allowed = limits.Number(0, whole=False, above=above)
            limits.check(f"model.{name}", options.model[name], allowed)
        trainer = options.trainer
        trainer.precision = supported(trainer.precision, trainer.accelerator)
        if self.choose is not None:
            self.choose(options)
        self.root = Path(trainer.default_root_dir)

    def instantiate_classes(self) -> None:
        """Build the task from the values of its options and the vocabulary of the data."""
        super().instantiate_classes()
        options = self.config[self.subcommand].model.clone(with_meta=False).as_dict()
        self.model = CaptioningTask({**options, "words": self.datamodule.words})

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Put loggers and checkpoints into the run folder, unless the user configured them."""
        options = self._get(self.config_init, "trainer")
        if options.get("logger") is None:
            version = len(list(self.root.glob("logs/version_*")))
            kwargs["logger"] = self.subcommand == "fit" and [
                CSVLogger(self.root, "logs", version),
                TensorBoardLogger(self.root, "logs", version),
            ]
        folder = self.root / LAST.parent
        plugins = options.get("plugins") or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        kwargs["plugins"] = [*plugins, AtomicCheckpoints(folder)]
        with _refusing():
            trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(folder)
        return trainer

    # Lightning calls before_X before it fills the cache, so that mistakes are reported early.

    def before_fit(self) -> None:
        """Check the data, the checkpoint, the masks and the decoding options."""
        self.before_validate()
        records, boxes = self.datamodule.of_split(TRAIN), self.datamodule.entities
        if self.model.objective.needs_masks and boxes is not None:
            entities.check(boxes, (record.path for record in records))
        elif self.model.objective.needs_masks:
            masks_of(records)
        elif boxes is not None:
            raise UsageError("data.entities needs an objective with a supervision above 0")
        check_samples(self.model.decoding.samples, self.model.captioner.decoder)

    def before_validate(self) -> None:
        """Check that the split has images, and that vocabulary and encoder fit the checkpoint."""
        split = VAL if self.subcommand in ("fit", "validate") else self.datamodule.test_split
        self.datamodule.of_split(split)
        if (path := self._get(self.config, "ckpt_path")) is not None:
            content = checkpoint.read_lightning(Path(path))
            self.model.on_load_checkpoint(dict(content))
            expected = content.get("encoder_sha256")
            checkpoint.check_encoder(self.model.captioner, expected, Path(path))

    before_test = before_predict = before_validate

    def after_fit(self) -> None:
        """Score the best checkpoint on the development split and export it as a model folder."""
        trainer, model, best = self.trainer, self.model, self.root / model_folder.BEST
        if trainer.interrupted:
            return
        if not best.is_file():
            model.print(f"no epoch was scored: give --model {self.root / LAST}, the last weights")
            return
        if trainer.is_global_zero:
            for file in self.root.glob(PREEMPTED):
                file.unlink()  # Lightning would prefer it to the best checkpoint
        trainer.strategy.barrier()
        content = torch.load(best, map_location="cpu", weights_only=True)
        model.load_state_dict(content["state_dict"])
        seconds = round(time.time() - self.started)
        trainer.test(model, dataloaders=self.datamodule.val_dataloader(), verbose=False)
        if not trainer.is_global_zero:
            return
        record = self._result(
            VAL,
            training_seconds=seconds,
            resumed=self._get(self.config, "ckpt_path") is not None,
            epoch=content["epoch"] + 1,
            epochs=trainer.current_epoch,
        )
        card, folder = model_card(model.captioner.config, record), self.root / model_folder.MODEL
        checkpoint.save(model.captioner, folder, card, model.decoding, model.supervision)
        for image_id, caption in list(model.generated.items())[:3]:
            print(f"{image_id}: {caption}")
        print(f"model written to {folder}")
        shown = [r.path for r in self.datamodule.of_split(VAL) if r.image_id in model.generated]
        try:
            if paths := shown[: self._get(self.config, "overlays")]:
                self._draw(paths)
        except Exception as error:  # a failed figure does not end the run
            _LOG.warning("no overlays: %s", " ".join(f"{type(error).__name__}: {error}".split()))

    def _draw(self, paths: list[str]) -> None:
        model, folder = self.model, self.root / "overlays"
        predictor = Predictor(model.captioner, self.root.name, str(model.device), model.decoding)
        folder.mkdir(exist_ok=True)
        for path, caption in zip(paths, predictor.caption([*paths]), strict=True):
            caption.save(folder / f"{Path(path).stem}.png")
        print(f"overlays written to {folder}")

    def after_test(self) -> None:
        """Score the captions generated for ``data.test_split``."""
        if self.trainer.is_global_zero:
            self._result(self.datamodule.test_split)

    def predict(self, model: CaptioningTask, **kwargs: Any) -> None:
        """Write captions of ``data.test_split`` in COCO's result format."""
        batches = self.trainer.predict(model, **kwargs) or []
        captions = self.datamodule.in_order(distributed.merged(dict(chain(*batches))))
        if not self.trainer.is_global_zero:
            return
        rows = [{"image_id": i, "caption": c} for i, c in captions.items()]
        file = self.root / "results" / f"{self.datamodule.test_split}-captions.json"
        write_text(file, json.dumps(rows, ensure_ascii=False, indent=1) + "\n")
        print(f"{plural(len(rows), 'caption')} written to {file}")

    def _result(self, split: str, **more: Any) -> dict[str, Any]:
        more["seed"] = self._get(self.config, "seed_everything")
        return write_result(self.model, self.datamodule, split, self.root / "results", **more)


def main(arguments: list[str], choose: Choose | None = None) -> None:
    """Run one of the subcommands.

    Args:
        arguments: the subcommand and its options.
        choose: called with the parsed options before anything is built; it sets the run folder and the
            checkpoint.

    Raises:
        UsageError: an unknown option, or a value that an option cannot have.
    """
    raising = {"exit_on_error": False, "allow_abbrev": False}
    original = sys.argv
    # Lightning starts further processes with the program and arguments in sys.argv.
    sys.argv = [original[0], *arguments]
    _quiet()
    keep_memory()
    try:
        CLI(
            ModelOptions,
            CaptionDataModule,
            choose=choose,
            save_config_callback=SaveConfig,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_class=Trainer,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            parser_kwargs={"prog": "captioner", **raising}
            | dict.fromkeys(CLI.subcommands(), raising),
        )
    except MisconfigurationException as error:
        raise UsageError(joined(error, 2000)) from error
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Lightning exits with status 1
            raise error.__context__ from None
        raise
    finally:
        sys.argv = original


def _quiet() -> None:
    """Silence Lightning's advertisements, and its messages about intended behaviour."""
    for message in (
        "`isinstance.treespec, LeafSpec.` is deprecated",
        r"Found \d+ module.s. in eval mode",  # the frozen encoder
        "You.re using the WeightAveraging callback, but loading a checkpoint",  # averaged already
        r"The number of training batches .* is smaller than the logging interval",
        "`training_step` returned `None`",  # no image of a batch could be read
        r"The '\w+_dataloader' does not have many workers",  # the cache needs none
    ):
        warnings.filterwarnings("ignore", message)
    unneeded = re.compile(
        "Seed set to|\nDetected KeyboardInterrupt|GPU available: False|TPU available: False|.*litlogger"
    )
    for name in ("lightning_fabric.utilities.seed", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(name).addFilter(lambda record: not unneeded.match(record.getMessage()))
