"""The table of mechanisms: its commands are valid, and its figures are those of the run folders."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from captioner.language.vocabulary import START, Vocabulary
from captioner.models.annotations import Annotations
from captioner.models.captioner import PARTS, Captioner
from captioner.models.registry import build
from captioner.training import run

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import mechanisms_table  # noqa: E402
import results_page  # noqa: E402

QUICK = ("hard", "transformer")  # CI tests the others


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in mechanisms_table.TABLES["scenes"]
    ],
)
def test_every_mechanism_is_built_with_all_its_options(name, capsys):
    written = mechanisms_table.TABLES["scenes"][name].split()
    options = [f"--model.{option}" for option in written]
    with pytest.raises(SystemExit) as stopped:
        run.main(["fit", "--config", "configs/shapes.yaml", *options, "--print_config"])
    assert stopped.value.code == 0
    model = yaml.safe_load(capsys.readouterr().out)["model"]
    for option in options:
        path, _, value = option.removeprefix("--model.").partition("=")
        actual = model
        for part in path.split("."):
            actual = actual.get("init_args", actual)[part]
        actual = actual["class_path"].rpartition(".")[2] if isinstance(actual, dict) else actual
        assert str(actual).lower() == value.lower()
    trees = {part: model[part] for part in PARTS}
    captioner = Captioner.from_config(trees, Vocabulary(["a", "ring"]))
    decoder = captioner.decoder
    build("objective", model["objective"]).check(decoder)
    annotations = Annotations(torch.randn(1, 49, captioner.neck.out_dim), (7, 7))
    assert decoder(annotations, torch.full((1, 3), START)).weights.shape == (1, 3, 49)


def test_the_time_of_a_step_is_that_of_a_run(tiny_folder, tmp_path):
    run_folder = shutil.copytree(tiny_folder, tmp_path / "run")
    objective = {"class_path": "Likelihood", "init_args": {}}
    (run_folder / "config.yaml").write_text(yaml.safe_dump({"model": {"objective": objective}}))
    [(name, milliseconds)] = mechanisms_table.step_times({"tiny": run_folder}, rounds=1).items()
    assert name == "tiny"
    assert 0 < milliseconds < 60_000


def estimate(value):
    return {"value": value, "low": value - 1, "high": value + 1}


def write(folder, supervised=0.0, generated=True):
    """Write the result files of a run."""
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
        "scores": {"bleu_4": 20.0, "meteor": None, "cider": 123.45},
        "supervised_by_masks": supervised,
        "resumed": False,
    }
    (folder / "results" / "val-beam5.json").write_text(json.dumps(fit))
    model = {"pointing": estimate(80.0), "discrimination": estimate(90.0), "mass": estimate(40.0)}
    maps = {"map_entropy": estimate(1.5), "map_grad_cam": estimate(0.5)}
    regimes = {"forced": {"scores": {"model": model}, **maps}}
    if generated:
        regimes["generated"] = {"objects": {"true_captions": estimate(97.0)}}
    report = {"regimes": regimes, "data": "9 scenes", "command": "captioner ground", "commit": "a"}
    (folder / "results" / "ground.json").write_text(json.dumps(report))
    return folder


def test_the_page_has_the_figures_of_the_runs(tmp_path):
    runs = [write(tmp_path / "a"), write(tmp_path / "b", generated=False), write(tmp_path / "c", 1)]
    for folder in (runs[0], runs[2]):
        harder = json.loads((folder / "results" / "ground.json").read_text())
        harder["regimes"]["forced"]["scores"]["model"]["pointing"] = estimate(70.0)
        harder = harder | {"data": "7 scenes"}
        (folder / "results" / "harder.json").write_text(json.dumps(harder))
    output = tmp_path / "mechanisms.json"
    mechanisms_table.main(["collect", *map(str, runs), "--output", str(output)])
    tables = results_page.Tables({"mechanisms": json.loads(output.read_text())})
    alone, supervised = (tables.mechanisms(masks).splitlines() for masks in (False, True))
    numbers = "2.00 M | 1.5 | 123.5 | 97.0 [96.0, 98.0] | 80.0 [79.0, 81.0] | 90.0 [89.0, 91.0]"
    rest = "40.0 [39.0, 41.0] | 1.50 [0.50, 2.50]"
    rest += " | 97.0 [96.0, 98.0] | 70.0 [69.0, 71.0] | 90.0 [89.0, 91.0] |"
    assert f"| a: Additive × Soft | {numbers} | {rest}" in alone
    [other] = [line for line in alone if line.startswith("| b:")]
    assert "| 123.5 | – | 80.0" in other
    assert other.endswith("| – | – | – |")
    assert f"| c: Additive × Soft | {numbers} | {rest}" in supervised


def test_the_table_of_designs_has_the_time_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(mechanisms_table, "step_times", lambda runs: dict.fromkeys(runs, 12.3))
    run_folder, output = write(tmp_path / "luong-dot", generated=False), tmp_path / "designs.json"
    mechanisms_table.main(["collect", str(run_folder), "--time", "--output", str(output)])
    page = results_page.Tables({"designs": json.loads(output.read_text())}).designs()
    numbers = "2.0 M | 12 | 20.0 | – | 123.5 | 90.0 [89.0, 91.0] | 80.0 [79.0, 81.0]"
    row = f"| luong-dot: Additive × Soft | {numbers} | 40.0 [39.0, 41.0] | 1.50 [0.50, 2.50] |"
    assert row in page.splitlines()
