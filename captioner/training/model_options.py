"""The options of a training that begin with ``model.``."""

from collections.abc import Callable
from typing import Literal

import pytorch_lightning as pl

from captioner.models.decoder import Decoder
from captioner.models.encoder import CNNEncoder, Encoder
from captioner.models.lstm import LSTMDecoder
from captioner.models.neck import NeckFactory, Projection
from captioner.search.options import Decoding
from captioner.training.likelihood import Likelihood
from captioner.training.objective import Objective


class ModelOptions(pl.LightningModule):
    """The options ``model.…`` of the command line, as LightningCLI parses them.

    Their types say which classes an option accepts. The task gets the values, in which each class is a
    configuration tree.

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
        weight_decay: float = 0.01,
        warmup: float = 0.1,
        word_dropout: float = 0.0,
        val_beam_size: int = 3,
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
