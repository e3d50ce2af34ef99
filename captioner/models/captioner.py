"""The whole model: encoder → neck → decoder, with its vocabulary."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from captioner.language.vocabulary import Vocabulary
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.encoder import Encoder, Inputs
from captioner.models.neck import Neck
from captioner.models.registry import build, portable, require
from captioner.photos.region_files import RegionFiles

PARTS = ("encoder", "neck", "decoder")


class Captioner(nn.Module):
    """Image → encoder → annotations → neck → annotations → decoder → words of the vocabulary.

    ``config`` holds the configuration trees of the parts, which a model folder stores.
    """

    def __init__(
        self,
        encoder: Encoder,
        neck: Neck,
        decoder: Decoder,
        vocabulary: Vocabulary,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.encoder, self.neck, self.decoder = encoder, neck, decoder
        self.vocabulary, self.config = vocabulary, dict(config)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], vocabulary: Vocabulary) -> "Captioner":
        """Build the parts from their trees without downloading anything; see ``build``.

        Raises ModelError if a part is missing, unknown or cannot be built.
        """
        require(
            set(config) == set(PARTS), f"expected the parts {', '.join(PARTS)}, got {list(config)}"
        )
        encoder = build("encoder", config["encoder"])
        neck = build("neck", config["neck"], in_dim=encoder.out_dim, key_dim=encoder.key_dim)
        decoder = build(
            "decoder", config["decoder"], vocab_size=len(vocabulary), annotation_dim=neck.out_dim
        )
        if isinstance(encoder.preprocessing, RegionFiles):
            for module in (*neck.modules(), *decoder.modules()):
                message = f"{type(module).__name__} needs a grid, which region features do not have"
                require(not getattr(module, "needs_grid", False), message)
        return cls(
            encoder, neck, decoder, vocabulary, {part: portable(config[part]) for part in PARTS}
        )

    def annotate(self, images: Inputs | Annotations) -> Annotations:
        """Compute what the decoder attends to: encoder → neck.

        ``images`` may be annotations that the encoder has computed before, such as cached ones.
        """
        encoded = images if isinstance(images, Annotations) else self.encoder(images)
        return self.neck(encoded)
