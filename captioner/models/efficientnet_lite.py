"""EfficientNet-Lite in plain PyTorch, with the tensor names of timm's ``tf_efficientnet_lite``.

It is the encoder of the bundled models, and is defined here because importing timm and torchvision takes
longer than captioning a photo.
"""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

WIDTH_DEPTH = {
    "efficientnet_lite0": (1.0, 1.0),
    "efficientnet_lite1": (1.0, 1.1),
    "efficientnet_lite2": (1.1, 1.2),
}
# Kernel size, stride, expansion, channels and number of blocks of every stage (Tan, Le 2019, table 1).
STAGES = (
    *((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3)),
    *((5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1)),
)
LAST_STAGE = {2: 0, 4: 1, 8: 2, 16: 4, 32: 6}  # the deepest stage of each stride
HEAD = 1280  # channels of the convolution behind the last stage


class Conv2dSame(nn.Conv2d):
    """A convolution with TensorFlow's ``SAME`` padding: an odd pixel goes to the bottom or right."""

    def forward(self, input: Tensor) -> Tensor:
        padding: list[int] = []
        axes = zip(input.shape[2:], self.kernel_size, self.stride, strict=True)
        for size, kernel, stride in reversed(list(axes)):
            total = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
            padding += [total // 2, total - total // 2]
        return super().forward(F.pad(input, padding))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    if stride == 1:
        return nn.Conv2d(inputs, outputs, kernel, 1, kernel // 2, groups=groups, bias=False)
    return Conv2dSame(inputs, outputs, kernel, stride, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Separable(nn.Module):
    """A depthwise and a pointwise convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = _conv(inputs, inputs, kernel, groups=inputs), _norm(inputs)
        self.conv_pw, self.bn2 = _conv(inputs, outputs, 1), _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv_pw(F.relu6(self.bn1(self.conv_dw(x)), inplace=True)))


class InvertedResidual(nn.Module):
    """Expand, convolve every channel alone, project, and add the input if the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = expand * inputs
        self.conv_pw, self.bn1 = _conv(inputs, inner, 1), _norm(inner)
        self.conv_dw, self.bn2 = _conv(inner, inner, kernel, stride, inner), _norm(inner)
        self.conv_pwl, self.bn3 = _conv(inner, outputs, 1), _norm(outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu6(self.bn1(self.conv_pw(x)), inplace=True)
        inner = F.relu6(self.bn2(self.conv_dw(inner)), inplace=True)
        projected = self.bn3(self.conv_pwl(inner))
        return projected + x if self.residual else projected


class EfficientNetLite(nn.Module):
    """The network up to the deepest of the feature maps with these strides in pixels per cell."""

    def __init__(self, name: str, strides: Sequence[int]) -> None:
        super().__init__()
        width, depth = WIDTH_DEPTH[name]
        self.strides, channels, stages = tuple(strides), 32, []
        self.conv_stem, self.bn1 = _conv(3, channels, 3, 2), _norm(channels)
        for number, (kernel, stride, expand, outputs, count) in enumerate(STAGES):
            if number > LAST_STAGE[max(strides)]:
                break
            outputs = channels_of(outputs, width)
            if 0 < number < len(STAGES) - 1:
                count = math.ceil(count * depth)
            first = (
                InvertedResidual(channels, outputs, kernel, stride, expand)
                if number
                else Separable(channels, outputs, kernel)
            )
            others = (
                InvertedResidual(outputs, outputs, kernel, 1, expand) for _ in range(1, count)
            )
            stages.append(nn.Sequential(first, *others))
            channels = outputs
        self.blocks = nn.Sequential(*stages)
        if 32 in strides:
            self.conv_head, self.bn2 = _conv(channels, HEAD, 1), _norm(HEAD)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.weight[:, 0].numel() // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    @staticmethod
    def channels(name: str) -> dict[int, int]:
        """Return the channels of the feature map of each stride."""
        width = WIDTH_DEPTH[name][0]
        maps = {s: channels_of(STAGES[last][3], width) for s, last in LAST_STAGE.items()}
        return {**maps, 32: HEAD}

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """Return the feature maps (B, channels, rows, columns) in the order of the strides."""
        x, maps = F.relu6(self.bn1(self.conv_stem(pixels)), inplace=True), {}
        for number, stage in enumerate(self.blocks):
            x = stage(x)
            maps[number] = x
        if 32 in self.strides:
            maps[LAST_STAGE[32]] = F.relu6(self.bn2(self.conv_head(x)), inplace=True)
        return [maps[LAST_STAGE[stride]] for stride in self.strides]


def channels_of(channels: int, width: float) -> int:
    """Scale a number of channels and round it to a multiple of 8, at least 90 % of the exact value."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * scaled else rounded + 8
