"""Grounding in the boxes of Flickr30k Entities: boxes drawn by hand, and metrics as plain loops."""

import itertools
import json

import numpy as np
import pytest
import torch

import layouts
from captioner.cli.main import main
from captioner.data import entities, entity_images
from captioner.data.entity_images import ObjectWords
from captioner.data.records import Record
from captioner.errors import DataError
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.grounding import GroundingData, MentionRecord
from captioner.evaluation.named_objects import CaptionRecord
from tests.data.test_entities import entity, write
from tests.evaluation.test_grounding import CELL, GRID, SIDE, captioner, oracle_decoder  # noqa: F401 - a fixture

# The annotated photo is 128 × 64 pixels, the one at hand 64 × 64: a cell has 32 × 16 pixels.
SIZE = (2 * SIDE, SIDE)
BOXES = {  # photo → chain → boxes: left, top, right and bottom pixel, counted from 1
    1: {"1": [(1, 1, 48, 64)], "2": [(65, 17, 128, 40)], "3": [(5, 1, 40, 20), (30, 5, 60, 24)]},
    2: {"1": [(33, 1, 96, 64)], "2": [(100, 50, 128, 64)], "3": [(40, 1, 60, 30)]},
    3: {"1": [(20, 9, 90, 60)], "2": [(1, 1, 16, 16)], "3": [(97, 33, 128, 64)]},
}
SENTENCES = (
    "[/EN#1/people A man] in [/EN#3/clothing a red hat] holds [/EN#2/other a ball] .",
    "[/EN#2/other Balls] fly near [/EN#1/people a tall man] under [/EN#4/scene the sky] .",
)
PHRASES = (  # of each caption: positions, chain and type
    [((0, 1), "1", "people"), ((3, 4, 5), "3", "clothing"), ((7, 8), "2", "other")],
    [((0,), "2", "other"), ((3, 4, 5), "1", "people")],
)
CAPTIONS = ("a man in a red hat holds a ball", "balls fly near a tall man under the sky")


def draw(root, photo):
    objects = [entity([c], box) for c, boxes in BOXES[photo].items() for box in boxes]
    write(root, [*objects, entity(["4"], scene=1)], "\n".join(SENTENCES), SIZE, str(photo))


@pytest.fixture
def folder(tmp_path):
    for photo in BOXES:
        draw(tmp_path / "entities", photo)
    return tmp_path / "entities"


@pytest.fixture
def data(folder, tmp_path):
    paths = {p: layouts.picture(tmp_path / f"{p}_x.png", p, (SIDE, SIDE)) for p in BOXES}
    return entity_images.read(
        folder, [Record(p, str(path), CAPTIONS, "val") for p, path in paths.items()]
    )


def pixels(photo, chain):
    """The pixels that the boxes of a chain cover, by their definition."""
    return {
        (x, y)
        for left, top, right, bottom in BOXES[photo][chain]
        for x in range(left - 1, right)
        for y in range(top - 1, bottom)
    }


def mask(photo, chain):
    """The fraction of every cell that the boxes cover, pixel by pixel."""
    cells = np.zeros(GRID)
    for x, y in pixels(photo, chain):
        cells[y // CELL, x // (2 * CELL)] += 1 / (2 * CELL * CELL)
    return cells.ravel()


def mention_rows(maps):
    """Each mention: photo, caption, type, chain, mask, the maps of its words, the caption's mean map."""
    for p, photo in enumerate(BOXES):
        for c, phrases in enumerate(PHRASES):
            words = maps[p, c, : len(CAPTIONS[c].split())]
            for positions, chain, kind in phrases:
                of_words = [words[i] for i in positions]
                yield photo, c, kind, chain, mask(photo, chain), of_words, sum(words) / len(words)


def test_every_metric_equals_a_plain_loop(data, oracle_decoder):  # noqa: F811
    maps = torch.rand(3, 2, 9, 16, generator=torch.Generator().manual_seed(1)) ** 4
    oracle_decoder.maps = maps / maps.sum(-1, keepdim=True)
    collected = GroundingData(captioner(data, "Oracle"), data, "forced")
    for batch in batches(collected._captioner, data.images, 2, []):
        # Each batch starts at the first map, so the decoder gets those of its photos.
        collected._captioner.decoder.maps = oracle_decoder.maps[batch.indices]
        collected.add(batch)
    report = collected.report(resamples=20).report
    rows = list(mention_rows(oracle_decoder.maps.double().numpy()))
    assert report["coverage"]["mentions_with_mask"] == len(rows) == 15
    assert report["coverage"]["scene"] == 3
    assert set(report["types"]) == {"people", "clothing", "other"}

    def maps_of(row):
        photo, *_, mean_map = row
        others = sum(other[4] for other in rows if other[0] != photo)
        yield "model", row[5]
        yield "time_averaged", [mean_map]
        yield "mean_mask", [others / others.sum()]
        yield "uniform", [np.full(16, 1 / 16)]

    def lead(one, two, kind):
        """How much more of both maps is on the right boxes than on the wrong ones."""
        first, second = (np.mean(dict(maps_of(row))[kind], 0) for row in (one, two))
        right = sum(first * one[4]) + sum(second * two[4])
        return right - sum(first * two[4]) - sum(second * one[4])

    for name in ("all", "people", "clothing", "other"):
        found = report if name == "all" else report["types"][name]
        chosen = [row for row in rows if name in ("all", row[2])]
        pairs = [
            (one, two)
            for one, two in itertools.combinations(rows, 2)
            if one[:2] == two[:2] and name in ("all", one[2], two[2])
            for a, b in [(pixels(one[0], one[3]), pixels(two[0], two[3]))]
            if len(a & b) <= 0.25 * min(len(a), len(b))
        ]
        assert found.get("pairs", report["coverage"]["pairs"]) == len(pairs)
        for kind in ("model", "time_averaged", "mean_mask", "uniform"):
            mass, correct, points = [], [], []
            for row in chosen:
                of_words = dict(maps_of(row))[kind]
                of_phrase = sum(of_words) / len(of_words)
                mass.append(sum(of_phrase * row[4]))
                correct.append(max(sum(word * row[4]) for word in of_words))
                peaks = [i for i in range(16) if of_phrase[i] > max(of_phrase) - 1e-12]
                points.append(sum(row[4][i] > 0 for i in peaks) / len(peaks))
            ties = [lead(*pair, kind) for pair in pairs]
            expected = {
                "mass": np.mean(mass),
                "correctness": np.mean(correct),
                "pointing": np.mean(points),
                "discrimination": np.mean([0.5 if abs(t) < 1e-6 else t > 0 for t in ties]),
            }
            for metric, value in expected.items():
                assert found["scores"][kind][metric]["value"] == pytest.approx(
                    100 * value, abs=0.01
                ), (name, kind, metric)
            assert "centre" in found["scores"]


def test_f1_of_generated_captions_equals_a_plain_loop(data):
    """Given captions and points: F1-all and F1-loc over all objects, and by type."""
    generated = {1: "a man with a dog and a hat", 2: "a ball", 3: "two men in hats near a man"}
    # Photo → category → whether the map points at it; the first mention counts.
    points = {1: {"man": 1, "hat": 0}, 2: {"ball": 1}, 3: {"man": 1, "hat": 1}}
    collected = GroundingData(captioner(data), data, "generated")
    collected.grid, collected.images = GRID, [0, 1, 2]
    for index, (photo, text) in enumerate(generated.items()):
        numbered, seen = [], set()
        for mention in data.named(text.split(), data.images[index]):
            truth = data.images[index].truth(mention.instances, GRID)
            hit = points[photo][mention.category] and mention.category not in seen
            seen.add(mention.category)
            peak = ((truth == truth.max()) if hit else (truth == 0)).astype(float)
            record = MentionRecord(
                index, mention, truth, dict.fromkeys(("model", "time_averaged"), peak), {}
            )
            numbered.append((mention, len(collected.mentions)))
            collected.mentions.append(record)
        words = text.split()
        collected.captions.append(CaptionRecord(index, words, numbered, np.zeros(len(words))))
    report = collected.report(resamples=20).report
    types = {"man": "people", "hat": "clothing", "ball": "other"}
    for name in ("all", *types.values()):
        grounded = named = targets = 0
        for photo in BOXES:
            for category, kind in types.items():
                if name in ("all", kind):
                    targets += 1  # a reference names it, and it has a box in every photo
                    named += category in points[photo]
                    grounded += points[photo].get(category, 0)
        scores = (report if name == "all" else report["types"][name])["scores"]["model"]
        assert scores["f1_all"]["value"] == pytest.approx(100 * 2 * grounded / (named + targets))
        assert scores["f1_loc"]["value"] == pytest.approx(100 * grounded / named)
    # A dog is named in no reference, so nothing says whether the word is an object.
    assert report["objects"]["named"] == 5
    assert "chair_i" not in report["objects"]  # references do not name everything in a photo


def test_object_words():
    phrase = entities.Phrase
    box = ((0, 0, 1, 1),)
    words = ("a", "soccer", "player", "in", "black", "has", "two", "black", "balls")
    other = ("a", "black", "ball", "and", "black", "players")
    captions = {
        words: [
            phrase((0, 1, 2), ("people",), box),
            phrase((4,), ("clothing",), box),
            phrase((6, 7, 8), ("other",), box),
        ],
        other: [phrase((0, 1, 2), ("other",), box), phrase((4, 5), ("people",), box)],
    }
    found = ObjectWords([captions])
    assert found.types == {"player": "people", "ball": "other"}  # "black" mostly ends no phrase
    assert found.find(words) == [((2,), "player"), ((8,), "ball")]
    assert found.find(("ball", "players")) == [((1,), "player")]


def test_a_photo_that_cannot_be_used_is_left_out(folder):
    records = [Record(p, f"{p}_x.png", CAPTIONS, "val") for p in (1, 2, 3, 4)]
    (folder / "Annotations" / "1.xml").write_text("<a>")
    (folder / "Sentences" / "2.txt").unlink()
    data = entity_images.read(folder, [*records, Record(5, "3_y.png", ("nothing alike",), "val")])
    assert [image.image_id for image in data.images] == [3, 5]
    assert [error.split("'")[1] for error in data.failed] == [
        *(str(folder / "Annotations/1.xml"), str(folder / "Sentences/2.txt")),
        str(folder / "Annotations/4.xml"),
    ]
    assert data.left_out["captions_without_sentence"] == 1
    with pytest.raises(DataError, match=r"none of 2 photos can be used; the first: .*1\.xml"):
        entity_images.read(folder, records[:2])


def test_the_command(folder, tiny_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CAPTIONER_CACHE", str(tmp_path / "cache"))
    photos = {f"{p}_x.jpg": ["a red circle above two red square"] for p in BOXES}
    sentence = "[/EN#1/people a red circle] above [/EN#2/other two red square]"
    for photo in BOXES:
        objects = [entity(["1"], (1, 1, 40, 40)), entity(["2"], (70, 30, 128, 64))]
        write(folder, objects, sentence, SIZE, str(photo))
    root = layouts.flickr8k(tmp_path / "data", {"train": {"9_x.jpg": ["a ball"]}, "val": photos})
    for name in photos:
        layouts.picture(root / "Flicker8k_Dataset" / name)

    def ground(*options, status):
        output = tmp_path / "report.json"
        files = ["--entities", str(folder), "--data=flickr8k", "--root", str(root)]
        arguments = [*files, "--model", str(tiny_folder), "--output", str(output), "--overwrite"]
        assert main(["ground", *arguments, *options]) == status
        return json.loads(output.read_text()), capsys.readouterr()

    outside = entity(["1"], (200, 1, 210, 9))
    write(folder, [outside, entity(["2"], (1, 1, 9, 9))], sentence, SIZE, "2")
    (folder / "Annotations" / "3.xml").unlink()
    report, printed = ground("--full", status=1)
    assert "lies outside its photo" in printed.err
    assert "3.xml' cannot be read" in printed.err
    assert "1 of 3 photos left out" in printed.err
    assert printed.err.count("captioner: ") == 3
    assert "| people" in printed.out
    assert set(report["regimes"]) == {"forced", "generated"}
    assert report["regimes"]["forced"]["coverage"]["boxes_dropped"] == 1
    assert list((tmp_path / "cache").rglob("*.safetensors"))
    # A second run reads the cache, and gives the same numbers to the last digit.
    reads = []
    monkeypatch.setattr("captioner.data.pixels.images.load", reads.append)
    again, _ = ground(status=1)
    assert again["regimes"] == report["regimes"]
    assert not reads
    monkeypatch.undo()
    # One photo: the annotations of the others are not read, and the cache is not filled.
    short, printed = ground("--limit=1", "--no-faithfulness", "--regime=forced", status=0)
    assert set(short["regimes"]) == {"forced"}
    assert "faithfulness" not in short["regimes"]["forced"]
    lines = printed.out.splitlines()
    assert sum(line.startswith("|") for line in lines) == 2 + 3
