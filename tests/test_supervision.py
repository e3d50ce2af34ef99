"""Attention supervised by masks: the targets, the loss, and what becomes of a run."""

import json

import numpy as np
import pytest
import torch

import layouts
import runs
from captioner import load
from captioner.cli import main
from captioner.data import shapes_folder
from captioner.data.masks import read as read_masks
from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.data.records import TRAIN
from captioner.data.supervision import Supervision
from captioner.errors import DataError, UsageError
from captioner.evaluation.captions import read_references
from captioner.evaluation.grounding import grounding
from captioner.models.decoder import Decoded
from captioner.text import END, PAD, START, UNK, Tokenizer
from captioner.training.lower_bound import LowerBound
from captioner.training.objectives import Likelihood, looked_away
from test_decoders import make, seen
from test_grounding import captioner, phrases
from test_module import cache_dir, prepared, shapes  # noqa: F401 - fixtures

GRID = (4, 4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scenes"
    shapes_folder.write(folder, sizes={"train": 24, "val": 1, "test": 24}, image_size=64)
    return folder


def truth(picture, meant):
    """The mask of some objects on the grid, cells being blocks of pixels."""
    rows, columns = GRID
    from pycocotools import mask as rle

    whole = rle.decode(rle.merge([picture.masks[i] for i in meant])).astype(float)
    cells = whole.reshape(rows, 64 // rows, columns, 64 // columns).mean((1, 3)).ravel()
    return cells / cells.sum()


def by_hand(picture, caption):
    """For every word of a caption its target."""
    rows = np.zeros((len(Tokenizer()(caption)), 16))
    for places, meant in phrases(caption, picture.things):
        if meant:
            rows[places] = truth(picture, meant)
    return rows


@pytest.fixture(scope="module")
def pictures(root):
    found = read_masks(root / "annotations" / "instances_train.json", root / "train")
    return {picture.image_id: picture for picture in found.pictures}


def test_targets_are_the_masks_of_what_words_name(root, pictures):
    records = [r for r in read("coco", root) if r.split == TRAIN]
    supervision = Supervision(records, GRID)
    named = 0
    for record in records:
        for number, caption in enumerate(record.captions):
            length = len(Tokenizer()(caption))
            ids = [START, *range(4, 4 + length), END]
            expected = by_hand(pictures[record.image_id], caption)
            targets = supervision(record, number, ids)
            np.testing.assert_allclose(targets[1:-1], expected, atol=1e-6)
            assert not targets[[0, -1]].any()
            named += (expected.sum(1) > 0).sum()
            # Cut captions are told as far as they go; unknown words of nothing.
            np.testing.assert_array_equal(supervision(record, number, ids[:4]), targets[:4])
            assert not supervision(record, number, [START, *[UNK] * length, END]).any()
    assert named > 100


def test_a_picture_turned_since_has_no_targets(root, tmp_path):
    content = json.loads((root / "annotations" / "instances_train.json").read_text())
    for image in content["images"]:
        image["width"] = 72
    for annotation in content["annotations"]:
        annotation["segmentation"] = {"size": [64, 72], "counts": [0, 90, 64 * 72 - 90]}
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_train.json").write_text(json.dumps(content))
    for image in content["images"]:
        first = image is content["images"][0]
        layouts.picture(
            tmp_path / "train" / image["file_name"], size=(64, 72) if first else (72, 64)
        )
    records = [
        type(r)(
            r.image_id, str(tmp_path / "train" / r.path.rpartition("/")[2]), r.captions, r.split
        )
        for r in read("coco", root)
        if r.split == TRAIN
    ]
    supervision = Supervision(records, GRID)
    told = [supervision(r, 0, [START, *[5] * 30, END]).any() for r in records]
    assert not told[0]
    assert any(told[1:])


def test_without_masks_there_is_no_supervision(tmp_path):
    captions = {"1.jpg": ["a red circle"], "2.jpg": ["two blue stars"]}
    root = layouts.flickr8k(tmp_path, {"train": captions})
    with pytest.raises(DataError, match=r"no '.*instances_Flicker8k_Dataset\.json': train on data"):
        Supervision(read("flickr8k", root), GRID)


def test_that_is_said_before_the_cache_is_filled(tmp_path, capsys):
    captions = {"1.jpg": ["a red circle"], "2.jpg": ["two blue stars"]}
    root = layouts.flickr8k(tmp_path / "data", {"train": captions, "val": {"3.jpg": ["a ring"]}})
    options = [
        *("--data.name=flickr8k", f"--data.root={root}", "--data.min_count=1"),
        *(f"--data.cache_dir={tmp_path / 'cache'}", f"--trainer.default_root_dir={tmp_path}"),
        "--model.objective.init_args.supervision=1",
    ]
    assert main(["fit", "--config=configs/shapes.yaml", *options]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert "supervised by masks, and there is no" in errors[-1]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("mirror", [0.0, 1.0])
@pytest.mark.parametrize("cached", [True, False])
def test_a_batch_has_the_masks_of_its_captions(shapes, mirror, cached):  # noqa: F811
    """In the order of its rows, mirrored with the picture."""
    data = shapes(mirror=mirror, cache=cached)
    prepared(data, supervision=0.5)
    loader = data.train_dataloader()
    loader.sampler.set_epoch(0)
    grid = (2, 3)  # of the encoder, whether it is asked through the cache or not
    folder = data.scenes
    found = read_masks(folder / "annotations" / "instances_train.json", folder / "train")
    known = {picture.image_id: picture for picture in found.pictures}
    said = {r.image_id: r.captions for r in data.of_split(TRAIN)}
    compared = 0
    for batch in loader:
        assert batch.masks.shape == (*batch.tokens.shape, 6)
        for b, image_id in enumerate(batch.image_ids):
            turned = mirror and not any(s in c for c in said[image_id] for s in ("left", "right"))
            for r in range(batch.tokens.shape[1]):
                ids = batch.tokens[b, r].tolist()
                words = data.vocabulary.decode([i for i in ids if i > UNK])
                for places, meant in phrases(" ".join(words), known[image_id].things):
                    truth_ = known[image_id].truth(meant, grid).reshape(grid)
                    expected = (truth_[:, ::-1] if turned else truth_).ravel() / truth_.sum()
                    for place in places:
                        given = batch.masks[b, r, place + 1].numpy()
                        np.testing.assert_allclose(given, expected, atol=1e-6)
                        compared += 1
    assert compared > 50


def test_the_loss_and_its_gradient_are_those_of_plain_loops():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 3, 5, 6, generator=generator).double().softmax(-1).requires_grad_()
    masks = torch.rand(2, 3, 5, 6, generator=generator)
    masks = masks * (torch.rand(2, 3, 5, 1, generator=generator) < 0.4)
    masks = masks / masks.sum(-1, keepdim=True).clamp(min=1e-9)
    total = 0.0
    for mask, alpha in zip(masks.view(-1, 6).tolist(), weights.view(-1, 6).tolist(), strict=True):
        if sum(mask):
            total -= sum(m * np.log(a) for m, a in zip(mask, alpha, strict=True))
    loss = looked_away(weights, masks)
    assert loss.item() == pytest.approx(total)
    loss.backward()
    expected = -masks.double() / weights.detach()
    torch.testing.assert_close(weights.grad, expected)
    # N samples of each caption have its masks.
    twice = looked_away(weights.detach().repeat_interleave(2, 1), masks)
    assert twice.item() == pytest.approx(loss.item())


def test_it_is_a_term_of_the_loss():
    weights = torch.rand(1, 2, 3, 4, dtype=torch.double).softmax(-1)
    decoded = Decoded(torch.randn(1, 2, 3, 8, dtype=torch.double), weights)
    targets, masks = torch.full((1, 2, 3), 5), torch.eye(4)[None, None, :3].repeat(1, 2, 1, 1)
    told = Likelihood(0.5, supervision=2.0)(decoded, targets, None, masks)
    plain = Likelihood(0.5)(decoded, targets)
    assert set(told.terms) - set(plain.terms) == {"supervision"}
    missed = looked_away(weights, masks).item() / 6  # a mean over six words
    assert told.terms["supervision"].item() == pytest.approx(2 * missed)
    assert told.total.item() == pytest.approx(plain.total.item() + told.terms["supervision"].item())


@pytest.mark.parametrize("attention", ["Attention", "MultiHead"])
@pytest.mark.parametrize("law", ["Soft", "Hard"])
@pytest.mark.parametrize("name", ["LSTMDecoder", "LuongDecoder", "TransformerDecoder"])
def test_every_attention_learns_from_masks(name, law, attention):
    """What is shown for a word, or drawn from, comes to lie on its mask."""
    decoder, annotations = make(name, None, attention, law).train(), seen()
    objective = (LowerBound if law == "Hard" else Likelihood)(
        doubly_stochastic=0.0, supervision=20.0
    )
    objective.check(decoder)
    tokens = torch.tensor([[[START, 5, 7, END]], [[START, 4, 8, END]]])
    masks = torch.zeros(2, 1, 3, annotations.vectors.shape[1])
    masks[0, 0, 0, 1] = masks[1, 0, 1, 0] = 1.0
    optimizer = torch.optim.Adam(decoder.parameters(), 0.01)
    losses = []
    for _ in range(40):
        torch.manual_seed(0)
        decoded = decoder(annotations, tokens[..., :-1])
        loss = objective(decoded, tokens[..., 1:], None, masks)
        losses.append(loss.terms["supervision"].item() / 20)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("law", ["Sparsemax", "LocalM", "LocalP", "LocalP2D"])
def test_what_gives_no_weight_at_all_is_refused(law):
    for name in ("LSTMDecoder", "TransformerDecoder"):
        with pytest.raises(UsageError, match=f"{law} gives regions none at all"):
            Likelihood(supervision=1.0).check(make(name, None, "Attention", law))
    with pytest.raises(UsageError, match="must be 0 or more, got -1"):
        Likelihood(supervision=-1.0).check(make("LSTMDecoder"))


def taught(model, records, supervision):
    """A model after eighty steps of training on all records at once."""
    objective = Likelihood(doubly_stochastic=0.0, label_smoothing=0.0, supervision=supervision)
    targets = Supervision(records, GRID)
    size = model.encoder.preprocessing
    [batch] = read_batches([r.path for r in records], len(records), size)
    with torch.no_grad():
        annotations = model.encode(batch.pixels)
    tokens = torch.full((len(records), 2, 24), PAD)
    masks = torch.zeros(*tokens.shape, 16)
    for b, record in enumerate(records):
        for r in range(2):
            ids = [START, *model.vocabulary.encode(Tokenizer()(record.captions[r])), END]
            tokens[b, r, : len(ids)] = torch.tensor(ids)
            masks[b, r, : len(ids)] = torch.from_numpy(targets(record, r, ids))
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learning, 1e-2)
    for _ in range(80):
        decoded = model.train()(annotations, tokens[..., :-1])
        told = masks[..., 1:, :] if supervision else None
        loss = objective(decoded, tokens[..., 1:], None, told)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
def test_a_short_training_points_better_with_it(root):
    """At objects of scenes that it has not seen."""
    records = [r for r in read("coco", root) if r.split == TRAIN]
    captions = read_references(root / "annotations" / "captions_test.json")
    scenes = read_masks(root / "annotations" / "instances_test.json", root / "test", captions)
    plain, told = (
        grounding(
            taught(
                captioner(scenes, "LSTMDecoder", hidden=32, embedding=16, dropout=0.0), records, λ
            ),
            scenes,
            "forced",
            resamples=200,
        ).report["scores"]["model"]["pointing"]
        for λ in (0.0, 1.0)
    )
    print(plain, told)
    assert told["value"] > plain["value"] + 10, (plain, told)


@pytest.fixture(scope="module")
def supervised(tmp_path_factory, shapes_cache):
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "told"
    options = ["--model.objective.init_args.supervision=1", "--trainer.log_every_n_steps=1"]
    assert main(runs.arguments(folder, shapes_cache, *options, "--overlays=0", epochs=1)) == 0
    assert not (folder / "overlays").exists()
    log = (folder / "logs" / "version_0" / "metrics.csv").read_text()
    assert "train/supervision" in log.splitlines()[0]
    return folder


def test_a_report_on_it_says_so(supervised, tmp_path, capsys):
    output = tmp_path / "report.json"
    given = ["--model", str(supervised), "--scenes=2", "--regime=forced", "--output", str(output)]
    assert main(["ground", *given]) == 0
    assert json.loads(output.read_text())["supervised_by_masks"] == 1
    told = "Its attention was supervised by masks (λ = 1): a track of its own"
    assert told in capsys.readouterr().out


@pytest.mark.slow
def test_whatever_comes_of_it_says_so(supervised, run_folder, shapes_cache, tmp_path):
    for folder, weight in ((supervised, 1.0), (run_folder, 0.0)):
        record = json.loads((folder / "results" / "val-beam5.json").read_text())
        assert record["supervised_by_masks"] == weight
        card = (folder / "model" / "README.md").read_text()
        assert ("supervised by object masks (λ = 1)" in card) == bool(weight)
        assert load(folder).supervision == weight
        assert load(folder / "checkpoints" / "best.ckpt").supervision == weight
    assert main(["export", str(tmp_path / "out"), "--model", str(supervised)]) == 0
    assert load(tmp_path / "out").supervision == 1
    # A model that starts from it knows what masks taught.
    heir = tmp_path / "heir"
    start = f"--model.init_from={supervised}"
    assert main(runs.arguments(heir, shapes_cache, start, "--overlays=0", epochs=1)) == 0
    record = json.loads((heir / "results" / "val-beam5.json").read_text())
    assert record["supervised_by_masks"] == 1
    assert load(heir).supervision == 1
