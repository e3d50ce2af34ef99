"""``captioner fit | validate | test | predict | prepare``: LightningCLI over our task and data.

A run lives in one folder, ``trainer.default_root_dir`` (by default ``runs/`` and the name of the
configuration file): ``config.yaml``, ``checkpoints/{best,last}.ckpt``, ``logs/version_N`` (CSV and
TensorBoard, one version per start), ``results/`` and ``model/``, the best model as a folder. A result is
two files: ``val-beam5.json`` has the scores, ``val-beam5.images.jsonl`` the captions and what each adds.
"""

import json
import logging
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentError
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from captioner import checkpoint
from captioner.data.module import CaptionDataModule
from captioner.data.records import VAL
from captioner.data.shapes import true_of
from captioner.data.shapes_folder import read_things
from captioner.errors import UsageError
from captioner.evaluation.captions import CaptionScorer, Scores
from captioner.evaluation.fluency import fluency
from captioner.evaluation.tallies import ENDING, lines
from captioner.files import write_text
from captioner.provenance import provenance
from captioner.shipped import configs_folder
from captioner.training.objectives import hard_attention
from captioner.training.task import CaptioningTask

LAST = Path("checkpoints") / "last.ckpt"


class Trainer(pl.Trainer):
    """Lightning's trainer, which can also fill the annotation cache and stop."""

    def prepare(self, model: CaptioningTask, datamodule: CaptionDataModule) -> None:
        """Fill the annotation cache ahead of training."""
        encoder = model.captioner.encoder
        encoder.load_pretrained()
        device = self.strategy.root_device
        cache = datamodule.fill_cache(encoder.to(device), device)
        rows, columns = cache.grid
        print(
            f"{len(cache.rows):,} pictures × {rows} × {columns} annotation vectors of width "
            f"{cache.vectors.shape[-1]}, {cache.vectors.nbytes / 1e9:.2f} GB, "
            f"{len(cache.failed)} left out, in {datamodule.cache_dir}"
        )


class SaveConfig(SaveConfigCallback):
    """Writes the whole configuration into the run folder, when a run begins."""

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002
        """Not for validate, test and predict: they belong to a run that has one."""
        if stage == "fit":
            text = self.parser.dump(self.config, skip_none=False)
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

    def _parse_ckpt_path(self) -> None:
        """Not Lightning's: it would put the options of the checkpoint over those that were given."""

    def before_instantiate_classes(self) -> None:
        """Settles the run folder, so that every part and the saved configuration name the same."""
        self.started = time.time()
        config = self.config[self.subcommand]
        if config.trainer.default_root_dir is None:
            files = config.get("config") or []
            name = Path(str(files[-1])).stem if files else "run"
            config.trainer.default_root_dir = str(Path("runs") / name)
        self.root = Path(config.trainer.default_root_dir)
        if "ckpt_path" in config:
            config.ckpt_path = self._checkpoint(config.ckpt_path)

    def _checkpoint(self, given: str | None) -> str | None:
        """The file to start from: ``best`` and ``last`` are those of the run folder.

        A new run starts from none, and refuses a folder that has one; the other commands take the
        best if nothing is given: Lightning would go on with random weights.
        """
        if self.subcommand == "fit" and given is None:
            if (self.root / LAST).exists():
                raise UsageError(
                    f"'{self.root}' already holds a run: resume it with --ckpt_path last, choose "
                    "another folder with --trainer.default_root_dir DIR, or delete it"
                )
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

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Puts loggers and checkpoints into the run folder where the user did not say otherwise."""
        if self._get(self.config_init, "trainer").get("logger") is None:
            version = len(list(self.root.glob("logs/version_*")))
            kwargs["logger"] = self.subcommand == "fit" and [
                CSVLogger(self.root, "logs", version),
                TensorBoardLogger(self.root, "logs", version),
            ]
        trainer = super().instantiate_trainer(**kwargs)
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(self.root / "checkpoints")
        return trainer

    def before_fit(self) -> None:
        """What can be wrong is found before the cache is filled."""
        self._before(VAL)

    def before_test(self) -> None:
        """Likewise."""
        self._before(self.datamodule.test_split)

    before_validate, before_predict = before_fit, before_test

    def _before(self, split: str) -> None:
        """The split has pictures; the checkpoint is whole and speaks the words of the data."""
        self.datamodule.of_split(split)
        if (given := self._get(self.config, "ckpt_path")) is not None:
            content = checkpoint.read_lightning(Path(given))
            self.model.on_load_checkpoint(dict(content))

    def after_fit(self) -> None:
        """Scores the best checkpoint on the development split and writes it as a model folder."""
        best = self.root / checkpoint.BEST
        if not best.is_file() or self.trainer.interrupted:
            return
        content = torch.load(best, map_location="cpu", weights_only=True)
        self.model.load_state_dict(content["state_dict"])
        training_seconds = time.time() - self.started
        self.trainer.test(self.model, dataloaders=self.datamodule.val_dataloader(), verbose=False)
        record = self._report(
            VAL,
            training_seconds=round(training_seconds),
            resumed=self._get(self.config, "ckpt_path") is not None,
            epoch=content["epoch"] + 1,
            epochs=self.trainer.current_epoch,
        )
        card = model_card(self.model.captioner.config, record)
        checkpoint.save(
            self.model.captioner, self.root / checkpoint.MODEL, card, self.model.decoding
        )
        for image_id, caption in list(self.model.generated.items())[:3]:
            print(f"{image_id}: {caption}")
        print(f"model written to {self.root / checkpoint.MODEL}")

    def after_test(self) -> None:
        """Scores the captions generated for ``data.test_split``."""
        self._report(self.datamodule.test_split)

    def predict(self, model: CaptioningTask, **kwargs: Any) -> None:
        """Writes captions of ``data.test_split`` in COCO's results format."""
        batches = self.trainer.predict(model, **kwargs) or []
        captions = [{"image_id": i, "caption": c} for batch in batches for i, c in batch]
        file = self.root / "results" / f"{self.datamodule.test_split}-captions.json"
        write_text(file, json.dumps(captions, ensure_ascii=False, indent=1) + "\n")
        print(f"{len(captions):,} captions written to {file}")

    def _report(self, split: str, **more: Any) -> dict[str, Any]:
        """Scores the task's generated captions, prints the scores and keeps them as JSON."""
        references = self.datamodule.references(split)
        scores, tallies = CaptionScorer(references).judge(self.model.generated)
        decoding = asdict(self.model.decoding)
        record = {
            "command": " ".join(sys.argv),
            "split": split,
            "data": self.datamodule.name,
            "scores": scores.as_dict(),
            "decoding": decoding,
            "captions": "generated",
            **fluency(self.model.generated.values()),
            "mechanism": self.model.captioner.decoder.mechanism,
            "seed": self._get(self.config, "seed_everything"),
            "parameters": sum(p.numel() for p in self.model.parameters() if p.requires_grad),
            "captioning_seconds": round(self.model.generating_seconds, 2),
            "annotations": "cached" if self._cached() else "computed",
            **more,
            **provenance(),
        }
        if (root := self.datamodule.scenes) is not None:
            record["true_captions"] = round(self._true(root, split), 1)
            print(f"{record['true_captions']} % of the captions are true of their scene")
        file = self.root / "results" / f"{self._name(split)}.json"
        # The tallies first: a result with those of another would compare wrongly.
        write_text(file.with_suffix(ENDING), lines(tallies))
        write_text(file, json.dumps(record, indent=2) + "\n")
        print(table(scores, split))
        print(f"scores written to {file}")
        return record

    def _cached(self) -> bool:
        """Whether captioning began with annotation vectors that were there already."""
        return self.datamodule.cached and not self.model.captioner.encoder.trainable

    def _name(self, split: str) -> str:
        """Of a result: what it was scored on, and how it was decoded."""
        decoding = self.model.decoding
        name = f"{split}-beam{decoding.beam_size}"
        for law in hard_attention(self.model.captioner.decoder)[:1]:
            name += f"-{law.test_time}"
        return name if decoding.samples == 1 else f"{name}-{decoding.samples}"

    def _true(self, root: Path, split: str) -> float:
        """Percent of the generated captions that say nothing false of their generated scene."""
        things = read_things(root, split)
        captions = self.model.generated
        return (
            100 * sum(true_of(text, things[int(i)]) for i, text in captions.items()) / len(captions)
        )


def table(scores: Scores, split: str) -> str:
    """Scores in one line to read."""
    meteor = "no METEOR (it needs Java)" if scores.meteor is None else f"METEOR {scores.meteor:.1f}"
    bleu = " / ".join(
        f"{b:.1f}" for b in (scores.bleu_1, scores.bleu_2, scores.bleu_3, scores.bleu_4)
    )
    return (
        f"{split}, {scores.images:,} pictures, generated captions ({scores.tokenizer}): "
        f"BLEU-1..4 {bleu}, {meteor}, ROUGE-L {scores.rouge_l:.1f}, CIDEr {scores.cider:.1f}"
    )


def model_card(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The README.md of a model folder: what it is, on what it was scored, and by which commit."""
    scores = record["scores"]
    rows = "\n".join(
        f"| {name.replace('_', '-').upper()} | {value:.1f} |"
        for name, value in scores.items()
        if isinstance(value, float)
    )
    return f"""---
library_name: captioner
pipeline_tag: image-to-text
---
# An attention-based image captioner

{config["encoder"]["class_path"]} → {config["refiner"]["class_path"]} → {config["decoder"]["class_path"]}

Trained on {record["data"]}. Scores on its {record["split"]} split, {scores["images"]} pictures,
generated captions, beam {record["decoding"]["beam_size"]}, tokenizer {scores["tokenizer"]}:

| metric | value |
|---|---|
{rows}

captioner {record["captioner"]}, commit {record["commit"]}, seed {record["seed"]}.

    captioner caption photo.jpg --model FOLDER
"""


def main(arguments: list[str]) -> None:
    """Runs one of the subcommands.

    Raises:
        UsageError: an option is unknown or has a wrong value.
    """
    raising = {"exit_on_error": False}
    given = sys.argv
    # LightningCLI reads the command line itself, and warns when it is given a list as well.
    sys.argv = ["captioner", *map(_shipped, arguments)]
    _quiet()
    try:
        CLI(
            CaptioningTask,
            CaptionDataModule,
            save_config_callback=SaveConfig,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_class=Trainer,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            parser_kwargs={**raising, **dict.fromkeys(CLI.subcommands(), raising)},
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
