"""An encoder that learns: what changes, what must not, how fast, and what is kept of it."""

import csv
import math

import pytest
import torch
from safetensors.torch import load_file

import runs
from captioner import checkpoint
from captioner.cli import main
from captioner.decoding import Decoding
from captioner.errors import ModelError, UsageError
from captioner.models.captioner import Captioner
from captioner.models.encoder import CNNEncoder
from captioner.text import Vocabulary
from captioner.training.warm_start import start_from

LAYERS = 6
PEAKS = {"matrices": 1e-2, "vectors": 1e-2, "encoder": 2e-3}
EPOCHS, BATCHES = 4, 3


def losses(root) -> list[float]:
    with (root / "logs" / "version_0" / "metrics.csv").open() as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, shapes_cache):
    """The run in which the last layers learn, from the second epoch on; and what was watched."""
    root = tmp_path_factory.mktemp("tuned")
    options = [
        f"--model.encoder.init_args.trainable={LAYERS}",
        f"--model.encoder_learning_rate={PEAKS['encoder']}",
        *("--model.encoder_from=1", "--data.cache=images", "--trainer.log_every_n_steps=1"),
        "--trainer.callbacks+=runs.Watch",
    ]
    assert main(runs.arguments(root, shapes_cache, *options, epochs=EPOCHS)) == 0
    return root, runs.Watch.latest


@pytest.fixture(scope="module")
def pretrained() -> CNNEncoder:
    encoder = CNNEncoder("efficientnet_lite0", 64, 16, trainable=LAYERS)
    encoder.load_pretrained()
    return encoder


@pytest.mark.slow
def test_it_learns_the_training_pictures_better_than_a_frozen_one(
    tuned, tmp_path, shapes_cache, capsys
):
    root, _ = tuned
    options = ["--trainer.log_every_n_steps=1"]
    assert main(runs.arguments(tmp_path, shapes_cache, *options, epochs=EPOCHS)) == 0
    frozen, learned = losses(tmp_path), losses(root)
    assert len(frozen) == len(learned) == EPOCHS * BATCHES
    # The first epoch is the same but for float16 in the cache.
    assert learned[:BATCHES] == pytest.approx(frozen[:BATCHES], abs=0.02)
    assert sum(learned[-BATCHES:]) < sum(frozen[-BATCHES:])


def test_only_what_should_learn_does(tuned, pretrained):
    """The last layers, from the epoch it was told; statistics of batch norms never."""
    _, watch = tuned
    before = pretrained.trunk.state_dict()
    trainable = {n for n, p in pretrained.trunk.named_parameters() if p.requires_grad}
    assert 0 < len(trainable) < len(list(pretrained.trunk.parameters()))
    for name, tensor in watch.encoders[0].items():
        assert torch.equal(tensor, before[name]), f"{name} changed in the first epoch"
    last = watch.encoders[-1]
    for name, tensor in last.items():
        assert torch.equal(tensor, before[name]) == (name not in trainable), name
    statistics = [name for name in last if "running" in name or "batches" in name]
    assert len(statistics) > 30
    assert all(torch.equal(last[name], before[name]) for name in statistics)


def test_every_group_follows_its_own_peak(tuned):
    """One cycle: up along a half cosine from a 25th of the peak, down to next to nothing."""
    _, watch = tuned
    total = EPOCHS * BATCHES + 1
    rise = max(0.1, 2 / total) * total - 1
    assert len(watch.rates) == EPOCHS * BATCHES
    for step, rates in enumerate(watch.rates):
        for name, peak in PEAKS.items():
            low, way = peak / 25, step / rise
            if step > rise:
                low, way = peak / 25e4, 1 - (step - rise) / (total - 1 - rise)
            expected = low + (peak - low) * (1 - math.cos(math.pi * way)) / 2
            assert rates[name] == pytest.approx(expected, rel=1e-6), (step, name)


def test_the_model_folder_holds_the_encoder(tuned, pretrained):
    root, _ = tuned
    stored = load_file(root / "model" / "model.safetensors")
    for name, tensor in pretrained.trunk.state_dict().items():
        assert stored[f"encoder.trunk.{name}"].shape == tensor.shape
    loaded = checkpoint.load(root / "model").captioner.encoder
    best = torch.load(root / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    for name, tensor in loaded.trunk.state_dict().items():
        assert torch.equal(tensor, best[f"captioner.encoder.trunk.{name}"]), name
    changed = sum(
        not torch.equal(tensor, pretrained.trunk.state_dict()[name])
        for name, tensor in loaded.trunk.state_dict().items()
    )
    assert changed >= LAYERS


# ── Which layers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["efficientnet_lite0", "torchvision/resnet18"])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_the_last_layers_are_those_used_last(name, number):
    """Gradients of the output reach as many weights to multiply by, and nothing before them."""
    encoder = CNNEncoder(name, 64, 16, weights=None, trainable=number).train()
    assert encoder.trainable == bool(number)
    learning = {n for n, p in encoder.trunk.named_parameters() if p.requires_grad and p.ndim > 1}
    assert len(learning) == number
    order = []
    for module_name, module in encoder.trunk.named_modules():
        if not list(module.children()) and any(p.ndim > 1 for p in module.parameters()):
            module.register_forward_hook(lambda *_, n=module_name: order.append(f"{n}.weight"))
    vectors = encoder(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)).vectors
    assert vectors.requires_grad == bool(number)
    if name == "efficientnet_lite0":  # a shortcut of a ResNet is listed behind what it spans
        assert learning == set(order[len(order) - number :])
    if number:
        vectors.square().sum().backward()
        found = {n for n, p in encoder.trunk.named_parameters() if p.grad is not None}
        assert {n for n in found if n in order} == learning


@pytest.mark.parametrize("number", [-1, 10_000])
def test_more_layers_than_there_are(number):
    with pytest.raises(ModelError, match=rf"the last layers that learn, 0 to \d+, got {number}"):
        CNNEncoder("efficientnet_lite0", 64, 16, trainable=number)


def test_all_layers():
    encoder = CNNEncoder("efficientnet_lite0", 64, 16, trainable=True)
    assert all(p.requires_grad for p in encoder.parameters())
    assert not any(m.training for m in encoder.train().trunk.modules())


# ── Going on from a fine-tuned model ──────────────────────────────────────────────────────────────


def captioner(trainable, size=64) -> Captioner:
    tree = {
        "encoder": {
            "class_path": "CNNEncoder",
            "init_args": {
                "name": "efficientnet_lite0",
                "image_size": size,
                "stride": 16,
                "trainable": trainable,
            },
        },
        "refiner": {"class_path": "Projection", "init_args": {"dim": 8}},
        "decoder": {
            "class_path": "LSTMDecoder",
            "init_args": {
                "attention": {
                    "class_path": "Attention",
                    "init_args": {
                        "score": {"class_path": "Additive", "init_args": {"dim": 8}},
                        "distribution": {"class_path": "Soft"},
                    },
                },
                "hidden": 8,
                "embedding": 8,
            },
        },
    }
    made = Captioner.from_config(tree, Vocabulary(["a", "dog"]))
    made.encoder.load_pretrained()
    return made


def test_a_decoder_goes_with_the_encoder_it_learned_with(tmp_path):
    other = captioner(2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01)
    checkpoint.save(other, tmp_path / "tuned", "# Tuned", Decoding())
    whole = captioner(True)
    start_from(whole, str(tmp_path / "tuned"))
    for name, tensor in other.state_dict().items():
        assert torch.equal(whole.state_dict()[name], tensor), name
    with pytest.raises(UsageError, match="was fine-tuned, and its decoder knows no other"):
        start_from(captioner(False), str(tmp_path / "tuned"))


def test_a_decoder_that_has_seen_through_other_eyes_is_said(tmp_path, caplog):
    checkpoint.save(captioner(False), tmp_path / "frozen", "# Frozen", Decoding())
    start_from(captioner(False), str(tmp_path / "frozen"))
    assert not caplog.records
    start_from(captioner(False, size=96), str(tmp_path / "frozen"))
    assert "has learned behind another encoder: give its image_size" in caplog.text
