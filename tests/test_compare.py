"""captioner compare: differences with intervals, settings kept apart, files, and what goes wrong."""

import csv
import io
import json
import random
import statistics as plain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocoevalcap.bleu.bleu import Bleu

from captioner.cli import main
from captioner.compare import names
from captioner.comparison.forms import markdown, table_csv, table_json
from captioner.comparison.plots import Axis
from captioner.comparison.results import read_run
from captioner.comparison.table import compare
from captioner.evaluation.captions import CaptionScorer
from captioner.evaluation.tallies import ENDING, Tally, lines

WORDS = ["a", "red", "dog", "runs", "on", "the", "green", "grass", "with", "ball"]
IMAGES = 60
DECODING = {"beam_size": 5, "max_length": 24, "length_penalty": 0.9, "samples": 1}


def sentences(seed):
    draw = random.Random(seed)
    return {i: " ".join(draw.choices(WORDS, k=9)) for i in range(IMAGES)}


TRUTH = sentences(0)
SCORER = CaptionScorer({i: [text] for i, text in TRUTH.items()}, java=False, tokenizer=str.split)


def captions(seed, wrong):
    """The references, some of their words exchanged."""
    draw = random.Random(seed)
    return {
        i: " ".join(draw.choice(WORDS) if draw.random() < wrong else w for w in text.split())
        for i, text in TRUTH.items()
    }


def write(root, name, said, file="val-beam5", tallies=True, **record):
    """A run folder with a result as captioner fit writes it."""
    scores, each = SCORER.judge(said)
    folder = root / name / "results"
    folder.mkdir(parents=True, exist_ok=True)
    whole = {
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
        **record,
    }
    (folder / f"{file}.json").write_text(json.dumps(whole))
    if tallies:
        (folder / f"{file}{ENDING}").write_text(lines(each))
    return root / name


@pytest.fixture
def bad(tmp_path):
    return write(tmp_path, "bad", captions(1, 0.5))


@pytest.fixture
def good(tmp_path):
    return write(tmp_path, "good", captions(2, 0.2), parameters=1)


def compared(*folders, **options):
    return compare(
        [read_run(f, n) for f, n in zip(folders, names(folders), strict=True)], **options
    )


def group(comparison, section):
    [found] = [g for g in comparison.groups if g.section == section]
    return found


def test_a_better_run_has_intervals_above_zero(bad, good):
    found = group(compared(bad, good), "captions")
    assert found.setting.startswith("toy val, 60 pictures, beam size 5")
    for measure in ("bleu_1", "bleu_4", "rouge_l", "cider"):
        first, second = found.rows[measure]
        assert (first.difference, first.paired) == (None, None)
        assert second.paired.low > 0
        assert second.paired.low < second.difference < second.paired.high
        assert second.difference == pytest.approx(second.value - first.value)
        assert first.interval.low < first.value < first.interval.high
    reverse = group(compared(good, bad), "captions").rows["bleu_4"][1].paired
    assert reverse.high < 0


def test_the_interval_of_bleu_is_that_of_scoring_resamples(bad, good):
    """A plain loop over resamples of the images, each scored by coco-caption's own scorer."""
    worse, better = captions(1, 0.5), captions(2, 0.2)
    draw = random.Random(5)
    differences = []
    for _ in range(150):
        drawn = dict(enumerate(draw.choices(range(IMAGES), k=IMAGES)))
        truth = {place: [TRUTH[image]] for place, image in drawn.items()}
        one, other = (
            Bleu(4).compute_score(truth, {p: [said[i]] for p, i in drawn.items()}, verbose=0)[0][3]
            for said in (worse, better)
        )
        differences.append(100 * (other - one))
    found = group(compared(bad, good), "captions").rows["bleu_4"][1].paired
    assert plain.mean(differences) == pytest.approx(found.value, abs=0.1 * (found.high - found.low))
    half = 1.96 * plain.stdev(differences)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.2)


def test_identical_runs_differ_by_nothing(tmp_path, bad):
    same = write(tmp_path, "same", captions(1, 0.5))
    comparison = compared(bad, same, bad)
    assert comparison.columns == [str(bad), "same", f"{bad} (2)"] or comparison.columns[1] == "same"
    for rows in (g.rows for g in comparison.groups):
        for cells in rows.values():
            for cell in cells[1:]:
                assert cell.difference == 0
                if cell.paired:
                    assert (cell.paired.value, cell.paired.low, cell.paired.high) == (0, 0, 0)
    assert "0.0 [0.0, 0.0]" in markdown(comparison)
    assert "**0" not in markdown(comparison)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"split": "test"}, "toy test"),
        ({"data": "other"}, "other val"),
        ({"decoding": {**DECODING, "beam_size": 3}}, "beam size 3"),
        ({"decoding": {**DECODING, "length_penalty": 0.0}}, "length penalty 0.0"),
        ({"scores": {"bleu_4": 30.0, "tokenizer": "ptb", "images": 60}}, "ptb tokenizer"),
        ({"scores": {"bleu_4": 30.0, "tokenizer": "custom", "images": 59}}, "59 pictures"),
    ],
)
def test_what_was_scored_otherwise_is_never_in_one_row(tmp_path, bad, change, said):
    other = write(tmp_path, "other", captions(2, 0.2), tallies="scores" not in change, **change)
    comparison = compared(bad, other)
    first, second = (g for g in comparison.groups if g.section == "captions")
    assert said not in first.setting
    assert said in second.setting
    for cells in first.rows.values():
        assert cells[1] is None
    for cells in second.rows.values():
        assert cells[0] is None
        assert cells[1].difference is None
    assert any("captions: measured in 2 different settings" in note for note in comparison.notes)
    assert "captions: bad was not measured in a setting that others were" in markdown(comparison)


def test_a_run_measured_twice_in_a_setting_has_two_columns(tmp_path, bad):
    hard = write(tmp_path, "hard", captions(3, 0.4), "val-beam5-argmax")
    write(tmp_path, "hard", captions(4, 0.3), "val-beam5-sample")
    comparison = compared(bad, hard)
    assert comparison.columns == ["bad", "hard", "hard: val-beam5-sample"]
    rows = group(comparison, "captions").rows
    assert len({cell.value for cell in rows["bleu_4"]}) == 3
    assert group(comparison, "size").rows["trained_parameters"][2] is None


def test_speed_and_size(bad, good, tmp_path):
    comparison = compared(bad, good)
    assert group(comparison, "size").rows["trained_parameters"][1].value == 1
    captioning, training = (g for g in comparison.groups if g.section == "speed")
    assert "a computer" in captioning.setting
    assert captioning.rows["captioning_images_per_second"][0].value == 30
    assert training.rows["training_minutes"][0].value == 1.5
    resumed = write(tmp_path, "resumed", captions(1, 0.5), resumed=True)
    found = compared(bad, resumed)
    [minutes] = [g.rows["training_minutes"] for g in found.groups if "training_minutes" in g.rows]
    assert minutes[1] is None
    assert any("resumed: its training was interrupted" in note for note in found.notes)


def test_without_tallies_there_are_differences_but_no_intervals(tmp_path, bad):
    other = write(tmp_path, "old", captions(2, 0.2), tallies=False)
    comparison = compared(bad, other)
    cell = group(comparison, "captions").rows["bleu_4"][1]
    assert cell.difference > 0
    assert cell.paired is None
    assert any("a difference without an interval" in note for note in comparison.notes)


def test_tallies_of_other_scores_are_not_believed(tmp_path, bad, good):
    stale = (bad / "results" / f"val-beam5{ENDING}").read_text()
    (good / "results" / f"val-beam5{ENDING}").write_text(stale)
    comparison = compared(bad, good)
    assert group(comparison, "captions").rows["bleu_4"][1].paired is None
    assert any("its tallies of images are of other scores" in note for note in comparison.notes)


def test_other_pictures_are_not_paired(bad, good):
    file = good / "results" / f"val-beam5{ENDING}"
    file.write_text(file.read_text().replace('"image_id": 7,', '"image_id": 700,'))
    comparison = compared(bad, good)
    assert group(comparison, "captions").rows["bleu_4"][1].paired is None
    assert any("good: scored on other pictures than bad" in note for note in comparison.notes)


def report(root, values, asked="the same"):
    """A report on attention as captioner ground writes it, and what each image adds to two measures."""
    estimate = {"value": float(np.mean(values)), "low": 0.0, "high": 1.0}
    scores = {
        "model": {
            "pointing": estimate,
            "discrimination": {"value": None, "low": None, "high": None},
        },
        "uniform": {"pointing": {"value": 9.0, "low": 8.0, "high": 10.0}},
    }
    falls = {
        order: [{"value": value, "low": value - 1, "high": value + 1}] * 2
        for order, value in (("most", 3.0), ("least", 1.0))
    }
    content = {"area_most": estimate, "falls": falls, "words": 3}
    forced = {
        "regime": "forced",
        "images": 9,
        "scores": scores,
        "delta": {"pointing": estimate},
        "faithfulness": {
            "measure": "faithfulness",
            "regime": "forced",
            "images": 9,
            "shares": [0.1, 0.5],
            "scores": {"content": content},
        },
    }
    (root / "results" / "ground.json").write_text(json.dumps({"regimes": {"forced": forced}}))
    each = [
        Tally(i, ratios, part=f"forced.{part}", asked=asked)
        for i, value in enumerate(values.tolist())
        for part, ratios in (
            ("grounding", {"pointing": (value, 1.0)}),
            ("faithfulness", {"content.area_most": (2 * value, 2.0)}),
        )
    ]
    (root / "results" / f"ground{ENDING}").write_text(lines(each))


def test_grounding_and_faithfulness(bad, good):
    values = np.random.default_rng(0).normal(0, 1, 30)
    report(bad, values)
    report(good, values + 0.5)
    comparison = compared(bad, good)
    grounding, faithfulness = (group(comparison, s) for s in ("grounding", "faithfulness"))
    assert grounding.setting == faithfulness.setting == "9 pictures, forced captions"
    assert list(grounding.rows) == ["pointing", "lead_over_time_averaged_map.pointing"]
    for cells in (grounding.rows["pointing"], faithfulness.rows["content.area_most"]):
        paired = cells[1].paired
        assert (paired.value, paired.low, paired.high) == pytest.approx((0.5, 0.5, 0.5))
    assert list(faithfulness.rows) == ["content.area_most"]
    curve = faithfulness.results[0].curves["content", "most"]
    assert (curve.shares, [fall.value for fall in curve.falls]) == ((0.1, 0.5), [3, 3])
    assert grounding.results[0].curves == {}


def test_what_was_asked_about_other_words_is_not_paired(bad, good):
    report(bad, np.arange(30.0))
    report(good, np.arange(30.0) + 1, asked="something else")
    comparison = compared(bad, good)
    for section in ("grounding", "faithfulness"):
        cells = next(iter(group(comparison, section).rows.values()))
        assert cells[1].difference == pytest.approx(1)
        assert cells[1].paired is None
        said = f"{section}: good: scored on other words or mentions than bad"
        assert any(note.startswith(said) for note in comparison.notes)


def test_supervised_by_masks_is_a_track_of_its_own(tmp_path, bad):
    """Never in one row with what learned from captions alone; beside its own kind."""
    told, other = (
        write(tmp_path, name, captions(2, 0.2), supervised_by_masks=0.5) for name in ("told", "kin")
    )
    comparison = compared(told, bad, other)
    alone, supervised = sorted(
        (g for g in comparison.groups if g.section == "captions"),
        key=lambda g: "supervised by masks" in g.setting,
    )
    assert "supervised" not in alone.setting
    assert supervised.setting.endswith("attention supervised by masks")
    assert [cell is None for cell in supervised.rows["cider"]] == [False, True, False]
    assert [cell is None for cell in alone.rows["cider"]] == [True, False, True]


def test_a_run_without_a_report_has_a_dash(bad, good):
    report(good, np.ones(5))
    comparison = compared(bad, good)
    assert group(comparison, "grounding").rows["pointing"][0] is None
    assert "| pointing | – | 1.0 |" in markdown(comparison)


def test_the_forms_agree(bad, good):
    comparison = compared(bad, good)
    tree = json.loads(table_json(comparison))
    rows = list(csv.DictReader(io.StringIO(table_csv(comparison))))
    captions = next(g for g in tree["groups"] if g["section"] == "captions")
    cell = captions["measures"]["cider"]["good"]
    [row] = [r for r in rows if (r["measure"], r["run"]) == ("cider", "good")]
    assert float(row["value"]) == cell["value"]
    assert float(row["difference_low"]) == cell["paired"]["low"]
    assert float(row["high"]) == cell["interval"]["high"]
    low, high = (f"{cell['paired'][end]:+.1f}" for end in ("low", "high"))
    line = f"{cell['value']:.1f} (**{cell['difference']:+.1f} [{low}, {high}]**) |"
    [found] = [text for text in markdown(comparison).splitlines() if text.startswith("| CIDEr")]
    assert found.endswith(line)
    assert tree["runs"] == ["bad", "good"]


def test_the_command(bad, good, tmp_path, capsys):
    report(bad, np.ones(5))
    assert main(["compare", str(bad), str(good), "--resamples=50"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("|  | bad | good |\n")
    output = tmp_path / "made" / "here"
    assert main(["compare", str(bad), str(good), "--resamples=50", "--output", str(output)]) == 0
    files = {file.name for file in output.iterdir()}
    assert files == {*(f"table.{form}" for form in ("md", "csv", "json"))} | {
        *("captions.png", "grounding.png", "faithfulness.png", "faithfulness-curves.png"),
        *("speed.png", "speed-2.png", "size.png"),
    }
    assert (output / "table.md").read_text("utf-8") == printed
    assert sorted(capsys.readouterr().out.split()) == sorted(map(str, output.iterdir()))
    for file in output.glob("*.png"):
        with Image.open(file) as picture:
            assert len(picture.getcolors(1 << 24)) > 5, file.name  # something is drawn


def test_where_a_dot_is(bad, good):
    """Numbers and pixels go together, and ticks are where they say."""
    axis = Axis(10.0, 20.0, 100, 300)
    assert axis(15.0) == 200
    assert 100 < axis(10.0) < axis(20.0) < 300
    assert [axis.label(tick) for tick in axis.ticks] == ["10", "15", "20"]
    assert Axis(3.0, 3.0, 0, 100)(3.0) == 50
    assert Axis(0.0, 5_969_519, 0, 100).label(4e6) == "4 M"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no run 'nowhere'; give run folders"),
        (["empty"], "'empty' has no results: expected scores in results/*.json"),
        (["broken"], r"'broken/results/x.json' cannot be read"),
        (["bad", "--resamples=0"], "--resamples 0"),
        (["bad", "--output=file"], "cannot write to 'file': it is a file"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_what_goes_wrong_is_one_line(arguments, message, bad, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("empty/results").mkdir(parents=True)
    Path("empty/results/val-captions.json").write_text('[{"image_id": 1, "caption": "a"}]')
    Path("broken/results").mkdir(parents=True)
    Path("broken/results/x.json").write_text("{")
    Path("file").write_text("")
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_names():
    paths = [Path("runs/a"), Path("runs/b"), Path("old/a"), Path("runs/b/.")]
    assert names(paths) == ["runs/a", "runs/b", "old/a", "runs/b (2)"]


def test_a_real_run_can_be_compared(run_folder):
    """What captioner fit writes is what compare reads, tallies and all."""
    found = group(compared(run_folder, run_folder, resamples=20), "captions")
    scores = json.loads(next(run_folder.glob("results/*.json")).read_text())["scores"]
    for measure in ("bleu_4", "cider", "rouge_l"):
        first, second = found.rows[measure]
        assert first.value == scores[measure]
        assert first.interval.low <= first.value <= first.interval.high
        assert second.paired.high == 0
