"""Flickr30k Entities: phrases, boxes and what cannot be used, on files as the data set has them."""

from pathlib import Path

import numpy as np
import pytest

import layouts
from captioner.data.entities import Phrase, read_photo
from captioner.data.readers import read
from captioner.data.records import Record
from captioner.data.supervision import BoxSupervision
from captioner.errors import DataError
from captioner.language.vocabulary import END, START, UNK, Tokenizer

SENTENCE = (
    "[/EN#18/people A child] in [/EN#19/clothing a pink dress] is climbing [/EN#20/other the stairs] "
    "to [/EN#21/scene a cabin] on [/EN#0/notvisual a day] ."
)
WORDS = Tokenizer()("a child in a pink dress is climbing the stairs to a cabin on a day")
PHOTO = "folder/7_abc.jpg"
ENTITIES = Path("../shared/data/flickr30k_entities")


def entity(chain, corners=None, scene=0):
    """An object of an annotation: with a box, or without one."""
    names = "".join(f"<name>{name}</name>" for name in chain)
    if corners is None:
        return f"<object>{names}<scene>{scene}</scene><nobndbox>1</nobndbox></object>"
    tags = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    box = "".join(f"<{tag}>{value}</{tag}>" for tag, value in tags)
    return f"<object>{names}<bndbox>{box}</bndbox></object>"


def write(root, objects, sentence=SENTENCE, size=(40, 20), name="7"):
    width, height = size
    layouts.write(
        root / "Annotations" / f"{name}.xml",
        f"<annotation><size><width>{width}</width><height>{height}</height></size>"
        f"{''.join(objects)}</annotation>",
    )
    layouts.write(root / "Sentences" / f"{name}.txt", sentence + "\n")
    return root


@pytest.fixture
def root(tmp_path):
    objects = [
        entity(["18"], (1, 1, 20, 20)),
        entity(["19", "20"], (11, 11, 20, 20)),
        entity(["19"], (31, 1, 40, 10)),
        entity(["21"], scene=1),
    ]
    return write(tmp_path / "entities", objects)


def test_phrases_have_the_boxes_of_their_chain(root):
    photo = read_photo(root, PHOTO, Tokenizer())
    assert photo.size == (40, 20)
    assert list(photo.phrases_of(WORDS)) == [
        Phrase((0, 1), ("people",), ((0, 0, 20, 20),)),
        Phrase((3, 4, 5), ("clothing",), ((10, 10, 20, 20), (30, 0, 40, 10))),
        Phrase((8, 9), ("other",), ((10, 10, 20, 20),)),
        Phrase((11, 12), ("scene",), ()),
        Phrase((14, 15), ("other",), ()),
    ]
    assert photo.left_out == {"scene": 1, "not_visual": 1}
    # Two boxes, each a quarter of a cell of 20 × 20 pixels.
    boxes = photo.phrases_of(WORDS)[1].boxes
    np.testing.assert_allclose(photo.coverage(boxes, (1, 2)), [[0.25, 0.25]])
    overlapping = [(0, 0, 20, 20), (0, 0, 20, 10)]
    np.testing.assert_allclose(photo.coverage(overlapping, (1, 2)), [[1, 0]])


def test_a_caption_that_was_corrected_keeps_the_words_that_agree(root):
    photo = read_photo(root, PHOTO, Tokenizer())
    caption = Tokenizer()("a childd in a pink red dress is climbing stairs to a cabin on a day")
    assert [phrase.words for phrase in photo.phrases_of(caption)[:3]] == [(0,), (3, 4, 6), (9,)]
    assert photo.phrases_of(["two", "dogs", "run"]) is None


def test_boxes_are_cut_to_the_photo_or_left_out(tmp_path):
    objects = [
        entity(["18"], (50, 1, 60, 10)),
        entity(["19"], (-3, 15, 60, 99)),
        entity(["20"], (-9, -9, -3, -3)),
        entity(["19"], ("many", 1, 2, 3)),
    ]
    photo = read_photo(write(tmp_path, objects), PHOTO, Tokenizer())
    outside, cut, before, *_ = (photo.coverage(p.boxes, (20, 40)) for p in photo.phrases_of(WORDS))
    assert not outside.any()
    assert not before.any()
    assert len(photo.problems) == 3
    assert "7.xml', chain 18: the box (50, 1, 60, 10) lies outside its photo" in photo.problems[0]
    assert "chain 19: expected whole numbers xmin, ymin, xmax, ymax" in photo.problems[2]
    assert photo.left_out["no_box"] == 3
    assert cut[14:].all()
    assert not cut[:14].any()


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        ("<annotation>", "no element found"),
        ("<a><size><width>9e9</width><height>9</height></size></a>", "expected whole numbers"),
    ],
)
def test_a_malformed_annotation_is_one_line_and_gives_no_targets(root, xml, reason, caplog):
    (root / "Annotations" / "7.xml").write_text(xml)
    with pytest.raises(DataError, match=rf"7\.xml' cannot be used: .*{reason}"):
        read_photo(root, PHOTO, Tokenizer())
    record = Record(1, PHOTO, ("a child", "a pink dress"), "train")
    supervision = BoxSupervision(root, (2, 4))
    for number in (0, 1):
        assert not supervision(record, number, [START, 4, 5, END]).any()
    assert caplog.text.count("left out: ") == 1


def test_content_words_of_a_phrase_get_its_boxes(root):
    record = Record(1, PHOTO, (" ".join(WORDS),), "train")
    supervision = BoxSupervision(root, (2, 4))
    ids = [START, *range(4, 4 + len(WORDS)), END]
    targets = supervision(record, 0, ids)
    expected = np.zeros((len(ids), 8))
    expected[1 + 1] = [1, 1, 0, 0, 1, 1, 0, 0]  # child
    expected[[1 + 4, 1 + 5]] = [0, 0, 0, 1, 0, 1, 0, 0]  # pink dress
    expected[1 + 9] = [0, 0, 0, 0, 0, 1, 0, 0]  # stairs
    np.testing.assert_allclose(targets, expected)
    ids[2] = UNK
    assert not supervision(record, 0, ids)[2].any()
    other = Record(2, "folder/8_abc.jpg", ("a child",), "train")
    assert not supervision(other, 0, [START, 4, 5, END]).any()


@pytest.mark.skipif(not ENTITIES.is_dir(), reason="NO FLICKR30K ENTITIES")
def test_the_data_set_as_distributed():
    """The annotations of the development photos can be read, and fit nearly all captions."""
    tokenizer = Tokenizer()
    records = read("flickr8k", "../shared/data/flickr8k").of_split("val")[:100]
    found = [
        read_photo(ENTITIES, record.path, tokenizer).phrases_of(tokenizer(caption))
        for record in records
        for caption in record.captions
    ]
    assert sum(not phrases for phrases in found) <= 5
    boxes = [box for phrases in found for phrase in phrases for box in phrase.boxes]
    assert len(boxes) > 1000
    assert all(left < right and top < bottom for left, top, right, bottom in boxes)
