"""Image → annotation vectors: by a CNN, a Vision Transformer, or both."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, UInt8
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.backbone import Backbone, Channels, Interpolation, backbone
from captioner.models.registry import Component, require
from captioner.models.vision_transformer import DINOV2_SMALL, transformer
from captioner.photos.region_files import RegionFiles

Images = UInt8[Tensor, "B 3 H W"]
Inputs = Images | Float32[Tensor, "B N D5"]  # pixels, or rows of ``RegionFiles.read``


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the encoder's input: resized as a whole to (height, width), normalised."""

    height: int
    width: int
    interpolation: Interpolation
    mean: Channels  # for values in [0, 1]
    std: Channels


class Encoder(Component, kind="encoder"):
    """Base of all encoders."""

    out_dim: int  # D, the width of an annotation vector
    key_dim: int | None = None  # the width of its key; None if the vector is the key as well
    # The caller resizes, ``forward`` normalises; or the caller reads region features.
    preprocessing: Preprocessing | RegionFiles
    trainable: bool  # False for a frozen encoder, whose annotations can be cached
    external = False  # whether weights come from an installed package and are not in state dicts

    @property
    def design(self) -> object:
        """What determines the vectors besides the weights; designs can be compared."""
        return self.preprocessing

    def load_pretrained(self) -> None:
        """Fetch the pretrained weights at the first call; the constructor does not fetch them."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return a SHA-256 that changes with the weights, the architecture or the preprocessing."""
        raise NotImplementedError

    def blank(self) -> Tensor:
        """Return the input for one image that shows nothing."""
        assert isinstance(self.preprocessing, Preprocessing)
        size = self.preprocessing
        return torch.zeros(1, 3, size.height, size.width, dtype=torch.uint8)

    def forward(self, images: Images) -> Annotations:
        """Encode images of the size in ``preprocessing``, with values 0 … 255."""
        raise NotImplementedError


class BackboneEncoder(Encoder, abstract=True):
    """Base of encoders that wrap one network; ``make`` builds it, cut at feature maps."""

    preprocessing: Preprocessing
    make: ClassVar[Any]  # from name, weights, image_size and cuts to a Backbone
    mean: Tensor
    std: Tensor

    def __init__(
        self, name: str, cuts: Sequence[int], image_size: int, weights: str | None, trainable: int
    ) -> None:
        super().__init__()
        self.name, self.cuts, self.weights = name, tuple(cuts), weights
        self.trainable = bool(trainable)
        network: Backbone = self.make(name, weights, image_size, cuts)
        self.backbone = network
        self.external = network.packaged and not trainable and weights is not None
        self.backbone.to(memory_format=torch.channels_last)  # twice as fast on a CPU
        self.backbone.requires_grad_(False).eval()
        for layer in _last_layers(network, trainable):
            layer.requires_grad_(True)
        self.out_dim = sum(network.channels)
        normalisation = {"mean": network.mean, "std": network.std}
        self.preprocessing = Preprocessing(
            image_size, image_size, network.interpolation, **normalisation
        )
        for buffer, values in normalisation.items():  # the name of the network determines both
            self.register_buffer(buffer, 255 * torch.tensor(values).view(3, 1, 1), persistent=False)
        self._ready = weights is None
        self.register_load_state_dict_pre_hook(_before_load)  # type: ignore[no-untyped-call]

    @property
    def design(self) -> object:
        return self.name, self.cuts, self.preprocessing

    def load_pretrained(self) -> None:
        """Fetch the weights from a package or by downloading them; ModelError if that fails."""
        if not self._ready:
            self.backbone.load_pretrained()
            self._ready = True

    def fingerprint(self) -> str:
        self._check_ready()
        digest = hashlib.sha256(repr((self.name, self.cuts, asdict(self.preprocessing))).encode())
        for key, tensor in sorted(self.backbone.state_dict().items()):
            if not tensor.is_floating_point():
                continue  # the step counter of a batch norm
            digest.update(key.encode())
            # Adding 0.0 turns −0 into 0, as a moving average of the weights does.
            digest.update((tensor.detach().cpu().contiguous() + 0.0).numpy().tobytes())
        return digest.hexdigest()

    def forward(self, images: Images) -> Annotations:
        self._check_ready()
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            vectors = self._features(images)
        rows, columns = vectors.shape[2:]
        return Annotations(vectors.flatten(2).transpose(1, 2), (rows, columns))

    def _features(self, images: Images) -> Float[Tensor, "B D rows columns"]:
        """Append the averages of the other feature maps to each cell of the first one."""
        pixels = (images - self.mean) / self.std
        deepest, *others = self._maps(pixels.contiguous(memory_format=torch.channels_last))
        rows, columns = deepest.shape[2:]
        pooled = [F.adaptive_avg_pool2d(other, (rows, columns)) for other in others]
        return torch.cat([deepest, *pooled], 1)

    def _maps(self, pixels: Float[Tensor, "B 3 H W"]) -> list[Tensor]:
        return self.backbone(pixels)

    def train(self, mode: bool = True) -> "BackboneEncoder":
        """Keep the network in eval mode, so that pretrained batch-norm statistics do not change."""
        super().train(mode)
        self.backbone.eval()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the weights, or nothing if they come from an installed package."""
        if not self.external:
            return super().state_dict(*args, **kwargs)
        return kwargs.get("destination", {})

    def _check_ready(self) -> None:
        message = f"encoder {self.name!r} has no weights yet: call load_pretrained()"
        require(self._ready, message)


class CNNEncoder(BackboneEncoder):
    """Any classification CNN of torchvision or timm, up to its last feature map of a given stride.

    Args:
        name: ``efficientnet_lite0``, ``…1`` or ``…2`` (weights from a package, no download);
            ``timm/NAME``; ``torchvision/NAME``; or a bare name, looked up in torchvision, then timm.
        image_size: side in pixels of the square to which the whole image is resized.
        stride: pixels per cell; at 224 pixels, 32 gives 7 × 7 annotation vectors and 16 gives 14 × 14.
        weights: ``DEFAULT`` or another of the library's names; ``FLICKR8K`` for the
            bundled ``efficientnet_lite2``, fine-tuned on Flickr8k; None for random weights.
        trainable: True trains the CNN; a number trains only that many of its last layers, batch
            norms not counted. Batch-norm statistics are always frozen.
        extra_strides: smaller strides whose feature maps are averaged over each cell and appended
            to its vector, for details that deep layers lose (hypercolumns: Hariharan et al. 2015,
            arXiv 1411.5752).
    """

    make = staticmethod(backbone)

    def __init__(
        self,
        name: str = "efficientnet_lite0",
        image_size: int = 224,
        stride: int = 32,
        weights: str | None = "DEFAULT",
        trainable: bool | int = False,
        extra_strides: Sequence[int] = (),
    ) -> None:
        require(
            all(extra < stride for extra in extra_strides),
            f"extra_strides={list(extra_strides)}: expected strides below stride={stride}",
        )
        super().__init__(name, (stride, *extra_strides), image_size, weights, trainable)


class ViTEncoder(BackboneEncoder):
    """Any plain Vision Transformer of timm: one annotation vector per patch.

    Args:
        name: ``dinov2_small``, whose weights come with this package (ten blocks), or ``timm/NAME``.
        image_size: side in pixels of the square to which the whole image is resized; a multiple of
            the patch. At 224 pixels, patches of 14 give 16 × 16 annotation vectors.
        layers: the blocks, counted from 1, whose normalised outputs are concatenated.
        weights: ``DEFAULT`` or another of timm's tags; None for random weights.
        trainable: True trains the network; a number trains only that many of its last layers.
    """

    make = staticmethod(transformer)

    def __init__(
        self,
        name: str = DINOV2_SMALL,
        image_size: int = 224,
        layers: Sequence[int] = (10,),
        weights: str | None = "DEFAULT",
        trainable: bool | int = False,
    ) -> None:
        super().__init__(name, layers, image_size, weights, trainable)


class TwoStreamEncoder(Encoder):
    """The keys of one encoder and the values of another: A(q, K, V) with K ≠ V.

    A Vision Transformer separates objects sharply; a fine-tuned CNN identifies them better. Each stream
    keeps its own grid, and the neck interpolates the values to the grid of the keys.

    Args:
        keys: a one-stream encoder; its vectors are compared with the query.
        values: a one-stream encoder; its vectors are averaged.
    """

    parts: ClassVar[dict[str, str]] = {"keys": "encoder", "values": "encoder"}
    preprocessing: Preprocessing

    def __init__(
        self, keys: Callable[[], Encoder] = ViTEncoder, values: Callable[[], Encoder] = CNNEncoder
    ) -> None:
        super().__init__()
        self.keys, self.values = keys(), values()
        require(
            all(isinstance(encoder, BackboneEncoder) for encoder in (self.keys, self.values)),
            "a stream of a TwoStreamEncoder is a CNNEncoder, a ViTEncoder or one like them",
        )
        self.out_dim, self.key_dim = self.values.out_dim, self.keys.out_dim
        self.trainable = self.keys.trainable or self.values.trainable
        self.external = self.keys.external or self.values.external
        self.preprocessing = max(
            (encoder.preprocessing for encoder in self.streams), key=lambda size: size.height
        )

    def load_pretrained(self) -> None:
        for encoder in self.streams:
            encoder.load_pretrained()

    def fingerprint(self) -> str:
        fingerprints = "".join(encoder.fingerprint() for encoder in self.streams)
        return hashlib.sha256(fingerprints.encode()).hexdigest()

    def forward(self, images: Images) -> Annotations:
        """Encode images, given in the larger of the two input sizes."""
        keys, values = (encoder(_resized(images, encoder)) for encoder in self.streams)
        return replace(values, keys=keys)

    @property
    def streams(self) -> tuple[BackboneEncoder, BackboneEncoder]:
        """The encoders of keys and values, in the order of ``parts``."""
        return self.keys, self.values  # type: ignore[return-value]


def _last_layers(backbone: nn.Module, number: int) -> list[nn.Module]:
    """Return the last ``number`` layers with a weight matrix, and all layers after the first of them."""
    if number is True:
        return [backbone]
    layers = [module for module in backbone.modules() if not list(module.children())]
    weighted = [i for i, layer in enumerate(layers) if any(p.ndim > 1 for p in layer.parameters())]
    require(0 <= number <= len(weighted), f"trainable={number}: there are {len(weighted)} layers")
    return layers[weighted[-number] :] if number else []


def _before_load(
    encoder: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Fill in the weights of a package; mark others as ready if all their weights are given."""
    assert isinstance(encoder, BackboneEncoder)
    own = {f"{prefix}backbone.{key}": t for key, t in encoder.backbone.state_dict().items()}
    if encoder.external:
        for key, tensor in own.items():
            state_dict.setdefault(key, tensor)
    elif own.keys() <= state_dict.keys():
        encoder._ready = True


def _resized(images: Images, encoder: BackboneEncoder) -> UInt8[Tensor, "B 3 h w"]:
    """Shrink images to the size of an encoder."""
    size = (encoder.preprocessing.height, encoder.preprocessing.width)
    if images.shape[2:] == size:
        return images
    shrunk = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return shrunk.round().to(torch.uint8)
