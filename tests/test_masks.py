"""Masks of every form, and the truth they make on the grid."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw

from captioner.data.masks import read
from captioner.errors import DataError
from captioner.images import load

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
        "categories": [
            {"id": 1, "name": "dog"},
            {"id": 2, "name": "cat"},
            {"id": 3, "name": "horse"},
        ],
        "annotations": [
            {"id": i, "image_id": 7, "category_id": 1, "iscrowd": 0, **given}
            for i, given in enumerate(annotations)
        ],
    }
    file = folder / "instances.json"
    file.write_text(json.dumps(content))
    return file


def box(left, top, right, bottom):
    """A polygon of whole pixels and the mask it stands for."""
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:bottom, left:right] = True
    return [left, top, right, top, right, bottom, left, bottom], mask


def test_polygons_and_run_lengths_are_the_same_mask(tmp_path):
    polygon, mask = box(10, 20, 30, 50)
    size = [HEIGHT, WIDTH]
    given = [
        {"segmentation": [polygon]},
        {"segmentation": {"size": size, "counts": counts(mask)}},
        # Two halves of one object.
        {"segmentation": [box(10, 20, 30, 35)[0], box(10, 35, 30, 50)[0]]},
    ]
    (picture,) = read(write(tmp_path, given), tmp_path).pictures
    assert picture.categories == ("dog",) * 3
    for i in range(3):
        found = picture.truth([i], (HEIGHT, WIDTH)).reshape(HEIGHT, WIDTH)
        np.testing.assert_array_equal(found, mask)


def test_a_known_mask_lies_in_known_cells(tmp_path):
    """A portrait on a square grid: cells are 10 × 20 pixels, rows downward."""
    given = [{"segmentation": [box(10, 20, 20, 40)[0]]}, {"segmentation": [box(30, 70, 40, 80)[0]]}]
    (picture,) = read(write(tmp_path, given), tmp_path).pictures
    expected = np.zeros((4, 4))
    expected[1, 1] = 1.0
    np.testing.assert_allclose(picture.truth([0], (4, 4)).reshape(4, 4), expected)
    expected[3, 3] = 0.5
    np.testing.assert_allclose(picture.truth([0, 1], (4, 4)).reshape(4, 4), expected)


def test_a_union_counts_no_pixel_twice(tmp_path):
    given = [{"segmentation": [box(0, 0, 20, 40)[0]]}, {"segmentation": [box(10, 0, 40, 40)[0]]}]
    (picture,) = read(write(tmp_path, given), tmp_path).pictures
    assert picture.truth([0, 1], (1, 1)) == pytest.approx(0.5)
    assert picture.overlap([0], [1]) == pytest.approx(0.5)  # half of the smaller
    assert picture.overlap([1], [0]) == pytest.approx(0.5)


def test_crowds_and_empty_masks_are_dropped_and_counted(tmp_path):
    polygon, mask = box(0, 0, 20, 20)
    size = [HEIGHT, WIDTH]
    given = [
        {"segmentation": [polygon]},
        {"segmentation": {"size": size, "counts": counts(mask)}, "iscrowd": 1, "category_id": 3},
        {"segmentation": {"size": size, "counts": [HEIGHT * WIDTH]}},
        {"segmentation": [[1, 1, 5, 5]], "category_id": 2},  # two corners are no polygon
    ]
    data = read(write(tmp_path, given), tmp_path)
    (picture,) = data.pictures
    assert picture.categories == ("dog",)
    assert (data.crowds, data.empty) == (1, 2)
    assert picture.present == {"dog", "horse", "cat"}


def test_pictures_without_captions_are_left_out(tmp_path):
    file = write(tmp_path, [])
    (picture,) = read(file, tmp_path, {7: ["a dog"]}).pictures
    assert picture.captions == ("a dog",)
    with pytest.raises(DataError, match="no picture in common"):
        read(file, tmp_path, {8: ["a dog"]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is not JSON"),
        ("[]", "expected COCO instances"),
        ('{"images": [], "annotations": []}', "categories.*expected COCO instances"),
    ],
)
def test_a_file_that_is_something_else(tmp_path, content, message):
    file = tmp_path / "instances.json"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        read(file, tmp_path)


def test_a_mask_of_another_size_is_named(tmp_path):
    given = [{"segmentation": {"size": [10, 10], "counts": [100]}}]
    with pytest.raises(
        DataError, match=r"mask 0 is of \[10, 10\] pixels, its picture of \[80, 40\]"
    ):
        read(write(tmp_path, given), tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "missing.json", tmp_path)


def test_real_masks_lie_on_their_photos(shared_data):
    """Every mask of real photos against Pillow's own polygons, within the width of an outline."""
    file = shared_data / "coco" / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    names = {c["id"]: c["name"] for c in content["categories"]}
    data = read(file, shared_data / "coco" / "train2017")
    assert len(data.pictures) == 80
    assert data.crowds == sum(a["iscrowd"] for a in content["annotations"]) > 0
    for picture in data.pictures[:20]:
        given = [
            a
            for a in content["annotations"]
            if a["image_id"] == picture.image_id and not a["iscrowd"]
        ]
        assert picture.categories == tuple(names[a["category_id"]] for a in given)
        assert load(picture.path).size == picture.size
        for i, annotation in enumerate(given):
            canvas = Image.new("1", picture.size)
            for polygon in annotation["segmentation"]:
                ImageDraw.Draw(canvas).polygon(polygon, fill=1)
            width, height = picture.size
            expected = np.asarray(canvas).reshape(height, width).mean()
            outline = sum(map(len, annotation["segmentation"])) + sum(annotation["bbox"][2:])
            assert abs(picture.truth([i], (1, 1))[0] - expected) * width * height <= 2 * outline
