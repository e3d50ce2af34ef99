"""Region features of detectors: files, annotations, captions, drawings and grounding."""

import csv
import io
import itertools
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import runs
import scene_regions
from captioner import overlay
from captioner.cli.main import main
from captioner.data import shapes_dataset
from captioner.data.pixels import ImageFiles, read_batch
from captioner.errors import ImageError, ModelError, UsageError
from captioner.evaluation.localisation import spread
from captioner.language.vocabulary import Vocabulary
from captioner.models import Annotations
from captioner.models.captioner import Captioner
from captioner.models.positions import grid_cosines, grid_sinusoids
from captioner.models.registry import build
from captioner.overlay import export
from captioner.overlay.heatmap import draw_map
from captioner.photos.geometry import Geometry
from captioner.photos.region_files import RegionFiles
from captioner.predict.predictor import Predictor
from captioner.search.options import Decoding
from captioner.store import checkpoint
from captioner.training.warm_start import start_from
from known_maps import gray, make_caption

SIZE = 200, 100  # of the photo, (width, height)
D, N = 6, 5
VECTORS = np.random.default_rng(0).normal(size=(3, D)).astype(np.float32)
BOXES = np.array([[0, 0, 50, 50], [100, 20, 200, 100], [10, 10, 190, 90]], np.float32)
FRACTIONS = BOXES / [200, 100, 200, 100]


def files(folder: Path, boxes: Path | None = None) -> RegionFiles:
    return RegionFiles(folder, boxes, N, D)


LAYOUTS = {
    "features and boxes": ("dog", "dog.npz", {"features": VECTORS, "boxes": BOXES}),
    "x and bbox": ("dog", "dog.npz", {"x": VECTORS, "bbox": BOXES}),
    "transposed": ("dog", "dog.npz", {"x": VECTORS.T, "bbox": BOXES, "info": np.array("made by")}),
    "COCO's id": ("COCO_val2014_000000000042", "42.npz", {"feat": VECTORS, "bbox": BOXES}),
    "another size": (
        *("dog", "dog.npz"),
        {"features": VECTORS, "boxes": 2 * BOXES, "image_w": 400, "image_h": 200},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_files(layout, tmp_path):
    photo, name, arrays = LAYOUTS[layout]
    np.savez(tmp_path / name, **arrays)
    rows = files(tmp_path).read(f"photos/{photo}.jpg", SIZE)
    assert (rows.shape, rows.dtype) == ((N, D + 5), np.float32)
    np.testing.assert_array_equal(rows[:3, :D], VECTORS)
    np.testing.assert_allclose(rows[:3, D:-1], FRACTIONS, atol=1e-7)
    assert rows[:, -1].tolist() == [1, 1, 1, 0, 0]
    assert not rows[3:].any()


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_vectors_and_boxes_in_two_folders(suffix, tmp_path):
    """As ``cocobu_att`` and ``cocobu_box`` of ruotianluo's ImageCaptioning.pytorch."""
    attention, boxes = tmp_path / "cocobu_att", tmp_path / "cocobu_box"
    attention.mkdir()
    boxes.mkdir()
    if suffix == "npz":
        np.savez(attention / "42.npz", feat=VECTORS)
    else:
        np.save(attention / "42.npy", VECTORS)
    np.save(boxes / "42.npy", BOXES)
    rows = files(attention, boxes).read("COCO_train2014_000000000042.jpg", SIZE)
    np.testing.assert_array_equal(rows[:3, :D], VECTORS)
    np.testing.assert_allclose(rows[:3, D:-1], FRACTIONS, atol=1e-7)


OUTSIDE = BOXES + np.array([0, 0, 30, 0], np.float32)
PICKLED = np.array([{"features": 1}], object)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": VECTORS[:, :4], "boxes": BOXES}, r"shape \(3, 4\), expected \(regions, 6\)"),
        ({"features": VECTORS[:2], "boxes": BOXES}, "size 2 and .* size 3"),
        ({"features": VECTORS * np.nan, "boxes": BOXES}, "not finite"),
        ({"features": VECTORS}, "no array boxes or bbox, only features"),
        ({"features": VECTORS, "boxes": FRACTIONS}, "between 0 and 1, expected pixels"),
        ({"features": VECTORS, "boxes": OUTSIDE}, r"box \[100.0, 20.0, 230.0, 100.0\]"),
        ({"features": PICKLED, "boxes": BOXES}, "Object arrays cannot be loaded"),
        (
            {"features": VECTORS, "boxes": BOXES, "image_w": 100, "image_h": 200},
            "saw 100 × 200 pixels, the photo has 200 × 100",
        ),
    ],
)
def test_malformed_files_say_what_is_wrong(arrays, message, tmp_path):
    np.savez(tmp_path / "dog.npz", **arrays)
    with pytest.raises(ImageError, match=message) as error:
        files(tmp_path).read("dog.jpg", SIZE)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("dog.jpg")


def test_missing_and_damaged_files(tmp_path):
    np.savez(tmp_path / "cat.npz", features=VECTORS, boxes=BOXES)
    beside = RegionFiles(None, None, 2, D).read(tmp_path / "cat.jpg", SIZE)
    np.testing.assert_array_equal(beside[:, :D], VECTORS[:2])  # more regions than rows
    read = files(tmp_path).read
    with pytest.raises(ImageError, match=r"^dog.jpg has no region features: '.*' holds no dog.npz"):
        read("dog.jpg", SIZE)
    with pytest.raises(UsageError, match=r"^there is no folder of region features '.*gone'"):
        files(tmp_path / "gone").read("dog.jpg", SIZE)
    with pytest.raises(ImageError, match="no file name to find its region features by"):
        read(gray(SIZE), SIZE)
    (tmp_path / "dog.npz").write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(ImageError, match=r"^dog.jpg: region features '.*' cannot be used: "):
        read("dog.jpg", SIZE)


# ── Annotations and captions ──────────────────────────────────────────────────────────────────────

WORDS = ["a", "dog", "runs", "on", "grass"]


def captioner(folder, *, dim=D, regions=N, positions=2, decoder="TopDownDecoder") -> Captioner:
    torch.manual_seed(1)
    encoder = {"features": str(folder), "dim": dim, "regions": regions}
    neck = {"dim": 8, "positions": positions}
    config = {
        "encoder": {"class_path": "RegionFeatures", "init_args": encoder},
        "neck": {"class_path": "Projection", "init_args": neck},
        "decoder": {"class_path": decoder, "init_args": {"hidden": 8, "embedding": 8}},
    }
    return Captioner.from_config(config, Vocabulary(WORDS)).eval()


def test_a_model_can_start_from_one_with_other_region_files(tmp_path):
    checkpoint.save(captioner(tmp_path / "mine"), tmp_path / "model", "# Regions", Decoding())
    start_from(captioner(tmp_path / "yours", regions=N + 1), str(tmp_path / "model"))
    with pytest.raises(UsageError, match=rf"encoder\.dim is {D}, here {D + 1}"):
        start_from(captioner(tmp_path / "mine", dim=D + 1), str(tmp_path / "model"))


@pytest.fixture
def photos(tmp_path) -> list[Path]:
    """Photos with 3, 1 and 5 regions, and two without usable features."""
    rng = np.random.default_rng(3)
    paths = [tmp_path / f"{name}.png" for name in ("three", "one", "none", "five", "broken")]
    for path in paths:
        gray(SIZE).save(path)
    for path, count in zip(paths, (3, 1, None, 5, 2), strict=True):
        if count is not None:
            corners = np.sort(rng.uniform(0, 100, (count, 2, 2)), 1).reshape(count, 4)
            width = D if path.stem != "broken" else D - 1
            np.savez(path.with_suffix(".npz"), x=rng.normal(size=(count, width)), bbox=corners)
    return paths


def test_photos_without_features_are_left_out_and_the_others_equal_one_by_one(photos, tmp_path):
    model = Predictor(captioner(tmp_path), "regions", "cpu")
    found = list(model.captions(photos, details=True))
    assert [isinstance(result, ImageError) for result in found] == [False, False, True, False, True]
    assert "none.png has no region features" in str(found[2])
    assert "shape (2, 5), expected (regions, 6)" in str(found[4])
    for index, count in ((0, 3), (1, 1), (3, 5)):
        batched, alone = found[index], model.caption(photos[index])
        assert batched.text == alone.text
        assert batched.weights.shape == (len(batched.words), 1, count)
        assert batched.weights.sum((1, 2)) == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(batched.weights, alone.weights, atol=1e-6)
        assert batched.log_prob == pytest.approx(alone.log_prob, abs=1e-5)
        with np.load(photos[index].with_suffix(".npz")) as stored:
            np.testing.assert_allclose(batched.geometry.boxes, stored["bbox"], atol=1e-4)
        explained = model.explain(photos[index], batched.text)
        np.testing.assert_allclose(explained.weights, batched.weights, atol=1e-6)


def test_training_reads_what_captioning_reads(photos, tmp_path):
    regions = files(tmp_path)
    batch = read_batch(photos, range(len(photos)), regions)
    assert batch.indices == [0, 1, 3]
    for index, rows in zip(batch.indices, batch.pixels, strict=True):
        assert torch.equal(ImageFiles(regions)[str(photos[index])], rows)
    (tmp_path / "text.jpg").write_text("no photo")
    with pytest.raises(ImageError, match="is not an image"):
        ImageFiles(regions)[str(tmp_path / "text.jpg")]


def test_a_model_folder_and_features_at_another_place(photos, tmp_path, monkeypatch):
    model = captioner(tmp_path / "gone")
    checkpoint.save(model, tmp_path / "model", "a card", Decoding())
    loaded = checkpoint.load(tmp_path / "model").captioner
    with pytest.raises(UsageError, match=r"gone': set .* CAPTIONER_FEATURES"):
        Predictor(loaded, "regions", "cpu").caption(photos[0])
    monkeypatch.setenv("CAPTIONER_FEATURES", str(tmp_path))
    moved = Predictor(checkpoint.load(tmp_path / "model").captioner, "regions", "cpu")
    expected = Predictor(captioner(tmp_path), "regions", "cpu").caption(photos[0])
    np.testing.assert_array_equal(moved.caption(photos[0]).weights, expected.weights)


def test_parts_that_need_a_grid_are_refused(tmp_path):
    model = captioner(tmp_path)
    streams = {"class_path": "TwoStreamEncoder", "init_args": {"keys": model.config["encoder"]}}
    for part, message in (
        ({"neck": {"class_path": "Local2D"}}, "Local2D needs a grid"),
        ({"encoder": streams}, "a stream of a TwoStreamEncoder is"),
    ):
        with pytest.raises(ModelError, match=message):
            Captioner.from_config(dict(model.config) | part, Vocabulary(WORDS))


@pytest.mark.parametrize("make", [partial(grid_cosines, count=3), partial(grid_sinusoids, dim=12)])
def test_boxes_of_cells_have_the_positions_of_the_cells(make):
    grid = 14, 14
    cells = [(c, r, c + 1, r + 1) for r, c in itertools.product(range(14), range(14))]
    boxes = torch.tensor([cells], dtype=torch.double) / 14
    like = torch.zeros((), dtype=torch.double)
    expected = make(grid, like=like)
    assert expected.unique(dim=0).shape == expected.shape
    found = make((1, 196), like=like, boxes=boxes)[0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "neck", ["Projection", "SAGAN", "TransformerNeck", "AoARefiner", "MemoryNeck"]
)
def test_necks_see_the_boxes_and_not_the_padding(neck):
    """Other boxes give other vectors; other padding does not."""
    torch.manual_seed(2)
    tree = {"class_path": neck, "init_args": {"dim": 8, "positions": 2}}
    module = build("neck", tree, in_dim=D).double().eval()
    mask = torch.tensor([[True, True, True, False, False]])
    vectors = torch.randn(1, N, D, dtype=torch.double)
    corners = torch.rand(1, N, 2, 2, dtype=torch.double).sort(2).values.flatten(2)
    one = Annotations(vectors, (1, N), mask, boxes=corners)
    padding = torch.where(mask.unsqueeze(-1), vectors, 7.0)
    valid = [module(a).vectors[0, :3] for a in (one, replace(one, vectors=padding))]
    torch.testing.assert_close(valid[0], valid[1], atol=1e-10, rtol=0)
    moved = module(replace(one, boxes=corners.flip(1))).vectors[0, :3]
    assert (moved - valid[0]).abs().max() > 1e-3
    alone = module(Annotations(vectors[:, :3], (1, 3), boxes=corners[:, :3])).vectors[0]
    torch.testing.assert_close(valid[0], alone, atol=1e-10, rtol=0)


# ── Drawings and exports ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def boxed():
    """Two words: the first attends to the left box, the second to the right one and a little left."""
    boxes = (20.0, 10.0, 80.0, 90.0), (120.0, 30.0, 180.0, 70.0), (0.0, 0.0, 200.0, 100.0)
    weights = np.array([[[1, 0, 0]], [[0.45, 0.55, 0]]], np.float32)
    return make_caption(weights, SIZE, geometry=Geometry(*SIZE, (1, 3), boxes))


def test_boxes_are_drawn_as_strong_as_their_weights(boxed):
    photo = gray(SIZE)
    first, second = (
        np.asarray(draw_map(boxed, index, photo, overlay.Style()), int) for index in (0, 1)
    )

    def change(drawn, x, y):
        return abs(drawn[y, x] - 90).sum()

    inside, edge = {"left": (50, 50), "right": (150, 50)}, {"left": (20, 50), "right": (120, 50)}
    for places in (inside, edge):
        assert change(first, *places["left"]) > 60
        assert change(first, *places["right"]) == 0
        assert change(second, *places["right"]) > change(second, *places["left"]) > 0
        assert change(first, *places["left"]) > change(second, *places["left"])
    assert change(first, 5, 5) == change(second, 100, 50) == 0  # only in the box of weight 0


def test_exports_hold_the_boxes(boxed, tmp_path):
    boxes = boxed.geometry.boxes
    record = json.loads(json.dumps(overlay.record(boxed)))
    assert record["boxes"] == [list(box) for box in boxes]
    assert record["words"][0]["weights"] == [[1, 0, 0]]
    with np.load(io.BytesIO(overlay.npz(boxed))) as stored:
        np.testing.assert_array_equal(stored["boxes"], boxes)
    content = export.render(".csv", boxed, None, overlay.Style())
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert [rows[4][name] for name in ("index", "column", "weight")] == ["1", "1", "0.55"]
    assert [float(rows[4][side]) for side in ("left", "top", "right", "bottom")] == list(boxes[1])
    page = overlay.page([boxed], [gray(SIZE)])
    assert "Attention weight per region (3 regions)" in page
    assert "looked most at the middle left; half" in page
    for suffix in export.FORMATS:
        if suffix != ".past.png":
            assert len(export.render(suffix, boxed, gray(SIZE), overlay.Style(look="paper"))) > 100


# ── Grounding ─────────────────────────────────────────────────────────────────────────────────────


def test_spread_equals_a_count_of_points():
    boxes = np.array([[0.1, 0.2, 0.6, 0.9], [0.0, 0.0, 1.0, 1.0], [0.3, 0.3, 0.35, 0.31]])
    found = spread(boxes, (4, 5)).reshape(3, 4, 5)
    for of_box, (left, top, right, bottom) in zip(found, boxes, strict=True):
        steps = (np.arange(1000) + 0.5) / 1000
        x, y = left + steps * (right - left), top + steps * (bottom - top)
        counted = np.outer(np.histogram(y, 4, (0, 1))[0], np.histogram(x, 5, (0, 1))[0])
        np.testing.assert_allclose(of_box, counted / 1e6, atol=2e-3)
    point = spread(np.array([[0.5, 0.5, 0.5, 0.5]]), (3, 3)).reshape(3, 3)
    assert point[1, 1] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_top_down_attention_learns_to_point_at_regions(tmp_path):
    """From the captions alone, on perfect regions: pointing of 80 % or more on new scenes."""
    scenes, features, root = tmp_path / "scenes", tmp_path / "features", tmp_path / "run"
    shapes_dataset.write(scenes, sizes={"train": 2000, "val": 20, "test": 60}, image_size=runs.SIDE)
    scene_regions.write(scenes, features)
    next(features.glob("train_*.npz")).unlink()  # one photo is left out
    encoder = {"features": features, "dim": scene_regions.DIM, "regions": 8}
    arguments = [
        *("fit", "--config=configs/shapes.yaml", f"--trainer.default_root_dir={root}"),
        *("--trainer.max_epochs=6", "--trainer.check_val_every_n_epoch=6", "--overlays=1"),
        *("--data.name=coco", f"--data.root={scenes}", "--trainer.enable_progress_bar=false"),
        *("--model.encoder=RegionFeatures", "--model.neck.init_args.dim=64"),
        *(f"--model.encoder.init_args.{name}={value}" for name, value in encoder.items()),
        *("--model.decoder=TopDownDecoder", "--model.decoder.init_args.embedding=64"),
        *("--model.decoder.init_args.hidden=64", "--model.decoder.init_args.dropout=0.0"),
        "--model.decoder.init_args.attention.init_args.score=Dot",
    ]
    command = [sys.executable, "-m", "captioner", *arguments]  # without the checks of shapes
    subprocess.run(command, env=runs.environment(), check=True)
    report = tmp_path / "ground.json"
    given = (
        f"--instances={scenes}/annotations/instances_test.json",
        f"--images={scenes}/test",
        f"--captions={scenes}/annotations/captions_test.json",
    )
    ground = ["ground", f"--model={root}", f"--output={report}", "--no-faithfulness"]
    assert main([*ground, *given]) == 0
    scores = json.loads(report.read_text())["regimes"]["forced"]["scores"]["model"]
    print({name: scores[name]["value"] for name in ("pointing", "discrimination", "mass")})
    assert scores["pointing"]["value"] >= 80
    assert scores["discrimination"]["value"] >= 90
    output, photo = tmp_path / "attention", next((scenes / "test").iterdir())
    formats = ("png", "gif", "html", "json", "npz", "csv")
    explain = ["explain", f"--model={root}", f"--output={output}", str(photo), "--formats"]
    assert main([*explain, *formats]) == 0
    assert {file.suffix[1:] for file in output.iterdir()} == set(formats)
