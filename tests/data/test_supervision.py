"""Attention supervised by masks: the targets, the loss, and the records of a run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pycocotools import mask as rle

import layouts
import runs
from captioner import load
from captioner.cli.main import main
from captioner.data import shapes_dataset
from captioner.data.masks import read as read_masks
from captioner.data.readers import read
from captioner.data.records import TRAIN
from captioner.data.supervision import MaskSupervision
from captioner.errors import UsageError
from captioner.language.vocabulary import END, START, UNK, Tokenizer
from captioner.models.decoder import Decoded
from captioner.training.likelihood import Likelihood
from captioner.training.objective import cross_entropy, negative_log_mass
from data_modules import prepared
from tests.evaluation.test_grounding import phrases
from tests.models.test_decoders import make

GRID = (4, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scenes"
    shapes_dataset.write(folder, sizes={"train": 24, "val": 1, "test": 24}, image_size=64)
    return folder


def expected_targets(image, caption):
    """The target of every word of a caption: the mask, averaged over blocks of pixels."""
    rows, columns = GRID
    targets = np.zeros((len(Tokenizer()(caption)), rows * columns))
    for positions, instances in phrases(caption, image.objects):
        if instances:
            pixels = rle.decode(rle.merge([image.masks[i] for i in instances])).astype(float)
            blocks = pixels.reshape(rows, 64 // rows, columns, 64 // columns)
            targets[positions] = blocks.mean((1, 3)).ravel()
    return targets


def masked_images(root):
    data = read_masks(root / "annotations" / "instances_train.json", root / "train")
    return {image.image_id: image for image in data.images}


def test_targets_are_the_masks_of_the_named_objects(root):
    images_of, records = masked_images(root), read("coco", root).of_split(TRAIN)
    supervision = MaskSupervision(records, GRID)
    named = 0
    for record in records:
        for number, caption in enumerate(record.captions):
            length = len(Tokenizer()(caption))
            ids = [START, *range(4, 4 + length), END]
            expected = expected_targets(images_of[record.image_id], caption)
            targets = supervision(record, number, ids)
            np.testing.assert_allclose(targets[1:-1], expected, atol=1e-6)
            assert not targets[[0, -1]].any()
            named += (expected.sum(1) > 0).sum()
            # A cut caption has the first targets; unknown words have none.
            np.testing.assert_array_equal(supervision(record, number, ids[:4]), targets[:4])
            assert not supervision(record, number, [START, *[UNK] * length, END]).any()
    assert named > 100


def test_an_image_rotated_after_annotation_has_no_targets(root, tmp_path):
    content = json.loads((root / "annotations" / "instances_train.json").read_text())
    for annotation in content["annotations"]:
        annotation["segmentation"] = {"size": [64, 72], "counts": [0, 90, 64 * 72 - 90]}
    for image in content["images"]:
        image["width"] = 72
    layouts.write(tmp_path / "annotations" / "instances_train.json", json.dumps(content))
    records = []
    for record in read("coco", root).of_split(TRAIN):
        file = tmp_path / "train" / Path(record.path).name
        layouts.picture(file, size=(72, 64) if records else (64, 72))
        records.append(replace(record, path=str(file)))
    supervision = MaskSupervision(records, GRID)
    supervised = [supervision(r, 0, [START, *[5] * 30, END]).any() for r in records]
    assert not supervised[0]
    assert any(supervised[1:])


def test_missing_masks_are_reported_before_the_cache_is_filled(tmp_path, capsys):
    captions = {"1.jpg": ["a red circle"], "2.jpg": ["two blue stars"]}
    root = layouts.flickr8k(tmp_path / "data", {"train": captions, "val": {"3.jpg": ["a ring"]}})
    options = [
        *("--data.name=flickr8k", f"--data.root={root}", "--data.min_count=1"),
        *(f"--data.cache_dir={tmp_path / 'cache'}", f"--trainer.default_root_dir={tmp_path}"),
        "--model.objective.init_args.supervision=1",
    ]
    assert main(["fit", "--config=configs/shapes.yaml", *options]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert re.search(r"needs '.*instances_Flicker8k_Dataset\.json', which", errors[-1])
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("mirror", [0.0, 1.0])
@pytest.mark.parametrize("cached", [True, False])
def test_a_batch_has_the_masks_of_its_captions(shapes, mirror, cached):
    """In the order of its rows, and mirrored with the image."""
    data = prepared(shapes(mirror=mirror, cache=cached), supervision=0.5)
    loader = data.train_dataloader()
    loader.sampler.set_epoch(0)
    images_of = masked_images(data.scenes)
    captions = {r.image_id: " ".join(r.captions) for r in data.of_split(TRAIN)}
    compared = 0
    for batch in loader:
        assert batch.masks.shape == (*batch.tokens.shape, 6)
        for image_id, rows, masks in zip(batch.image_ids, batch.tokens, batch.masks, strict=True):
            mirrored = mirror and not re.search("left|right", captions[image_id])
            for tokens, row_masks in zip(rows.tolist(), masks, strict=True):
                words = data.vocabulary.decode([i for i in tokens if i > UNK])
                for positions, instances in phrases(" ".join(words), images_of[image_id].objects):
                    cells = images_of[image_id].truth(instances, (2, 3)).reshape(2, 3)
                    expected = (cells[:, ::-1] if mirrored else cells).ravel()
                    for position in positions:
                        np.testing.assert_allclose(row_masks[position + 1], expected, atol=1e-6)
                        compared += 1
    assert compared > 50


def plain_cross_entropy(mask, alpha):
    return -sum(m / sum(mask) * np.log(a) for m, a in zip(mask, alpha, strict=True))


def plain_mass(mask, alpha):
    return -np.log(sum(m * a for m, a in zip(mask, alpha, strict=True)))


@pytest.mark.parametrize(
    ("loss", "plain"), [(cross_entropy, plain_cross_entropy), (negative_log_mass, plain_mass)]
)
def test_the_losses_and_their_gradients_are_those_of_plain_loops(loss, plain):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 3, 5, 6, generator=generator).double().softmax(-1).requires_grad_()
    masks = torch.rand(2, 3, 5, 6, generator=generator).double()
    masks = masks * (torch.rand(2, 3, 5, 1, generator=generator) < 0.4)
    losses = loss(weights, masks)
    rows = zip(masks.view(-1, 6).tolist(), weights.view(-1, 6).tolist(), strict=True)
    expected = [plain(mask, alpha) if sum(mask) else 0.0 for mask, alpha in rows]
    np.testing.assert_allclose(losses.detach().flatten(), expected)
    assert torch.autograd.gradcheck(lambda w: loss(w, masks), weights)


def test_supervision_is_a_term_of_the_loss():
    weights = torch.rand(1, 2, 3, 4, dtype=torch.double).softmax(-1)
    decoded = Decoded(torch.randn(1, 2, 3, 8, dtype=torch.double), weights)
    targets, masks = torch.full((1, 2, 3), 5), torch.eye(4)[None, None, :3].repeat(1, 2, 1, 1)
    supervised = Likelihood(0.5, supervision=2.0)(decoded, targets, None, masks)
    plain = Likelihood(0.5)(decoded, targets)
    assert set(supervised.terms) - set(plain.terms) == {"supervision"}
    mean = cross_entropy(weights, masks).mean().item()  # over six words
    assert supervised.terms["supervision"].item() == pytest.approx(2 * mean)
    assert supervised.total.item() == pytest.approx(plain.total.item() + 2 * mean)
    # N samples of each caption have its masks.
    twice = Decoded(decoded.logits.repeat(1, 2, 1, 1), weights.repeat_interleave(2, 1))
    sampled = Likelihood(0.5, supervision=2.0)(twice, targets.repeat(1, 2, 1), None, masks)
    assert sampled.terms["supervision"].item() == pytest.approx(2 * mean)


def test_attention_that_sets_weights_to_zero_is_refused():
    for name in ("Sparsemax", "Entmax", "LocalM", "LocalP", "LocalP2D"):
        with pytest.raises(UsageError, match=f"{name} sets some to 0"):
            Likelihood(supervision=1.0).check(make("LSTMDecoder", None, "Attention", name))


@pytest.fixture(scope="module")
def supervised(tmp_path_factory, shapes_cache):
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "supervised"
    options = ["--model.objective.init_args.supervision=1", "--trainer.log_every_n_steps=1"]
    assert main(runs.arguments(folder, shapes_cache, *options, "--overlays=0", epochs=1)) == 0
    assert not (folder / "overlays").exists()
    log = (folder / "logs" / "version_0" / "metrics.csv").read_text()
    assert "train/supervision" in log.splitlines()[0]
    return folder


def test_a_grounding_report_mentions_supervision(supervised, tmp_path, capsys):
    output = tmp_path / "report.json"
    options = ["--model", str(supervised), "--scenes=2", "--regime=forced", f"--output={output}"]
    assert main(["ground", *options]) == 0
    assert json.loads(output.read_text())["supervised_by_masks"] == 1
    warning = "Its attention was supervised by masks or boxes (λ = 1); do not compare it"
    assert warning in capsys.readouterr().out


@pytest.mark.slow
def test_results_and_exports_mention_supervision(supervised, run_folder, shapes_cache, tmp_path):
    for folder, weight in ((supervised, 1.0), (run_folder, 0.0)):
        record = json.loads((folder / "results" / "val-beam5.json").read_text())
        assert record["supervised_by_masks"] == weight
        card = (folder / "model" / "README.md").read_text()
        warned = "Object masks or boxes supervised the attention in training (λ = 1)" in card
        assert warned == bool(weight)
        assert load(folder).supervision == weight
        assert load(folder / "checkpoints" / "best.ckpt").supervision == weight
    assert main(["export", str(tmp_path / "out"), "--model", str(supervised)]) == 0
    assert load(tmp_path / "out").supervision == 1
    # So does a model that starts from its weights.
    successor = tmp_path / "successor"
    start = f"--model.init_from={supervised}"
    assert main(runs.arguments(successor, shapes_cache, start, "--overlays=0", epochs=1)) == 0
    record = json.loads((successor / "results" / "val-beam5.json").read_text())
    assert record["supervised_by_masks"] == 1
    assert load(successor).supervision == 1
