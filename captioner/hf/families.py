"""The families of models: how each is called, and where its image tokens and attentions are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from captioner.errors import CheckpointError

QUESTION = "Describe the image in one sentence."


@dataclass(frozen=True)
class Family:
    """How models of one kind are called.

    Attributes:
        architecture: the class in transformers, which ``config.json`` names.
        title: its attention, as shown to users.
        vision: path of the module that encodes pixels.
        features: path of the module whose output has a vector per image token.
        decode: call the model on ``pixel_values``, ``input_ids`` and further options; returns the
            library's output, with logits at every input.
        cross: the field of the output with cross-attention; None if image and text are one sequence,
            whose self-attention is ``attentions``.
        past: the field of the output with the self-attention of the text.
        start: the id with which captions start; None for a prompt of the processor.
        end: the ids that end a caption.
        max_length: largest number of tokens, if the model's own configuration has none.
    """

    architecture: str
    title: str
    vision: str
    features: str
    decode: Callable[..., Any]
    cross: str | None = None
    past: str = "attentions"
    start: Callable[[Any], int] | None = None
    end: Callable[[Any], Any] = lambda model: model.generation_config.eos_token_id
    max_length: int = 20


def _blip(model: Any, pixel_values: Any, input_ids: Any, **options: Any) -> Any:
    states = model.vision_model(pixel_values).last_hidden_state
    return model.text_decoder(input_ids, encoder_hidden_states=states, **options)


def _encoder_decoder(model: Any, pixel_values: Any, input_ids: Any, **options: Any) -> Any:
    return model(pixel_values=pixel_values, decoder_input_ids=input_ids, **options)


def _sequence(model: Any, **inputs: Any) -> Any:
    return model(**inputs)


def _start_of_decoder(model: Any) -> int:
    settings = model.generation_config
    start = settings.decoder_start_token_id
    return settings.bos_token_id if start is None else start


FAMILIES = {
    "blip": Family(
        "BlipForConditionalGeneration", "cross-attention", "vision_model", "vision_model", _blip,
        cross="cross_attentions", start=lambda model: model.config.text_config.bos_token_id,
        end=lambda model: model.config.text_config.sep_token_id,
    ),
    "vision-encoder-decoder": Family(
        "VisionEncoderDecoderModel", "cross-attention", "encoder", "encoder", _encoder_decoder,
        cross="cross_attentions", past="decoder_attentions", start=_start_of_decoder,
    ),
    "git": Family(
        "GitForCausalLM", "self-attention on image tokens", "git.image_encoder",
        "git.visual_projection", _sequence, start=lambda model: model.generation_config.bos_token_id,
    ),
    "smolvlm": Family(
        "SmolVLMForConditionalGeneration", "self-attention on image tokens", "model.vision_model",
        "model.connector", _sequence, max_length=64,
    ),
    "idefics3": Family(
        "Idefics3ForConditionalGeneration", "self-attention on image tokens", "model.vision_model",
        "model.connector", _sequence, max_length=64,
    ),
    "llava": Family(
        "LlavaForConditionalGeneration", "self-attention on image tokens", "model.vision_tower",
        "model.multi_modal_projector", _sequence, max_length=64,
    ),
}  # fmt: skip
"""The families by ``model_type`` in ``config.json``."""


def family_of(name: str, config: Mapping[str, Any]) -> Family:
    """Return the family of a model from its ``config.json``; raise CheckpointError if none fits."""
    kind, named = config.get("model_type"), config.get("architectures") or ()
    family = FAMILIES.get(str(kind))
    if family and (not named or family.architecture in named):
        return family
    known = ", ".join(f"{kind} ({family.architecture})" for kind, family in FAMILIES.items())
    raise CheckpointError(
        f"the model '{name}' is of model_type {kind!r:.60}, architectures {list(named)!r:.80}; maps are "
        f"known for {known}, without Python code of their own"
    )
