"""The whole model: encoder → refiner → decoder, with the words it speaks."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Int, UInt8
from torch import Tensor, nn

from captioner.errors import ModelError, unknown
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder, Detail
from captioner.models.encoder import Encoder
from captioner.models.refiners import Refiner
from captioner.models.registry import build, portable
from captioner.text import Vocabulary

PARTS = ("encoder", "refiner", "decoder")


class Captioner(nn.Module):
    """Photo → annotations → words.

    Args:
        encoder: images → annotations.
        refiner: annotations → annotations; trained, so its work is not cached.
        decoder: annotations and the words so far → the next word.
        vocabulary: the words of the decoder's ids.
        config: the tree this was built from; a model folder stores it.
    """

    def __init__(
        self,
        encoder: Encoder,
        refiner: Refiner,
        decoder: Decoder,
        vocabulary: Vocabulary,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.refiner = refiner
        self.decoder = decoder
        self.vocabulary = vocabulary
        self.config = dict(config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], vocabulary: Vocabulary) -> "Captioner":
        """Builds the parts and passes each the sizes of the one before; downloads nothing.

        Args:
            config: ``{"encoder": tree, "refiner": tree, "decoder": tree}``, each tree as
                ``captioner.models.registry.build`` takes it.
            vocabulary: the words.

        Raises:
            ModelError: a part is missing or unknown, or cannot be built.
        """
        for part in PARTS:
            if part not in config:
                raise ModelError(
                    f"the model's configuration has no {part!r}; it needs {', '.join(PARTS)}"
                )
        for part in config:
            if part not in PARTS:
                raise ModelError(unknown("part of a captioner", part, PARTS))
        encoder = build("encoder", config["encoder"])
        refiner = build("refiner", config["refiner"], in_dim=encoder.out_dim)
        decoder = build(
            "decoder", config["decoder"], vocab_size=len(vocabulary), annotation_dim=refiner.out_dim
        )
        return cls(
            encoder, refiner, decoder, vocabulary, {part: portable(config[part]) for part in PARTS}
        )

    def encode(self, images: UInt8[Tensor, "B 3 H W"]) -> Annotations:
        """Images at the encoder's size → annotations as the encoder gives them."""
        return self.encoder(images)

    def forward(
        self, annotations: Annotations, tokens: Int[Tensor, "B *R T"], detail: Detail = "shown"
    ) -> Decoded:
        """Teacher forcing from encoded images: refine, then decode."""
        return self.decoder(self.refiner(annotations), tokens, detail)
