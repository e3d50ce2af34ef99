"""Convolutions with weights in oneDNN's order compute what torch's do."""

import copy

import pytest
import torch
from torch import nn

from captioner.fast import convolution
from captioner.fast.convolution import keep_order

pytestmark = pytest.mark.skipif(
    not convolution.available(), reason="NO ordered convolutions in this build of torch"
)


def pair(batch_sizes=(1, 3), **options):
    """Return one of torch's convolutions and a faster one with the same weights."""
    plain = nn.Conv2d(8, 12, **{"kernel_size": 3, **options}).requires_grad_(False)
    faster = nn.Sequential(copy.deepcopy(plain))
    keep_order(faster, frozenset(batch_sizes))
    return plain, faster[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel_size": 1, "bias": False},
        {"stride": 2, "padding": 1},
        {"groups": 4, "padding": (0, 2)},
        {"kernel_size": (5, 3), "dilation": 2, "stride": (1, 2)},
    ],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_it_computes_the_same_for_every_batch_and_size(options, memory_format):
    torch.manual_seed(0)
    plain, faster = pair(**options)
    with torch.inference_mode():
        for count, size in ((1, 16), (3, 16), (2, 16), (1, 11), (1, 16)):
            images = torch.randn(count, 8, size, size).to(memory_format=memory_format)
            torch.testing.assert_close(faster(images), plain(images), rtol=1e-4, atol=1e-5)
    assert {shape[0] for shape in faster._ordered} == {1, 3}


@pytest.mark.parametrize("reason", ["gradient", "autocast"])
def test_other_calls_are_torchs(reason, monkeypatch):
    plain, faster = pair()
    monkeypatch.setattr(convolution, "_convolve", None)  # calling it would fail
    images = torch.randn(1, 8, 9, 9)
    with (
        torch.set_grad_enabled(reason == "gradient"),
        torch.autocast("cpu", torch.bfloat16, enabled=reason == "autocast"),
    ):
        torch.testing.assert_close(faster(images), plain(images))


def test_convolutions_that_pad_in_another_way_stay():
    network = nn.Sequential(
        nn.Conv2d(1, 1, 3, padding="same"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(1, 1, 3),
    )
    kinds = [type(module) for module in network]
    keep_order(network, frozenset({1}))
    assert [type(module) for module in network] == kinds


def test_a_copy_reorders_its_own_weights():
    plain, faster = pair()
    images = torch.randn(1, 8, 9, 9)
    with torch.no_grad():
        faster(images)
        other = copy.deepcopy(faster)
        other.weight.zero_()
        torch.testing.assert_close(faster(images), plain(images), rtol=1e-4, atol=1e-5)
        assert (other(images) == other.bias.view(-1, 1, 1)).all()
