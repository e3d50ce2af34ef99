"""Attention maps against object masks: models whose scores are known."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from captioner.data import shapes_dataset
from captioner.data.masks import read
from captioner.data.scene_grammar import CAPTIONS
from captioner.data.shapes import scene
from captioner.evaluation.attention_maps import batches, forced_maps
from captioner.evaluation.grounding import GroundingData, MentionRecord
from captioner.evaluation.metrics import read_references
from captioner.evaluation.named_objects import CaptionRecord
from captioner.language.vocabulary import Tokenizer, Vocabulary
from captioner.models import registry
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoded, Decoder

SIDE, SCENES = 64, 32
CELL = 16  # pixels: the encoder's stride
GRID = (SIDE // CELL, SIDE // CELL)
METRICS = ("discrimination", "pointing", "mass")
FIRST = 2 * shapes_dataset.SPLIT_ROOM + 1  # number of the first scene of the test split


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scenes"
    shapes_dataset.write(folder, sizes={"train": 1, "val": 1, "test": SCENES}, image_size=SIDE)
    return folder


@pytest.fixture(scope="module")
def data(root):
    files = root / "annotations"
    captions = read_references(files / "captions_test.json")
    return read(files / "instances_test.json", root / "test", captions)


def captioner(data, decoder="LSTMDecoder", **options):
    """An untrained captioner that knows all words of the captions."""
    words = sorted({w for i in data.images for c in i.captions for w in Tokenizer()(c)})
    if decoder != "Oracle":
        options = {"hidden": 8, "embedding": 6, **options}
    encoder = {"name": "efficientnet_lite0", "image_size": SIDE, "stride": CELL}
    tree = {
        "encoder": {"class_path": "CNNEncoder", "init_args": encoder},
        "neck": {"class_path": "Projection", "init_args": {"dim": 8}},
        "decoder": {"class_path": decoder, "init_args": options},
    }
    torch.manual_seed(0)
    built = Captioner.from_config(tree, Vocabulary(words))
    built.encoder.load_pretrained()
    return built.eval()


def ground(captioner, data, batch_size=16, resamples=10):
    """The report of a model on the reference captions of a data set."""
    collected = GroundingData(captioner, data, "forced")
    for batch in batches(captioner, data.images, batch_size, []):
        collected.add(batch)
    return collected.report(resamples=resamples).report


def value(report, name, metric):
    return report["scores"][name][metric]["value"]


def phrases(caption, objects):
    """Parse a scene's caption independently: the positions and the objects of every phrase."""
    words, result = caption.split(), []
    for end, word in enumerate(words):
        for shape in {o.shape for o in objects}:
            if word.rstrip(",") not in (shape, shape + "s", shape + "es"):
                continue
            start, sizes, kind = end - 1, {"small", "large"}, (shape, words[end - 1])
            if words[start - 1] in sizes:
                start, sizes = start - 1, {words[start - 1]}
            same = [i for i, o in enumerate(objects) if (o.shape, o.colour) == kind]
            same = [i for i in same if objects[i].size in sizes]
            result.append((range(start, end + 1), same))
    return result


@pytest.fixture
def oracle_decoder(monkeypatch):
    """A decoder with given attention maps, which leaves the registry after the test."""
    monkeypatch.setattr(registry, "_TABLE", copy.deepcopy(registry._TABLE))

    class Oracle(Decoder):
        maps: torch.Tensor  # (B, R, T, L)

        def __init__(self, vocab_size, annotation_dim):
            super().__init__()
            self.output = nn.Linear(annotation_dim, vocab_size)

        def forward(self, annotations, tokens, detail="shown"):
            logits = self.output(annotations.vectors.mean(1))
            logits = logits[:, None, None].expand(*tokens.shape, -1)
            images, rows, length = tokens.shape
            maps = None if detail == "none" else self.maps[:images, :rows, :length]
            return Decoded(logits, maps)

    return Oracle


def test_maps_that_ignore_the_word_score_half(data, oracle_decoder):
    maps = torch.rand(SCENES, 1, 1, GRID[0] * GRID[1], generator=torch.Generator().manual_seed(1))
    oracle_decoder.maps = (maps / maps.sum(-1, keepdim=True)).expand(-1, CAPTIONS, 40, -1)
    report = ground(captioner(data, "Oracle"), data, batch_size=SCENES, resamples=50)
    assert report["scores"]["model"]["discrimination"] == {"value": 50, "low": 50, "high": 50}
    assert "the maps do not depend on the word" in report["verdict"]
    assert report["coverage"]["pairs"] >= 20
    for metric in METRICS:
        assert report["delta"][metric]["value"] == pytest.approx(0, abs=0.01)


def oracle_maps(number):
    """The best maps of a scene's captions, longest first, and the masks of their phrases."""
    true = scene(0, FIRST + number, image_size=SIDE)
    rows, columns = GRID
    cells = true.masks.reshape(-1, rows, CELL, columns, CELL).mean((2, 4))
    maps, masks = [], []
    for caption in sorted(true.captions, key=lambda c: len(c.split()), reverse=True):
        word_maps = np.ones((len(caption.split()), rows * columns))
        for positions, instances in phrases(caption, true.objects):
            mask = cells[instances].sum(0).ravel()
            word_maps[positions] = 1e6 * (mask == mask.max()) + mask
            masks.append(mask)
        maps.append(word_maps)
    return maps, masks


def test_maps_on_the_right_masks_score_as_the_oracle(data, oracle_decoder):
    scenes = [oracle_maps(number) for number in range(SCENES)]
    longest = max(len(word_maps) for maps, _ in scenes for word_maps in maps)
    padded = np.ones((SCENES, CAPTIONS, longest, GRID[0] * GRID[1]))
    for b, (maps, _) in enumerate(scenes):
        for r, word_maps in enumerate(maps):
            padded[b, r, : len(word_maps)] = word_maps / word_maps.sum(1, keepdims=True)
    oracle_decoder.maps = torch.tensor(padded, dtype=torch.float32)
    report = ground(captioner(data, "Oracle"), data, batch_size=SCENES, resamples=50)
    for metric in METRICS:
        best = value(report, "oracle", metric)
        assert value(report, "model", metric) == pytest.approx(best, abs=0.02), metric
    assert value(report, "model", "pointing") == 100
    assert value(report, "model", "discrimination") > 95
    assert report["verdict"].endswith("the maps depend on the word")
    masks = [mask for _, of_scene in scenes for mask in of_scene]
    assert report["coverage"]["mentions_with_mask"] == len(masks)
    assert value(report, "uniform", "mass") == pytest.approx(100 * np.mean(masks), abs=0.01)
    best = 100 * np.mean([mask.max() for mask in masks])
    assert value(report, "oracle", "mass") == pytest.approx(best, abs=0.01)
    # A map that is the same for all words cannot tell two objects apart.
    for name in ("time_averaged", "uniform"):
        assert value(report, name, "discrimination") == 50
    assert report["delta"]["mass"]["low"] > 0


def write_photos(folder, boxes, captions, images=1):
    """Black photos with a rectangular mask for each (category, left, right)."""
    size = {"file_name": "a.png", "height": SIDE, "width": SIDE}
    annotations = [
        {
            "image_id": i,
            "category_id": k,
            "segmentation": [[left, 0, right, 0, right, SIDE, left, SIDE]],
        }
        for i in range(images)
        for k, (_, left, right) in enumerate(boxes)
    ]
    content = {
        "images": [{"id": i, **size} for i in range(images)],
        "categories": [{"id": k, "name": name} for k, (name, _, _) in enumerate(boxes)],
        "annotations": annotations,
    }
    (folder / "instances.json").write_text(json.dumps(content))
    Image.new("RGB", (SIDE, SIDE)).save(folder / "a.png")
    return read(folder / "instances.json", folder, dict.fromkeys(range(images), captions))


def test_mention_of_several_words_and_overlapping_objects(oracle_decoder, tmp_path):
    """The maps of a mention's words are averaged; overlapping objects are no pair."""
    half = SIDE // 2
    boxes = [("teddy bear", 0, half), ("dog", 0, half // 2), ("cat", half, SIDE)]
    photo = write_photos(tmp_path, boxes, ["a teddy bear a dog and a cat"])
    maps = torch.rand(1, 1, 8, 16, generator=torch.Generator().manual_seed(1))
    oracle_decoder.maps = maps / maps.sum(-1, keepdim=True)
    report = ground(captioner(photo, "Oracle"), photo)
    coverage = report["coverage"]
    assert (coverage["mentions"], coverage["pairs"]) == (3, 2)  # the dog overlaps the bear
    cells = oracle_decoder.maps[0, 0].reshape(8, 4, 4)
    bear = cells[[1, 2]].mean(0)[:, :2].sum()
    mass = 100 * float(bear + cells[4][:, :1].sum() + cells[7][:, 2:].sum()) / 3
    assert value(report, "model", "mass") == pytest.approx(mass, abs=0.01)


def test_forced_maps_are_those_of_each_caption_alone(data):
    decoder = captioner(data).decoder
    annotations = Annotations(torch.randn(2, 16, 8), (4, 4))
    captions = [[[4, 5, 6, 7], [8, 9]], [[5], [6, 7, 8]]]
    together, _ = forced_maps(decoder, annotations, captions)
    for b, of_image in enumerate(captions):
        for r, caption in enumerate(of_image):
            ((alone,), _) = forced_maps(decoder, annotations.of(b), [[caption]])
            assert together[b][r].shape == (len(caption), 16)
            torch.testing.assert_close(together[b][r], alone[0], rtol=1e-4, atol=1e-6)


def test_hard_attention_has_scores_of_its_probabilities_too(data):
    """Without input feeding, the probabilities equal the weights of soft attention."""
    reports = {}
    for distribution in ("Soft", "Hard"):
        parts = {"score": {"class_path": "General"}, "distribution": {"class_path": distribution}}
        attention = {"class_path": "Attention", "init_args": parts}
        model = captioner(data, "LuongDecoder", input_feeding=False, attention=attention)
        few = replace(data, images=data.images[:6])
        reports[distribution] = ground(model, few)
    soft, hard = reports["Soft"], reports["Hard"]
    assert "probs" not in soft["scores"]
    for metric in METRICS:
        expected = value(soft, "model", metric)
        assert value(hard, "probs", metric) == pytest.approx(expected, abs=0.01)
    assert hard["map_entropy"] == soft["map_entropy"]
    assert value(hard, "model", "mass") != pytest.approx(value(soft, "model", "mass"), abs=0.1)


def test_objects_named_in_generated_captions(data):
    """One image in two copies with given captions: one hallucinates two objects, one is correct."""
    image = next(i for i in data.images if len({o.colour for o in i.objects}) > 1)
    colour, shape = image.objects[0].colour, image.objects[0].shape
    same = [i for i, o in enumerate(image.objects) if (o.colour, o.shape) == (colour, shape)]
    absent = next(c for c in ("pink", "blue", "red") if c not in {o.colour for o in image.objects})
    true = f"a {colour} {shape}" if len(same) == 1 else f"two {colour} {shape}s"
    captions, model = [f"a {absent} star and a {absent} ring", true], captioner(data)

    def evaluate(image):
        collected = GroundingData(model, replace(data, images=(image, image)), "generated")
        [mention] = data.mentions(true.split(), image)
        mask = image.truth(same, GRID)
        maps = dict.fromkeys(("model", "time_averaged"), (mask == mask.max()).astype(float))
        collected.grid = GRID
        collected.images, collected.mentions = [0, 1], [MentionRecord(1, mention, mask, maps, {})]
        for index, caption in enumerate(captions):
            mentions = data.mentions(caption.split(), image)
            numbered = [(m, 0 if m == mention else None) for m in mentions]
            words = caption.split()
            collected.captions.append(CaptionRecord(index, words, numbered, np.zeros(len(words))))
        return collected.report(resamples=20).report["objects"]

    objects = evaluate(image)
    assert (objects["mentions"], objects["named"], objects["right"]) == (3, 3, 1)
    assert objects["chair_i"]["value"] == pytest.approx(100 * 2 / 3, abs=0.01)
    assert objects["chair_s"]["value"] == 50
    kinds = {(o.colour, o.shape) for o in image.objects}
    named = [colour for colour, _ in kinds if any(colour in c for c in image.captions)]
    assert objects["to_be_named"] == 2 * len(named)
    assert objects["f1_loc"]["value"] == 100
    expected = 100 * 2 * 1 / (3 + objects["to_be_named"])
    assert objects["f1_all"]["value"] == pytest.approx(expected, abs=0.01)
    # In the image, but in no reference: neither correct nor wrong, and no hallucination.
    unnamed = evaluate(replace(image, captions=("nothing",)))
    assert (unnamed["mentions"], unnamed["named"], unnamed["right"]) == (3, 2, 0)
    assert unnamed["chair_i"] == objects["chair_i"]


def filtered(data, allowed):
    """The data with the captions for which ``allowed(caption, image)`` is true."""
    images = []
    for image in data.images:
        captions = tuple(c for c in image.captions if allowed(c, image))
        images.append(replace(image, captions=captions))
    return replace(data, images=tuple(images))


def test_mentions_with_unknown_words_are_left_out(data):
    model = captioner(filtered(data, lambda caption, _: "red" not in caption.split()))
    words = set(model.vocabulary.words)
    scored = unknown = 0
    for image in data.images:
        for caption in image.captions:
            for positions, instances in phrases(caption, image.objects):
                known = {Tokenizer()(caption)[position] for position in positions} <= words
                scored += bool(instances) and known
                unknown += bool(instances) and not known
    assert unknown > 5
    coverage = ground(model, data)["coverage"]
    assert coverage["mentions_of_unknown_words"] == unknown
    assert coverage["mentions_with_mask"] == scored


def test_too_little_data(data):
    """Few images have no verdict; without pairs or mentions there are no values."""
    model = captioner(data)
    few = replace(data, images=data.images[:6])
    assert "too few for a verdict: only" in ground(model, few)["verdict"]
    single = filtered(data, lambda caption, image: len(phrases(caption, image.objects)) == 1)
    report = ground(model, single)
    assert report["coverage"]["pairs"] == 0
    assert report["scores"]["model"]["discrimination"]["value"] is None
    assert "no verdict" in report["verdict"]
    nothing = tuple(replace(image, captions=("nothing",)) for image in data.images)
    report = ground(model, replace(data, images=nothing))
    assert "scores" not in report
    assert report["error"].startswith("nothing to score: no known word of the forced captions")
