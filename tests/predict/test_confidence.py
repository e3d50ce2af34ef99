"""Confidence: agreement by hand, calibration by its score equations, and the commands."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

import runs
from captioner import load, resources
from captioner.app.served_models import OWN, Models
from captioner.batch.batch_captioner import BatchCaptioner
from captioner.cli.main import main
from captioner.errors import EvaluationError, UsageError
from captioner.files import write_text
from captioner.photos.images import Photo
from captioner.predict.confidence import NO_WORDS, agreement, is_right
from captioner.store import checkpoint
from captioner.store.calibration import Calibration, calibrate, calibration_error, reliability
from layouts import csv_text, picture


def test_agreement_counts_the_samples_with_each_content_word():
    samples = [["a", "dog", "runs"], ["two", "dogs"], ["a", "cat"]]
    # "dog" by its stem in two samples, "running" in one, "park" in none; "the" and "in" do not count
    expected = [math.log(2.5 / 4), math.log(1.5 / 4), math.log(0.5 / 4)]
    found = agreement(["the", "dog", "running", "in", "park"], samples)
    assert found == pytest.approx(sum(expected) / 3)
    assert agreement(["the"], samples) == NO_WORDS


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("a dog runs on grass", True),
        ("a dog runs on green grass", True),  # three of four
        ("a dog runs on green wet grass", False),  # three of five
        ("it is on the", False),
        ("", False),
    ],
)
def test_a_caption_is_right_if_references_have_three_quarters_of_it(words, right):
    assert is_right(words.split(), ["Dogs run!", "the grass"]) == right


def test_calibration_solves_the_score_equations():
    """At the maximum of the likelihood, the residuals and the inputs are orthogonal."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(-2, 1, 400)
    right = rng.random(400) < 1 / (1 + np.exp(-(3 + 1.5 * inputs)))
    found = calibrate(inputs.tolist(), right.tolist())
    targets = np.where(right, (right.sum() + 1) / (right.sum() + 2), 1 / ((~right).sum() + 2))
    residuals = targets - np.array([found(value) for value in inputs])
    assert abs(residuals.sum()) < 1e-6
    assert abs(residuals @ inputs) < 1e-6
    with pytest.raises(EvaluationError, match="400 of 400 captions are right"):
        calibrate(inputs.tolist(), [True] * 400)
    few = calibrate([-2.0, -2.01, -2.02, -1.99], [False, False, False, True])  # separable
    assert few(-1.99) < 1


def test_reliability_groups_captions_by_confidence():
    bins = reliability([0.9, 0.1, 0.5, 0.3], [True, False, False, True], bins=2)
    assert [part.captions for part in bins] == [2, 2]
    assert [part.confidence for part in bins] == pytest.approx([0.2, 0.7])
    assert [part.right for part in bins] == [0.5, 0.5]
    assert calibration_error(bins) == pytest.approx((0.3 + 0.2) / 2)


@pytest.fixture(scope="module")
def calibrated(run_folder, shapes_cache, tmp_path_factory):
    """A copy of the small model, and five copies of its development scenes with a wrong reference."""
    base = tmp_path_factory.mktemp("calibrated")
    shutil.copytree(run_folder / "model", base / "model")
    scenes = runs.scenes(shapes_cache)
    stored = json.loads((scenes / "annotations" / "captions_val.json").read_text("utf-8"))
    copies = [shutil.copytree(scenes / "val", base / str(number)) for number in range(5)]
    names = {image["id"]: image["file_name"] for image in stored["images"]}
    rows = [
        [str(folder / names[a["image_id"]]), a["caption"], "val"]
        for folder in copies
        for a in stored["annotations"]
    ]
    wrong = [[str(picture(base / "wrong.png")), "nothing of this kind", "val"]]
    write_text(base / "captions.csv", csv_text([["image", "caption", "split"], *rows, *wrong]))
    return base


def calibrate_call(base):
    return ["calibrate", str(base / "model"), "--data", "csv", "--root", str(base / "captions.csv")]


def test_calibrate_writes_what_the_commands_use(calibrated, tmp_path, capsys):
    photo, call = picture(tmp_path / "a.png"), calibrate_call(calibrated)
    model = ["--model", str(calibrated / "model")]
    assert main([*call, "--check"]) == 2
    assert main(["caption", str(photo), *model, "--confidence"]) == 2
    assert capsys.readouterr().err.count("has no calibration") == 2

    assert main(call) == 0
    assert "expected calibration error" in capsys.readouterr().out
    before = (calibrated / "model" / "config.json").read_bytes()
    assert main([*call, "--check"]) == 0
    assert (calibrated / "model" / "config.json").read_bytes() == before

    predictor = load(calibrated / "model")
    caption = predictor.caption(str(photo), confidence=True)
    assert 0 <= caption.confidence <= 1
    assert predictor.caption(str(photo)).confidence is None
    capsys.readouterr()
    assert main(["caption", str(photo), *model, "--confidence"]) == 0
    assert capsys.readouterr().out == f"{photo}\t{caption.text}\t{caption.confidence:.0%}\n"
    for arguments in (["--format", "jsonl"], ["--write", "txt"]):
        assert main(["caption", str(photo), *model, "--min-confidence", "1", *arguments]) == 0
        out, err = capsys.readouterr()
        assert f"'{photo}' has no caption: confidence {caption.confidence:.0%}" in err
        if arguments[1] == "jsonl":
            record = json.loads(out)
            assert record["caption"] == ""
            assert record["confidence"] == pytest.approx(caption.confidence, abs=1e-4)
    assert not photo.with_suffix(".txt").exists()

    assert main(["export", str(tmp_path / "again"), *model]) == 0
    assert checkpoint.load(tmp_path / "again").calibration == predictor.calibration


def test_a_photo_has_the_same_confidence_alone_and_among_others(calibrated, tmp_path):
    main(calibrate_call(calibrated))
    predictor = load(calibrated / "model")
    photos = [str(picture(tmp_path / f"{n}.png", n)) for n in range(3)]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    together = [caption.confidence for caption in predictor.caption(photos, confidence=True)]
    assert torch.equal(torch.get_rng_state(), state)
    alone = [predictor.caption(photo, confidence=True).confidence for photo in photos]
    assert together == pytest.approx(alone, rel=1e-5)


def test_few_photos_cannot_calibrate(calibrated, refused):
    before = (calibrated / "model" / "config.json").read_bytes()
    lines = (calibrated / "captions.csv").read_text("utf-8").splitlines()
    write_text(calibrated / "few.csv", "\n".join(lines[:40]))
    call = [*calibrate_call(calibrated)[:-1], str(calibrated / "few.csv")]
    assert "photos with captions cannot calibrate a model: give 50 or more" in refused(*call)
    assert (calibrated / "model" / "config.json").read_bytes() == before


def test_captions_of_another_search_have_no_confidence(tiny_folder, tmp_path, capsys):
    photo = str(picture(tmp_path / "a.png"))
    predictor = load(tiny_folder)
    with pytest.raises(UsageError, match="has no calibration"):
        predictor.caption(photo, confidence=True)
    predictor.calibration = Calibration(0.0, 1.0)
    own = predictor.decoding.beam_size
    for options in ({}, {"beam_size": own}, {"num_captions": own}):
        assert predictor.caption(photo, confidence=True, **options).confidence is not None
    for options in ({"beam_size": own + 1}, {"num_captions": own + 1}, {"top_p": 0.5}):
        with pytest.raises(UsageError, match="measured for the model's own search"):
            predictor.caption(photo, confidence=True, **options)
    with pytest.raises(UsageError, match="measured for the model's own search"):
        BatchCaptioner("transformer", confidence=True, beam_size=1)
    models = Models([str(tiny_folder)], "cpu")
    models.get(models.names[0]).calibration = Calibration(0.0, 1.0)
    shown, name = Photo.read(photo), models.names[0]
    answers = [models.answer(shown, name, beam_size=size) for size in (OWN, own, 1)]
    assert [a.caption.confidence is not None for a in answers] == [True, True, False]
    call = ["caption", photo, "--model", str(tiny_folder), "--min-confidence", "0.5"]
    assert main(call) == 2
    assert "has no calibration" in capsys.readouterr().err


def test_bundled_models_are_calibrated():
    for folder in resources.bundled_models().values():
        assert json.loads((folder / "config.json").read_text("utf-8"))["confidence"]["slope"] > 0
