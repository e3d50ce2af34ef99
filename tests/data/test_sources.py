"""Several data sets in one training."""

import pytest

import layouts
from captioner.data.module import CaptionDataModule
from captioner.data.readers import read
from captioner.data.sources import FurtherData, join
from captioner.errors import DataError


@pytest.fixture
def main_data(tmp_path):
    photos = {"train": {"1_a.jpg": ["a red circle"]}, "val": {"2_b.jpg": ["a blue ring"]}}
    return layouts.flickr8k(tmp_path / "flickr8k", photos)


@pytest.fixture
def other(tmp_path):
    for number in range(12):
        layouts.picture(tmp_path / "other" / f"{number}.jpg")
    splits = ["train"] * 9 + ["val", "val", "test"]
    rows = "".join(
        f"{number}.jpg,a photo of number{number},{split}\n" for number, split in enumerate(splits)
    )
    layouts.write(tmp_path / "other" / "captions.csv", "image,caption,split\n" + rows)
    return str(tmp_path / "other")


def by_split(records):
    return {
        split: [record.image_id for record in records.of_split(split)]
        for split in ("train", "val", "test")
    }


def test_photos_of_a_source_join_the_training_split(main_data, other):
    joined = join(read("flickr8k", main_data), [FurtherData("csv", other, held_out=2)])
    expected = [f"{number}.jpg" for number in range(7)]
    assert by_split(joined) == {
        "train": [*expected, "1_a.jpg"],
        "val": ["2_b.jpg"],
        "test": ["7.jpg", "8.jpg"],
    }
    source = FurtherData("csv", other, splits=["val", "test"])
    assert by_split(join(read("flickr8k", main_data), [source]))["train"] == [
        *("9.jpg", "10.jpg", "11.jpg", "1_a.jpg")
    ]


def test_the_vocabulary_has_the_words_of_all_training_photos(main_data, other):
    data = CaptionDataModule(
        "flickr8k", str(main_data), min_count=1, sources=[FurtherData("csv", other)]
    )
    assert {"circle", "number0", "number8"} <= set(data.words)
    assert not {"ring", "number9"} & set(data.words)
    assert data.name == "flickr8k + csv"
    assert list(data.references("val")) == ["2_b.jpg"]


def test_sources_that_cannot_be_used(main_data, other):
    with pytest.raises(DataError, match="has 9 photos in train, of which 9 cannot be held out"):
        join(read("flickr8k", main_data), [FurtherData("csv", other, held_out=9)])
    with pytest.raises(DataError, match="two sources have a photo with the id"):
        join(read("flickr8k", main_data), [FurtherData("csv", other)] * 2)
