"""The table of mechanisms: its commands parse, and it has what run folders say."""

import json
import shlex
import sys
from pathlib import Path

import pytest
import torch
import yaml

from captioner.models.annotations import Annotations
from captioner.models.captioner import PARTS, Captioner
from captioner.models.registry import build
from captioner.text import START, Vocabulary
from captioner.training import run

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import mechanisms_table  # noqa: E402
import results_page  # noqa: E402
import results_speed  # noqa: E402
from speed import clock  # noqa: E402


@pytest.fixture(scope="module")
def printed():
    return [shlex.split(line) for line in mechanisms_table.commands(Path("runs/all"), ["level=x"])]


def test_there_are_at_least_ten_and_each_is_measured_twice(printed):
    assert len(mechanisms_table.MECHANISMS) >= 10
    assert len(printed) == 3 * len(mechanisms_table.MECHANISMS)
    assert {line[1] for line in printed} == {"fit", "ground"}
    assert sum("level=x" in line for line in printed) == len(mechanisms_table.MECHANISMS)


QUICK = ("hard", "multi-head", "transformer")  # the others in CI


@pytest.mark.parametrize(
    "name",
    [
        n if n in QUICK else pytest.param(n, marks=pytest.mark.slow)
        for n in mechanisms_table.MECHANISMS
    ],
)
def test_every_mechanism_is_built(name, capsys):
    """Of what the configuration says with all options in it: nothing is refused, or silently lost."""
    options = mechanisms_table.MECHANISMS[name]
    with pytest.raises(SystemExit) as stopped:
        run.main(["fit", "--config", "configs/shapes.yaml", *options, "--print_config"])
    assert stopped.value.code == 0
    model = yaml.safe_load(capsys.readouterr().out)["model"]
    for option in options:
        path, _, value = option.removeprefix("--model.").partition("=")
        told = model
        for part in path.split("."):
            told = told[part]
        told = told["class_path"].rpartition(".")[2] if isinstance(told, dict) else told
        assert str(told).lower() == value.lower()
    trees = {part: model[part] for part in PARTS}
    decoder = Captioner.from_config(trees, Vocabulary(["a", "ring"])).decoder
    build("objective", model["objective"]).check(decoder)
    looked = decoder(
        Annotations(torch.randn(1, 49, 256), (7, 7)), torch.full((1, 3), START)
    ).weights
    assert looked.shape == (1, 3, 49)


def estimate(value):
    return {"value": value, "low": value - 1, "high": value + 1}


def write(folder, told=0.0, generated=True):
    (folder / "results").mkdir(parents=True)
    fit = {
        "command": "captioner fit",
        "commit": "abc",
        "machine": "m",
        "seed": 1,
        "split": "val",
        "mechanism": "Additive × Soft",
        "parameters": 2_000_000,
        "training_seconds": 90,
        "scores": {"cider": 123.45},
        "supervised_by_masks": told,
        "resumed": False,
    }
    (folder / "results" / "val-beam5.json").write_text(json.dumps(fit))
    model = {"pointing": estimate(80.0), "discrimination": estimate(90.0), "mass": estimate(40.0)}
    regimes = {
        "forced": {
            "scores": {"model": model},
            "map_entropy": estimate(1.5),
            "map_grad_cam": estimate(0.5),
        }
    }
    if generated:
        regimes["generated"] = {"objects": {"true_captions": estimate(97.0)}}
    report = {"regimes": regimes, "data": "9 scenes", "command": "captioner ground", "commit": "a"}
    (folder / "results" / "ground.json").write_text(json.dumps(report))
    return folder


def test_the_page_has_what_the_runs_say(tmp_path):
    runs = [write(tmp_path / "a"), write(tmp_path / "b", generated=False), write(tmp_path / "c", 1)]
    output = tmp_path / "mechanisms.json"
    mechanisms_table.main([*map(str, runs), "--output", str(output)])
    lines = results_page.mechanisms_section(json.loads(output.read_text()))
    numbers = "2.00 M | 1.5 | 123.5 | 97.0 [96.0, 98.0] | 80.0 [79.0, 81.0] | 90.0 [89.0, 91.0]"
    rest = "40.0 [39.0, 41.0] | 1.50 [0.50, 2.50] | 0.50 [-0.50, 1.50] |"
    alone = lines.index("### 9 scenes")
    supervised = lines.index("### Attention supervised by masks, a track of its own: 9 scenes")
    assert f"| a: Additive × Soft | {numbers} | {rest}" in lines[alone:supervised]
    [other] = [line for line in lines[alone:supervised] if line.startswith("| b:")]
    assert "| 123.5 | – | 80.0" in other
    assert f"| c: Additive × Soft | {numbers} | {rest}" in lines[supervised:]


def test_a_run_that_lacks_something_is_named(tmp_path):
    folder = write(tmp_path / "a")
    (folder / "results" / "ground.json").unlink()
    with pytest.raises(SystemExit, match="has no results of captioner ground; --commands prints"):
        mechanisms_table.main([str(folder), "--output", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()


def test_the_page_has_a_table_for_all_that_the_benchmark_measures():
    times = {"plain_float32": 9.0, "ours_float32": 2.0, "floor_float32": 1.5}
    both = {f"{key}_{kind}": 0.5 for key in ("times_plain", "of_floor") for kind in clock.KINDS} | {
        "milliseconds": times,
        "images_per_second": times,
    }
    sizes = {"captions": 80, "L": 49, "V": 2500, "T": 21, "photos": 7, "batch": 3}
    rows = {
        "train": [{"row": "train a", **sizes, **both}],
        "caption": [{"row": "caption a", "beam": 5, **sizes, **both, "same_in_bfloat16": 6}],
        "files": [
            {"row": "cache a", **sizes, "of_bare_cnn": 0.91, "images_per_second": times},
            {
                "row": "files a",
                "beam": 4,
                **sizes,
                "of_bare_cnn": 0.87,
                "median_size": "500 × 375",
                "of_folded_cnn": 0.66,
                "of_torch_cnn": 0.98,
                "images_per_second": times,
            },
            {"row": "batching a", **sizes, "images_per_second": times, "same_sentences": 6},
            {"row": "cold", "seconds": {"help": 0.25}},
        ],
        "memory": [
            {"row": "memory: a", **sizes, "seconds": 3, "peak_megabytes": {"RssAnon": 1234}}
        ],
        "quality": [
            {
                "row": "quality: a",
                "precision": "bf16-mixed",
                "epochs": 4,
                "minutes": 9.5,
                "scores": {"bleu_4": 21.5},
                "peak_megabytes": {"RssAnon": 1234},
            }
        ],
    }
    about = {"command": "python x", "commit": "abc", "machine": "M"}
    records = {f"speed-{part}": {"rows": found, **about} for part, found in rows.items()}
    page = "\n".join(results_speed.speed_section(records))
    for row in (row for found in rows.values() for row in found):
        assert f"| {row['row']} |" in page
    assert (
        "| files a | 4 | 7 | 500 × 375 | 87 % | 66 % | 98 % "
        "| plain float32 9.0, ours float32 2.0, floor float32 1.5 |" in page
    )
    assert "RssAnon 1,234" in page
    assert "0.50, 0.50 | 50 %, 50 % | – | 6.00 |" in page
