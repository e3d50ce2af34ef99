"""Masks of every form, and their coverage of the grid's cells."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from captioner.data.masks import read
from captioner.errors import DataError
from captioner.photos.images import load

WIDTH, HEIGHT = 40, 80  # a portrait


def counts(mask):
    """Uncompressed run lengths, by a plain loop: down the columns, background first."""
    runs, last = [0], 0
    for value in mask.T.ravel():
        if value != last:
            runs.append(0)
            last = value
        runs[-1] += 1
    return runs


def write(folder, annotations, **image):
    """An instances file of one portrait with a dog, a cat and no horse."""
    content = {
        "images": [{"id": 7, "file_name": "a.png", "height": HEIGHT, "width": WIDTH, **image}],
        "categories": [{"id": i, "name": n} for i, n in enumerate(("dog", "cat", "horse"), 1)],
        "annotations": [
            {"id": i, "image_id": 7, "category_id": 1, "iscrowd": 0, **annotation}
            for i, annotation in enumerate(annotations)
        ],
    }
    file = folder / "instances.json"
    file.write_text(json.dumps(content))
    return file


def box(left, top, right, bottom):
    """A polygon of whole pixels, and its mask."""
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:bottom, left:right] = True
    return [left, top, right, top, right, bottom, left, bottom], mask


SIZE = [HEIGHT, WIDTH]


def annotated(folder, *segmentations):
    """The image with these segmentations."""
    (image,) = read(write(folder, [{"segmentation": s} for s in segmentations]), folder).images
    return image


def test_polygons_and_run_lengths_are_the_same_mask(tmp_path):
    polygon, mask = box(10, 20, 30, 50)
    halves = [box(10, 20, 30, 35)[0], box(10, 35, 30, 50)[0]]
    image = annotated(tmp_path, [polygon], {"size": SIZE, "counts": counts(mask)}, halves)
    assert image.categories == ("dog",) * 3
    for i in range(3):
        truth = image.truth([i], (HEIGHT, WIDTH)).reshape(HEIGHT, WIDTH)
        np.testing.assert_array_equal(truth, mask)


def test_a_mask_covers_the_expected_cells(tmp_path):
    """A portrait on a square grid: cells are 10 × 20 pixels, rows downward."""
    image = annotated(tmp_path, [box(10, 20, 20, 40)[0]], [box(30, 70, 40, 80)[0]])
    expected = np.zeros((4, 4))
    expected[1, 1], expected[3, 3] = 1.0, 0.5
    np.testing.assert_allclose(image.truth([0, 1], (4, 4)).reshape(4, 4), expected)


def test_a_union_counts_no_pixel_twice(tmp_path):
    image = annotated(tmp_path, [box(0, 0, 20, 40)[0]], [box(10, 0, 40, 40)[0]])
    assert image.truth([0, 1], (1, 1)) == pytest.approx(0.5)
    assert image.overlap([0], [1]) == pytest.approx(0.5)  # half of the smaller
    assert image.overlap([1], [0]) == pytest.approx(0.5)


def test_crowds_and_empty_masks_are_dropped_and_counted(tmp_path):
    polygon, mask = box(0, 0, 20, 20)
    annotations = [
        {"segmentation": [polygon]},
        {"segmentation": {"size": SIZE, "counts": counts(mask)}, "iscrowd": 1, "category_id": 3},
        {"segmentation": {"size": SIZE, "counts": [HEIGHT * WIDTH]}},
        {"segmentation": [[1, 1, 5, 5]], "category_id": 2},  # two corners are no polygon
    ]
    data = read(write(tmp_path, annotations), tmp_path)
    (image,) = data.images
    assert image.categories == ("dog",)
    assert list(data.left_out.values()) == [1, 2]
    assert image.present == {"dog", "horse", "cat"}
    dog, horse = data.mentions(["a", "puppy", "and", "a", "horse"], image)
    assert (dog.words, dog.category, dog.instances) == ((1,), "dog", (0,))
    assert (horse.category, horse.instances) == ("horse", ())


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "instances.json"
    file.write_text('{"images": [], "annotations": []}')
    with pytest.raises(DataError, match=r"categories.*expected COCO instances"):
        read(file, tmp_path)
    with pytest.raises(DataError, match="no photo in common"):
        read(write(tmp_path, []), tmp_path, {8: ["a dog"]})
    with pytest.raises(DataError, match=r"mask 0 has \[10, 10\] pixels, its photo \[80, 40\]"):
        annotated(tmp_path, {"size": [10, 10], "counts": [100]})


def test_real_masks_match_polygons_drawn_by_pillow(shared_data):
    """Within the width of an outline."""
    file = shared_data / "coco" / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    names = {c["id"]: c["name"] for c in content["categories"]}
    data = read(file, shared_data / "coco" / "train2017")
    assert len(data.images) == 80
    assert data.left_out["crowds_dropped"] == sum(a["iscrowd"] for a in content["annotations"]) > 0
    for image in data.images[:20]:
        annotations = [
            a
            for a in content["annotations"]
            if a["image_id"] == image.image_id and not a["iscrowd"]
        ]
        assert image.categories == tuple(names[a["category_id"]] for a in annotations)
        assert load(image.path).size == image.size
        for i, annotation in enumerate(annotations):
            canvas = Image.new("1", image.size)
            for polygon in annotation["segmentation"]:
                ImageDraw.Draw(canvas).polygon(polygon, fill=1)
            width, height = image.size
            expected = np.asarray(canvas).reshape(height, width).mean()
            outline = sum(map(len, annotation["segmentation"])) + sum(annotation["bbox"][2:])
            assert abs(image.truth([i], (1, 1))[0] - expected) * width * height <= 2 * outline
