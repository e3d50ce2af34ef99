"""captioner ground: what its report counts, keeps and takes from the run."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from captioner import load
from captioner.cli import main
from captioner.comparison.results import read_run
from captioner.comparison.table import compare
from captioner.data import shapes_folder
from captioner.data.grammar import true_of
from captioner.data.masks import read
from captioner.data.shapes import scene
from captioner.errors import DataError
from captioner.evaluation.captions import read_references
from captioner.evaluation.grounding import grounding
from captioner.text import Tokenizer
from test_grounding import captioner, data, phrases, root, value  # noqa: F401 - fixtures

FIRST = 2 * shapes_folder.SPLIT_ROOM + 1


def ground(folder, output, *more):
    """The report of a few scenes of the command."""
    given = ["--model", str(folder), "--output", str(output), "--device=cpu", *more]
    assert main(["ground", *given]) == 0
    return json.loads(output.read_text())


def test_words_the_model_does_not_know_are_counted_apart(data):  # noqa: F811
    """Their maps are those of <unk>, whatever word it stands for."""
    without = [
        replace(p, captions=tuple(c for c in p.captions if "red" not in c.split()))
        for p in data.pictures
    ]
    model = captioner(replace(data, pictures=tuple(without)), "LSTMDecoder", hidden=8, embedding=6)
    words = set(model.vocabulary.words)
    scored = unknown = 0
    for picture in data.pictures:
        for caption in picture.captions:
            for places, meant in phrases(caption, picture.things):
                named = [Tokenizer()(caption)[place] for place in places]
                scored += bool(meant) and set(named) <= words
                unknown += bool(meant) and not set(named) <= words
    assert unknown > 5
    coverage = grounding(model, data, "forced", resamples=10).report["coverage"]
    assert coverage["mentions_of_unknown_words"] == unknown
    assert coverage["mentions_with_mask"] == scored


def test_masks_beyond_the_limit_are_not_read(root, tmp_path):  # noqa: F811
    content = json.loads((root / "annotations" / "instances_test.json").read_text())
    last = content["images"][-1]["id"]
    for annotation in content["annotations"]:
        if annotation["image_id"] == last:
            annotation["segmentation"] = {"size": [1, 1], "counts": [1]}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    captions = read_references(root / "annotations" / "captions_test.json")
    assert len(read(file, root / "test", captions, limit=3).pictures) == 3
    with pytest.raises(DataError, match="cannot be used"):
        read(file, root / "test", captions)


def test_hard_attention_is_scored_by_its_choice_and_by_what_it_chose_by(data):  # noqa: F811
    """Without input feeding no query depends on a choice: soft, the same weights are the chances."""
    reports = {}
    for law in ("Soft", "Hard"):
        attention = {
            "class_path": "Attention",
            "init_args": {"score": {"class_path": "General"}, "distribution": {"class_path": law}},
        }
        options = {"hidden": 8, "embedding": 6, "input_feeding": False, "attention": attention}
        few = replace(data, pictures=data.pictures[:6])
        model = captioner(data, "LuongDecoder", **options)
        reports[law] = grounding(model, few, "forced", resamples=10).report
    soft, hard = reports["Soft"], reports["Hard"]
    assert "chances" not in soft["scores"]
    for metric in ("mass", "gain", "pointing", "discrimination", "iou"):
        assert value(hard, "chances", metric) == pytest.approx(
            value(soft, "model", metric), abs=0.01
        )
    assert hard["map_entropy"] == soft["map_entropy"]
    # All weight on one cell, and not as soft attention's was.
    assert value(hard, "model", "mass") != pytest.approx(value(soft, "model", "mass"), abs=0.1)


def test_reports_of_two_models_are_compared_picture_by_picture(run_folder, hard_folder, tmp_path):
    for name, folder in (("soft", run_folder), ("hard", hard_folder)):
        (tmp_path / name / "results").mkdir(parents=True)
        few = ["--scenes=8", "--scene-options", "image_size=64"]  # one of them is no run
        ground(folder, tmp_path / name / "results" / "ground.json", *few)
    comparison = compare([read_run(tmp_path / n, n) for n in ("soft", "hard")], resamples=50)
    groups = {
        (g.section, "forced" in g.setting): g for g in comparison.groups if "captions" in g.setting
    }
    assert len(groups) == 4
    wanted = {
        ("grounding", True): [
            "discrimination",
            "pointing",
            "gain",
            "average_precision",
            "map_entropy",
        ],
        ("grounding", False): ["chair_i", "f1_all", "true_captions"],
        ("faithfulness", True): ["all.area_most", "all.most_over_random"],
        ("faithfulness", False): ["all.area_most"],
    }
    for key, measures in wanted.items():
        for measure in measures:
            first, second = groups[key].rows[measure]
            assert second.paired.value == pytest.approx(second.value - first.value, abs=0.01)
            assert second.paired.low <= second.paired.value <= second.paired.high


def test_scenes_are_those_of_the_run(run_folder, tmp_path):
    report = ground(run_folder, tmp_path / "own.json", "--scenes=6", "--regime=generated")
    assert report["data"].startswith("6 generated scenes, seed 0, test split, ")
    assert {"image size 64", "max objects 3"} <= set(report["data"].split(", "))
    made = [scene(0, FIRST + number, image_size=64) for number in range(6)]
    said = load(run_folder, "cpu").caption([one.image for one in made])
    share = np.mean([true_of(c.text, one.things) for c, one in zip(said, made, strict=True)])
    true = report["regimes"]["generated"]["objects"]["true_captions"]
    assert true["value"] == pytest.approx(100 * share, abs=0.01)
    assert true["low"] <= true["value"] <= true["high"]
    # From its checkpoint too; but a model without a run has none.
    best = run_folder / "checkpoints" / "best.ckpt"
    harder = ["--scenes=7", "--scene-options", "max_objects=5", "--regime=forced"]
    report = ground(best, tmp_path / "5.json", *harder)
    assert {"image size 64", "max objects 5"} <= set(report["data"].split(", "))
    made = [scene(0, FIRST + number, image_size=64, max_objects=5) for number in range(7)]
    assert max(len(one.things) for one in made) > 3
    named = [meant for one in made for c in one.captions for _, meant in phrases(c, one.things)]
    seen = report["regimes"]["forced"]["coverage"]
    left_out = seen["mentions_of_unknown_words"] + seen["masks_of_whole_picture"]
    assert seen["mentions_with_mask"] + left_out == sum(map(bool, named))
    shutil.copytree(run_folder / "model", tmp_path / "alone")
    report = ground(tmp_path / "alone", tmp_path / "alone.json", "--scenes=2", "--regime=forced")
    assert {"image size 112", "max objects 3"} <= set(report["data"].split(", "))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["max_objects"], "takes NAME=VALUE with one of image_size, max_objects"),
        (["seed=3"], "takes NAME=VALUE with one of image_size, max_objects"),
        (["max_objects=many"], "max_objects is of kind int, got 'many'"),
        (["max_objects=70"], "no scene for"),
    ],
)
def test_impossible_scenes_are_one_line(options, message, run_folder, capsys):
    given = ["--model", str(run_folder), "--scenes=2", "--scene-options", *options]
    assert main(["ground", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
