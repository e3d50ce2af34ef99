"""The parts of a captioner and the whole; independent of Lightning.

Importing this package imports every module in its folder, so that configurations can name a class in a
new file without an import line here.
"""

from importlib import import_module
from pkgutil import iter_modules

from captioner.models.annotations import Annotations
from captioner.models.attention import Attention
from captioner.models.attention_on_attention import AoARefiner, AttentionOnAttention
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoded, Decoder
from captioner.models.distributions import Distribution, Entmax, Hard, Soft, Sparsemax, Uniform
from captioner.models.encoder import CNNEncoder, Encoder, TwoStreamEncoder, ViTEncoder
from captioner.models.local_attention import LocalM, LocalP, LocalP2D
from captioner.models.lstm import LSTMDecoder
from captioner.models.luong import LuongDecoder
from captioner.models.meshed import MemoryNeck, MeshedDecoder
from captioner.models.multihead import MultiHead
from captioner.models.neck import (
    SAGAN,
    Blind,
    Convolutional,
    Identity,
    Local2D,
    Neck,
    Projection,
    TransformerNeck,
)
from captioner.models.regions import RegionFeatures
from captioner.models.scores import (
    Additive,
    Concat,
    Cosine,
    Distance,
    Dot,
    General,
    Location,
    ScaledDot,
    Score,
)
from captioner.models.top_down import TopDownDecoder
from captioner.models.transformer import TransformerDecoder

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
