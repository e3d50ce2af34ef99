"""Initial weights from another model, whose vocabulary may differ."""

import logging
from collections.abc import Iterator, Mapping
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

    The rows of words that both vocabularies contain are copied. The rows of new words, including their
    output biases, are drawn from normal distributions with the mean and the standard deviation of each
    component over the words of the other model.

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
    fits = _check_encoder(captioner, other, model, skips)
    parts = ["encoder"] if fits and other.encoder.trainable else []
    left_out: list[str] = []
    for part in (*parts, "neck", "decoder"):
        module = getattr(captioner, part)
        given, own = getattr(other, part).state_dict(), module.state_dict()
        if part == "decoder":
            given |= _word_rows(given, other.vocabulary, captioner.vocabulary)
        differing = {n: (_shape(given, n), _shape(own, n)) for n in own | given}
        differing = {name: shapes for name, shapes in differing.items() if len(set(shapes)) > 1}
        if part == "neck":
            for name in own.keys() - given.keys():
                if name.startswith(_ZERO_MAP):
                    del differing[name]
        if differing and not skips:
            reason = ", ".join(f"{n} ({a}, here {b})" for n, (a, b) in [*differing.items()][:3])
            raise UsageError(
                f"the weights of the {part} of '{model}' do not fit this configuration: {reason}; give "
                "the options of its config.json, or --model.init_mismatch skip to use those that fit"
            )
        module.load_state_dict({n: t for n, t in given.items() if n not in differing}, strict=False)
        left_out += [f"{part}.{name}" for name in differing]
    old, new = set(other.vocabulary.plain_words), set(captioner.vocabulary.plain_words)
    summary = (
        f"started from '{model}': {plural(len(old & new), 'word')} copied, {len(new - old):,} new, "
        f"{len(old - new):,} dropped"
    )
    if left_out:
        summary += f"; weights that do not fit: {', '.join(left_out)}"
    return stored.supervision, summary


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

    Returns:
        Whether the encoders have the same classes.

    Raises:
        UsageError: the encoders differ, or a fine-tuned encoder would be frozen (with ``skips``, too).
    """
    streams = [("", captioner.encoder, other.encoder)]
    if isinstance(captioner.encoder, TwoStreamEncoder) and isinstance(
        other.encoder, TwoStreamEncoder
    ):
        pairs = zip(captioner.encoder.streams, other.encoder.streams, strict=True)
        names = (f".init_args.{name}" for name in TwoStreamEncoder.parts)
        streams = [(name, *pair) for name, pair in zip(names, pairs, strict=True)]
    same_kind = all(type(own) is type(theirs) for _, own, theirs in streams)
    for name, own, theirs in streams:
        if same_kind and theirs.trainable and not own.trainable:
            raise UsageError(
                f"the encoder of '{model}' was fine-tuned together with its decoder: give "
                f"--model.encoder{name}.init_args.trainable true, and "
                "--model.encoder_learning_rate 0 to keep the encoder as it is"
            )
    # The weights of a trained encoder are copied later, except those of a package.
    frozen = other.encoder.external and not other.encoder.trainable
    compared = [(o, t) for _, o, t in streams if frozen or (o.external and t.external)]
    if (
        same_kind
        and all(own.design == theirs.design for _, own, theirs in streams)
        and all(_same(own, theirs) for own, theirs in compared)
    ):
        return True
    differences = ", ".join(_differences(other.config["encoder"], captioner.config["encoder"]))
    reason = (
        f"the decoder of '{model}' was trained with another encoder: "
        f"{differences or 'its weights differ'}"
    )
    if not skips:
        raise UsageError(
            f"{reason}; give the options of its encoder, or --model.init_mismatch skip to start from "
            "its weights anyway"
        )
    _LOG.warning("%s", reason)
    return same_kind


def _same(own: Encoder, theirs: Encoder) -> bool:
    """Whether two encoders have equal weights and options."""
    own.load_pretrained()
    return own.fingerprint() == theirs.fingerprint()


def _differences(theirs: Any, mine: Any, name: str = "encoder") -> Iterator[str]:
    """The options in which two configuration trees differ, except ``trainable``."""
    if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
        if theirs.get("class_path") != mine.get("class_path"):  # their options cannot be compared
            theirs, mine = {"": theirs["class_path"]}, {"": mine["class_path"]}
        for key in (key for key in dict.fromkeys([*theirs, *mine]) if key != "trainable"):
            inner = name if key in ("", "init_args") else f"{name}.{key}"
            yield from _differences(theirs.get(key), mine.get(key), inner)
    elif theirs != mine:
        yield f"{name} is {theirs}, here {mine}"


def _shape(weights: Mapping[str, Tensor], name: str) -> str:
    return " × ".join(map(str, weights[name].shape)) if name in weights else "missing"
