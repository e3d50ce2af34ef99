"""Vision Transformers as encoders, against timm's."""

import copy

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed

from captioner.errors import ModelError
from captioner.models import ViTEncoder
from captioner.models.registry import build
from captioner.models.vision_transformer import DINOV2_SMALL, resample
from captioner.resources import encoder_weights
from tests.models.test_encoder import photos

TIMM = "vit_small_patch14_dinov2.lvd142m"
MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


@pytest.fixture(scope="module")
def reference():
    """Timm's network with the shipped weights, which are all of it but the last two blocks."""
    network = timm.create_model(TIMM, num_classes=0, img_size=224)
    network.prune_intermediate_layers([9], prune_norm=False, prune_head=True)
    [file] = encoder_weights(DINOV2_SMALL).values()
    network.load_state_dict({name: tensor.float() for name, tensor in load_file(file).items()})
    return network.eval()


@pytest.mark.parametrize(("size", "layers"), [(84, [10]), (84, [9, 3]), (518, [1])])
def test_the_shipped_network_is_timms(reference, size, layers):
    encoder = ViTEncoder(image_size=size, layers=layers)
    encoder.load_pretrained()
    images = photos(size, 1)
    encoded = encoder(images)
    reference = copy.deepcopy(reference)
    reference.set_input_size(size)
    with torch.inference_mode():
        expected = reference.forward_intermediates(
            (images / 255 - MEAN) / STD,
            indices=sorted(layer - 1 for layer in layers),
            norm=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
    ordered = [expected[sorted(layers).index(layer)] for layer in layers]
    torch.testing.assert_close(encoded.vectors, torch.cat(ordered, -1), rtol=1e-3, atol=1e-3)
    assert encoded.grid == (size // 14, size // 14)
    assert encoder.out_dim == 384 * len(layers)
    assert encoder.external


@pytest.mark.parametrize("side", [4, 16, 37, 50])
def test_positions_are_interpolated_as_timm_does(side):
    positions = torch.randn(1, 1 + 37 * 37, 8)
    expected = resample_abs_pos_embed(positions, [side, side], num_prefix_tokens=1)
    torch.testing.assert_close(resample(positions, side), expected)


@pytest.mark.parametrize(
    ("name", "patch", "width"),
    [("timm/vit_tiny_patch16_224", 16, 192), ("vit_small_patch14_dinov2", 14, 384)],
)
def test_any_vision_transformer_of_timm(name, patch, width):
    encoder = ViTEncoder(name, 6 * patch, [2, 1], weights=None)
    encoder.load_state_dict(encoder.state_dict())  # the weights count as given
    images = photos(6 * patch)
    encoded = encoder(images)
    assert encoded.grid == (6, 6)
    assert encoded.vectors.shape == (2, 36, 2 * width)
    network = encoder.backbone.network
    assert len(network.blocks) == 2  # later ones are neither stored nor computed
    x = network.patch_embed((images - encoder.mean) / encoder.std)
    x = network._pos_embed(x)
    after = []
    for block in network.blocks:
        x = block(x)
        after.append(network.norm(x)[:, network.num_prefix_tokens :])
    torch.testing.assert_close(encoded.vectors, torch.cat([after[1], after[0]], -1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 100}, "must be a multiple of 14, got 100"),
        ({"layers": [0]}, r"has the layers 1 to 10, got \[0\]"),
        ({"name": "timm/resnet18"}, "no plain Vision Transformer; use CNNEncoder"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ModelError, match=message):
        build("encoder", {"class_path": "ViTEncoder", "init_args": options})
