"""The fast encoder against the plain one: folded networks and batches in chunks."""

import copy

import pytest
import torch
from torch import nn

from captioner import fast
from captioner.fast import folding
from captioner.models import CNNEncoder
from captioner.models.efficientnet_lite import Conv2dSame

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


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
def test_norms_and_padding_are_folded_and_the_vectors_are_the_same(name):
    plain, faster = encoders(name, 64, 16, extra_strides=[8])
    keys, fingerprint = faster.state_dict().keys(), faster.fingerprint()
    for size in (64, 65, 33, 64):  # TensorFlow's padding depends on the size
        expected = plain(photos(size)).vectors
        same(faster(photos(size)).vectors, expected)
        same(copy.deepcopy(faster)(photos(size)).vectors, expected)  # a copy of an encoder in use
    _, network = faster._folded
    parts = list(network.modules())
    assert not any(isinstance(part, nn.BatchNorm2d | Conv2dSame) for part in parts)
    assert faster.state_dict().keys() == keys
    assert faster.fingerprint() == fingerprint


def test_other_networks_are_left_as_they_are():
    plain, faster = encoders("torchvision/resnet18")
    same(faster(photos(64)).vectors, plain(photos(64)).vectors)
    assert faster._folded is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_new_weights_are_folded_again(mode):
    _, faster = encoders("efficientnet_lite0")
    other = CNNEncoder("efficientnet_lite0", 64, weights=None).eval()
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
    monkeypatch.setattr(folding, "fold", lambda network, *_: network)
    monkeypatch.setattr(folding, "CPU_PIXELS", pixels)
    faster.backbone.network.register_forward_hook(lambda _, x, __: sizes.append(len(x[0])))
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
