"""Data sets of generated scenes on disk are complete or absent."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from captioner.data import shapes_dataset
from captioner.data.masks import read
from captioner.data.shapes import Scene, scene
from captioner.data.shapes_dataset import write
from captioner.errors import DataError

SMALL = {"train": 6, "val": 3, "test": 2}
ARGUMENTS = {"seed": 5, "sizes": SMALL, "image_size": 96}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "deeper" / "shapes"
    write(root, **ARGUMENTS)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# pycocotools' own decode() under NumPy 2
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_written_files_load_as_coco(written: Path):
    ids: list[int] = []
    for split, size in SMALL.items():
        captions = COCO(str(written / "annotations" / f"captions_{split}.json"))
        instances = COCO(str(written / "annotations" / f"instances_{split}.json"))
        assert captions.getImgIds() == instances.getImgIds()
        assert len(captions.getImgIds()) == size == len(list((written / split).iterdir()))
        data = read(written / "annotations" / f"instances_{split}.json", written / split)
        objects = {image.image_id: image.objects for image in data.images}
        ids += captions.getImgIds()
        for image in captions.loadImgs(captions.getImgIds()):
            expected = scene(5, image["id"], image_size=96)
            with Image.open(written / split / image["file_name"]) as file:
                assert (file.format, file.size) == ("PNG", (image["width"], image["height"]))
                assert file.tobytes() == expected.image.tobytes()
            texts = [a["caption"] for a in captions.imgToAnns[image["id"]]]
            assert texts == list(expected.captions)
            assert objects[image["id"]] == expected.objects
            annotations = instances.imgToAnns[image["id"]]
            for a, o, mask in zip(annotations, expected.objects, expected.masks, strict=True):
                assert np.array_equal(instances.annToMask(a).astype(bool), mask)
                y, x = np.nonzero(mask)
                left, top = x.min(), y.min()
                assert a["bbox"] == [left, top, x.max() + 1 - left, y.max() + 1 - top]
                assert (a["area"], a["iscrowd"]) == (mask.sum(), 0)
                assert instances.loadCats(a["category_id"])[0]["name"] == o.shape
    assert len(set(ids)) == sum(SMALL.values())


def test_splits_share_no_image_and_enlarging_one_keeps_the_others(written: Path, tmp_path: Path):
    before = {name: data for name, data in contents(written).items() if name.endswith("png")}
    assert len(set(before.values())) == len(before) == sum(SMALL.values())
    write(tmp_path / "more", **ARGUMENTS | {"sizes": {**SMALL, "train": 8}})
    assert before.items() <= contents(tmp_path / "more").items()


def test_writing_again_changes_nothing(written: Path, tmp_path: Path):
    before = {p: p.stat().st_mtime_ns for p in written.rglob("*")}
    write(written, **ARGUMENTS)
    assert {p: p.stat().st_mtime_ns for p in written.rglob("*")} == before
    assert list(written.parent.iterdir()) == [written]
    write(tmp_path / "again", **ARGUMENTS)
    assert contents(tmp_path / "again") == contents(written)


@pytest.mark.parametrize("changed", [{"seed": 6}, {"sizes": dict(reversed(SMALL.items()))}])
def test_a_folder_with_something_else_is_refused(written: Path, tmp_path: Path, changed):
    before = contents(written)
    with pytest.raises(DataError, match="holds shapes made with"):
        write(written, **ARGUMENTS | changed)
    assert contents(written) == before
    (tmp_path / "dog.jpg").write_bytes(b"dog")
    with pytest.raises(DataError, match="is not a generated shapes data set"):
        write(tmp_path, **ARGUMENTS)


def test_a_crash_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, calls = shapes_dataset.scene, iter(range(4))

    def scene_until_full(*args: int, **options: int) -> Scene:
        if next(calls) == 3:
            raise OSError("No space left on device")
        return real(*args, **options)

    monkeypatch.setattr(shapes_dataset, "scene", scene_until_full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "shapes", sizes=SMALL, image_size=32)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_appears_complete_and_the_first_writer_wins(tmp_path: Path):
    root = tmp_path / "shapes"
    options = {"sizes": SMALL, "image_size": 32}
    numbers: list[int] = []
    inodes: list[int] = []

    def overtaken(ids):
        for number in ids:
            numbers.append(number)
            assert not root.exists()
            yield number
        write(root, **options)
        inodes.append(root.stat().st_ino)

    write(root, **options, progress=overtaken)
    ids = [COCO(str(file)).getImgIds() for file in root.rglob("captions_*.json")]
    assert sorted(numbers) == sorted(itertools.chain(*ids))
    assert [root.stat().st_ino] == inodes
    assert list(tmp_path.iterdir()) == [root]
