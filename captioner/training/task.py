"""The Lightning task: a captioner, its objective, its optimiser, and its scores while it learns."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from captioner import processes
from captioner.data.dataset import Batch
from captioner.data.module import CaptionDataModule, global_seed
from captioner.data.records import VAL
from captioner.decoding import Decoding, search
from captioner.errors import CheckpointError, DataError, UsageError
from captioner.evaluation.captions import CaptionScorer
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import AttentionBase
from captioner.models.attention.distributions import hard_attention
from captioner.models.captioner import PARTS, Captioner
from captioner.models.decoder import Detail
from captioner.models.encoder import CNNEncoder
from captioner.models.lstm import LSTMDecoder
from captioner.models.refiners import Projection
from captioner.models.registry import build
from captioner.text import PAD, START, UNK, Vocabulary, join
from captioner.training import schedule
from captioner.training.objectives import Likelihood, Loss, Objective, looked_at
from captioner.training.parts import (
    DecoderFactory,
    EncoderFactory,
    ObjectiveFactory,
    RefinerFactory,
    tree,
)
from captioner.training.warm_start import start_from


class CaptioningTask(pl.LightningModule):
    """Trains a captioner by teacher forcing and scores what it generates.

    The parts are described by trees (``{"class_path": …, "init_args": …}``), as a configuration file
    and a model folder hold them; one builder, ``captioner.models.registry.build``, serves both.

    AdamW; weight decay on matrices only; the learning rate rises to its peak and falls to almost
    nothing along half cosines, and β₁ falls from 0.95 to 0.85 and rises again meanwhile (one cycle:
    Smith 2018, arXiv 1803.09820). Everything random in a step follows from the seed, the epoch and
    the number of the batch, so that a run that was killed and resumed ends with the same weights.
    Several processes share every batch, and learn what one would: losses are means over the words of
    the whole batch. Only what is drawn in a step, as dropout is, differs between processes.

    Args:
        words: the vocabulary; linked to the data's.
        encoder: the CNN.
        refiner: what is learned between CNN and decoder.
        decoder: writes the caption.
        objective: what is minimised.
        init_from: a run, checkpoint or model folder whose refiner and decoder the training starts
            from, e.g. a soft model for a hard one: whatever differs must have no weights of its own.
        learning_rate: its peak.
        encoder_learning_rate: that of an encoder that learns, along the same cycle.
        encoder_from: the epoch, counted from 0, in which such an encoder begins to learn.
        weight_decay: of AdamW; an encoder's weights do not decay.
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
        encoder_learning_rate: float = 1e-4,
        encoder_from: int = 0,
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        word_dropout: float = 0.0,
        val_beam_size: int = 3,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        # The values given, not the defaults of the signature: LightningCLI hands over the tree.
        self.save_hyperparameters()
        trees = {part: tree(self.hparams[part]) for part in (*PARTS, "objective")}
        self.hparams.update(trees)
        objective_tree = trees.pop("objective")
        self.captioner = Captioner.from_config(trees, Vocabulary(words))
        self.objective: Objective = build("objective", objective_tree)
        self.objective.check(self.captioner.decoder)
        self.hparams["decoding"] = asdict(decoding)
        self.init_from = init_from
        self.supervision = self.objective.supervision
        self.learning_rate, self.weight_decay, self.warmup = learning_rate, weight_decay, warmup
        self.encoder_learning_rate, self.encoder_from = encoder_learning_rate, encoder_from
        self.word_dropout = word_dropout
        self.decoding = decoding
        self.val_decoding = Decoding(val_beam_size)
        #: The captions of the last validation or test, by image id.
        self.generated: dict[int | str, str] = {}
        self.generating_seconds = 0.0
        self._scorer: CaptionScorer[int | str] | None = None
        self._judged = torch.zeros(2, dtype=torch.float64)

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
        """Teacher forcing on one batch; None, no step, where none of its pictures could be read.

        With others, a process without pictures takes part all the same: they wait for its gradients.
        """
        if not batch.image_ids:
            if processes.count() == 1:
                return None
            batch = self._stand_in(batch)
        place = [global_seed(), self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))
        loss, measures = self._learn(batch)
        logged = {"loss": loss.total, **loss.terms, **loss.measures, **measures}
        values = processes.mean(torch.stack([value.detach().float() for value in logged.values()]))
        self.log_dict(
            {f"train/{name}": value for name, value in zip(logged, values, strict=True)},
            batch_size=max(1, len(batch.image_ids)),
        )
        return loss.total

    def on_validation_epoch_start(self) -> None:
        """Forgets the captions of the validation before."""
        self.generated = {}
        self._judged.zero_()

    def validation_step(self, batch: Batch) -> None:
        """Generates captions; also logs the teacher-forced likelihood, named as such."""
        if not batch.image_ids:
            return
        words = float((batch.tokens[..., 1:] != PAD).sum())
        nll = float(self._judge(batch).measures["nll"])
        self._judged += torch.tensor([nll * words, words], dtype=torch.float64)
        self._generate(batch, self.val_decoding)

    def on_validation_epoch_end(self) -> None:
        """Scores the generated captions; NLTK's tokenizer, for speed (``test`` takes Java's)."""
        self._gather()
        if self.trainer.sanity_checking:
            return
        if not self.generated:
            raise DataError(
                "none of the development pictures could be read; see the warnings above"
            )
        nll, words = processes.total(self._judged.to(self.device, torch.float32)).tolist()
        self.log("val/teacher_forced_nll", nll / words, sync_dist=True)
        scores: dict[str, Any] = {}
        if processes.rank() == 0:
            if self._scorer is None:  # whose references are tokenised once
                data: CaptionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
                self._scorer = CaptionScorer(data.references(VAL), java=False)
            scores = self._scorer.score(self.generated).as_dict()
        scores = self.trainer.strategy.broadcast(scores)
        for name in ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider"):
            shown = name in ("bleu_4", "cider")
            # The same in all processes; the average of it is to please Lightning.
            self.log(f"val/{name}", float(scores[name] or 0.0), prog_bar=shown, sync_dist=True)
        # A progress bar shows only the last one, and nothing where output goes to a file.
        self.print(
            f"epoch {self.current_epoch + 1}: BLEU-4 {scores['bleu_4']:.1f}, "
            f"CIDEr {scores['cider']:.1f} (generated, beam {self.val_decoding.beam_size})"
        )

    def on_test_epoch_start(self) -> None:
        """Forgets earlier captions."""
        self.generated = {}
        self.generating_seconds = 0.0

    def test_step(self, batch: Batch) -> None:
        """Generates captions as ``decoding`` says; ``generated`` has them."""
        began = time.perf_counter()
        self._generate(batch, self.decoding)
        self.generating_seconds += time.perf_counter() - began

    def on_test_epoch_end(self) -> None:
        """Every process knows the captions of all."""
        self._gather()

    def predict_step(self, batch: Batch) -> list[tuple[int | str, str]]:
        """(image id, caption) of every picture."""
        return self._generate(batch, self.decoding)

    def configure_optimizers(self) -> Any:
        """AdamW under one cycle."""
        optimizer = schedule.optimiser(
            self.captioner,
            self.objective,
            learning_rate=self.learning_rate,
            encoder_learning_rate=self.encoder_learning_rate,
            weight_decay=self.weight_decay,
        )
        cycle = schedule.cycle(optimizer, self._steps(), self.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

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
        cycle: Any = self.lr_schedulers()
        if cycle.total_steps != self._steps():
            raise UsageError(
                f"the checkpoint is on its way through {cycle.total_steps - 1:,} steps, this run "
                f"would take {self._steps() - 1:,}: the learning rate follows one cycle over all of "
                "them; resume with the max_epochs and batch size it began with, or start a new run"
            )

    def _learn(self, batch: Batch) -> tuple[Loss, Mapping[str, Tensor]]:
        """The loss of a training step, and what its lesson measured."""
        objective, captioner = self.objective, self.captioner
        progress = self.global_step / self.trainer.estimated_stepping_batches
        hard = hard_attention(captioner.decoder)
        for distribution in hard:
            distribution.heat = objective.heat(progress)
        if not objective.dropout:
            captioner.eval()
        resting = captioner.encoder.trainable and self.current_epoch < self.encoder_from
        with torch.set_grad_enabled(not resting):
            given = self._annotations(batch)
        if not batch.image_ids:  # a stand-in: nothing is seen in it
            given = given.with_vectors(given.vectors * 0)
        annotations = captioner.refiner(given)
        for distribution in hard:
            distribution.eval()  # captions of its own are those of test time
        lesson = objective.lesson(captioner.decoder, annotations, batch.tokens)
        for distribution in hard:
            distribution.train()  # the most probable place has no gradient
        inputs, targets = lesson.tokens[..., :-1], lesson.tokens[..., 1:]
        if (
            lesson.rewards is None and self.word_dropout
        ):  # what it said itself, it said of all words
            inputs = _drop_words(inputs, self.word_dropout)
        detail: Detail = "shown" if objective.needs_weights else "none"
        decoded = captioner.decoder(annotations, inputs, detail)
        masks = None if batch.masks is None else batch.masks[..., 1:, :]
        if masks is None and objective.needs_masks:  # a stand-in is asked for all that others are
            masks = torch.zeros_like(looked_at(decoded))
        loss = objective(decoded, targets, lesson.rewards, masks)
        if resting:  # its gradients are zeros, for which the other processes wait
            weights = [p for p in captioner.encoder.parameters() if p.requires_grad]
            loss = replace(
                loss, total=loss.total + 0 * torch.stack([p.sum() for p in weights]).sum()
            )
        return loss, lesson.measures

    def _stand_in(self, batch: Batch) -> Batch:
        """A picture to compute with, and nothing to say about it."""
        size = self.captioner.encoder.preprocessing
        tokens = torch.full((1, batch.tokens.shape[1], 2), PAD, device=self.device)
        tokens[..., 0] = START
        pixels = torch.zeros(1, 3, size.height, size.width, dtype=torch.uint8, device=self.device)
        return Batch([], tokens, None, (0, 0), pixels)

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
        self.generated.update(captions)
        return captions

    def _gather(self) -> None:
        """Puts together the captions of all processes."""
        if processes.count() > 1:
            data: CaptionDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
            self.generated = data.in_order(processes.merged(self.generated))


def _drop_words(inputs: Tensor, probability: float) -> Tensor:
    """Some words, never the special tokens, become ``<unk>``."""
    dropped = (torch.rand(inputs.shape, device=inputs.device) < probability) & (inputs > UNK)
    return inputs.masked_fill(dropped, UNK)
