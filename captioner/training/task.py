"""The Lightning task: a captioner, its objective and optimiser, and its scores during training."""

import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from captioner import distributed, fast
from captioner.data.dataset import CaptionBatch
from captioner.data.module import CaptionDataModule, global_seed
from captioner.data.records import VAL
from captioner.errors import CheckpointError, DataError, UsageError
from captioner.evaluation.metrics import CaptionScorer
from captioner.language.vocabulary import PAD, START, UNK, Vocabulary, join
from captioner.models.annotations import Annotations
from captioner.models.captioner import PARTS, Captioner
from captioner.models.decoder import Decoder
from captioner.models.distributions import hard_attention
from captioner.models.encoder import CNNEncoder, Encoder, Inputs
from captioner.models.lstm import LSTMDecoder
from captioner.models.neck import NeckFactory, Projection
from captioner.models.registry import build
from captioner.search.beam import search
from captioner.search.options import Decoding
from captioner.training.likelihood import Likelihood
from captioner.training.objective import Loss, Objective
from captioner.training.warm_start import start_from

LOGGED_SCORES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider")


class ModelOptions(pl.LightningModule):
    """The options ``model.…`` of a training; LightningCLI parses them by their types.

    The task gets their values, in which each class is a configuration tree.

    Args:
        encoder: the CNN.
        neck: the trained layers between the CNN and the decoder.
        decoder: generates the caption.
        objective: the training objective.
        init_from: a bundled model, or a run, checkpoint or model folder, whose neck and decoder weights
            initialise the training. A trained encoder's weights are taken, too. The vocabulary may
            differ, and so may parts without weights, e.g. soft or hard attention.
        init_mismatch: ``refuse`` raises an error if the encoder or weights of ``init_from`` do not fit;
            ``skip`` takes the weights that fit.
        learning_rate: peak learning rate of AdamW.
        encoder_learning_rate: peak learning rate of a trainable encoder.
        weight_decay: of AdamW; applies to matrices outside the encoder.
        warmup: fraction of all steps in which the learning rate rises.
        word_dropout: probability in training that an input word is replaced by ``<unk>``.
        val_beam_size: beam size at every validation, with the defaults of the other decoding options.
        decoding: for ``test``, ``predict``, the scores after ``fit`` and the exported model.
    """

    def __init__(
        self,
        encoder: Callable[[], Encoder] = CNNEncoder,
        neck: NeckFactory = Projection,
        decoder: Callable[[int, int], Decoder] = LSTMDecoder,
        objective: Callable[[], Objective] = Likelihood,
        init_from: str | None = None,
        init_mismatch: Literal["refuse", "skip"] = "refuse",
        learning_rate: float = 1.2e-3,
        encoder_learning_rate: float = 1e-4,
        weight_decay: float = 0.2,
        warmup: float = 0.1,
        word_dropout: float = 0.15,
        val_beam_size: int = 3,
        decoding: Decoding = Decoding(length_penalty=0.9),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()


class CaptioningTask(pl.LightningModule):
    """Trains a captioner by teacher forcing and scores the captions it generates.

    The seed, the epoch and the batch number determine everything random in a step, so a run that was
    killed and resumed ends with the same weights. Several processes share every batch and give the
    result of one process, except for random draws within a step, such as dropout.

    Args:
        options: the values of ``ModelOptions``, and ``words``, the vocabulary. Parts are configuration
            trees; see ``registry.build``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.save_hyperparameters(dict(options))
        trees = {part: options[part] for part in PARTS}
        self.objective: Objective = build("objective", options["objective"])
        self.captioner = Captioner.from_config(trees, Vocabulary(options["words"]))
        self.objective.check(self.captioner.decoder)
        self.supervision = self.objective.supervision
        self.decoding = Decoding(**options["decoding"])
        self.val_decoding = Decoding(options["val_beam_size"])
        self._clear()

    def setup(self, stage: str) -> None:
        """Load the weights of ``init_from`` in a new run, and install the faster modules."""
        model = self.hparams["init_from"]
        if stage == "fit" and model is not None and self.trainer.ckpt_path is None:
            mismatch = self.hparams["init_mismatch"]
            supervision, summary = start_from(self.captioner, model, mismatch)
            self.supervision = max(self.supervision, supervision)
            self.print(summary)
        fast.accelerate(self.captioner)

    # ── Training ──────────────────────────────────────────────────────────────────────────────────

    def on_train_start(self) -> None:
        """Give the objective all training captions; refuse to resume a run of another length."""
        self.objective.setup(self.trainer.train_dataloader.dataset.captions)  # type: ignore[union-attr]
        cycle: Any = self.lr_schedulers()
        if cycle.total_steps != self._steps():
            raise UsageError(
                f"the checkpoint belongs to a training of {cycle.total_steps - 1:,} steps, and this "
                f"run would take {self._steps() - 1:,}: resume with the max_epochs and batch size it "
                "began with, or start a new run from its weights with --model.init_from"
            )

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor | None:
        """Return the loss, or None if no image of the batch could be read."""
        if not batch.image_ids and distributed.count() == 1:
            return None
        seeds = [global_seed(), self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))
        loss, measures = self.loss(batch)
        logged = {"loss": loss.total, **loss.terms, **loss.measures, **measures}
        values = torch.stack([value.detach().float() for value in logged.values()])
        means = zip(logged, distributed.mean(values), strict=True)
        images = max(1, len(batch.image_ids))
        self.log_dict({f"train/{name}": value for name, value in means}, batch_size=images)
        return loss.total

    def loss(self, batch: CaptionBatch) -> tuple[Loss, Mapping[str, Tensor]]:
        """Return the loss of a batch and the measures of its rollout, in the current mode."""
        if batch.image_ids:
            tokens, annotations = batch.tokens, self.captioner.annotate(_encoded(batch))
        else:
            tokens, annotations = self._stand_in(batch)
        rollout = self.objective.rollout(self.captioner.decoder, annotations, tokens)
        inputs, targets = rollout.tokens[..., :-1], rollout.tokens[..., 1:]
        probability = self.hparams["word_dropout"]
        if probability and rollout.rewards is None:  # generated captions keep their words
            dropped = torch.rand(inputs.shape, device=inputs.device) < probability
            inputs = inputs.masked_fill(dropped & (inputs > UNK), UNK)
        decoded = self.captioner.decoder(annotations, inputs)
        masks = None if batch.masks is None else batch.masks[..., 1:, :]
        return self.objective(decoded, targets, rollout.rewards, masks), rollout.measures

    def on_train_batch_start(self, *_: Any) -> None:
        """Train without dropout if the objective asks for it."""
        if not self.objective.dropout:
            self.captioner.eval()
            for hard in hard_attention(self.captioner.decoder):
                hard.train()  # in eval mode its scores have no gradient

    def on_train_batch_end(self, *_: Any) -> None:
        """Score the captions after the last step, whatever the interval: a run that stops validates."""
        trainer = self.trainer
        last = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        if last or trainer.global_step == trainer.max_steps:
            trainer.should_stop = True

    def _stand_in(self, batch: CaptionBatch) -> tuple[Tensor, Annotations]:
        """Return an empty image without captions: other processes wait for gradients from this one."""
        tokens = torch.full((1, batch.tokens.shape[1], 2), PAD, device=self.device)
        tokens[..., 0] = START
        encoded = self.captioner.encoder(self.captioner.encoder.blank().to(self.device))
        return tokens, self.captioner.annotate(encoded.map(lambda vectors: 0 * vectors))

    def configure_optimizers(self) -> Any:
        """Return AdamW and a cycle in which every learning rate rises to its peak and falls again.

        The rise and the fall each follow half a cosine. Meanwhile β₁ falls from 0.95 to 0.85 and rises
        again (Smith 2018, arXiv 1803.09820). Weight decay applies only to matrices outside the CNN,
        because it would pull the CNN away from its pretrained weights.
        """
        hparams, captioner = self.hparams, self.captioner
        encoder = [p for p in captioner.encoder.parameters() if p.requires_grad]
        parts = (captioner.neck, captioner.decoder, self.objective)
        others = [p for part in parts for p in part.parameters() if p.requires_grad]
        matrices = [p for p in others if p.ndim > 1]
        vectors = [p for p in others if p.ndim <= 1]
        rate, encoder_rate = hparams["learning_rate"], hparams["encoder_learning_rate"]
        groups: list[dict[str, Any]] = [
            {"name": "matrices", "params": matrices, "lr": rate},
            {"name": "vectors", "params": vectors, "lr": rate, "weight_decay": 0.0},
            {"name": "encoder", "params": encoder, "lr": encoder_rate, "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        decay, peaks = hparams["weight_decay"], [group["lr"] for group in groups]
        optimizer = torch.optim.AdamW(groups, betas=(0.95, 0.98), weight_decay=decay)
        steps = self._steps()
        rise = max(hparams["warmup"], 2 / steps)  # OneCycleLR divides by the warm-up steps less one
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, steps, pct_start=rise)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    def _steps(self) -> int:
        steps = self.trainer.estimated_stepping_batches
        if not math.isfinite(steps):
            raise UsageError("give --trainer.max_epochs or --trainer.max_steps, 1 or more")
        return max(int(steps) + 1, 4)

    # ── Captions and scores ───────────────────────────────────────────────────────────────────────

    def _clear(self) -> None:
        """Start a validation or a test without the results of the previous one."""
        self.generated: dict[int | str, str] = {}  # captions by image id
        self.generating_seconds = 0.0
        self._nll = torch.zeros(2, dtype=torch.float64)  # sum and number of words in validation

    on_validation_epoch_start = on_test_epoch_start = _clear

    def validation_step(self, batch: CaptionBatch) -> None:
        """Generate captions, and compute the teacher-forced likelihood of the references."""
        if not batch.image_ids:
            return
        inputs, targets = batch.tokens[..., :-1], batch.tokens[..., 1:]
        annotations = self.captioner.annotate(_encoded(batch))
        decoded = self.captioner.decoder(annotations, inputs)
        log_probs, _ = self.objective.token_log_probs(decoded, targets)
        words = (targets != PAD).sum()
        self._nll += torch.tensor([-float(log_probs.sum()), float(words)], dtype=torch.float64)
        self._generate(batch, annotations, self.val_decoding)

    def on_validation_epoch_end(self) -> None:
        """Score the generated captions with NLTK's tokenizer, which is faster than Java's."""
        self.on_test_epoch_end()
        if self.trainer.sanity_checking:
            return
        if not self.generated:
            raise DataError("no photo of the development split could be read")
        nll, words = distributed.total(self._nll.to(self.device, torch.float32)).tolist()
        self.log("val/teacher_forced_nll", nll / words, sync_dist=True)
        scores: dict[str, Any] = {}
        if distributed.rank() == 0:
            scores = self._scorer.score(self.generated).as_dict()
        scores = self.trainer.strategy.broadcast(scores)
        for name in LOGGED_SCORES:
            shown = name in ("bleu_4", "cider")
            # All processes have the same scores; Lightning warns without sync_dist.
            self.log(f"val/{name}", float(scores[name] or 0.0), prog_bar=shown, sync_dist=True)
        self.print(
            f"epoch {self.current_epoch + 1}: BLEU-4 {scores['bleu_4']:.1f}, "
            f"CIDEr {scores['cider']:.1f} (generated, beam {self.val_decoding.beam_size})"
        )

    def test_step(self, batch: CaptionBatch) -> None:  # noqa: D102
        began = time.perf_counter()
        self.predict_step(batch)
        self.generating_seconds += time.perf_counter() - began

    def on_test_epoch_end(self) -> None:
        """Merge the captions of all processes."""
        if distributed.count() > 1:
            self.generated = self._data.in_order(distributed.merged(self.generated))

    def predict_step(self, batch: CaptionBatch) -> list[tuple[int | str, str]]:
        """Return (image id, caption) of every image."""
        if not batch.image_ids:
            return []
        return self._generate(batch, self.captioner.annotate(_encoded(batch)), self.decoding)

    @cached_property
    def _scorer(self) -> CaptionScorer:
        return CaptionScorer(self._data.references(VAL), java=False)

    @property
    def _data(self) -> CaptionDataModule:
        return self.trainer.datamodule  # type: ignore[attr-defined]

    def _generate(
        self, batch: CaptionBatch, annotations: Annotations, decoding: Decoding
    ) -> list[tuple[int | str, str]]:
        beams = search(self.captioner.decoder, annotations, decoding)
        decode = self.captioner.vocabulary.decode
        captions = [
            (image_id, join(decode(hypotheses[0].tokens)))
            for image_id, hypotheses in zip(batch.image_ids, beams, strict=True)
        ]
        self.generated.update(captions)
        return captions

    # ── Checkpoints ───────────────────────────────────────────────────────────────────────────────

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the hash of the encoder's weights, since a frozen encoder's weights are not stored."""
        checkpoint["encoder_sha256"] = self.captioner.encoder.fingerprint()
        checkpoint["supervision"] = self.supervision

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another model or vocabulary before its weights are loaded."""
        for part in PARTS:
            if checkpoint["hyper_parameters"][part] != self.hparams[part]:
                raise CheckpointError(
                    f"the checkpoint was trained with another model.{part}: resume it with the "
                    "config.yaml of its run, or start a new run with --model.init_from"
                )
        self.supervision = checkpoint.get("supervision", 0.0)
        stored = Vocabulary(checkpoint["hyper_parameters"].get("words", []))
        expected = self.captioner.vocabulary
        if stored.words != expected.words:
            raise CheckpointError(
                f"the checkpoint was trained with another vocabulary ({len(stored):,} words) than this "
                f"data gives ({len(expected):,} words): give the data options of that training, or use "
                "captioner caption and evaluate, which accept any photos"
            )


def _encoded(batch: CaptionBatch) -> Inputs | Annotations:
    """Return what the encoder reads, or its output if that was cached."""
    images = batch.images
    return images.map(Tensor.float) if isinstance(images, Annotations) else images
