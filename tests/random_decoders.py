"""Decoders with random weights that are large enough to matter."""

from typing import Any

import torch

from captioner.models.decoder import Decoder
from captioner.models.registry import build


def random_decoder(
    class_path: str, options: dict[str, Any], vocab_size: int, annotation_dim: int
) -> Decoder:
    """A decoder in eval mode and double precision, the same one at every call."""
    torch.manual_seed(4)
    tree = {"class_path": class_path, "init_args": options}
    decoder = build("decoder", tree, vocab_size=vocab_size, annotation_dim=annotation_dim)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()
