"""The command ``captioner ground``: its tables, its report, and the images it evaluates."""

import json
import math
import shutil
from argparse import Namespace

import numpy as np
import pytest
from PIL import Image

import layouts
from captioner import load
from captioner.cli.ground_images import READERS
from captioner.cli.main import main
from captioner.comparison.run_results import read_run
from captioner.comparison.table import compare
from captioner.data import shapes_dataset
from captioner.data.scene_grammar import true_of
from captioner.data.shapes import scene
from captioner.evaluation.grounding import MAPS
from tests.evaluation.test_grounding import FIRST, phrases

SIDE, SCENES = 64, 6


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "scenes"
    shapes_dataset.write(folder, sizes={"train": 1, "val": 1, "test": SCENES}, image_size=SIDE)
    return folder


def coco_files(root):
    annotations = root / "annotations"
    return [
        *("--instances", str(annotations / "instances_test.json")),
        *("--captions", str(annotations / "captions_test.json")),
        *("--images", str(root / "test")),
    ]


def ground(folder, output, *options, status=0):
    """Run the command and return its report."""
    arguments = ["--model", str(folder), "--output", str(output), "--device=cpu", *options]
    assert main(["ground", *arguments]) == status
    return json.loads(output.read_text())


def test_tables_and_report(root, run_folder, tmp_path, capsys):
    options = [*coco_files(root), "--limit=4", "--regime=forced"]
    report = ground(run_folder, tmp_path / "report.json", *options, "--full")
    printed, part = capsys.readouterr().out, report["regimes"]["forced"]
    assert set(part["scores"]) == set(MAPS) - {"probs"}  # no hard attention
    assert all(f"| {MAPS[name]}" in printed for name in part["scores"])
    assert {"command", "commit", "model", "mechanism", "machine"} <= set(report)
    model = part["scores"]["model"]["discrimination"]
    [row] = [line for line in printed.splitlines() if line.startswith("| model  ")]
    assert "{value:.1f} [{low:.1f}, {high:.1f}]".format(**model) == row.split("|")[2].strip()
    # The same command gives the same report; its page has two sentences and six rows at most.
    again = ground(run_folder, tmp_path / "again.json", *options)
    assert again["regimes"] == report["regimes"]
    lines = capsys.readouterr().out.splitlines()
    assert part["verdict"] in lines[2]
    drop = part["faithfulness"]["scores"]["content"]["area_most"]["value"]
    assert f"content words become {100 - 100 * math.exp(-drop):.1f} % less likely" in lines[3]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line[:1] == "|"]
    assert cells[2][2] == row.split("|")[2].strip()
    assert len(cells) == 2 + 5  # no generated captions, so none that name absent objects


def test_compare_reads_reports(run_folder, hard_folder, tmp_path):
    parts = {}
    for name, folder in (("soft", run_folder), ("hard", hard_folder)):
        (tmp_path / name / "results").mkdir(parents=True)
        options = ["--scenes=8", "--scene-options", "image_size=64"]
        output = tmp_path / name / "results" / "ground.json"
        parts[name] = ground(folder, output, *options)["regimes"]["forced"]
    runs = {name: read_run(tmp_path / name) for name in parts}
    results = {r.section: r for r in runs["soft"] if "forced" in r.setting}
    part, grounding = parts["soft"], results["grounding"]
    assert grounding.values["mass"] == part["scores"]["model"]["mass"]["value"]
    assert grounding.values["lead_over_time_averaged_map.mass"] == part["delta"]["mass"]["value"]
    difference = part["faithfulness"]["scores"]["all"]["most_over_random"]["value"]
    assert results["faithfulness"].values["all.most_over_random"] == difference
    groups = {
        (group.section, "forced" in group.setting): group
        for group in compare(runs).groups
        if "captions" in group.setting
    }
    measures = {
        ("grounding", True): ["discrimination", "pointing", "map_entropy"],
        ("grounding", False): ["chair_i", "f1_all", "true_captions"],
        ("faithfulness", True): ["all.area_most", "all.most_over_random"],
        ("faithfulness", False): ["all.area_most"],
    }
    assert set(groups) == set(measures)
    for key, names in measures.items():
        for name in names:
            first, second = groups[key].rows[name]
            assert second.difference == pytest.approx(second.value - first.value, abs=0.01)
            assert second.difference_low <= second.difference <= second.difference_high


def test_scenes_are_made_like_those_of_the_run(run_folder, tmp_path):
    report = ground(run_folder, tmp_path / "own.json", "--scenes=6", "--regime=generated")
    assert report["data"].startswith("6 generated scenes, seed 0, test split, ")
    assert {"image size 64", "max objects 3"} <= set(report["data"].split(", "))
    scenes = [scene(0, FIRST + number, image_size=64) for number in range(6)]
    captions = load(run_folder, "cpu").caption([s.image for s in scenes])
    share = np.mean([true_of(c.text, s.objects) for c, s in zip(captions, scenes, strict=True)])
    true = report["regimes"]["generated"]["objects"]["true_captions"]
    assert true["value"] == pytest.approx(100 * share, abs=0.01)
    assert true["low"] <= true["value"] <= true["high"]
    # The checkpoint of a run, with another option.
    options = ["--scenes=7", "--scene-options", "max_objects=5", "--regime=forced"]
    best = run_folder / "checkpoints" / "best.ckpt"
    report = ground(best, tmp_path / "5.json", *options)
    assert {"image size 64", "max objects 5"} <= set(report["data"].split(", "))
    scenes = [scene(0, FIRST + number, image_size=64, max_objects=5) for number in range(7)]
    assert max(len(s.objects) for s in scenes) > 3
    named = [objects for s in scenes for c in s.captions for _, objects in phrases(c, s.objects)]
    coverage = report["regimes"]["forced"]["coverage"]
    left_out = coverage["mentions_of_unknown_words"] + coverage["masks_of_whole_picture"]
    assert coverage["mentions_with_mask"] + left_out == sum(map(bool, named))


def test_data_set_without_masks(tiny_folder, tmp_path, capsys):
    captions = {f"{i}.jpg": ["a red circle", "two blue stars"] for i in range(3)}
    root = layouts.flickr8k(tmp_path / "data", {"train": {"t.jpg": ["a star"]}, "val": captions})
    for name in captions:
        layouts.picture(root / "Flicker8k_Dataset" / name)
    arguments = ["--data", "flickr8k", "--root", str(root), "--regime", "forced"]
    report = ground(tiny_folder, tmp_path / "report.json", *arguments, "--limit=2")
    part = report["regimes"]["forced"]
    assert set(part) == {"faithfulness"}
    assert part["faithfulness"]["images"] == 2
    printed = capsys.readouterr().out
    assert "flickr8k, split val" in printed
    assert "Paired" not in printed


def test_unusable_photos_are_left_out(root, run_folder, tmp_path, capsys):
    """One file is broken, and one photo was rotated after its masks were drawn."""
    shutil.copytree(root / "test", tmp_path / "photos")
    instances = json.loads((root / "annotations" / "instances_test.json").read_text())
    broken, rotated = instances["images"][:2]
    (tmp_path / "photos" / broken["file_name"]).write_text("no image")
    file = tmp_path / "photos" / rotated["file_name"]
    with Image.open(file) as image:
        image.resize((SIDE + 8, SIDE)).save(file)
    rotated.update(width=SIDE, height=SIDE + 8)
    mask = {"size": [SIDE + 8, SIDE], "counts": [0, 9, SIDE * (SIDE + 8) - 9]}
    for annotation in instances["annotations"]:
        if annotation["image_id"] == rotated["id"]:
            annotation["segmentation"] = mask
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    options = coco_files(root)
    options[1], options[5] = str(tmp_path / "instances.json"), str(tmp_path / "photos")
    output = tmp_path / "report.json"
    report = ground(run_folder, output, *options, "--regime=forced", status=1)
    part = report["regimes"]["forced"]
    assert part["images"] == part["faithfulness"]["images"] == SCENES - 2
    errors = capsys.readouterr().err
    assert f"{broken['file_name']} is not an image" in errors
    assert rotated["file_name"] in errors
    assert f"{SIDE} × {SIDE + 8} like its masks" in errors
    assert f"2 of {SCENES} photos left out" in errors


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("data: {name: shapes, shapes: {image_size: 64, test: 9}}", 64),
        ("data: {name: shapes, shapes: {image_size: wide}}", 112),
        ("data: {name: coco}", 112),
        ("- a list", 112),
        ("key: [", 112),
    ],
)
def test_scenes_are_those_of_the_training(text, size, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    given = Namespace(model=str(tmp_path / "model"), scenes=1, scene_options=None, limit=None)
    found = READERS["scenes"](given, tmp_path / "scratch")
    assert f"image size {size}, max objects 3" in found.source


def test_without_photos_the_command_says_what_it_does(run_folder, capsys):
    assert main(["ground", "--model", str(run_folder), "--limit=2", "--regime=forced"]) == 0
    assert "no photos named, so attention is scored on generated scenes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--instances", "x.json"], "give --instances --captions --images together"),
        (["--data", "flickr8k", "--root", ".", "--scenes", "3"], "got --data --root --scenes"),
        (["--data", "flickr8k", "--root", ".", "--no-faithfulness"], "leaves nothing to measure"),
        (["--scene-options", "seed=3"], "got 'seed=3'"),
        (["--scene-options", "max_objects=70"], "from 1 to 6, got 70"),
    ],
)
def test_wrong_options_are_refused(options, message, tiny_folder, capsys):
    assert main(["ground", "--model", str(tiny_folder), *options]) == 2
    assert message in capsys.readouterr().err
