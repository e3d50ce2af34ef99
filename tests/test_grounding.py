"""A model's maps against object masks: models whose scores are known, and the command."""

import copy
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import layouts
from captioner import checkpoint
from captioner.cli import main
from captioner.comparison.results import read_run
from captioner.data import shapes_folder
from captioner.data.grammar import CAPTIONS
from captioner.data.masks import read
from captioner.data.shapes import scene
from captioner.decoding import Decoding
from captioner.errors import EvaluationError
from captioner.evaluation.captions import read_references
from captioner.evaluation.gaze import forced, gradients
from captioner.evaluation.grounding import MAPS, grounding
from captioner.evaluation.localisation import METRICS
from captioner.models import registry
from captioner.models.annotations import Annotations
from captioner.models.attention.scores import Score
from captioner.models.captioner import Captioner
from captioner.models.decoder import Decoded, Decoder
from captioner.text import Tokenizer, Vocabulary

SIDE, SCENES = 64, 32
CELL = 16  # pixels: the encoder's stride
FIRST = 2 * shapes_folder.SPLIT_ROOM + 1  # the number of the first scene of the third split


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scenes"
    shapes_folder.write(folder, sizes={"train": 1, "val": 1, "test": SCENES}, image_size=SIDE)
    return folder


@pytest.fixture(scope="module")
def data(root):
    files = root / "annotations"
    captions = read_references(files / "captions_test.json")
    return read(files / "instances_test.json", root / "test", captions)


@pytest.fixture
def own_parts(monkeypatch):
    """What a test defines stays out of the other tests' registry."""
    monkeypatch.setattr(registry, "_TABLE", copy.deepcopy(registry._TABLE))


def captioner(data, decoder, **options):
    words = sorted({w for p in data.pictures for c in p.captions for w in Tokenizer()(c)})
    encoder = {"name": "efficientnet_lite0", "image_size": SIDE, "stride": CELL}
    tree = {
        "encoder": {"class_path": "CNNEncoder", "init_args": encoder},
        "refiner": {"class_path": "Projection", "init_args": {"dim": 8}},
        "decoder": {"class_path": decoder, "init_args": options},
    }
    torch.manual_seed(0)
    built = Captioner.from_config(tree, Vocabulary(words))
    built.encoder.load_pretrained()
    return built.eval()


def value(report, name, metric):
    return report["scores"][name][metric]["value"]


def test_attention_that_ignores_its_query_scores_half(data, own_parts):
    class KeysOnly(Score):
        """Looks at what is bright to it, whatever it is asked."""

        def __init__(self, query_dim, key_dim):
            super().__init__()
            self.energy = nn.Linear(key_dim, 1)

        def prepare(self, keys):
            return self.energy(keys) * 5

        def forward(self, query, prepared):
            return prepared.mT.expand(-1, query.shape[1], -1)

    attention = {"class_path": "Attention", "init_args": {"score": {"class_path": "KeysOnly"}}}
    model = captioner(data, "LSTMDecoder", hidden=8, embedding=6, attention=attention)
    report, _ = grounding(model, data, "forced", resamples=50)
    assert report["scores"]["model"]["discrimination"] == {"value": 50, "low": 50, "high": 50}
    assert "its maps do not depend on the word" in report["verdict"]
    assert report["coverage"]["pairs"] > 20
    for metric in METRICS:
        assert report["delta"][metric]["value"] == pytest.approx(0, abs=0.01)
    assert report["coverage"]["images_with_pair"] >= 20
    # Not because its maps are even: it looks somewhere.
    assert value(report, "model", "mass") != pytest.approx(
        value(report, "uniform", "mass"), abs=0.1
    )


def phrases(caption, things):
    """By hand: (places, things meant) of every phrase, from the words that end in a shape."""
    words, found = caption.split(), []
    for end, word in enumerate(words):
        for shape in {thing.shape for thing in things}:
            if word.rstrip(",") not in (shape, shape + "s", shape + "es"):
                continue
            start, sizes = end - 1, {"small", "large"}
            colour = words[start]
            if words[start - 1] in sizes:
                start, sizes = start - 1, {words[start - 1]}
            meant = [
                i
                for i, thing in enumerate(things)
                if (thing.shape, thing.colour) == (shape, colour) and thing.size in sizes
            ]
            found.append((range(start, end + 1), meant))
    return found


def scene_maps(number):
    """For every caption, longest first, maps right on what it names: all weight on the fullest cells,
    the rest by the mask; and the masks of its phrases on the grid, cells being blocks of pixels."""
    made = scene(0, FIRST + number, image_size=SIDE)
    side = SIDE // CELL
    cells = made.masks.reshape(-1, side, CELL, side, CELL).mean((2, 4)).reshape(-1, side * side)
    looks, truths = [], []
    for caption in sorted(made.captions, key=lambda c: len(c.split()), reverse=True):
        maps = np.ones((len(caption.split()), side * side))
        for places, meant in phrases(caption, made.things):
            truth = cells[meant].sum(0)
            maps[places] = 1e6 * (truth == truth.max()) + truth
            truths.append(truth)
        looks.append(maps)
    return looks, truths


@pytest.fixture
def all_seeing(own_parts):
    """A decoder that is told where to look."""

    class AllSeeing(Decoder):
        looks: torch.Tensor  # (B, R, T, L)

        def __init__(self, vocab_size, annotation_dim):
            super().__init__()
            self.output = nn.Linear(annotation_dim, vocab_size)

        def forward(self, annotations, tokens, detail="shown"):
            logits = self.output(annotations.vectors.mean(1))
            logits = logits[:, None, None].expand(*tokens.shape, -1)
            pictures, rows, length = tokens.shape
            looks = None if detail == "none" else self.looks[:pictures, :rows, :length]
            return Decoded(logits, looks)

    return AllSeeing


def test_maps_on_the_right_masks_score_as_the_oracle(data, all_seeing):
    side = SIDE // CELL
    looks = [scene_maps(number) for number in range(SCENES)]
    longest = max(len(maps) for made, _ in looks for maps in made)
    filled = np.ones((SCENES, CAPTIONS, longest, side * side))
    for b, (made, _) in enumerate(looks):
        for r, maps in enumerate(made):
            filled[b, r, : len(maps)] = maps / maps.sum(1, keepdims=True)
    all_seeing.looks = torch.tensor(filled, dtype=torch.float32)
    report, _ = grounding(
        captioner(data, "AllSeeing"), data, "forced", batch_size=SCENES, resamples=50
    )
    for metric in (*METRICS, "discrimination"):
        best = value(report, "oracle", metric)
        assert value(report, "model", metric) == pytest.approx(best, abs=0.02), metric
    assert value(report, "model", "pointing") == 100
    assert value(report, "model", "discrimination") > 95
    assert report["verdict"].endswith("its maps depend on the word")
    truths = [truth for _, made in looks for truth in made]
    assert report["coverage"]["mentions_with_mask"] == len(truths)
    assert value(report, "uniform", "mass") == pytest.approx(100 * np.mean(truths), abs=0.01)
    assert value(report, "oracle", "mass") == pytest.approx(
        100 * np.mean([truth.max() for truth in truths]), abs=0.01
    )
    # A map that is the same for all words cannot tell two objects apart.
    for name in ("time_averaged", "mean_map", "centre", "uniform"):
        assert value(report, name, "discrimination") == 50
    dealt = report["scores"]["shuffled"]["discrimination"]
    assert dealt["low"] < 50 < dealt["high"]
    assert value(report, "model", "mass") > value(report, "time_averaged", "mass")
    assert report["delta"]["mass"]["low"] > 0


def test_words_of_one_object_are_averaged_and_overlapping_objects_are_no_pair(
    data, all_seeing, tmp_path
):
    """A teddy bear in the left half, a dog on it, a cat in the right half of a photo of 4 × 4 cells."""

    def box(left, right):
        return [[left, 0, right, 0, right, SIDE, left, SIDE]]

    names = ["teddy bear", "dog", "cat"]
    masks = [box(0, SIDE // 2), box(0, SIDE // 4), box(SIDE // 2, SIDE)]
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": SIDE, "width": SIDE}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names)],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": i, "segmentation": mask}
            for i, mask in enumerate(masks)
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(content))
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "a.png")
    photo = read(tmp_path / "instances.json", tmp_path, {1: ["a teddy bear a dog and a cat"]})
    looks = torch.rand(1, 1, 8, 16, generator=torch.Generator().manual_seed(1))
    all_seeing.looks = looks / looks.sum(-1, keepdim=True)
    report, _ = grounding(captioner(photo, "AllSeeing"), photo, "forced", resamples=10)
    assert report["coverage"]["mentions"] == 3
    assert report["coverage"]["pairs"] == 2  # the dog lies on the bear
    left = [0, 1, 4, 5, 8, 9, 12, 13]
    mass = all_seeing.looks[0, 0, [1, 2]].mean(0)[left].sum()
    assert report["categories"]["teddy bear"]["mass"] == pytest.approx(100 * float(mass), abs=0.01)


def test_shuffled_maps_are_right_by_chance_alone(data, all_seeing, tmp_path):
    """Two names of unequal length, looked at rightly, in a caption that says nothing else.

    Means of two dealt maps against one would be right in a third of the cases only: where the dog
    is dealt a map of the hydrant's, the other two together are even.
    """
    half = [[0, 0, SIDE // 2, 0, SIDE // 2, SIDE, 0, SIDE]]
    other = [[SIDE // 2, 0, SIDE, 0, SIDE, SIDE, SIDE // 2, SIDE]]
    numbers = range(1, 401)
    content = {
        "images": [{"id": i, "file_name": "a.png", "height": SIDE, "width": SIDE} for i in numbers],
        "categories": [{"id": 1, "name": "fire hydrant"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"id": 2 * i + k, "image_id": i, "category_id": k, "segmentation": mask}
            for i in numbers
            for k, mask in ((1, half), (2, other))
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(content))
    Image.new("RGB", (SIDE, SIDE)).save(tmp_path / "a.png")
    photos = read(tmp_path / "instances.json", tmp_path, {i: ["fire hydrant dog"] for i in numbers})
    on_left = torch.tensor([1.0, 1, 0, 0]).repeat(4) / 8
    looks = torch.stack([on_left, on_left, on_left.flip(0)])
    all_seeing.looks = looks.expand(64, 1, 3, 16)
    model = captioner(photos, "AllSeeing")
    report, _ = grounding(model, photos, "forced", batch_size=64, resamples=200)
    assert report["coverage"]["pairs"] == 400
    assert value(report, "model", "discrimination") == 100
    # One standard deviation is 2: a tie in a third of the cases, or right, or wrong.
    assert value(report, "shuffled", "discrimination") == pytest.approx(50, abs=7)


def test_a_batch_looks_as_one_by_one(data):
    model = captioner(data, "LSTMDecoder", hidden=8, embedding=6)
    data = replace(data, pictures=data.pictures[:5])
    many, _ = grounding(model, data, "forced", batch_size=5, resamples=20)
    single, _ = grounding(model, data, "forced", batch_size=1, resamples=20)
    for name in many["scores"]:
        for metric in METRICS:
            assert value(many, name, metric) == pytest.approx(value(single, name, metric), abs=0.05)
    assert many["coverage"] == single["coverage"]
    assert many["images"] == 5


def test_forced_maps_are_those_of_each_caption_alone(data):
    model = captioner(data, "LSTMDecoder", hidden=8, embedding=6)
    annotations = Annotations(torch.randn(2, 16, 8), (4, 4))
    captions = [[[4, 5, 6, 7], [8, 9]], [[5], [6, 7, 8]]]
    together, _ = forced(model.decoder, annotations, captions)
    for b, given in enumerate(captions):
        for r, caption in enumerate(given):
            ((alone,), _) = forced(model.decoder, annotations.of(b), [[caption]])
            assert together[b][r].shape == (len(caption), 16)
            torch.testing.assert_close(together[b][r], alone[0], rtol=1e-4, atol=1e-6)


def test_grad_cam_is_the_weighted_gradient_of_the_words_logit(data):
    """One word at a time, from a pass of its own."""
    model = captioner(data, "LSTMDecoder", hidden=8, embedding=6)
    vectors = torch.randn(2, 16, 8)
    captions = [[[4, 5, 6], [8, 9]], [[5, 7]]]
    asked = [[(0, 1), (1, 0)], [(0, 1)]]
    found = gradients(model.decoder, Annotations(vectors, (4, 4)), captions, asked)
    assert [sorted(cams) for cams in found] == asked
    for b, words in enumerate(asked):
        for r, t in words:
            own = vectors[b : b + 1].clone().requires_grad_()
            caption = captions[b][r]
            inputs = torch.tensor([[1, *caption[:-1]]])
            logits = model.decoder(Annotations(own, (4, 4)), inputs).logits
            logits[0, t, caption[t]].backward()
            channel = own.grad[0].mean(0)
            expected = (own.detach()[0] * channel).sum(1).clamp(min=0)
            torch.testing.assert_close(found[b][r, t], expected, rtol=1e-3, atol=1e-7)


def test_what_generated_captions_name(data, all_seeing):
    """Three pictures whose captions are made up by hand."""
    picture = next(p for p in data.pictures if len({t.colour for t in p.things}) > 1)
    first, second = (
        picture.things[0],
        next(t for t in picture.things if t.colour != picture.things[0].colour),
    )
    alone = [t for t in picture.things if (t.colour, t.shape) == (first.colour, first.shape)]
    count = "a" if len(alone) == 1 else "two"
    absent = next(c for c in ("pink", "blue", "red") if c not in {t.colour for t in picture.things})
    said = [
        f"a {absent} star and a {absent} ring",  # both made up
        f"{count} {first.colour} {first.shape}{'s' if count == 'two' else ''}",  # right
    ]
    words = Vocabulary([*{w for s in said for w in s.split()}])

    class Speaker(all_seeing):
        """Says one sentence to the first picture of a batch and another to the second."""

        def start(self, annotations):
            return Says(torch.arange(len(annotations)))

        def step(self, tokens, state):
            logits = torch.full((*tokens.shape, len(words)), -30.0)
            for row, b in enumerate(state.pictures):
                ids = [*words.encode(said[b].split()), 2]
                logits[row, ..., ids[min(state.words, len(ids) - 1)]] = 30.0
            looks = self.looks[state.pictures, :1, 0].expand(*tokens.shape, -1)
            return logits, looks, Says(state.pictures, state.words + 1)

    @dataclass(frozen=True)
    class Says:
        pictures: torch.Tensor
        words: int = 0

        def select(self, rows):
            return self

    meant = [i for i, t in enumerate(picture.things) if t in alone]
    truth = picture.truth(meant, (4, 4))
    assert second.colour != first.colour
    looks = torch.zeros(2, 1, 12, 16)
    looks[..., int(truth.argmax())] = 1.0
    Speaker.looks = looks
    two = replace(data, pictures=(picture, picture))
    model = captioner(data, "Speaker")
    model = Captioner(model.encoder, model.refiner, model.decoder, words, model.config)
    model.decoder.output = nn.Linear(8, len(words))
    report, _ = grounding(model, two, "generated", decoding=Decoding(beam_size=1), resamples=20)
    found = report["objects"]
    assert (found["mentions"], found["named"], found["right"]) == (3, 3, 1)
    assert found["chair_i"]["value"] == pytest.approx(100 * 2 / 3, abs=0.01)
    assert found["chair_s"]["value"] == 50
    kinds = {f"{t.colour} {t.shape}" for t in picture.things}
    told = {k for k in kinds if any(k.split()[0] in c for c in picture.captions)}
    assert found["to_be_named"] == 2 * len(told)
    # Grounded: one; named: three.
    assert found["model"]["f1_loc"]["value"] == 100
    expected = 100 * 2 * 1 / (3 + found["to_be_named"])
    assert found["model"]["f1_all"]["value"] == pytest.approx(expected, abs=0.01)
    chance = 100 * (truth > 0).mean()
    assert found["uniform"]["f1_loc"]["value"] == pytest.approx(chance, abs=0.01)
    # In the picture, though no reference names it: neither right nor wrong, and not made up.
    two = replace(two, pictures=(replace(picture, captions=("nothing",)),) * 2)
    report, _ = grounding(model, two, "generated", decoding=Decoding(beam_size=1), resamples=20)
    unnamed = report["objects"]
    assert (unnamed["mentions"], unnamed["named"], unnamed["right"]) == (3, 2, 0)
    assert unnamed["chair_i"] == found["chair_i"]


def test_few_pairs_are_no_verdict(data):
    few = replace(data, pictures=data.pictures[:6])
    report, _ = grounding(captioner(data, "LSTMDecoder", hidden=8, embedding=6), few, "forced")
    assert report["verdict"].endswith("pictures: too few to say more")
    unpaired = tuple(
        replace(p, captions=tuple(c for c in p.captions if len(phrases(c, p.things)) == 1))
        for p in data.pictures
    )
    alone = replace(data, pictures=unpaired)
    report, _ = grounding(captioner(data, "LSTMDecoder", hidden=8, embedding=6), alone, "forced")
    assert report["coverage"]["pairs"] == 0
    assert report["scores"]["model"]["discrimination"]["value"] is None
    assert "nothing can be said" in report["verdict"]


def test_nothing_named_is_said(data):
    silent = replace(data, pictures=tuple(replace(p, captions=("nothing",)) for p in data.pictures))
    with pytest.raises(
        EvaluationError, match="nothing to score: of 32 words in the forced captions"
    ):
        grounding(captioner(data, "LSTMDecoder", hidden=8, embedding=6), silent, "forced")


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """A model folder; untrained."""
    place = tmp_path_factory.mktemp("models") / "tiny"
    model = captioner(data, "LSTMDecoder", hidden=8, embedding=6)
    checkpoint.save(model, place, "# Tiny", Decoding(beam_size=1, max_length=6))
    return place


def files(root):
    made = root / "annotations"
    return [
        *("--instances", str(made / "instances_test.json")),
        *("--captions", str(made / "captions_test.json")),
        *("--images", str(root / "test")),
    ]


def test_the_command_prints_tables_and_writes_the_report(root, folder, tmp_path, capsys):
    output = tmp_path / "report.json"
    command = ["ground", "--model", str(folder), *files(root), "--output", str(output), "--limit=4"]
    trained_on = str(root / "annotations" / "instances_train.json")
    assert main([*command, "--train-instances", trained_on, "--regime", "forced"]) == 0
    report, printed = json.loads(output.read_text()), capsys.readouterr().out
    part = report["regimes"]["forced"]
    assert set(part["scores"]) == set(MAPS) - {"chances"}  # nothing is chosen
    assert all(MAPS[name] in printed for name in part["scores"])
    assert part["grid"] == [4, 4]
    assert f"Grid 4 × 4. Priors: masks of 1 training pictures: {trained_on}" in printed
    assert {"command", "commit", "model", "mechanism", "transform", "machine"} <= set(report)
    model = part["scores"]["model"]["discrimination"]
    cell = f"{model['value']:.1f} [{model['low']:.1f}, {model['high']:.1f}]"
    (row,) = [line for line in printed.splitlines() if line.startswith("| the model  ")]
    assert row.split("|")[2].strip() == cell
    # The same again, to the last figure.
    assert main([*command, "--train-instances", trained_on, "--regime", "forced"]) == 0
    assert json.loads(output.read_text())["regimes"] == report["regimes"]


def test_compare_reads_the_report(root, folder, tmp_path, capsys):
    run = tmp_path / "run"
    (run / "results").mkdir(parents=True)
    output = run / "results" / "grounding.json"
    command = ["ground", "--model", str(folder), *files(root), "--output", str(output), "--limit=4"]
    assert main([*command, "--regime", "forced"]) == 0
    part = json.loads(output.read_text())["regimes"]["forced"]
    result, other = read_run(run, "run").results
    assert (result.section, other.section) == ("grounding", "faithfulness")
    found = part["faithfulness"]["scores"]["all"]["most_over_random"]
    assert other.values["all.most_over_random"] == found["value"]
    assert "forced captions" in result.setting
    assert result.values["gain"] == part["scores"]["model"]["gain"]["value"]
    assert result.values["lead_over_time_averaged_map.gain"] == part["delta"]["gain"]["value"]


def test_scenes_are_generated_where_no_files_are_given(folder, capsys):
    assert main(["ground", "--model", str(folder), "--scenes", "3", "--regime", "forced"]) == 0
    printed = capsys.readouterr().out
    assert "3 generated scenes" in printed
    assert "3 pictures, 9 captions" in printed


def test_a_data_set_without_masks_is_measured_for_faithfulness(folder, tmp_path, capsys):
    captions = {f"{i}.jpg": ["a red circle", "two blue stars"] for i in range(3)}
    root = layouts.flickr8k(tmp_path / "data", {"train": {"t.jpg": ["a star"]}, "val": captions})
    for name in captions:
        layouts.picture(root / "Flicker8k_Dataset" / name)
    output = tmp_path / "report.json"
    given = ["--data", "flickr8k", "--root", str(root), "--regime", "forced", "--limit", "2"]
    assert main(["ground", "--model", str(folder), *given, "--output", str(output)]) == 0
    part = json.loads(output.read_text())["regimes"]["forced"]
    assert set(part) == {"faithfulness"}
    assert part["faithfulness"]["images"] == 2
    assert part["faithfulness"]["scores"]["all"]["words"] == 6
    printed = capsys.readouterr().out
    assert "flickr8k, split val" in printed
    assert "Paired" not in printed
    assert main(["ground", "--model", str(folder), *given, "--split", "dev"]) == 2
    assert "no pictures in split 'dev'; splits are train, val, test" in capsys.readouterr().err


def test_a_bad_picture_costs_itself(root, folder, tmp_path, capsys):
    """One is broken, one stands upright where its masks lie; the others are scored."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    instances = json.loads((root / "annotations" / "instances_test.json").read_text())
    for number, image in enumerate(instances["images"]):
        source = Image.open(root / "test" / image["file_name"])
        with source:
            if number == 1:
                source = source.resize((SIDE + 8, SIDE))
            source.save(pictures / image["file_name"])
    names = [image["file_name"] for image in instances["images"]]
    (pictures / names[0]).write_text("no picture")
    turned = instances["images"][1]
    own = [a for a in instances["annotations"] if a["image_id"] == turned["id"]]
    turned.update(width=SIDE, height=SIDE + 8)
    for annotation in own:
        size = [SIDE + 8, SIDE]
        annotation["segmentation"] = {"size": size, "counts": [0, 9, size[0] * size[1] - 9]}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(instances))
    captions = str(root / "annotations" / "captions_test.json")
    command = ["ground", "--model", str(folder), "--instances", str(file), "--captions", captions]
    output = tmp_path / "report.json"
    command += ["--images", str(pictures), "--regime", "forced", "--output", str(output)]
    assert main(command) == 1
    captured = capsys.readouterr()
    part = json.loads(output.read_text())["regimes"]["forced"]
    assert part["images"] == part["faithfulness"]["images"] == SCENES - 2
    assert f"{SCENES - 2} pictures, " in captured.out
    assert f"{names[0]}: found text" in captured.err
    assert (
        f"{names[1]}: found {SIDE + 8} × {SIDE} pixels, expected {SIDE} × {SIDE + 8}"
        in captured.err
    )
    assert f"2 of {SCENES} pictures left out" in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--instances", "x.json"], "give --instances, --captions and --images together"),
        (["--scenes", "0"], "--scenes must be 1 or more, got 0"),
        (["--limit", "-2"], "--limit must be 1 or more, got -2"),
        (["--output", "missing/out.json"], "cannot write 'missing/out.json'"),
        (["--data", "flickr8k"], "give --data NAME and --root DIR together"),
        (["--data", "flickr8k", "--root", "x", "--scenes", "3"], "none of --instances"),
        (["--split", "val"], "--split is of the data set"),
        (["--data", "flickr9k", "--root", "x"], "data set 'flickr9k'"),
    ],
)
def test_impossible_calls_are_one_line(options, message, folder, capsys):
    assert main(["ground", "--model", str(folder), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
