"""Training that goes on from another model's weights."""

import logging

from captioner import checkpoint
from captioner.errors import UsageError
from captioner.models.captioner import Captioner
from captioner.predictor import find_model

_LOG = logging.getLogger(__name__)


def start_from(captioner: Captioner, model: str) -> float:
    """Gives a captioner another's refiner and decoder weights, and those of an encoder that learned.

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
    parts = ["refiner", "decoder"]
    if captioner.encoder.external and other.encoder.external:
        captioner.encoder.load_pretrained()
        if captioner.encoder.fingerprint() != other.encoder.fingerprint():
            _LOG.warning(
                "the decoder of '%s' has learned behind another encoder: give its image_size, weights, "
                "stride and finer (see its config.json) if that is not meant",
                model,
            )
    if other.encoder.trainable:
        if not captioner.encoder.trainable:
            raise UsageError(
                f"the encoder of '{model}' was fine-tuned, and its decoder knows no other: give "
                "--model.encoder.init_args.trainable true, with --model.encoder_learning_rate 0 if it "
                "is to stay as it is"
            )
        parts.insert(0, "encoder")
    for part in parts:
        try:
            getattr(captioner, part).load_state_dict(getattr(other, part).state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"the {part} of '{model}' has other weights than the one to be trained: {reason}"
            ) from error
    return stored.supervision
