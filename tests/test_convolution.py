"""Convolutions with their weights in order, against torch's."""

import copy
import pickle

import pytest
import torch
from torch import nn

from captioner.models import CNNEncoder, convolution
from captioner.models import encoder as encoder_module
from captioner.models.convolution import Convolution, replaceable

LIKE = [
    nn.Conv2d(3, 8, 3, stride=2, padding=1),
    nn.Conv2d(8, 8, 5, padding=2, groups=8),  # each channel for itself
    nn.Conv2d(6, 4, (1, 3), padding=(0, 1), bias=False),
    nn.Conv2d(4, 6, 3, dilation=2, groups=2),
    nn.Conv2d(16, 32, 1),
]


def images(channels, count=2, size=11):
    generator = torch.Generator().manual_seed(count + size)
    made = torch.randn(count, channels, size, size, generator=generator)
    return made.contiguous(memory_format=torch.channels_last)


@pytest.fixture
def asked(monkeypatch):
    """The shapes of the inputs that oneDNN was asked for itself."""
    if not convolution.ONEDNN:
        pytest.skip("this torch cannot lay out weights")
    shapes, ask = [], convolution._by_onednn
    monkeypatch.setattr(
        convolution,
        "_by_onednn",
        lambda *given: shapes.append(tuple(given[0].shape)) or ask(*given),
    )
    return shapes


@pytest.mark.parametrize("like", LIKE, ids=str)
def test_finds_what_torch_finds(like, asked, monkeypatch):
    """Its weights laid out once for each shape of a batch of the sizes that it was made for."""
    laid, lay = [], convolution._in_order
    monkeypatch.setattr(
        convolution, "_in_order", lambda *own: laid.append(tuple(own[1])) or lay(*own)
    )
    made = Convolution(like.requires_grad_(False), {1, 3})
    kinds = [(1, 11), (3, 11), (2, 11), (3, 8)]
    with torch.inference_mode():
        for count, size in 2 * kinds:
            given = images(like.in_channels, count, size)
            found, expected = made(given), like(given)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.is_contiguous(memory_format=torch.channels_last)
    shapes = [(count, like.in_channels, size, size) for count, size in kinds if count != 2]
    assert laid == shapes
    assert asked == 2 * shapes


def test_what_it_does_not_know_is_torch_s(asked, monkeypatch):
    """A gradient, another precision, oneDNN switched off, what is compiled."""
    like = nn.Conv2d(3, 4, 3)
    made, given = Convolution(like, {2}), images(3)

    def both(some):
        found, expected = made(some), like(some)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)

    for _ in range(3):
        some = given.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(made(some).sum(), some)
        (expected,) = torch.autograd.grad(like(some).sum(), some)
        torch.testing.assert_close(gradient, expected)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            both(given)
        with torch.no_grad():
            torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of GPUs
            try:
                both(given)
            finally:
                torch._C._set_mkldnn_enabled(True)
            with monkeypatch.context() as patched:
                patched.setattr(torch.compiler, "is_compiling", lambda: True)
                both(given)
    like.double()
    made.double()
    with torch.no_grad():
        for _ in range(3):
            both(given.double())
    assert not asked


def test_copies_and_other_processes_put_their_own_in_order(asked):
    like = nn.Conv2d(3, 4, 3).requires_grad_(False)
    made, given = Convolution(like, {2}), images(3)
    assert isinstance(made, nn.Conv2d)
    assert str(made).removeprefix("Convolution") == str(like).removeprefix("Conv2d")
    with torch.no_grad():
        made(given)
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            torch.testing.assert_close(other(given), made(given), rtol=0, atol=0)
            other.weight.neg_()
            other.bias.neg_()
            again = copy.deepcopy(other)
            torch.testing.assert_close(again(given), -made(given))
    assert len(asked) == 1 + 2 * 4


def test_only_what_it_computes_is_replaced():
    assert replaceable(LIKE[0])
    assert not replaceable(nn.Conv2d(3, 3, 3, padding="same"))
    assert not replaceable(nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"))
    assert not replaceable(nn.ConvTranspose2d(3, 3, 3))
    assert not replaceable(type("Own", (nn.Conv2d,), {})(3, 3, 3))


@pytest.mark.parametrize("name", ["efficientnet_lite0", "torchvision/resnet18"])
def test_a_frozen_encoder_asks_it_for_one_photo_and_for_full_batches(name, asked, monkeypatch):
    monkeypatch.setattr(encoder_module, "IN_CACHE", 4 * 64 * 64)
    encoder = CNNEncoder(name, image_size=64, weights=None)
    count = sum(isinstance(part, nn.Conv2d) for part in encoder.trunk.modules())
    photos = torch.randint(256, (9, 3, 64, 64), dtype=torch.uint8)
    together = encoder(photos).vectors
    # The copy is compared with the network, of one photo.
    assert [shape[0] for shape in asked] == [n for n in (1, 4, 4, 1) for _ in range(count)]
    torch.testing.assert_close(together[4:7], encoder(photos[4:7]).vectors, rtol=1e-4, atol=1e-4)
    assert len(asked) == 4 * count
    torch.testing.assert_close(encoder(photos).vectors, together, rtol=0, atol=0)
    assert len(asked) == 7 * count
    encoder.load_state_dict(
        {key: -tensor for key, tensor in encoder.trunk.state_dict(prefix="trunk.").items()}
    )
    assert not torch.allclose(encoder(photos).vectors, together)


def test_an_encoder_that_learns_does_not_ask(asked):
    encoder = CNNEncoder("efficientnet_lite0", image_size=64, weights=None, trainable=1)
    encoder(torch.randint(256, (1, 3, 64, 64), dtype=torch.uint8))
    assert not asked
