"""Fine-tuning the encoder: which weights change, their learning rate, and what is stored."""

import math

import pytest
import torch

import runs
from captioner.cli.main import main
from captioner.errors import UsageError
from captioner.models.encoder import CNNEncoder
from captioner.search.options import Decoding
from captioner.store import checkpoint
from captioner.training.warm_start import start_from

LAYERS = 6
PEAKS = {"matrices": 1e-2, "vectors": 1e-2, "encoder": 2e-3}
EPOCHS, BATCHES = 4, 3


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, shapes_cache):
    """A run that trains the last layers, and what ``Watch`` recorded."""
    root = tmp_path_factory.mktemp("tuned")
    options = [
        f"--model.encoder.init_args.trainable={LAYERS}",
        f"--model.encoder_learning_rate={PEAKS['encoder']}",
        *("--data.cache=images", "--trainer.log_every_n_steps=1"),
        "--trainer.callbacks+=runs.Watch",
    ]
    assert main(runs.arguments(root, shapes_cache, *options, epochs=EPOCHS)) == 0
    return root, runs.Watch.latest


@pytest.fixture(scope="module")
def pretrained() -> CNNEncoder:
    encoder = CNNEncoder("efficientnet_lite0", 64, 16, trainable=LAYERS)
    encoder.load_pretrained()
    return encoder


def test_only_the_last_layers_learn(tuned, pretrained):
    """Batch-norm statistics never change."""
    root, _ = tuned
    before = pretrained.backbone.state_dict()
    trainable = {n for n, p in pretrained.backbone.named_parameters() if p.requires_grad}
    assert 0 < len(trainable) < len(list(pretrained.backbone.parameters()))
    content = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    last = {name: content[f"captioner.encoder.backbone.{name}"] for name in before}
    for name, tensor in last.items():
        assert torch.equal(tensor, before[name]) == (name not in trainable), name
    statistics = [name for name in last if "running" in name or "batches" in name]
    assert len(statistics) > 30
    assert all(torch.equal(last[name], before[name]) for name in statistics)


def test_every_group_follows_its_own_peak(tuned):
    """One cycle: half a cosine up from a 25th of the peak, and another down to almost zero."""
    _, watch = tuned
    total = EPOCHS * BATCHES + 1
    rise = max(0.1, 2 / total) * total - 1
    assert len(watch.rates) == EPOCHS * BATCHES
    for step, rates in enumerate(watch.rates):
        for name, peak in PEAKS.items():
            low, fraction = peak / 25, step / rise
            if step > rise:
                low, fraction = peak / 25e4, 1 - (step - rise) / (total - 1 - rise)
            expected = low + (peak - low) * (1 - math.cos(math.pi * fraction)) / 2
            assert rates[name] == pytest.approx(expected, rel=1e-6), (step, name)


# ── Which layers ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["efficientnet_lite0", "torchvision/resnet18"])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_the_last_layers_are_those_used_last(name, number):
    """Gradients of the output reach this number of weight matrices, and none before them."""
    encoder = CNNEncoder(name, 64, 16, weights=None, trainable=number).train()
    assert encoder.trainable == bool(number)
    learning = {n for n, p in encoder.backbone.named_parameters() if p.requires_grad and p.ndim > 1}
    assert len(learning) == number
    order = []
    for module_name, module in encoder.backbone.named_modules():
        if not list(module.children()) and any(p.ndim > 1 for p in module.parameters()):
            module.register_forward_hook(lambda *_, n=module_name: order.append(f"{n}.weight"))
    vectors = encoder(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)).vectors
    assert vectors.requires_grad == bool(number)
    if name == "efficientnet_lite0":  # a ResNet lists a shortcut after the layers it skips
        assert learning == set(order[len(order) - number :])
    if number:
        vectors.square().sum().backward()
        reached = {n for n, p in encoder.backbone.named_parameters() if p.grad is not None}
        assert reached.intersection(order) == learning


# ── Starting from a fine-tuned model ──────────────────────────────────────────────────────────────


def captioner(trainable):
    return runs.small_captioner(["a", "dog"], trainable=trainable, hidden=8, embedding=8)


def test_a_fine_tuned_encoder_is_taken_with_its_decoder(tmp_path):
    other = captioner(2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01)
    checkpoint.save(other, tmp_path / "tuned", "# Tuned", Decoding())
    whole = captioner(True)
    start_from(whole, str(tmp_path / "tuned"))
    for name, tensor in other.state_dict().items():
        assert torch.equal(whole.state_dict()[name], tensor), name
    with pytest.raises(UsageError, match="was fine-tuned together with its decoder"):
        start_from(captioner(False), str(tmp_path / "tuned"))


def test_a_frozen_model_can_be_the_start(tmp_path):
    frozen = captioner(False)
    checkpoint.save(frozen, tmp_path / "frozen", "# Frozen", Decoding())
    start_from(trained := captioner(2), str(tmp_path / "frozen"))
    for name, tensor in frozen.state_dict().items():
        assert torch.equal(trained.state_dict()[name], tensor), name


def test_an_encoder_rate_of_zero_keeps_the_encoder(tuned, tmp_path, shapes_cache):
    root, _ = tuned
    options = [
        f"--model.encoder.init_args.trainable={LAYERS}",
        *("--model.encoder_learning_rate=0", "--data.cache=images", f"--model.init_from={root}"),
    ]
    assert main(runs.arguments(tmp_path, shapes_cache, *options, epochs=1)) == 0
    before, after = (checkpoint.load(run).captioner.state_dict() for run in (root, tmp_path))
    changed = {n.split(".")[0] for n, tensor in before.items() if not torch.equal(tensor, after[n])}
    assert changed == {"neck", "decoder"}
