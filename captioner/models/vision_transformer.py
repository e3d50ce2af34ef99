"""Vision Transformers (Dosovitskiy et al. 2021, arXiv 2010.11929): image → one vector per patch."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from captioner.models.backbone import Backbone, bundled_file, timm_name, timm_preprocessing
from captioner.models.registry import require
from captioner.resources import encoder_weights

DINOV2_SMALL = "dinov2_small"


class PatchAttention(nn.Module):
    """Multi-head self-attention of patches, with one matrix for queries, keys and values."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "B L d"]) -> Float[Tensor, "B L d"]:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 3 B h L d/h
        context = F.scaled_dot_product_attention(*parts.unbind())
        return self.proj(context.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention and an MLP, each ``x + γ f(norm(x))``.

    γ is a learned factor for every channel (Touvron et al. 2021, arXiv 2103.17239, §2).
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6)
        self.ls1, self.ls2 = (nn.ParameterDict({"gamma": torch.ones(dim)}) for _ in range(2))
        self.attn = PatchAttention(dim, heads)
        fc1, fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.GELU(), fc2=fc2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1["gamma"] * self.attn(self.norm1(x))
        return x + self.ls2["gamma"] * self.mlp(self.norm2(x))


class DINOv2Small(nn.Module):
    """The first ten of the twelve blocks of DINOv2's ViT-S/14 (Oquab et al. 2023, arXiv 2304.07193).

    Defined here, with the tensor names of timm, because importing timm takes longer than captioning a
    photo. Patches of one object are most alike after the tenth block (docs/encoders.md).
    """

    patch, dim, heads, depth = 14, 384, 6, 10

    def __init__(self, image_size: int, depth: int = 10) -> None:
        super().__init__()
        self.side = image_size // self.patch
        projection = nn.Conv2d(3, self.dim, self.patch, self.patch)
        self.patch_embed = nn.Sequential(OrderedDict(proj=projection, flatten=nn.Flatten(2)))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + self.side**2, self.dim))
        self.blocks = nn.ModuleList(Block(self.dim, self.heads) for _ in range(depth))
        self.norm = nn.LayerNorm(self.dim, 1e-6)

    def forward(
        self, pixels: Float[Tensor, "B 3 H W"], layers: Sequence[int]
    ) -> list[Float[Tensor, "B L d"]]:
        """Return the normalised patch vectors after each of these blocks, counted from 1."""
        patches = self.patch_embed(pixels).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], 1) + self.pos_embed
        after = {}
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            if number in layers:
                after[number] = self.norm(x)[:, 1:]
        return [after[layer] for layer in layers]


class TransformerBackbone(Backbone):
    """A Vision Transformer; its feature map holds the outputs of several blocks, concatenated."""

    def __init__(self, image_size: int, patch: int, depth: int, layers: Sequence[int]) -> None:
        super().__init__()
        require(
            image_size % patch == 0,
            f"image_size of encoder {self.name!r} must be a multiple of {patch}, got {image_size}",
        )
        require(
            len(layers) > 0 and all(1 <= layer <= depth for layer in layers),
            f"encoder {self.name!r} has the layers 1 to {depth}, got {list(layers)}",
        )
        self.layers, self.side = tuple(layers), image_size // patch

    def forward(self, pixels: Tensor) -> list[Tensor]:
        vectors = torch.cat(self.patches(pixels), -1)
        return [torch.unflatten(vectors.transpose(1, 2), 2, (self.side, self.side))]

    def patches(self, pixels: Tensor) -> list[Tensor]:
        """Return the patch vectors (B, L, d) after every requested block."""
        return self.network(pixels, self.layers)


class _PackagedTransformer(TransformerBackbone):
    """DINOv2's ViT-S/14 with the weights in ``pretrained/encoders``."""

    name, packaged, interpolation = DINOV2_SMALL, True, "bicubic"

    def __init__(self, weights: str | None, image_size: int, layers: Sequence[int]) -> None:
        self.file = bundled_file(DINOV2_SMALL, weights)
        super().__init__(image_size, DINOv2Small.patch, DINOv2Small.depth, layers)
        self.network = DINOv2Small(image_size, max(layers)).eval()
        self.channels = [DINOv2Small.dim * len(layers)]

    def _fetch(self) -> dict[str, Tensor]:
        tensors = load_file(self.file or encoder_weights(DINOV2_SMALL)["SALIENCY"])
        tensors["pos_embed"] = resample(tensors["pos_embed"].float(), self.side)
        return tensors


class _TimmTransformer(TransformerBackbone):
    """Any Vision Transformer of timm."""

    def __init__(
        self, name: str, weights: str | None, image_size: int, layers: Sequence[int]
    ) -> None:
        import timm
        from timm.models import VisionTransformer

        self.name = timm_name(name, weights)
        self.size = image_size
        with torch.device("meta"):
            blank: Any = timm.create_model(self.name, num_classes=0)
        require(
            isinstance(blank, VisionTransformer),
            f"timm model {name!r} is no plain Vision Transformer; use CNNEncoder for it",
        )
        super().__init__(image_size, blank.patch_embed.patch_size[0], len(blank.blocks), layers)
        self.network = self._create(pretrained=False)
        self.mean, self.std, self.interpolation = timm_preprocessing(self.network)
        deepest = [max(layers) - 1]
        self.network.prune_intermediate_layers(deepest, prune_norm=False, prune_head=True)
        self.channels = [self.network.embed_dim * len(layers)]

    def _create(self, pretrained: bool) -> Any:
        import timm

        return timm.create_model(self.name, pretrained, num_classes=0, img_size=self.size).eval()

    def _fetch(self) -> dict[str, Tensor]:
        return self._create(pretrained=True).state_dict()

    def patches(self, pixels: Tensor) -> list[Tensor]:
        ordered = sorted(self.layers)
        found = self.network.forward_intermediates(
            pixels,
            indices=[layer - 1 for layer in ordered],
            norm=True,
            stop_early=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        return [found[ordered.index(layer)] for layer in self.layers]


def resample(positions: Float[Tensor, "1 P d"], side: int) -> Float[Tensor, "1 L d"]:
    """Interpolate the position embeddings of a square grid, after that of the class token."""
    first, others = positions[:, :1], positions[:, 1:]
    old = round(others.shape[1] ** 0.5)
    grid = others.transpose(1, 2).reshape(1, -1, old, old)
    grid = F.interpolate(grid, (side, side), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([first, grid.flatten(2).transpose(1, 2)], 1)


def transformer(
    name: str, weights: str | None, image_size: int, layers: Sequence[int]
) -> TransformerBackbone:
    """Build the network that ``ViTEncoder`` describes, with random weights."""
    if name == DINOV2_SMALL:
        return _PackagedTransformer(weights, image_size, layers)
    library, _, bare = name.rpartition("/")
    require(
        library in ("", "timm"), f"encoder {name!r}: expected {DINOV2_SMALL}, timm/NAME or NAME"
    )
    return _TimmTransformer(bare, weights, image_size, layers)
