"""Initial weights from another model."""

import logging

from captioner import checkpoint
from captioner.errors import UsageError
from captioner.loading import find_model
from captioner.models.captioner import Captioner

_LOG = logging.getLogger(__name__)


def start_from(captioner: Captioner, model: str) -> float:
    """Load another model's neck and decoder, and its encoder if that was fine-tuned.

    ``model`` is a run, checkpoint or model folder. Returns the weight of the mask supervision that it
    was trained with, or 0. Raises UsageError if the vocabularies or the shapes of the weights differ.
    """
    stored = checkpoint.load(find_model(model))
    other = stored.captioner
    if other.vocabulary.words != captioner.vocabulary.words:
        raise UsageError(
            f"the vocabulary of '{model}' ({len(other.vocabulary):,} words) differs from that of this "
            f"data ({len(captioner.vocabulary):,} words): start from a model trained with the same "
            "data options"
        )
    if captioner.encoder.external and other.encoder.external:
        captioner.encoder.load_pretrained()
        if captioner.encoder.fingerprint() != other.encoder.fingerprint():
            _LOG.warning(
                "the decoder of '%s' was trained with another encoder: if that is not intended, give "
                "the image_size, weights, stride and extra_strides of its config.json",
                model,
            )
    if other.encoder.trainable and not captioner.encoder.trainable:
        raise UsageError(
            f"the encoder of '{model}' was fine-tuned together with its decoder: give "
            "--model.encoder.init_args.trainable true, and --model.encoder_learning_rate 0 to "
            "keep the encoder as it is"
        )
    for part in ("encoder", "neck", "decoder")[0 if other.encoder.trainable else 1 :]:
        try:
            getattr(captioner, part).load_state_dict(getattr(other, part).state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UsageError(
                f"the weights of the {part} of '{model}' do not fit this configuration: {reason}"
            ) from error
    return stored.supervision
