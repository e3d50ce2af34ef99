"""``captioner compare``: differences with intervals, separate settings, files, and errors."""

import csv
import io
import json
import random
import statistics

import numpy as np
import pytest
from PIL import Image
from pycocoevalcap.bleu.bleu import Bleu

from captioner.cli.main import main
from captioner.comparison.formats import markdown
from captioner.comparison.run_results import read_run
from captioner.comparison.table import compare
from captioner.evaluation.image_statistics import ENDING, ImageStatistics, lines
from captioner.evaluation.metrics import CaptionScorer

WORDS = ["a", "red", "dog", "runs", "on", "the", "green", "grass", "with", "ball"]
IMAGES = 60
DECODING = {"beam_size": 5, "max_length": 24, "length_penalty": 0.9, "samples": 1}
REFERENCES = {i: " ".join(random.Random(i).choices(WORDS, k=9)) for i in range(IMAGES)}
SCORER = CaptionScorer(
    {i: [text] for i, text in REFERENCES.items()}, java=False, tokenizer=str.split
)


def captions(seed, error_rate):
    """The references with some words replaced at random."""
    rng = random.Random(seed)
    return {
        i: " ".join(rng.choice(WORDS) if rng.random() < error_rate else w for w in text.split())
        for i, text in REFERENCES.items()
    }


WORSE, BETTER = captions(1, 0.5), captions(2, 0.2)


def write(root, name, texts, file="val-beam5", **changes):
    """Write a run folder with a result like that of captioner fit."""
    scores, image_statistics = SCORER.per_image_scores(texts)
    folder = root / name / "results"
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "data": "toy",
        "split": "val",
        "scores": scores.as_dict(),
        "decoding": DECODING,
        "parameters": 5_969_519,
        "captioning_seconds": 2.0,
        "annotations": "cached",
        "training_seconds": 90,
        "resumed": False,
        "machine": "a computer",
        "torch": "2",
        **changes,
    }
    (folder / f"{file}.json").write_text(json.dumps(record))
    if "scores" not in changes:
        (folder / f"{file}{ENDING}").write_text(lines(image_statistics))
    return root / name


@pytest.fixture
def bad(tmp_path):
    return write(tmp_path, "bad", WORSE)


@pytest.fixture
def good(tmp_path):
    return write(tmp_path, "good", BETTER, parameters=1)


def compare_folders(*folders):
    return compare({folder.name: read_run(folder) for folder in folders})


def paired(cell):
    return cell.difference_low, cell.difference, cell.difference_high


def group(comparison, section):
    [only] = [g for g in comparison.groups if g.section == section]
    return only


def has_note(comparison, text):
    return any(text in note for note in comparison.notes)


def test_a_better_run_has_intervals_above_zero(bad, good):
    captions = group(compare_folders(bad, good), "captions")
    assert captions.setting.startswith("toy val, 60 images, beam size 5")
    for measure in ("bleu_1", "bleu_4", "rouge_l", "cider"):
        first, second = captions.rows[measure]
        assert paired(first) == (None, None, None)
        assert 0 < second.difference_low < second.difference < second.difference_high
        assert second.difference == pytest.approx(second.value - first.value)
        assert first.low < first.value < first.high
    assert group(compare_folders(good, bad), "captions").rows["bleu_4"][1].difference_high < 0


def test_the_interval_of_bleu_equals_scoring_resamples(bad, good):
    """A plain loop over resamples of the images, each scored by coco-caption's own scorer."""
    rng = random.Random(5)
    differences = []
    for _ in range(150):
        drawn = dict(enumerate(rng.choices(range(IMAGES), k=IMAGES)))
        references = {index: [REFERENCES[image]] for index, image in drawn.items()}
        worse, better = (
            Bleu(4).compute_score(references, {p: [texts[i]] for p, i in drawn.items()}, verbose=0)
            for texts in (WORSE, BETTER)
        )
        differences.append(100 * (better[0][3] - worse[0][3]))
    low, difference, high = paired(group(compare_folders(bad, good), "captions").rows["bleu_4"][1])
    width = high - low
    assert statistics.mean(differences) == pytest.approx(difference, abs=0.1 * width)
    assert width / 2 == pytest.approx(1.96 * statistics.stdev(differences), rel=0.2)


def test_identical_runs_have_no_differences(tmp_path, bad, capsys):
    same = write(tmp_path / "elsewhere", "bad", WORSE)
    assert main(["compare", str(bad), str(same), str(bad)]) == 0  # a folder named twice is one run
    printed = capsys.readouterr().out
    assert [cell.strip() for cell in printed.split("\n")[0].split("|")[2:4]] == [
        str(bad),
        str(same),
    ]
    assert printed.count("(0.0 [0.0, 0.0])") == 6
    assert "**0" not in printed


@pytest.mark.parametrize(
    ("changes", "heading"),
    [
        ({"decoding": {**DECODING, "beam_size": 3}}, "beam size 3"),
        ({"scores": {"bleu_4": 30.0, "tokenizer": "ptb", "images": 60}}, "ptb tokenizer"),
        ({"supervised_by_masks": 0.5}, "attention supervised by masks"),
    ],
)
def test_different_settings_never_share_a_row(tmp_path, bad, changes, heading):
    comparison = compare_folders(bad, write(tmp_path, "other", BETTER, **changes))
    first, second = (g for g in comparison.groups if g.section == "captions")
    assert heading not in first.setting
    assert heading in second.setting
    assert all(cells[1] is None for cells in first.rows.values())
    assert all(cells[0] is None for cells in second.rows.values())
    assert all(cells[1].difference is None for cells in second.rows.values())
    assert has_note(comparison, "captions: measured in 2 different settings")
    assert "captions: bad was not measured in this setting" in markdown(comparison)


def test_speed_and_size(bad, good, tmp_path):
    comparison = compare_folders(bad, good)
    assert group(comparison, "size").rows["trained_parameters"][1].value == 1
    captioning, training = (g for g in comparison.groups if g.section == "speed")
    assert "a computer" in captioning.setting
    assert captioning.rows["captioning_images_per_second"][0].value == 30
    assert training.rows["training_minutes"][0].value == 1.5
    comparison = compare_folders(bad, write(tmp_path, "resumed", WORSE, resumed=True))
    [minutes] = [g.rows[m] for g in comparison.groups for m in g.rows if m == "training_minutes"]
    assert minutes[1] is None


def test_without_matching_statistics_there_is_no_interval(bad, good):
    file = good / "results" / f"val-beam5{ENDING}"
    file.write_text(file.read_text().replace('"image_id": 7,', '"image_id": 700,'))
    comparison = compare_folders(bad, good)
    cell = group(comparison, "captions").rows["bleu_4"][1]
    assert cell.difference > 0
    assert cell.difference_low is None
    assert has_note(comparison, "good: scored on other images than bad")
    file.unlink()
    note = "good: val-beam5 has no per-image statistics; no intervals"
    assert has_note(compare_folders(bad, good), note)


def write_report(root, values, words="the same"):
    """Write a report of captioner ground, with the values of each image for two measures."""
    estimate = {"value": float(np.mean(values)), "low": 0.0, "high": 1.0}
    unknown = {"value": None, "low": None, "high": None}
    common = {"regime": "forced", "images": 9}
    scores = {"content": {"area_most": estimate, "verdict": "holds", "words": 3}}
    of_maps = {"pointing": estimate, "discrimination": unknown}
    forced = {
        **common,
        "grid": [7, 7],
        "scores": {"model": of_maps, "uniform": {"pointing": estimate}},
        "delta": {"pointing": estimate},
        "faithfulness": common | {"scores": scores},
    }
    (root / "results" / "ground.json").write_text(json.dumps({"regimes": {"forced": forced}}))
    image_statistics = [
        ImageStatistics(i, ratios, part=f"forced.{part}", scored=words)
        for i, value in enumerate(values.tolist())
        for part, ratios in (
            ("grounding", {"pointing": (value, 1.0)}),
            ("faithfulness", {"content.area_most": (2 * value, 2.0)}),
        )
    ]
    (root / "results" / f"ground{ENDING}").write_text(lines(image_statistics))


def test_grounding_and_faithfulness(bad, good):
    values = np.random.default_rng(0).normal(0, 1, 30)
    write_report(bad, values)
    write_report(good, values + 0.5)
    comparison = compare_folders(bad, good)
    grounding, faithfulness = (group(comparison, s) for s in ("grounding", "faithfulness"))
    assert grounding.setting == "9 images, forced captions, grid 7 × 7"
    assert faithfulness.setting == "9 images, forced captions"
    assert list(grounding.rows) == ["pointing", "lead_over_time_averaged_map.pointing"]
    assert list(faithfulness.rows) == ["content.area_most"]
    for cells in (grounding.rows["pointing"], faithfulness.rows["content.area_most"]):
        assert paired(cells[1]) == pytest.approx((0.5, 0.5, 0.5))
    # Reports on other words are not paired.
    write_report(good, values + 1, words="others")
    comparison = compare_folders(bad, good)
    for section in ("grounding", "faithfulness"):
        cells = next(iter(group(comparison, section).rows.values()))
        assert cells[1].difference == pytest.approx(1)
        assert cells[1].difference_low is None
        assert has_note(comparison, f"{section}: good: scored on other words or mentions than bad")


def test_the_command_writes_tables_and_plots(bad, good, tmp_path, capsys):
    write_report(good, np.ones(5))
    assert main(["compare", str(bad), str(good)]) == 0
    printed = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    assert cells[0] == ["", "bad", "good"]
    assert ["pointing", "–", "1.0"] in cells
    output = tmp_path / "new" / "folder"
    assert main(["compare", str(bad), str(good), "--output", str(output)]) == 0
    plots = "captions grounding faithfulness speed speed-2 size"
    expected = {*(f"{name}.png" for name in plots.split()), "table.md", "table.csv", "table.json"}
    assert {file.name for file in output.iterdir()} == expected
    assert sorted(capsys.readouterr().out.split()) == sorted(map(str, output.iterdir()))
    for file in output.glob("*.png"):
        with Image.open(file) as image:
            assert len(image.getcolors(1 << 24)) > 5, f"{file.name} is empty"
    # The formats agree.
    assert (output / "table.md").read_text("utf-8") == printed
    tree = json.loads((output / "table.json").read_text("utf-8"))
    rows = list(csv.DictReader(io.StringIO((output / "table.csv").read_text("utf-8"))))
    assert rows == [
        {k: "" if v is None else str(v) for k, v in r.items()} for r in tree["measures"]
    ]
    [row] = [r for r in tree["measures"] if (r["measure"], r["run"]) == ("cider", "good")]
    low, high = row["difference_low"], row["difference_high"]
    expected = f"{row['value']:.1f} (**{row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]**)"
    assert next(line for line in cells if line[0] == "CIDEr")[2] == expected
    assert tree["runs"] == ["bad", "good"]


def test_what_is_no_folder_of_results_is_refused(tmp_path, refused):
    assert "no such folder: 'luong-dot'; for a model, give" in refused("compare", "luong-dot")
    assert "has no results: expected scores in" in refused("compare", str(tmp_path))
