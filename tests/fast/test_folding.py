"""The fast encoder against the plain one: folded networks and batches in chunks."""

import copy

import pytest
import torch
from timm.layers import Conv2dSame
from torch import nn

from captioner import fast
from captioner.fast import folding
from captioner.fast.folding import fold
from captioner.models import CNNEncoder
from captioner.models.backbone import Backbone

pytestmark = pytest.mark.usefixtures("with_fast")


def photos(size, count=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def encoders(name, size=64, stride=32, **options):
    """A plain encoder and a fast one with the same weights, and random batch norms."""
    plain = CNNEncoder(name, size, stride, weights=None, **options).eval()
    generator = torch.Generator().manual_seed(2)
    for part in plain.backbone.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.running_mean, part.bias.data):
                tensor.normal_(0, 0.1, generator=generator)
            for tensor in (part.running_var, part.weight.data):
                tensor.uniform_(0.7, 1.3, generator=generator)
    faster = copy.deepcopy(plain).eval()  # a copy of a traced network forgets its mode
    assert fast.accelerate(faster) == {"": CNNEncoder}
    return plain, faster


def same(actual, expected):
    """Two results in float32; processors round differently, by up to 1e-4 of the norm."""
    assert actual.shape == expected.shape
    assert expected.any() or not expected.numel()
    assert (actual - expected).norm() <= 1e-4 * expected.norm()


def norms(network):
    return sum(isinstance(part, nn.BatchNorm2d) for part in network.modules())


class Network(Backbone):
    """A sequence of modules."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        for part in parts:
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
                part.running_mean.fill_(0.5)
                part.running_var.fill_(3.0)
        self.eval().requires_grad_(False)

    def forward(self, pixels):
        for part in self.parts:
            pixels = part(pixels)
        return [pixels]


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("efficientnet_lite0", 0),
        ("torchvision/resnet18", 0),
        ("timm/resnet10t", 0),
        # Norms before convolutions: those that read concatenated maps stay.
        ("torchvision/densenet121", 6 + 12 + 24 + 3),
    ],
)
def test_norms_are_folded_and_the_vectors_are_the_same(name, left):
    plain, faster = encoders(name, 64, 16, extra_strides=[8])
    keys, fingerprint = faster.state_dict().keys(), faster.fingerprint()
    with torch.no_grad():
        expected = plain(photos(64)).vectors
    for _ in range(2):
        same(faster(photos(64)).vectors, expected)
    network = fold(faster.backbone, torch.randn(1, 3, 64, 64))
    assert norms(network) == left <= norms(faster.backbone) == norms(plain)
    assert faster.state_dict().keys() == keys
    assert faster.fingerprint() == fingerprint
    same(copy.deepcopy(faster)(photos(64)).vectors, expected)  # a copy of an encoder in use


class Branching(Network):
    """The sum reads the output of the convolution as well as the norm does."""

    def forward(self, pixels):
        features = self.parts[0](pixels)
        return [features + self.parts[1](features)]


def convolution():
    return nn.Conv2d(3, 3, 1)


def norm(**options):
    return nn.BatchNorm2d(3, **options)


USED_TWICE = convolution()


@pytest.mark.parametrize(
    ("network", "left"),
    [
        (Network(convolution(), norm(), convolution(), nn.ReLU(), norm()), 1),
        (Network(convolution(), norm(), convolution(), norm(track_running_stats=False)), 1),
        (Network(convolution(), norm(), USED_TWICE, norm(), USED_TWICE, norm()), 2),
        (Branching(convolution(), norm()), 1),
    ],
    ids=["activation", "no statistics", "convolution twice", "branch"],
)
def test_norms_that_cannot_be_folded_are_left(network, left):
    pixels = torch.randn(2, 3, 4, 4)
    folded = fold(network, pixels)
    assert norms(folded) == left
    same(folded(pixels)[0], network(pixels)[0])


@pytest.mark.parametrize("size", [(9, 9), (7, 12)])
@pytest.mark.parametrize("kernel", [1, 2, (5, 4)])
@pytest.mark.parametrize("options", [{"stride": 2}, {"stride": (1, 3)}, {"dilation": 2}])
def test_same_padding_becomes_a_setting_of_the_convolution(size, kernel, options):
    torch.manual_seed(4)
    parts = [Conv2dSame(3, 6, kernel, groups=3, **options), nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1)]
    network, pixels = Network(*parts), torch.randn(2, 3, *size)
    folded = fold(network, pixels[:1])
    same(folded(pixels)[0], network(pixels)[0])
    assert norms(folded) == 0
    assert isinstance(folded.parts[0], Conv2dSame) == ("dilation" in options)


def test_padding_follows_the_size_of_the_images():
    plain, faster = encoders("efficientnet_lite0")
    for size in (64, 65, 33, 64):
        same(faster(photos(size)).vectors, plain(photos(size)).vectors)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_new_weights_are_folded_again(mode):
    _, faster = encoders("torchvision/resnet18")
    other = CNNEncoder("torchvision/resnet18", 64, weights=None).eval()
    with mode():
        faster(photos(64))
        expected = other(photos(64)).vectors
    faster.load_state_dict(other.state_dict())
    with mode():
        same(faster(photos(64)).vectors, expected)
        assert faster.double()(photos(64)).vectors.dtype == torch.double


@pytest.mark.parametrize(("count", "pixels"), [(0, 1), (3, 1), (8, 3 * 64 * 64), (3, 10**6)])
def test_a_batch_in_chunks_gives_the_same(count, pixels, monkeypatch):
    plain, faster = encoders("efficientnet_lite0", 64, 16, extra_strides=[8])
    sizes = []
    monkeypatch.setattr(folding, "fold", lambda network, _: network)
    monkeypatch.setattr(folding, "CPU_PIXELS", pixels)
    faster.backbone.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    actual, expected = faster(photos(64, count)), plain(photos(64, count))
    assert actual.grid == expected.grid
    torch.testing.assert_close(actual.vectors, expected.vectors, rtol=1e-3, atol=1e-4)
    assert sum(sizes) == count
    assert max(sizes) <= max(1, pixels // 64**2)


def test_training_in_chunks_gives_the_gradients_of_the_batch(monkeypatch):
    """In float32 on a CPU, even under autocast."""
    monkeypatch.setattr(folding, "CPU_PIXELS", 1)
    plain, faster = encoders("efficientnet_lite0", trainable=True)
    images = photos(64, 3)
    plain(images).vectors.square().mean().backward()
    for autocast in (False, True):
        faster.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            vectors = faster(images).vectors
        assert vectors.dtype == torch.float32
        vectors.square().mean().backward()
        for one, other in zip(faster.parameters(), plain.parameters(), strict=True):
            same(one.grad, other.grad)
