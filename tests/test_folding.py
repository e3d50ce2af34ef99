"""Folded networks against themselves, and what is left alone."""

import copy
import pickle

import pytest
import torch
from torch import nn

from captioner.models import CNNEncoder, convolution
from captioner.models import encoder as module
from captioner.models.convolution import Convolution
from captioner.models.folding import folded
from captioner.models.trunks import Trunk


def photos(size, count=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def used(encoder):
    """As after much training: norms that all do something else."""
    generator = torch.Generator().manual_seed(2)
    for part in encoder.trunk.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.running_mean, part.bias.data):
                tensor.normal_(0, 0.1, generator=generator)
            for tensor in (part.running_var, part.weight.data):
                tensor.uniform_(0.7, 1.3, generator=generator)
    return encoder


def norms(network):
    return sum(isinstance(part, nn.BatchNorm2d) for part in network.modules())


class Network(Trunk):
    """One part after the other."""

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
        ("torchvision/mobilenet_v3_small", 0),
        ("torchvision/vgg11", 0),
        ("timm/resnet10t", 0),
        # Norms before convolutions: those that read joined maps stay.
        ("torchvision/densenet121", 6 + 12 + 24 + 3),
    ],
)
def test_norms_are_folded_and_the_maps_are_the_same(name, left):
    encoder = used(CNNEncoder(name, 64, 16, weights=None, finer=[8]).eval())
    pixels = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    before = copy.deepcopy(encoder.trunk.state_dict())
    network = folded(encoder.trunk, pixels[:1])
    assert norms(network) == left <= norms(encoder.trunk)
    with torch.no_grad():
        for found, expected in zip(network(pixels), encoder.trunk(pixels), strict=True):
            assert expected.std() > 0
            torch.testing.assert_close(
                found / expected.std(), expected / expected.std(), rtol=1e-4, atol=1e-4
            )
    after = encoder.trunk.state_dict()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


def test_what_is_used_twice_is_left():
    """And what is not, beside it, is folded."""
    convolution, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    pixels = torch.randn(2, 3, 4, 4)
    for middle in (
        (convolution, norm, convolution, nn.BatchNorm2d(3)),
        (convolution, norm, nn.Conv2d(3, 3, 1), norm),
    ):
        network = Network(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), *middle)
        made = folded(network, pixels)
        assert made is not network
        torch.testing.assert_close(made(pixels)[0], network(pixels)[0])
        assert norms(made) == norms(network) - 1


def test_a_copy_that_says_something_else_is_not_used(monkeypatch):
    """With its weights in order: what is called there is torch's own affair."""
    if not convolution.ONEDNN:
        pytest.skip("this torch cannot lay out weights")
    network, pixels = Network(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(1, 3, 6, 6)
    assert folded(network, pixels, {1}) is not network
    ask = convolution._by_onednn
    monkeypatch.setattr(convolution, "_by_onednn", lambda *given: 1.01 * ask(*given))
    assert folded(network, pixels, {1}) is network
    assert folded(network, pixels, {2}) is not network


def test_a_network_may_ask_its_convolutions_for_their_sizes():
    """As timm's DaViT does."""

    class Own(Network):
        def forward(self, pixels):
            size, step = self.parts[0].kernel_size[0], self.parts[0].stride[0]
            return super().forward(nn.functional.pad(pixels, (size - step,) * 4))

    network, pixels = Own(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)), torch.randn(1, 3, 6, 6)
    made = folded(network, pixels, {1})
    assert norms(made) == 0
    torch.testing.assert_close(made(pixels)[0], network(pixels)[0])


@pytest.mark.parametrize("size", [(8, 8), (9, 9), (8, 9), (7, 12)])
@pytest.mark.parametrize("kernel", [1, 2, 3, (5, 4)])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"stride": (1, 3)}, {"dilation": 2}])
def test_padding_as_tensorflow_s_is_the_convolution_s_own(size, kernel, options):
    from timm.layers import Conv2dSame

    torch.manual_seed(4)
    parts = [Conv2dSame(3, 6, kernel, groups=3, **options), nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1)]
    network = Network(*parts)
    pixels = torch.randn(2, 3, *size)
    made = folded(network, pixels[:1])
    assert made is not network
    torch.testing.assert_close(made(pixels)[0], network(pixels)[0])
    assert norms(made) == 0
    assert (type(made.parts[0]) is Convolution) == ("dilation" not in options)


def test_another_size_is_padded_otherwise():
    encoder = used(CNNEncoder("efficientnet_lite0", 64, weights=None).eval())
    learning = CNNEncoder("efficientnet_lite0", 64, weights=None, trainable=True).eval()
    learning.load_state_dict(encoder.state_dict())
    for size in (64, 65, 33, 64):
        with torch.no_grad():
            expected = learning(photos(size)).vectors
        torch.testing.assert_close(encoder(photos(size)).vectors, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "parts",
    [
        (nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)),
        (nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
    ],
)
def test_a_norm_of_something_else_is_left(parts):
    pixels = torch.randn(2, 3, 4, 4)
    network = Network(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), *parts)
    made = folded(network, pixels)
    assert made is not network
    assert norms(made) == 1
    torch.testing.assert_close(made(pixels)[0], network(pixels)[0])


def test_a_network_that_would_become_another_is_left():
    """Here more than the norm reads what the convolution found."""

    class Branching(Network):
        def forward(self, pixels):
            found = self.parts[0](pixels)
            return [found + self.parts[1](found)]

    network = Branching(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5))
    network.parts[1].running_mean.fill_(2.0)
    assert folded(network, torch.randn(1, 3, 4, 4)) is network


def test_an_encoder_is_folded_where_it_does_not_learn(monkeypatch):
    frozen = used(CNNEncoder("torchvision/resnet18", 64, weights=None).eval())
    learning = CNNEncoder("torchvision/resnet18", 64, weights=None, trainable=True).eval()
    learning.load_state_dict(frozen.state_dict())
    calls = []
    monkeypatch.setattr(module, "folded", lambda *given: calls.append(1) or folded(*given))
    keys = frozen.state_dict().keys()
    fingerprint = frozen.fingerprint()
    for _ in range(2):
        torch.testing.assert_close(
            frozen(photos(64)).vectors, learning(photos(64)).vectors.detach(), rtol=1e-3, atol=1e-3
        )
    assert calls == [1]  # once, and the one that learns not at all
    assert frozen.state_dict().keys() == keys
    assert frozen.fingerprint() == fingerprint
    assert not any(part.requires_grad for part in frozen.parameters())
    assert norms(frozen) > 0


def test_an_empty_batch_folds_nothing(monkeypatch):
    """Nothing to compare the copy by."""
    encoder = CNNEncoder("torchvision/resnet18", 64, weights=None).eval()
    examples = []
    monkeypatch.setattr(module, "folded", lambda n, x, _: examples.append(len(x)) or folded(n, x))
    assert encoder(photos(64, 0)).vectors.shape == (0, 4, 512)
    assert encoder(photos(64)).vectors.shape == (2, 4, 512)
    assert examples == [1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_other_weights_are_folded_anew(mode):
    encoder = CNNEncoder("torchvision/resnet18", 64, weights=None).eval()
    other = used(CNNEncoder("torchvision/resnet18", 64, weights=None).eval())
    with mode():
        first = encoder(photos(64)).vectors
        expected = other(photos(64)).vectors
    encoder.load_state_dict(other.state_dict())
    with mode():
        found = encoder(photos(64)).vectors
    assert not torch.allclose(found, first)
    torch.testing.assert_close(found, expected)
    copied = copy.deepcopy(encoder)
    with mode():
        torch.testing.assert_close(encoder(photos(64)).vectors, found)
    encoder.double()
    with mode():
        assert encoder(photos(64)).vectors.dtype == torch.double
        torch.testing.assert_close(encoder(photos(64)).vectors.float(), found, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(copied(photos(64)).vectors, found)


@pytest.mark.parametrize(
    ("name", "through"),
    [
        ("torchvision/densenet121", copy.deepcopy),  # still has norms when it is folded
        ("efficientnet_lite0", lambda encoder: pickle.loads(pickle.dumps(encoder))),
    ],
)
def test_a_copy_of_an_encoder_in_use_says_the_same(name, through):
    encoder = used(CNNEncoder(name, 64, 8, weights=None).eval())
    found = encoder(photos(64)).vectors
    copied = through(encoder)
    for _ in range(2):
        torch.testing.assert_close(copied(photos(64)).vectors, found)
