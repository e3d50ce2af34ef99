"""The parts of a captioner and the whole; none of them knows Lightning."""

from captioner.models.annotations import Annotations
from captioner.models.attention import Additive, Attention, Distribution, Score, Soft
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoded, Decoder
from captioner.models.encoder import CNNEncoder, Encoder
from captioner.models.lstm import LSTMDecoder
from captioner.models.luong import LuongDecoder
from captioner.models.refiners import (
    SAGAN,
    Blind,
    Convolutional,
    Identity,
    Local2D,
    Projection,
    Refiner,
    TransformerRefiner,
)
from captioner.models.transformer import TransformerDecoder

__all__ = [
    "SAGAN",
    "Additive",
    "Annotations",
    "Attention",
    "Blind",
    "CNNEncoder",
    "Captioner",
    "Convolutional",
    "Decoded",
    "Decoder",
    "Distribution",
    "Encoder",
    "Identity",
    "LSTMDecoder",
    "Local2D",
    "LuongDecoder",
    "Projection",
    "Refiner",
    "Score",
    "Soft",
    "TransformerDecoder",
    "TransformerRefiner",
]
