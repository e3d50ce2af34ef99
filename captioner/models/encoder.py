"""Photo → annotation vectors: a CNN, cut before its pooling."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from torch import Size, Tensor, nn

from captioner.errors import ModelError
from captioner.models.annotations import Annotations
from captioner.models.folding import folded
from captioner.models.registry import Component
from captioner.models.trunks import Channels, Interpolation, Trunk, trunk

# Pixels at once. On a CPU 4 pictures of 224 × 224: its caches then hold the feature maps between two
# layers. Elsewhere 64 of them where nothing is learned: memory does not grow with the batch.
IN_CACHE, ON_DEVICE = 250_000, 64 * 224 * 224


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the encoder's input: resized as a whole, then normalised.

    Attributes:
        height, width: the size in pixels; the aspect ratio is not kept, so that the annotations
            cover the whole picture.
        interpolation: ``bicubic`` or ``bilinear``.
        mean, std: per channel, for values in [0, 1].
    """

    height: int
    width: int
    interpolation: Interpolation
    mean: Channels
    std: Channels


class Encoder(Component, kind="encoder"):
    """Base of all encoders.

    Attributes:
        out_dim: D, the width of an annotation vector.
        preprocessing: what the images must have gone through, normalisation excepted.
        trainable: whether the encoder learns; a frozen one stays in eval mode, and what it gives can
            be cached.
    """

    out_dim: int
    preprocessing: Preprocessing
    trainable: bool

    def load_pretrained(self) -> None:
        """Fetches the pretrained weights, once; the constructor never does."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Hex digits that change with the weights, the architecture or the preprocessing."""
        raise NotImplementedError

    def forward(self, images: UInt8[Tensor, "B 3 H W"]) -> Annotations:
        """Annotations of images resized as ``preprocessing`` says, values in 0 … 255."""
        raise NotImplementedError


class CNNEncoder(Encoder):
    """Any classification CNN of torchvision or timm, up to its last feature map of a given stride.

    Args:
        name: ``efficientnet_lite0``, ``…1`` or ``…2`` (weights from a package, nothing to download);
            ``timm/NAME``; ``torchvision/NAME``; or a bare name, looked up in torchvision, then timm.
        image_size: side in pixels of the square the whole picture is resized to.
        stride: pixels per cell; 32 gives 7 × 7 annotation vectors at 224, 16 gives 14 × 14.
        finer: strides of earlier feature maps as well, each averaged over every cell and appended to
            its vector: what deep layers forget, like the exact colour (hypercolumns: Hariharan et
            al. 2015, arXiv 1411.5752).
        weights: ``DEFAULT`` or one of the library's own names for them; ``FLICKR8K``, of
            ``efficientnet_lite2``: fine-tuned with the bundled models; null starts from random ones.
        trainable: whether the CNN learns too; a number: only its last so many layers, batch norms and
            the like not counted. Batch-norm statistics stay frozen all the same. A CNN that does not
            learn is run as ``folding`` makes it: what is written into its tensors after that, other than
            by ``load_state_dict``, is not seen.

    Raises:
        ModelError: unknown name, no feature map of a stride, unknown weights, a finer stride that is not
            finer.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str = "efficientnet_lite0",
        image_size: int = 224,
        stride: int = 32,
        weights: str | None = "DEFAULT",
        trainable: bool | int = False,
        finer: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not all(0 < fine < stride for fine in finer) or len(set(finer)) < len(finer):
            raise ModelError(
                f"finer={list(finer)}: expected different strides below the encoder's own of {stride}"
            )
        self.name, self.weights = name, weights
        self.trainable = bool(trainable)
        self.strides = (stride, *finer)
        self.trunk = trunk(name, weights, image_size, self.strides)
        self.trunk.to(memory_format=torch.channels_last)  # twice as fast on a CPU
        self.trunk.requires_grad_(False).eval()
        for layer in _last_layers(self.trunk, trainable):
            layer.requires_grad_(True)
        self.out_dim = sum(self.trunk.channels)
        mean, std, interpolation = self.trunk.normalisation()
        self.preprocessing = Preprocessing(image_size, image_size, interpolation, mean, std)
        # Not in the state: they follow from the name.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(3, 1, 1), persistent=False)
        self._ready = weights is None
        self._folded: tuple[Size, Trunk] | None = (
            None  # a module in a tuple is no part of the state
        )
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

    @property
    def external(self) -> bool:
        """Whether the weights are those of an installed package, and so not in the state."""
        return self.trunk.packaged and not self.trainable and bool(self.weights)

    def load_pretrained(self) -> None:
        """Fetches the pretrained weights, once, from a package or the library's own download.

        Raises:
            ModelError: the package is not installed, or the download fails.
        """
        if not self._ready:
            self.trunk.load_pretrained()
            self._ready = True

    def fingerprint(self) -> str:
        """A SHA-256 over weights, name, strides and preprocessing."""
        self._check_ready()
        digest = hashlib.sha256(
            repr((self.name, self.strides, asdict(self.preprocessing))).encode()
        )
        for key, tensor in sorted(self.trunk.state_dict().items()):
            if not tensor.is_floating_point():
                continue  # a counter of batches seen, which changes nothing that is computed
            digest.update(key.encode())
            # + 0.0: −0 becomes 0, as it does in a moving average; they compute the same.
            digest.update((tensor.detach().cpu().contiguous() + 0.0).numpy().tobytes())
        return digest.hexdigest()

    def forward(self, images: UInt8[Tensor, "B 3 H W"]) -> Annotations:
        """Feature map cells in raster order."""
        self._check_ready()
        learning = self.trainable and torch.is_grad_enabled()
        on_cpu = images.device.type == "cpu"
        at_once = len(images)
        if on_cpu or not learning:
            at_once = _at_once(images)
        with ExitStack() as modes:
            modes.enter_context(torch.set_grad_enabled(learning))
            if on_cpu and learning:
                # A CPU's gradients of convolutions take 2.5 times as long in bfloat16 as in float32.
                modes.enter_context(torch.autocast("cpu", enabled=False))
            parts = [self._features(some) for some in torch.split(images, max(1, at_once))]
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts)
        rows, columns = vectors.shape[2:]
        return Annotations(vectors.flatten(2).transpose(1, 2), (rows, columns))

    def _features(self, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B D rows columns"]:
        """The last feature map, with what finer ones have in each of its cells."""
        pixels = (images - self.mean) / self.std
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        features, *finer = self._network(pixels)(pixels)
        pooled = [F.adaptive_avg_pool2d(fine, features.shape[2:]) for fine in finer]
        return torch.cat([features, *pooled], 1)

    def _network(self, example: Float[Tensor, "B 3 H W"]) -> Trunk:
        """The CNN, or where it does not learn what is faster and computes the same."""
        if self.trainable or not len(example):
            return self.trunk
        made = self._folded
        if made is None or made[0] != example.shape[2:]:
            made = (example.shape[2:], folded(self.trunk, example[:1], {1, _at_once(example)}))
            self._folded = made
        return made[1]

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """To another device or precision."""
        self._folded = None
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and other processes fold their own."""
        return {**self.__dict__, "_folded": None}

    def train(self, mode: bool = True) -> "CNNEncoder":
        """The CNN stays in eval mode: its batch-norm statistics are ImageNet's."""
        super().train(mode)
        self.trunk.eval()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Empty if the weights are an installed package's: every checkpoint would repeat them."""
        if not self.external:
            return super().state_dict(*args, **kwargs)
        return kwargs.get("destination", {})

    def _check_ready(self) -> None:
        if not self._ready:
            raise ModelError(
                f"encoder {self.name!r} has no weights yet: call load_pretrained() or load a state dict"
            )


def _at_once(images: Shaped[Tensor, "B 3 H W"]) -> int:
    """How many images of their size go through a CNN together where nothing is learned, or on a CPU."""
    pixels = IN_CACHE if images.device.type == "cpu" else ON_DEVICE
    return max(1, pixels // (images.shape[2] * images.shape[3]))


def _last_layers(trunk: nn.Module, number: bool | int) -> list[nn.Module]:
    """The last layers with weights to multiply by, and all that is between and behind them.

    Args:
        trunk: its modules are in the order in which they are used.
        number: of such layers; True for all.

    Raises:
        ModelError: there are not so many.
    """
    layers = [module for module in trunk.modules() if not list(module.children())]
    weighty = [
        place
        for place, module in enumerate(layers)
        if any(parameter.ndim > 1 for parameter in module.parameters())
    ]
    if number is True:
        return [trunk]
    if not 0 <= number <= len(weighty):
        raise ModelError(
            f"trainable must be true, false or the number of the last layers that learn, 0 to "
            f"{len(weighty)}, got {number}"
        )
    return layers[weighty[-number] :] if number else []


def _after_load(encoder: nn.Module, incompatible: Any) -> None:
    """Weights that are a package's are not missing from a state dict; others are ready now."""
    assert isinstance(encoder, CNNEncoder)
    encoder._folded = None
    own = [key for key in incompatible.missing_keys if "trunk." in key]
    if encoder.external:
        for key in own:
            incompatible.missing_keys.remove(key)
    elif not own:
        encoder._ready = True
