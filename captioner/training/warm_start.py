"""Initial weights from another model, whose vocabulary may differ."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from captioner.errors import UsageError, plural
from captioner.language.vocabulary import SPECIALS, Vocabulary
from captioner.models.captioner import Captioner
from captioner.models.encoder import Encoder, TwoStreamEncoder
from captioner.resources import find_model
from captioner.store import checkpoint

_LOG = logging.getLogger(__name__)
# The weights of a ``WordDecoder`` that have a row for every word.
_WORD_ROWS = ("embedding.weight", "output.weight", "output.bias")
# Begins the names of the parameters that ``add_keys`` adds to a neck. Their map starts at 0, so adding
# it does not change the output of a model.
_ZERO_MAP = "added."


def start_from(
    captioner: Captioner, model: str, mismatch: Literal["refuse", "skip"] = "refuse"
) -> tuple[float, str]:
    """Load another model's neck and decoder, and its encoder if that was fine-tuned.

    The rows of words that both vocabularies contain are copied. The rows of new words are drawn from
    normal distributions with the mean and the standard deviation of each component over the words of
    the other model.

    Args:
        captioner: receives the weights.
        model: a bundled name, or a run, checkpoint or model folder.
        mismatch: ``refuse`` raises an error if the encoder or the shape of a weight differs; ``skip``
            takes all other weights.

    Returns:
        The weight of the mask supervision that the model was trained with, or 0, and a line for the
        user.

    Raises:
        UsageError: the encoders or the shapes of the weights differ.
    """
    stored = checkpoint.load(find_model(model))
    other, skips = stored.captioner, mismatch == "skip"
    same_kind = _check_encoder(captioner, other, model, skips)
    given = {part: getattr(other, part).state_dict() for part in ("neck", "decoder")}
    given["decoder"] |= _word_rows(given["decoder"], other.vocabulary, captioner.vocabulary)
    if same_kind and other.encoder.trainable:
        given["encoder"] = other.encoder.state_dict()
    left_out: list[str] = []
    for part, weights in given.items():
        module = getattr(captioner, part)
        differing = _differing_shapes(weights, module.state_dict())
        if differing and not skips:
            raise UsageError(
                f"the weights of the {part} of '{model}' do not fit this configuration: "
                f"{', '.join([*differing.values()][:3])}; give the options of its config.json, or "
                "--model.init_mismatch skip to use those that fit"
            )
        fitting = {name: tensor for name, tensor in weights.items() if name not in differing}
        module.load_state_dict(fitting, strict=False)
        left_out += [f"{part}.{name}" for name in differing]
    old, new = set(other.vocabulary.plain_words), set(captioner.vocabulary.plain_words)
    summary = (
        f"started from '{model}': {plural(len(old & new), 'word')} copied, {len(new - old):,} new, "
        f"{len(old - new):,} dropped"
    )
    if left_out:
        summary += f"; weights that do not fit: {', '.join(left_out)}"
    return stored.supervision, summary


def _differing_shapes(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names of the weights that do not fit, each with both shapes."""
    differing = {}
    for name in {**own, **given}:
        theirs, ours = (
            " × ".join(map(str, weights[name].shape)) if name in weights else "missing"
            for weights in (given, own)
        )
        added = name.startswith(_ZERO_MAP) and name not in given
        if theirs != ours and not added:
            differing[name] = f"{name} ({theirs}, here {ours})"
    return differing


def _word_rows(
    weights: Mapping[str, Tensor], old: Vocabulary, new: Vocabulary
) -> dict[str, Tensor]:
    """Return the weights with one row per word for the words of another vocabulary."""
    ids = {word: index for index, word in enumerate(old.words)}
    sources = torch.tensor([ids.get(word, -1) for word in new.words])
    unknown = sources < 0
    rows = {}
    for name in (name for name in _WORD_ROWS if name in weights):
        words = weights[name][len(SPECIALS) :]
        rows[name] = weights[name][sources]
        shape = rows[name][unknown].shape
        drawn = torch.randn(shape) * words.std(0, correction=0) + words.mean(0)
        rows[name][unknown] = drawn.to(rows[name].dtype)
    return rows


def _check_encoder(captioner: Captioner, other: Captioner, model: str, skips: bool) -> bool:
    """Check that the decoder was trained with this encoder; with ``skips``, only warn if it was not.

    Returns whether the encoders have the same classes. A fine-tuned encoder must not be frozen.
    """
    first, second = captioner.encoder, other.encoder
    pairs = [(first, second)]
    if isinstance(first, TwoStreamEncoder) and isinstance(second, TwoStreamEncoder):
        pairs = [*zip(first.streams, second.streams, strict=True)]
    same_kind = all(type(own) is type(theirs) for own, theirs in pairs)
    if same_kind and any(theirs.trainable and not own.trainable for own, theirs in pairs):
        raise UsageError(
            f"the encoder of '{model}' was fine-tuned together with its decoder: give the encoder the "
            "option trainable: true, and --model.encoder_learning_rate 0 to keep it as it is"
        )
    # The weights of a trained encoder are copied later, except those of a package.
    frozen = other.encoder.external and not other.encoder.trainable
    compared = [(o, t) for o, t in pairs if frozen or (o.external and t.external)]
    same_design = same_kind and all(own.design == theirs.design for own, theirs in pairs)
    if same_design and all(_same_weights(own, theirs) for own, theirs in compared):
        return True
    theirs, ours = (_options(part.config["encoder"]) for part in (other, captioner))
    differences = [
        f"{name} is {theirs.get(name)}, here {ours.get(name)}"
        for name in theirs | ours
        if theirs.get(name) != ours.get(name) and not name.endswith(".trainable")
    ]
    reason = (
        f"the decoder of '{model}' was trained with another encoder: "
        f"{', '.join(differences[:3]) or 'its weights differ'}"
    )
    if not skips:
        raise UsageError(
            f"{reason}; give the options of its encoder, or --model.init_mismatch skip to start from "
            "its weights anyway"
        )
    _LOG.warning("%s", reason)
    return same_kind


def _same_weights(own: Encoder, theirs: Encoder) -> bool:
    own.load_pretrained()
    return own.fingerprint() == theirs.fingerprint()


def _options(tree: Any, name: str = "encoder") -> dict[str, Any]:
    """Return the classes and options of a configuration tree by their names."""
    if not isinstance(tree, Mapping):
        return {name: tree}
    options = {name: tree["class_path"]}
    for option, value in tree.get("init_args", {}).items():
        options |= _options(value, f"{name}.{option}")
    return options
