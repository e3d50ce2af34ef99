"""The Lightning task: a captioner, its objective, its optimiser, and its scores while it learns."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from captioner import checkpoint
from captioner.data.module import Batch, CaptionDataModule, global_seed
from captioner.data.records import VAL
from captioner.decoding import Decoding, search
from captioner.errors import CheckpointError, DataError, UsageError
from captioner.evaluation.captions import CaptionScorer
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import AttentionBase
from captioner.models.captioner import PARTS, Captioner
from captioner.models.decoder import Decoder, Detail
from captioner.models.encoder import CNNEncoder, Encoder
from captioner.models.lstm import LSTMDecoder
from captioner.models.refiners import Projection, Refiner
from captioner.models.registry import build
from captioner.predictor import find_model
from captioner.text import UNK, Vocabulary, join
from captioner.training.lower_bound import LowerBound
from captioner.training.objectives import Likelihood, Loss, Objective, hard_attention
from captioner.training.self_critical import SelfCritical


@runtime_checkable
class EncoderFactory(Protocol):
    """Makes an encoder."""

    def __call__(self) -> Encoder:
        """An encoder."""
        ...


@runtime_checkable
class RefinerFactory(Protocol):
    """Makes a refiner once the encoder's width is known."""

    def __call__(self, *, in_dim: int) -> Refiner:
        """A refiner of vectors of width ``in_dim``."""
        ...


@runtime_checkable
class DecoderFactory(Protocol):
    """Makes a decoder once the vocabulary and the refiner's width are known."""

    def __call__(self, *, vocab_size: int, annotation_dim: int) -> Decoder:
        """A decoder of ``vocab_size`` words over vectors of width ``annotation_dim``."""
        ...


@runtime_checkable
class ObjectiveFactory(Protocol):
    """Makes an objective."""

    def __call__(self) -> Objective:
        """An objective."""
        ...


# All objectives, so that their names are known.
OBJECTIVES = (Likelihood, LowerBound, SelfCritical)


class CaptioningTask(pl.LightningModule):
    """Trains a captioner by teacher forcing and scores what it generates.

    The parts are described by trees (``{"class_path": …, "init_args": …}``), as a configuration file
    and a model folder hold them; one builder, ``captioner.models.registry.build``, serves both.

    AdamW; weight decay on matrices only; the learning rate rises to its peak and falls to almost
    nothing along half cosines, and β₁ falls from 0.95 to 0.85 and rises again meanwhile (one cycle:
    Smith 2018, arXiv 1803.09820). Everything random in a step follows from the seed, the epoch and
    the number of the batch, so that a run that was killed and resumed ends with the same weights.

    Args:
        words: the vocabulary; linked to the data's.
        encoder: the CNN.
        refiner: what is learned between CNN and decoder.
        decoder: writes the caption.
        objective: what is minimised.
        init_from: a run, checkpoint or model folder whose refiner and decoder the training starts
            from, e.g. a soft model for a hard one: whatever differs must have no weights of its own.
        learning_rate: its peak.
        weight_decay: of AdamW.
        warmup: part of all steps in which the learning rate rises.
        word_dropout: probability that an input word is replaced by ``<unk>`` while training.
        val_beam_size: beam size of the captions generated and scored at every validation; the rest of
            their decoding is the default, so that runs that differ in ``decoding`` alone agree.
        decoding: how ``test``, ``predict`` and the scores after ``fit`` search, and ``captioner
            caption`` after them.
    """

    def __init__(
        self,
        words: list[str],
        encoder: EncoderFactory = CNNEncoder,  # noqa: ARG002 - this and the next are read as hparams
        refiner: RefinerFactory = Projection,  # noqa: ARG002
        decoder: DecoderFactory = LSTMDecoder,  # noqa: ARG002
        objective: ObjectiveFactory = Likelihood,  # noqa: ARG002
        init_from: str | None = None,
        learning_rate: float = 1.2e-3,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        word_dropout: float = 0.0,
        val_beam_size: int = 3,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        # The values given, not the defaults of the signature: LightningCLI hands over the tree.
        self.save_hyperparameters()
        trees = {part: _tree(self.hparams[part]) for part in (*PARTS, "objective")}
        self.hparams.update(trees)
        objective_tree = trees.pop("objective")
        self.captioner = Captioner.from_config(trees, Vocabulary(words))
        self.objective: Objective = build("objective", objective_tree)
        self.objective.check(self.captioner.decoder)
        self.hparams["decoding"] = asdict(decoding)
        self.init_from = init_from
        self.supervision = self.objective.supervision
        self.learning_rate, self.weight_decay, self.warmup = learning_rate, weight_decay, warmup
        self.word_dropout = word_dropout
        self.decoding = decoding
        self.val_decoding = Decoding(val_beam_size)
        self._generated: dict[int | str, str] = {}
        self.generating_seconds = 0.0

    def setup(self, stage: str) -> None:
        """Takes over the weights of ``init_from``, unless a run is resumed."""
        if stage == "fit" and self.init_from is not None and self.trainer.ckpt_path is None:
            # What masks taught the model that this one starts from, it knows.
            self.supervision = max(self.supervision, start_from(self.captioner, self.init_from))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Logs how much the attention is asked to change."""
        gradients = [
            parameter.grad
            for module in self.captioner.decoder.modules()
            if isinstance(module, AttentionBase)
            for parameter in module.parameters()
            if parameter.grad is not None
        ]
        if gradients:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            self.log("train/attention_gradient_norm", norm)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Teacher forcing on one batch; None, no step, where none of its pictures could be read."""
        if not batch.image_ids:
            return None
        seed = np.random.SeedSequence(
            [global_seed(), self.current_epoch, batch_idx, self.global_rank]
        )
        torch.manual_seed(int(seed.generate_state(1)[0]))
        loss, measures = self._learn(batch)
        logged = {"loss": loss.total, **loss.terms, **loss.measures, **measures}
        self.log_dict(
            {f"train/{name}": value.detach() for name, value in logged.items()},
            batch_size=len(batch.image_ids),
        )
        return loss.total

    def on_validation_epoch_start(self) -> None:
        """Forgets the captions of the validation before."""
        self._generated = {}

    def validation_step(self, batch: Batch) -> None:
        """Generates captions; also logs the teacher-forced likelihood, named as such."""
        if not batch.image_ids:
            return
        nll = self._judge(batch).measures["nll"]
        self.log("val/teacher_forced_nll", nll, batch_size=len(batch.image_ids))
        self._generate(batch, self.val_decoding)

    def on_validation_epoch_end(self) -> None:
        """Scores the generated captions; NLTK's tokenizer, for speed (``test`` takes Java's)."""
        if self.trainer.sanity_checking:
            return
        if not self._generated:
            raise DataError(
                "none of the development pictures could be read; see the warnings above"
            )
        scores = self._scorer(VAL).score(self._generated).as_dict()
        for name in ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider"):
            self.log(
                f"val/{name}", float(scores[name] or 0.0), prog_bar=name in ("bleu_4", "cider")
            )
        # A progress bar shows only the last one, and nothing where output goes to a file.
        self.print(
            f"epoch {self.current_epoch + 1}: BLEU-4 {scores['bleu_4']:.1f}, "
            f"CIDEr {scores['cider']:.1f} (generated, beam {self.val_decoding.beam_size})"
        )

    def on_test_epoch_start(self) -> None:
        """Forgets earlier captions."""
        self._generated = {}
        self.generating_seconds = 0.0

    def test_step(self, batch: Batch) -> None:
        """Generates captions as ``decoding`` says; ``generated`` has them."""
        began = time.perf_counter()
        self._generate(batch, self.decoding)
        self.generating_seconds += time.perf_counter() - began

    def predict_step(self, batch: Batch) -> list[tuple[int | str, str]]:
        """(image id, caption) of every picture."""
        return self._generate(batch, self.decoding)

    @property
    def generated(self) -> dict[int | str, str]:
        """The captions of the last validation or test, by image id."""
        return self._generated

    def configure_optimizers(self) -> Any:
        """AdamW under one cycle."""
        learning = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {
                "params": [p for p in learning if p.ndim > 1],
                "weight_decay": self.weight_decay,
            },
            {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate, betas=(0.95, 0.98))
        steps = self._steps()
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            self.learning_rate,
            total_steps=steps,
            pct_start=max(self.warmup, 2 / steps),  # a rise of less than two steps divides by zero
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _steps(self) -> int:
        """Of the learning rate's cycle."""
        steps = self.trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise UsageError(
                "the learning rate follows a cycle, which needs an end: give --trainer.max_epochs or "
                "--trainer.max_steps, 1 or more"
            )
        return max(int(steps) + 1, 4)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names the encoder's weights, which the checkpoint may not hold, and what supervised it."""
        checkpoint["encoder_sha256"] = self.captioner.encoder.fingerprint()
        checkpoint["supervision"] = self.supervision

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint of another vocabulary before its weights are tried."""
        self.supervision = checkpoint.get("supervision", 0.0)
        stored = Vocabulary(checkpoint["hyper_parameters"].get("words", []))
        own = self.captioner.vocabulary
        if stored != own:
            raise CheckpointError(
                f"the checkpoint was trained with another vocabulary ({len(stored):,} words, "
                f"{stored.fingerprint}) than this data gives ({len(own):,} words, "
                f"{own.fingerprint}): give the data.* options it was trained with, or use captioner "
                "caption and evaluate, which take any pictures"
            )

    def on_train_start(self) -> None:
        """Shows the objective all training captions; refuses to resume towards another end."""
        self.objective.begin(self.trainer.train_dataloader.dataset.captions)  # type: ignore[union-attr]
        schedule: Any = self.lr_schedulers()
        if schedule.total_steps != self._steps():
            raise UsageError(
                f"the checkpoint is on its way through {schedule.total_steps - 1:,} steps, this run "
                f"would take {self._steps() - 1:,}: the learning rate follows one cycle over all of "
                "them; resume with the max_epochs and batch size it began with, or start a new run"
            )

    def _learn(self, batch: Batch) -> tuple[Loss, Mapping[str, Tensor]]:
        """The loss of a training step, and what its lesson measured."""
        objective, captioner = self.objective, self.captioner
        progress = self.global_step / self.trainer.estimated_stepping_batches
        for distribution in hard_attention(captioner.decoder):
            distribution.heat = objective.heat(progress)
        if not objective.dropout:
            captioner.eval()
        annotations = captioner.refiner(self._annotations(batch))
        lesson = objective.lesson(captioner.decoder, annotations, batch.tokens)
        inputs, targets = lesson.tokens[..., :-1], lesson.tokens[..., 1:]
        if objective.dropout and self.word_dropout:
            inputs = _drop_words(inputs, self.word_dropout)
        detail: Detail = "shown" if objective.needs_weights else "none"
        decoded = captioner.decoder(annotations, inputs, detail)
        masks = None if batch.masks is None else batch.masks[..., 1:, :]
        return objective(decoded, targets, lesson.rewards, masks), lesson.measures

    def _judge(self, batch: Batch) -> Loss:
        """The loss of the captions of a batch, teacher forced, nothing learned."""
        detail: Detail = "shown" if self.objective.needs_weights else "none"
        inputs, targets = batch.tokens[..., :-1], batch.tokens[..., 1:]
        return self.objective(self.captioner(self._annotations(batch), inputs, detail), targets)

    def _annotations(self, batch: Batch) -> Annotations:
        """As the encoder gives them: from the cache, or computed now."""
        if batch.vectors is None:
            assert batch.pixels is not None
            return self.captioner.encode(batch.pixels)
        return Annotations(batch.vectors.float(), batch.grid)

    def _generate(self, batch: Batch, decoding: Decoding) -> list[tuple[int | str, str]]:
        if not batch.image_ids:
            return []
        annotations = self.captioner.refiner(self._annotations(batch))
        found = search(self.captioner.decoder, annotations, decoding)
        decode = self.captioner.vocabulary.decode
        captions = [
            (image_id, join(decode(hypotheses[0].tokens)))
            for image_id, hypotheses in zip(batch.image_ids, found, strict=True)
        ]
        self._generated.update(captions)
        return captions

    def _scorer(self, split: str) -> CaptionScorer[int | str]:
        """Keeps the tokenised references between validations."""
        if not hasattr(self, "_scorers"):
            self._scorers: dict[str, CaptionScorer[int | str]] = {}
        if split not in self._scorers:
            data: CaptionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
            self._scorers[split] = CaptionScorer(data.references(split), java=False)
        return self._scorers[split]


def start_from(captioner: Captioner, model: str) -> float:
    """Gives a captioner the refiner and decoder weights of another.

    Args:
        captioner: what is to be trained.
        model: a run, checkpoint or model folder.

    Returns:
        The weight of the masks that supervised its attention; 0 where none did.

    Raises:
        UsageError: its words or its weights are others.
        CheckpointError: there is none, or it cannot be read.
    """
    stored = checkpoint.load(find_model(model))
    other = stored.captioner
    if other.vocabulary != captioner.vocabulary:
        raise UsageError(
            f"'{model}' speaks other words ({len(other.vocabulary):,}) than this data gives "
            f"({len(captioner.vocabulary):,}): start from a model trained with the same data options"
        )
    for part in ("refiner", "decoder"):
        try:
            getattr(captioner, part).load_state_dict(getattr(other, part).state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"the {part} of '{model}' has other weights than the one to be trained: {reason}"
            ) from error
    return stored.supervision


def _tree(given: Any) -> dict[str, Any]:
    """A tree as it is, or that of a class given with all its defaults."""
    if isinstance(given, Mapping):
        return dict(given)
    return {"class_path": given.__name__, "init_args": {}}


def _drop_words(inputs: Tensor, probability: float) -> Tensor:
    """Some words, never the special tokens, become ``<unk>``."""
    dropped = (torch.rand(inputs.shape, device=inputs.device) < probability) & (inputs > UNK)
    return inputs.masked_fill(dropped, UNK)
