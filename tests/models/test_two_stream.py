"""Keys from one encoder, values from another, in every part that sees annotations."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import runs
from captioner import load
from captioner.data import shapes_dataset
from captioner.data.cache import AnnotationCache
from captioner.data.dataset import CaptionDataset, Draw
from captioner.data.masks import read as read_masks
from captioner.data.pixels import ImageFiles
from captioner.data.readers import read
from captioner.data.records import TRAIN, Record
from captioner.errors import UsageError
from captioner.language.vocabulary import Vocabulary
from captioner.models import Annotations, Captioner, TwoStreamEncoder
from captioner.models.erasure import Erasure
from captioner.models.registry import build, names
from captioner.resources import configs_folder
from captioner.search.beam import search
from captioner.search.options import Decoding
from captioner.store import checkpoint
from captioner.training.warm_start import start_from
from tests.evaluation.test_grounding import ground
from tests.models.test_encoder import photos

KEYS = {"class_path": "ViTEncoder", "init_args": {"image_size": 56, "layers": [2], "weights": None}}
VALUES = {
    "class_path": "CNNEncoder",
    "init_args": {"name": "efficientnet_lite0", "image_size": 64, "weights": None},
}
TREE = {"class_path": "TwoStreamEncoder", "init_args": {"keys": KEYS, "values": VALUES}}
WITH_WEIGHTS = {"class_path": "ViTEncoder", "init_args": {"image_size": 56, "layers": [2]}}
PACKAGED = {
    "class_path": "TwoStreamEncoder",
    "init_args": {"keys": WITH_WEIGHTS, "values": VALUES},
}
DECODER = {"class_path": "LuongDecoder", "init_args": {"hidden": 16, "embedding": 8}}


def ready(encoder):
    """Give random weights, which then count as loaded."""
    encoder.load_state_dict(encoder.state_dict())
    return encoder.eval()


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(1)
    return ready(build("encoder", TREE))


def captioner(encoder=TREE, neck=None, decoder=DECODER, words=("a", "dog", "cat")):
    config = {
        "encoder": encoder,
        "neck": neck or {"class_path": "Projection", "init_args": {"dim": 16}},
        "decoder": decoder,
    }
    torch.manual_seed(2)
    model = Captioner.from_config(config, Vocabulary(words))
    ready(model.encoder)
    return model.eval()


def annotations(images=2, values=(2, 3), keys=(4, 5)):
    torch.manual_seed(3)
    stream = Annotations(torch.randn(images, keys[0] * keys[1], 16), keys)
    return Annotations(torch.randn(images, values[0] * values[1], 12), values, keys=stream)


def test_every_stream_is_its_encoder(encoder):
    images = photos(64)
    encoded = encoder(images)
    torch.testing.assert_close(encoded.vectors, encoder.values(images).vectors)
    shrunk = F.interpolate(images.float(), (56, 56), mode="bilinear", antialias=True).round()
    torch.testing.assert_close(encoded.keys.vectors, encoder.keys(shrunk.byte()).vectors)
    assert (encoded.grid, encoded.keys.grid) == ((2, 2), (4, 4))
    assert (encoder.out_dim, encoder.key_dim) == (1280, 384)
    assert encoder.preprocessing.height == 64


def test_values_are_interpolated_to_the_grid_of_the_keys():
    neck = build("neck", {"class_path": "Projection"}, in_dim=12, key_dim=16).eval()
    both = annotations()
    result = neck(both)
    assert result.grid == result.keys.grid == (4, 5)
    alone = build("neck", {"class_path": "Projection"}, in_dim=12, key_dim=None)
    assert alone.key_layers is None
    projected = neck.layers(both.vectors)
    for row in range(4):
        for column in range(5):
            expected = torch.zeros(2, 512)
            # Bilinear weights of cell centres; the border is repeated.
            y, x = (row + 0.5) * 2 / 4 - 0.5, (column + 0.5) * 3 / 5 - 0.5
            for i in (int(np.floor(y)), int(np.floor(y)) + 1):
                for j in (int(np.floor(x)), int(np.floor(x)) + 1):
                    weight = (1 - abs(y - i)) * (1 - abs(x - j))
                    cell = min(max(i, 0), 1) * 3 + min(max(j, 0), 2)
                    expected += weight * projected[:, cell]
            torch.testing.assert_close(
                result.vectors[:, row * 5 + column], expected, rtol=1e-4, atol=1e-5
            )
    torch.testing.assert_close(result.keys.vectors, neck.key_layers(both.keys.vectors))


def test_added_keys_are_a_linear_map_of_their_patch_that_starts_at_zero():
    tree = {"class_path": "Projection", "init_args": {"dim": 6, "add_keys": True}}
    torch.manual_seed(4)
    neck, both = build("neck", tree, in_dim=12, key_dim=16).eval(), annotations()
    without = build("neck", {**tree, "init_args": {"dim": 6}}, in_dim=12, key_dim=16).eval()
    without.load_state_dict(neck.state_dict(), strict=False)
    plain, start = without(both), neck(both)
    assert torch.equal(start.vectors, plain.vectors)
    start.vectors.square().sum().backward()
    assert neck.added[1].weight.grad.abs().max() > 0  # it is trained from the first step

    weight, bias = torch.randn(6, 16), torch.randn(6)
    neck.added[1].load_state_dict({"weight": weight, "bias": bias})
    result = neck(both)
    for image in range(2):
        for region in range(20):
            key = both.keys.vectors[image, region]
            normed = (key - key.mean()) / (key.var(correction=0) + 1e-5).sqrt()
            expected = plain.vectors[image, region] + weight @ normed + bias
            torch.testing.assert_close(result.vectors[image, region], expected)
    assert torch.equal(result.keys.vectors, plain.keys.vectors)


def test_a_model_without_added_keys_can_be_the_start_of_one_with_them(tmp_path):
    other = captioner()
    checkpoint.save(other, tmp_path / "plain", "# Plain", Decoding())
    model = captioner(neck={"class_path": "Projection", "init_args": {"dim": 16, "add_keys": True}})
    model.encoder.load_state_dict(other.encoder.state_dict())
    _, summary = start_from(model, str(tmp_path / "plain"))
    assert "do not fit" not in summary
    encoded = model.encoder(photos(64))
    assert torch.equal(model.neck(encoded).vectors, other.neck(encoded).vectors)
    checkpoint.save(model, tmp_path / "added", "# Added", Decoding())
    with pytest.raises(UsageError, match=r"neck of .*added.*, here missing.*init_mismatch"):
        start_from(other, str(tmp_path / "added"))  # the added keys are not dropped silently


@pytest.mark.parametrize("name", sorted(set(names("neck")) - {"Identity"}))
def test_every_neck_takes_two_streams(name):
    neck = build("neck", {"class_path": name, "init_args": {"dim": 16}}, in_dim=12, key_dim=16)
    result = neck.eval()(annotations())
    expected = (2, 3) if name == "Blind" else (4, 5)
    assert result.grid == expected
    assert (result.keys is None) == (name == "Blind")
    assert result.vectors.shape == (2, expected[0] * expected[1], neck.out_dim)
    if result.keys is not None:
        assert result.keys.vectors.shape == result.vectors.shape


@pytest.fixture(scope="module")
def region():
    """The annotations of two images after a neck."""
    model = captioner()
    with torch.no_grad():
        return model.neck(model.encoder(photos(64)))


@pytest.mark.parametrize("decoder", ["LSTMDecoder", "LuongDecoder", "TransformerDecoder"])
@pytest.mark.parametrize("attention", ["Attention", "MultiHead"])
@torch.no_grad()
def test_every_decoder_scores_the_keys_and_averages_the_values(decoder, attention, region):
    options = {"attention": {"class_path": attention}}
    options |= {"dim": 16, "heads": 2} if decoder == "TransformerDecoder" else {"hidden": 16}
    tree = {"class_path": decoder, "init_args": options}
    model = build("decoder", tree, vocab_size=7, annotation_dim=16).eval()
    forced = model(region, torch.tensor([[[1, 4, 5]], [[1, 5, 6]]]))
    beams = search(model, region, Decoding(beam_size=2, max_length=4))
    assert forced.weights.shape == (2, 1, 3, 16)
    assert all(beam[0].weights.shape[-1] == 16 for beam in beams if len(beam[0].tokens))
    regions = region, replace(region, vectors=-region.vectors), region.map(torch.neg)
    first, other_values, other_both = (
        keys if isinstance(keys, tuple) else (keys,)
        for keys in (model.init_state(some).keys for some in regions)
    )
    for keys, same_keys, new_keys in zip(first, other_values, other_both, strict=True):
        torch.testing.assert_close(keys.prepared, same_keys.prepared)
        torch.testing.assert_close(keys.values, -same_keys.values)
        assert not torch.allclose(keys.prepared, new_keys.prepared)


@torch.no_grad()
def test_erasing_takes_key_and_value(region):
    decoder = captioner().decoder
    state, blank = decoder.init_state(region), decoder.init_state(region.flat())
    regions = torch.arange(16).unsqueeze(0) < 3
    erased = Erasure(decoder, region).erase(state, torch.tensor([1]), regions)
    for part in ("prepared", "values"):
        new, old, mean = (getattr(s.keys, part) for s in (erased, state, blank))
        torch.testing.assert_close(new[0, :3], mean[1, :3])
        torch.testing.assert_close(new[0, 3:], old[1, 3:])


def test_masks_are_compared_on_the_grid_of_the_keys(tmp_path):
    shapes_dataset.write(tmp_path, sizes={"train": 6, "val": 1, "test": 1}, image_size=64)
    scenes = {r.image_id: list(r.captions) for r in read("coco", tmp_path).of_split(TRAIN)}
    data = read_masks(tmp_path / "annotations" / "instances_train.json", tmp_path / "train", scenes)
    words = {word for texts in scenes.values() for text in texts for word in text.split()}
    report = ground(captioner(words=sorted(words)), data)
    assert report["grid"] == [4, 4]
    assert report["scores"]["model"]["pointing"]["value"] > 0


@pytest.fixture
def files(tmp_path):
    from PIL import Image

    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, pixels in zip(paths, photos(64, 5), strict=True):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    return [str(path) for path in paths]


def test_the_cache_holds_both_streams(encoder, files, tmp_path):
    def opened():
        return AnnotationCache.open(tmp_path / "cache", files, encoder, shard_size=2)

    cache = opened()
    assert (cache.grid, cache.key_grid) == ((2, 2), (4, 4))
    expected = encoder(photos(64, 5))
    for i, path in enumerate(files):
        for stored, stream in ((cache[path], expected), (cache[path].keys, expected.keys)):
            np.testing.assert_allclose(
                stored.vectors[0], stream.vectors[i].half(), rtol=2e-3, atol=2e-3
            )
    shard = sorted(cache.folder.glob("*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1  # the last tensor
    shard.write_bytes(bytes(content))
    before = AnnotationCache.open(tmp_path / "cache", files, encoder, shard_size=2, verify=True)
    assert torch.equal(before[files[3]].keys.vectors, cache[files[3]].keys.vectors)


class Stored(ImageFiles):
    """Annotation vectors and keys of every image."""

    def __init__(self, values, keys):
        keys = Annotations(torch.as_tensor(keys)[None], (4, 5))
        self.annotations = Annotations(torch.as_tensor(values)[None], (2, 3), keys=keys)

    def __getitem__(self, path):
        return self.annotations


def test_a_mirrored_image_has_mirrored_keys():
    values, keys = np.arange(6.0).reshape(6, 1), np.arange(20.0).reshape(20, 1)
    record = Record("photo", "photo.jpg", ("a dog",), "train")
    source = Stored(values, keys)
    dataset = CaptionDataset([record], [[[1, 4, 2]]], source, 1, mirror=1.0)
    item = dataset[Draw(0, 7)]
    assert item.image.vectors.view(2, 3).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert item.image.keys.vectors.view(4, 5)[0].tolist() == [4, 3, 2, 1, 0]
    batch = dataset.collate([item, dataset[Draw(0, None)]])
    assert batch.images.keys.vectors.shape == (2, 20, 1)
    assert batch.images.keys.grid == (4, 5)


def test_a_model_folder_keeps_two_streams(tmp_path):
    model = captioner(PACKAGED)
    model.encoder.load_pretrained()
    checkpoint.save(model, tmp_path / "model", "# Two streams", Decoding())
    stored = checkpoint.load(tmp_path / "model").captioner
    images = photos(64)
    with torch.inference_mode():
        expected, actual = model.neck(model.encoder(images)), stored.neck(stored.encoder(images))
    torch.testing.assert_close(actual.vectors, expected.vectors)
    torch.testing.assert_close(actual.keys.vectors, expected.keys.vectors)
    tensors = stored.state_dict()
    assert not any("encoder.keys" in name for name in tensors)  # they come with the package
    assert any("encoder.values.backbone" in name for name in tensors)
    caption = load(tmp_path / "model").caption(images[0].permute(1, 2, 0))
    assert caption.weights.shape[1:] == (4, 4)


def test_a_model_folder_of_packaged_encoders_holds_neither(tmp_path):
    assert TwoStreamEncoder().external  # the defaults need no download
    design = runs.design(configs_folder() / "model" / "two-stream.yaml")
    model = captioner(design["encoder"])
    model.encoder.load_pretrained()
    checkpoint.save(model, tmp_path / "model", "# Two streams", Decoding())
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 1e6
    stored = checkpoint.load(tmp_path / "model").captioner
    assert stored.encoder.fingerprint() == model.encoder.fingerprint()


def test_a_fine_tuned_stream_is_taken_with_its_decoder(tmp_path):
    """The frozen stream must be the same; the trained one is copied."""
    tuned = copy.deepcopy(PACKAGED)
    tuned["init_args"]["values"]["init_args"]["trainable"] = 1
    other = captioner(tuned)
    other.encoder.keys.load_pretrained()
    with torch.no_grad():
        for parameter in (*other.encoder.values.parameters(), *other.neck.parameters()):
            parameter.add_(0.01)
    checkpoint.save(other, tmp_path / "tuned", "# Tuned", Decoding())
    model = captioner(tuned)
    start_from(model, str(tmp_path / "tuned"))
    for name, tensor in other.encoder.values.state_dict().items():
        assert torch.equal(model.encoder.values.state_dict()[name], tensor), name
    for stream, option, value, message in (
        ("values", "trainable", False, "fine-tuned together with its decoder"),
        ("keys", "layers", [1], r"encoder\.keys\.layers is \[2\], here \[1\]"),
        ("values", "image_size", 96, r"encoder\.values\.image_size is 64, here 96"),
    ):
        tree = copy.deepcopy(tuned)
        tree["init_args"][stream]["init_args"][option] = value
        with pytest.raises(UsageError, match=message):
            start_from(captioner(tree), str(tmp_path / "tuned"))
    start_from(larger := captioner(tree), str(tmp_path / "tuned"), "skip")
    for name, tensor in other.encoder.values.state_dict().items():
        assert torch.equal(larger.encoder.values.state_dict()[name], tensor), name
    alone = tuned["init_args"]["values"]
    with pytest.raises(UsageError, match="encoder is TwoStreamEncoder, here CNNEncoder"):
        start_from(captioner(alone), str(tmp_path / "tuned"))
    _, summary = start_from(captioner(alone), str(tmp_path / "tuned"), "skip")
    assert "encoder." not in summary, "no weight of an encoder of another kind is taken"


def test_frozen_streams_of_other_weights_are_refused(tmp_path):
    """Frozen weights are not copied, so a stream without packaged weights must be equal, too."""
    other = captioner(PACKAGED)
    other.encoder.keys.load_pretrained()
    checkpoint.save(other, tmp_path / "frozen", "# Frozen", Decoding())
    equal = captioner(PACKAGED)
    equal.encoder.values.load_state_dict(other.encoder.values.state_dict())
    start_from(equal, str(tmp_path / "frozen"))
    with torch.no_grad():
        for parameter in equal.encoder.values.parameters():
            parameter.add_(0.01)
    with pytest.raises(UsageError, match="another encoder: its weights differ"):
        start_from(equal, str(tmp_path / "frozen"))


def test_a_trainable_encoder_must_start_from_the_weights_of_the_frozen_one(tmp_path):
    """The decoder was trained with a frozen encoder, whose weights come with the package."""
    tree = copy.deepcopy(PACKAGED["init_args"]["keys"])
    other = captioner(tree)
    other.encoder.load_pretrained()
    checkpoint.save(other, tmp_path / "frozen", "# Frozen", Decoding())
    tree["init_args"]["trainable"] = True
    tuned = captioner(tree)
    tuned.encoder.load_state_dict(other.encoder.backbone.state_dict(prefix="backbone."))
    start_from(tuned, str(tmp_path / "frozen"))
    tree["init_args"]["weights"] = None
    with pytest.raises(UsageError, match="another encoder: its weights differ"):
        start_from(captioner(tree), str(tmp_path / "frozen"))
